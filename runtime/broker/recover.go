package broker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
)

// A Report is what Recover found. Nothing was changed.
type Report struct {
	OK          bool       `json:"ok"`
	State       State      `json:"state"`
	Lock        string     `json:"lock"`    // absent, held (a broker works), left (its holder is gone), foreign
	Journal     string     `json:"journal"` // absent, valid, unreadable
	Task        string     `json:"task,omitempty"`
	PayloadHash string     `json:"payload_hash,omitempty"`
	Actions     []string   `json:"actions,omitempty"`
	Endpoints   []Observed `json:"endpoints,omitempty"`
	// Advice says what a person can do next.
	Advice string `json:"advice"`
}

// Observed is one endpoint as it was found.
type Observed struct {
	Path  string `json:"path"`
	State State  `json:"state"` // before, after, or mixed for neither
}

// Words of a Report.
const (
	Absent     = "absent"
	Held       = "held"
	Left       = "left"
	Foreign    = "foreign"
	Valid      = "valid"
	Unreadable = "unreadable"
)

// Recover reads the workspace, the lock and the journal, and reports. It takes no lock, touches no
// file and needs no gate, so that a person can look at any time.
func (b *Broker) Recover(context.Context) (*Report, error) {
	t, err := openTree(b.opt.Workspace)
	if err != nil {
		return nil, AsRefusal(err, CodeInstallationInvalid)
	}
	defer t.close()
	r := &Report{OK: true, State: StateNone, Journal: Absent}
	r.Lock = lockWord(t)
	j, err := readJournal(t)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		r.Advice = "nothing has moved; the next apply settles what the log has open"
		if r.Lock == Absent {
			r.Advice = "there is no transaction"
		} else if r.Lock == Foreign {
			r.Advice = "the lock is not a broker's, or was left before it was written; remove it once no broker runs"
		}
		return r, nil
	case err != nil:
		r.OK, r.State, r.Journal = false, StateMixed, Unreadable
		r.Advice = "the journal cannot be trusted: compare the workspace with the stored payload of the action by hand"
		return r, nil
	}
	r.Journal, r.Task, r.PayloadHash = Valid, j.Task, j.PayloadHash
	for _, leg := range j.Legs {
		r.Actions = append(r.Actions, leg.Key)
	}
	ends := j.endpoints()
	r.State = readBack(t, ends)
	for _, e := range ends {
		r.Endpoints = append(r.Endpoints, Observed{Path: e.Path, State: readBack(t, []Endpoint{e})})
	}
	r.Advice = "the next apply appends the outcome and removes the transaction"
	if r.State == StateMixed {
		r.OK = false
		r.Advice = "decide by hand what the workspace should hold, then reconcile every action (approval execution reconcile)"
	}
	return r, nil
}

// lockWord looks at the lock without taking anything: a shared flock is tried on a descriptor of
// its own and given back at once.
func lockWord(t *tree) string {
	f, err := openAt(t.root, LockName, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Absent
	}
	if err != nil {
		return Foreign
	}
	defer f.Close()
	id, err := safefile.Stat(f)
	if err != nil || id.Mode&unix.S_IFMT != unix.S_IFREG || id.Size > maxJournal {
		return Foreign
	}
	if err := retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) }); err != nil {
		return Held
	}
	text, err := io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err != nil {
		return Foreign
	}
	if _, err := decodeLock(text); err != nil {
		return Foreign
	}
	return Left
}

