package service

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime"
)

// Journals serves rotate_journals, and rotates the journals by itself when they
// are full to a configured part.
type Journals struct {
	producer *receipt.Producer
	store    *session.Store // nil without one
	root     string         // the materialization root, "" without one
	at       int            // percent; 0 is never
	log      *slog.Logger
	clock    clock.Clock

	mu     sync.Mutex // one rotation at a time
	failed time.Time  // when the last automatic one failed; zero when it did not
}

const (
	// worthwhile is how much of a journal, in percent, may stay for an automatic
	// rotation to be worth its while, and lastResort where it is nearly full.
	worthwhile = 50
	lastResort = 90
	// retryAfter is how long gloved leaves a journal alone that it could not rotate.
	retryAfter = time.Minute
	// nearlyFull is the part of a journal, in percent, from which on health warns.
	nearlyFull = 90
)

// rotateTimeout bounds rotate_journals: 64 MiB are read and perhaps half of it written.
const rotateTimeout = 5 * time.Minute

// Methods implements rpc.Component.
func (j *Journals) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.NewMethod(wire.MethodRotateJournals, "Seal what has ended into archives beside the journals.",
			rpc.MethodOptions{Mutating: true, OwnerLocal: true, Timeout: rotateTimeout}, j.rotate),
	}
}

// Health implements rpc.HealthSource. It speaks up when new work is about to be
// refused for want of room, or would have been had the operator not looked.
func (j *Journals) Health(_ context.Context, h *wire.Health) {
	code := ""
	for _, s := range j.stats() {
		if fill(s) >= nearlyFull {
			code = "journal_nearly_full"
		}
	}
	j.mu.Lock()
	if !j.failed.IsZero() {
		code = "journal_rotation_failed"
	}
	j.mu.Unlock()
	if code != "" {
		h.Components = append(h.Components, wire.ComponentHealth{Name: "journals", Status: wire.StatusDegraded, Code: code})
	}
}

func (j *Journals) stats() []journal.Stats {
	out := []journal.Stats{j.producer.Status().Journal}
	if j.store != nil {
		out = append(out, j.store.Stats())
	}
	return out
}

// fill is how full a journal is, in percent; what is reserved counts.
func fill(s journal.Stats) int {
	percent := 0.0
	if s.MaxBytes > 0 {
		percent = float64(s.Bytes+s.ReservedBytes) * 100 / float64(s.MaxBytes)
	}
	if s.MaxRecords > 0 {
		percent = max(percent, float64(s.Records+s.ReservedRecords)*100/float64(s.MaxRecords))
	}
	return int(percent)
}

func (j *Journals) rotate(ctx context.Context, call *rpc.Call, q *wire.RotateJournalsParams) (*wire.RotateJournalsResult, error) {
	if err := call.Admit(); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	out := &wire.RotateJournalsResult{Journals: j.all(ctx, q.DryRun, 0)}
	if !q.DryRun {
		j.failed = time.Time{}
	}
	return out, nil
}

// all rotates both journals. Receipts come first: which of them are acknowledged
// decides which sessions are done.
func (j *Journals) all(ctx context.Context, dry bool, atMost int) []wire.JournalRotation {
	out := []wire.JournalRotation{j.receipts(ctx, dry, atMost)}
	if j.store != nil {
		out = append(out, j.sessions(ctx, dry, atMost))
	}
	return out
}

func (j *Journals) receipts(ctx context.Context, dry bool, atMost int) wire.JournalRotation {
	o := receipt.RotateOptions{DryRun: dry, AtMost: atMost}
	if j.store != nil {
		o.Live = j.store.Live
	}
	done, err := j.producer.Rotate(ctx, o)
	out := wire.JournalRotation{
		Name: wire.JournalReceipts, Archived: number(done.Receipts), Kept: number(done.Kept),
		Records: number(done.Records), Bytes: done.Bytes, KeptRecords: number(done.KeptRecords), KeptBytes: done.KeptBytes,
	}
	if receipt.CodeOf(err) == receipt.ReconciliationRequired {
		out.Reason = wire.RotateUnpaged
		return out
	}
	return j.told(out, done.Archive, done.Nothing, err)
}

func (j *Journals) sessions(ctx context.Context, dry bool, atMost int) wire.JournalRotation {
	o := session.RotateOptions{Acknowledged: j.producer.Acknowledged(), DryRun: dry, AtMost: atMost}
	if j.root != "" {
		o.Keep = func(r session.Record) bool { return runtime.HasFiles(j.root, r.SessionID) }
	}
	done, err := j.store.Rotate(ctx, o)
	return j.told(wire.JournalRotation{
		Name: wire.JournalSessions, Archived: int64(done.Sessions), Kept: int64(done.Kept),
		Records: number(done.Records), Bytes: done.Bytes, KeptRecords: number(done.KeptRecords), KeptBytes: done.KeptBytes,
	}, done.Archive, done.Nothing, err)
}

