package fsck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/go-json-experiment/json"

	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

// A bound is one receipt, as far as sessions are concerned.
type bound struct {
	sequence uint64
	session  string
	kind     string
}

// journals proves both journals and opens what proves over the view.
func (k *check) journals(ctx context.Context) error {
	if k.Store != "" && k.provable(k.Store) {
		if err := k.openStore(); err != nil {
			return err
		}
	}
	if k.provable(k.Journal) {
		return k.openReceipts(ctx)
	}
	return nil
}

// provable reports whether the journal at path is there and can be read, but for
// a torn tail.
func (k *check) provable(path string) bool {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false // never begun, unless the other journal knows better
	}
	verdict, err := journal.VerifyFile(path, journal.VerifyOptions{})
	switch {
	case verdict.Status == journal.StatusClean:
		return true
	case verdict.Status == journal.StatusTorn:
		k.view.cut[path] = verdict.Offset
		k.report(JournalTorn, path, fmt.Sprintf("%d bytes after record %d were never acknowledged", verdict.Bytes, verdict.Records),
			"cut them and keep them beside the journal", func(context.Context, *repairer) (string, error) {
				r, err := journal.Repair(nil, path, true)
				return fmt.Sprintf("cut %d bytes; they are kept in %s", r.Bytes, r.Kept), err
			})
		return true
	case verdict.Status == journal.StatusCorrupt && verdict.Archive != "" && k.moved(path, verdict.Archive):
		return true // an archive that its owner keeps elsewhere
	}
	message := verdict.Message
	if err != nil {
		message = err.Error()
	}
	k.damaged(path, message)
	return false
}

func (k *check) moved(path, archive string) bool {
	_, err := os.Lstat(filepath.Join(filepath.Dir(path), archive))
	return errors.Is(err, fs.ErrNotExist)
}

func (k *check) damaged(path, message string) {
	k.report(JournalDamaged, path, message, "no complete record is ever cut: glove journal verify "+path+", and compare it with a copy", nil)
}

// unreadable reports a journal that proves but does not replay, unless a process
// writes it, which is no time to compare.
func (k *check) unreadable(path string, err error) error {
	if errors.Is(err, journal.ErrLocked) {
		return err
	}
	k.damaged(path, err.Error())
	return nil
}

func (k *check) openStore() error {
	store, err := session.Open(k.Store, session.Options{Clock: k.Clock, FS: &k.view})
	if err != nil {
		return k.unreadable(k.Store, err)
	}
	k.store = store
	k.reportRotation(k.Store)
	if k.records, err = store.List(); err != nil {
		return err
	}
	for _, r := range k.records {
		k.byID[r.SessionID] = r
	}
	return nil
}

// openReceipts proves the chain of receipts under the audit key.
func (k *check) openReceipts(ctx context.Context) error {
	p, err := receipt.New(receipt.Options{KeyPath: k.AuditKey, JournalPath: k.Journal, Clock: k.Clock, FS: &k.view})
	if err != nil {
		return err
	}
	_, err = p.Page(ctx, receipt.Genesis(p.KeyID()), 1)
	if opened, _ := p.Check(); !opened {
		return errors.Join(k.unreadable(k.Journal, err), p.Close())
	}
	k.receipts = p
	k.reportRotation(k.Journal)
	return k.listReceipts()
}

// reportRotation reports what opening the journal would have removed.
func (k *check) reportRotation(path string) {
	for _, left := range k.view.removed {
		k.report(RotationUnfinished, left, "a rotation of "+path+" was cut short; the journal is whole", "remove it",
			func(ctx context.Context, r *repairer) (string, error) {
				return "removed " + left, r.reopen(ctx) // opening the journals does it
			})
	}
	k.view.removed = nil
}

// listReceipts notes every receipt in the live journal and in the archives that
// are at hand.
func (k *check) listReceipts() error {
	seen := map[uint64]bool{} // one that a rotation carried forward is in two files
	note := func(e journal.Entry) error {
		var b struct {
			Envelope *struct {
				Sequence  uint64 `json:"sequence"`
				SessionID string `json:"session_id"`
				Kind      string `json:"kind"`
			} `json:"envelope"`
		}
		if err := json.Unmarshal(e.Body(), &b); err != nil {
			return err
		}
		if v := b.Envelope; v != nil && !seen[v.Sequence] {
			seen[v.Sequence] = true
			k.bounds = append(k.bounds, bound{v.Sequence, v.SessionID, v.Kind})
		}
		return nil
	}
	for a := k.receipts.Archive(); a != nil; {
		if k.moved(k.Journal, a.Name) {
			break // its owner keeps it elsewhere
		}
		before, err := k.archived(*a, note)
		if err != nil {
			k.damaged(filepath.Join(filepath.Dir(k.Journal), a.Name), err.Error())
			break
		}
		a = before
	}
	if err := journal.Walk(k.Journal, note); err != nil && !errors.Is(err, journal.ErrTornTail) {
		return err
	}
	return nil
}

// archived walks an archive of the receipts and returns the one before it.
func (k *check) archived(a journal.Archive, note func(journal.Entry) error) (before *journal.Archive, err error) {
	archives := &view{sealed: true}
	first, err := journal.PeekArchive(archives, k.Journal, a, 1)
	if err != nil || len(first) == 0 {
		return nil, err
	}
	if before, err = journal.Archived(first[0]); err != nil {
		return nil, err
	}
	sealed, err := journal.OpenSealed(archives, k.Journal, a)
	if err != nil {
		return nil, err
	}
	return before, errors.Join(sealed.Walk(note), sealed.Close())
}

// receiptsOf checks the two journals against each other.
func (k *check) receiptsOf() {
	byKind := map[string][]uint64{}
	for _, b := range k.bounds {
		if b.kind != receipt.KindChangeApply {
			byKind[b.session] = append(byKind[b.session], b.sequence)
		}
		if _, err := k.store.Get(b.session); session.CodeOf(err) == session.NotFound {
			k.report(ReceiptOrphan, b.session, fmt.Sprintf("receipt %d is of a session that is not in %s", b.sequence, k.Store),
				"the store is older than the receipts, or another one: put the right copy back; a receipt is never taken out of the chain", nil)
		}
	}
	for _, r := range k.records {
		k.receiptOf(r, byKind[r.SessionID])
	}
}

func (k *check) receiptOf(r session.Record, at []uint64) {
	if len(at) > 1 {
		k.report(ReceiptAmbiguous, r.SessionID, fmt.Sprintf("it has the receipts %s", strings.Trim(fmt.Sprint(at), "[]")),
			"none is chosen and none removed: the controller has to judge", nil)
		return
	}
	switch {
	case r.State == session.Exited:
		k.endedIn(r)
	case r.State == session.Failed && len(at) == 1:
		k.report(ReceiptUnwanted, r.SessionID, fmt.Sprintf("it failed with %s and has the receipt %d", r.FailureCode, at[0]),
			"nothing on record is ever changed: the controller has to judge", nil)
	}
}

// endedIn checks that a session which ended in a receipt has that receipt.
func (k *check) endedIn(r session.Record) {
	detail := "there is no receipt journal"
	if k.receipts != nil {
		err := k.receipts.Confirm(*r.Terminal)
		if err == nil || receipt.CodeOf(err) == receipt.Archived {
			return
		}
		detail = err.Error()
	}
	k.report(ReceiptMissing, r.SessionID, fmt.Sprintf("it ended in receipt %d: %s", r.Terminal.Sequence, detail),
		"the receipts are older than the store, or others: put the right copy of "+k.Journal+" back; a receipt is never made up", nil)
}