func readJournal(t *tree) (*txnJournal, error) {
	d, err := openDirAt(t.root, TransactionDir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, err := openFileAt(d, journalName)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id, err := safefile.Stat(f)
	if err != nil {
		return nil, err
	}
	if id.Mode&unix.S_IFMT != unix.S_IFREG || id.UID != effectiveUser() || id.Nlink != 1 || id.Size > maxJournal {
		return nil, errors.New("the journal is not a broker's file")
	}
	text, err := io.ReadAll(io.LimitReader(f, maxJournal+1))
	if err != nil {
		return nil, err
	}
	return decodeJournal(text, t)
}

// settle finishes, from reading the workspace back alone, what a broker that died left: before and
// after get their outcome in the log, and the traces go. It changes no endpoint. A mixed workspace,
// a lock of unknown origin and a journal that cannot be trusted wait for a person.
func (b *Broker) settle(ctx context.Context, t *tree, reading Reading) error {
	locked, txn, err := t.present()
	if err != nil {
		return refuse(CodeCustodyUnavailable, "", "the workspace's lock cannot be examined").because(err)
	}
	if !locked && !txn {
		return nil
	}
	l, legs, state, err := b.leftover(t, locked)
	if err != nil {
		return err
	}
	done, err := b.settleLegs(ctx, reading, legs, state)
	if err != nil {
		l.keep()
		return err
	}
	if done == Indeterminate {
		if err := b.preserve(t, legs[0].Task); err != nil {
			l.keep()
			return refuse(CodeCustodyUnavailable, "evidence", "the settled transaction cannot be moved to the gate's home").because(err)
		}
	}
	b.tidy(t, l)
	if locked, txn, err := t.present(); err != nil || locked || txn {
		return contended("leftover")
	}
	return nil
}

// leftover takes over the lock of a dead broker and tells its legs and what became of them.
func (b *Broker) leftover(t *tree, locked bool) (*lock, []Leg, State, error) {
	j, err := readJournal(t)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return nil, nil, "", contended("journal-unreadable").because(err)
	}
	if !locked { // somebody removed the lock and left the journal: take it again
		if missing {
			return nil, nil, "", contended("leftover")
		}
		l, err := takeLock(t, lockRecord{Schema: lockSchema, Instance: j.Instance, Task: j.Task,
			PayloadHash: j.PayloadHash, Legs: j.Legs})
		if err != nil {
			return nil, nil, "", contended("").because(err)
		}
		return l, j.Legs, readBack(t, j.endpoints()), nil
	}
	l, rec, err := openLock(t)
	if err != nil {
		return nil, nil, "", contended("").because(err)
	}
	if j, err = readJournal(t); errors.Is(err, fs.ErrNotExist) {
		return l, rec.Legs, StateBefore, nil // the journal is durable before the first move
	}
	if err != nil || j.Task != rec.Task || !slices.Equal(j.Legs, rec.Legs) {
		l.keep()
		return nil, nil, "", contended("journal-unreadable").because(err)
	}
	return l, j.Legs, readBack(t, j.endpoints()), nil
}

// settleLegs gives every leg without an outcome the one that the workspace shows, or, where another
// leg of the transaction has one already, that one: the workspace may have moved on since. It
// returns the outcome all legs have, and refuses while a person must decide.
func (b *Broker) settleLegs(ctx context.Context, reading Reading, legs []Leg, state State) (Outcome, error) {
	outcome, open, waiting := outcomes[state], []Leg(nil), false
	for _, leg := range legs {
		s, err := reading.Status(ctx, leg)
		if err != nil {
			return "", AsRefusal(err, CodeLogUnavailable)
		}
		switch {
		case !s.Started:
			return "", contended("log-disagrees")
		case s.Outcome == "":
			open = append(open, leg)
		default:
			outcome = s.Outcome
			waiting = waiting || s.Outcome == Indeterminate && !s.Reconciled
		}
	}
	for _, leg := range open {
		if err := reading.Outcome(ctx, leg, outcome); err != nil {
			return "", AsRefusal(err, CodeLogUnavailable)
		}
		waiting = waiting || outcome == Indeterminate
	}
	if waiting {
		r := contended("workspace-commit-unknown")
		r.State = state
		return "", r
	}
	return outcome, nil
}

// Release settles what is left of a transaction, and nothing else: what a person's last
// reconciliation is followed by. It is what the next apply would do first.
func (b *Broker) Release(ctx context.Context) error {
	reading, err := b.opt.Gate.Open(ctx)
	if err != nil {
		return AsRefusal(err, CodeLogUnavailable)
	}
	t, err := openTree(b.opt.Workspace)
	if err != nil {
		return AsRefusal(err, CodeInstallationInvalid)
	}
	defer t.close()
	return b.settle(ctx, t, reading)
}

// preserve copies the journal and every staged file to the gate's home, durable and readable by the
// owner only. A file of that name that holds the same is kept: an earlier try was cut short.
func (b *Broker) preserve(t *tree, task string) error {
	d, err := openDirAt(t.root, TransactionDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	home := filepath.Join(b.opt.Evidence, digest.SHA256Hex([]byte(task)))
	for _, dir := range []string{b.opt.Evidence, home} {
		f, _, err := safefile.MakeOwnerDir(dir)
		if err != nil {
			return err
		}
		f.Close()
	}
	for _, name := range names {
		if name != journalName && !stagedName(name) {
			continue
		}
		if err := copyOut(d, name, filepath.Join(home, name)); err != nil {
			return err
		}
	}
	return nil
}

func copyOut(d *os.File, name, to string) error {
	f, err := openFileAt(d, name)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max(MaxImage, maxJournal)+1))
	if err != nil {
		return err
	}
	if len(data) > max(MaxImage, maxJournal) {
		return errTooLarge
	}
	return safefile.WriteOwner(to, data)
}

// EvidenceDir is where the evidence of settled transactions goes for a log at path: beside the
// log's directory, in the gate's home.
func EvidenceDir(logPath string) string {
	home := filepath.Dir(logPath)
	if strings.EqualFold(filepath.Base(home), "log") {
		home = filepath.Dir(home)
	}
	return filepath.Join(home, "evidence")
}