// told completes what is said of a rotation, to the caller and to the log.
func (j *Journals) told(out wire.JournalRotation, archive *journal.Archive, nothing bool, err error) wire.JournalRotation {
	switch {
	case err != nil:
		out.Failure = err.Error()
		j.log.Error("the journal was not rotated and stays in use", "journal", out.Name, "error", err)
	case archive != nil:
		out.Archive = archive.Name
		j.log.Info("rotated", "journal", out.Name, "archive", archive.Name, "head", archive.Hash,
			"records", archive.Records, "kept_records", out.KeptRecords)
	case nothing:
		out.Reason = wire.RotateNothing
	}
	return out
}

// full rotates what is full to the configured part, if enough of it can go. It is
// called before new sessions are stored and after receipts were acknowledged. A
// failure is logged, shows in health, and refuses nothing: the old journal stays
// in use for as long as it has room.
func (j *Journals) full(ctx context.Context) {
	if j.at == 0 || !j.due() {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.clock.Now()
	// A clock that was set back must not keep gloved waiting.
	if since := now.Sub(j.failed); !j.failed.IsZero() && since >= 0 && since < retryAfter {
		return
	}
	j.failed = time.Time{}
	ctx = context.WithoutCancel(ctx) // the request may end, what it set off goes on
	for n, rotate := range []func(context.Context, bool, int) wire.JournalRotation{j.receipts, j.sessions} {
		stats := j.stats()
		if n >= len(stats) || fill(stats[n]) < j.at {
			continue
		}
		most := worthwhile
		if fill(stats[n]) >= nearlyFull {
			most = lastResort
		}
		if rotate(ctx, false, most).Failure != "" {
			j.failed = now
		}
	}
}

func (j *Journals) due() bool {
	for _, s := range j.stats() {
		if fill(s) >= j.at {
			return true
		}
	}
	return false
}

// buildJournals makes what puts old records away.
func (b *builder) buildJournals() error {
	j := b.Config.journals(b.producer, b.store)
	b.receipts.full = j.full
	if b.sessions != nil {
		b.sessions.full = j.full
	}
	b.add(j)
	return nil
}

func (c Config) journals(producer *receipt.Producer, store *session.Store) *Journals {
	return &Journals{producer: producer, store: store, root: c.MaterializationRoot, at: c.RotateAt, log: c.Logger, clock: c.Clock}
}

// RotateOffline rotates the journals of a gloved that does not run; the caller
// holds its lock. What a controller has acknowledged only the running gloved
// knows: here it is what acknowledged says, on the owner's word, and nothing with
// nil. It fails when a journal cannot be opened or acknowledged is not in it.
func RotateOffline(ctx context.Context, c Config, acknowledged *receipt.Anchor, dry bool) (out []wire.JournalRotation, err error) {
	b := &builder{Config: c, assembly: &Assembly{}}
	b.defaults()
	defer func() { err = errors.Join(err, b.assembly.Close()) }()
	if err := b.buildReceipts(); err != nil {
		return nil, err
	}
	// What is not there is not made only to be looked at.
	if _, err := os.Lstat(c.SessionStore); c.SessionStore != "" && !errors.Is(err, fs.ErrNotExist) {
		if err := b.openStore(); err != nil {
			return nil, err
		}
	}
	if _, err := os.Lstat(c.Journal); !errors.Is(err, fs.ErrNotExist) {
		if err := b.openReceipts(ctx, acknowledged); err != nil {
			return nil, err
		}
	}
	return b.Config.journals(b.producer, b.store).all(ctx, dry, 0), nil
}

func (b *builder) openReceipts(ctx context.Context, acknowledged *receipt.Anchor) error {
	anchor := receipt.Genesis(b.producer.KeyID())
	if acknowledged != nil {
		anchor.Sequence, anchor.HeadHMAC = acknowledged.Sequence, acknowledged.HeadHMAC
	}
	// The page's receipts are not wanted, so it does not matter when they are in an
	// archive that is kept elsewhere.
	if _, err := b.producer.Page(ctx, anchor, 1); err != nil && receipt.CodeOf(err) != receipt.Archived {
		return err
	}
	return b.producer.Trust(anchor)
}
