package fsck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// Codes of a Finding.
const (
	// Journals.
	JournalTorn        = "journal_torn"        // bytes after the last complete record
	JournalDamaged     = "journal_damaged"     // it does not prove, or cannot be read
	RotationUnfinished = "rotation_unfinished" // a crash left what a rotation was making
	ReceiptMissing     = "receipt_missing"     // a session ended in a receipt that is not in the chain
	ReceiptAmbiguous   = "receipt_ambiguous"   // a session has more than one receipt
	ReceiptUnrecorded  = "receipt_unrecorded"  // the receipt is there and the session's end is not on record
	ReceiptUnwanted    = "receipt_unwanted"    // a session that ended without a receipt has one
	ReceiptOrphan      = "receipt_orphan"      // the receipt is of a session that the store does not know

	// Sessions and their monitors.
	SessionEnded      = "session_ended"       // its monitor left its outcome, and no receipt was made of it
	SessionLost       = "session_lost"        // on record as alive, and there is no monitor and no outcome
	SessionExpired    = "session_expired"     // it waits for a start that can no longer come
	StartUnfinished   = "start_unfinished"    // its start was not finished and nobody will finish it
	ProcessMismatch   = "process_mismatch"    // the recorded process id belongs to another process
	MonitorSilent     = "monitor_silent"      // a monitor lives and does not prove itself
	MonitorVersion    = "monitor_version"     // a monitor lives that speaks another build's protocol
	MonitorStray      = "monitor_stray"       // a monitor lives in the directory of a session that is over or unknown
	SpareStray        = "spare_stray"         // a spare monitor outlived its gloved
	ProcessStray      = "process_stray"       // a process runs as a session's host user whom no monitor claims
	DirectoryMissing  = "directory_missing"   // of a session that is on record as alive
	DirectoryOrphan   = "directory_orphan"    // of no session that could need it
	DirectoryForeign  = "directory_foreign"   // it has our name and is not as we make it
	RemovalUnfinished = "removal_unfinished"  // a crash left what was being removed
	SocketOrphan      = "socket_orphan"       // nobody listens there any more
	SocketForeign     = "socket_foreign"      // it has our socket's name and is not ours
	NoteStale         = "note_stale"          // it names a gloved that no longer holds the directory
	GroupOrphan       = "group_orphan"        // a control group with our tag of no session that could need it
	GroupForeign      = "group_foreign"       // it has a session's name and another identity
	MountFound        = "mount_found"         // below the materialization root, where we mount nothing
	LoopFound         = "loop_device_found"   // on a file of ours, of which we use none
	ClaimForeign      = "claim_foreign"       // a claim on a host user that no session could take
	GroupsUnknown     = "group_base_unusable" // control groups cannot be looked at
)

// Config says what is compared. Paths are absolute.
type Config struct {
	AuditKey string // the receipt audit key file
	Journal  string // the receipt journal
	Store    string // the session store; "" for a gloved without sessions
	Root     string // the materialization root; "" for a gloved without a runtime
	// Sockets and Notes are files of the state directory that only a running gloved
	// has: sockets it listens on, and its words about itself.
	Sockets, Notes []string
	// UIDRange is where sessions of a root daemon get their host users from; the
	// zero value means monitor.DefaultUIDRange.
	UIDRange monitor.UIDRange
	Clock    clock.Clock  // nil is the system's
	Log      *slog.Logger // nil discards
}

// A Finding is one disagreement between the records and the host.
type Finding struct {
	Code    string `json:"code"`
	Subject string `json:"subject"` // a session's id, a path, a control group
	Detail  string `json:"detail"`
	// Repair is what mends it: what Repair does if Repairable, else what its owner
	// can do.
	Repair     string `json:"repair"`
	Repairable bool   `json:"repairable"`
	// Done is what was done about it, Failed why that did not succeed; both are ""
	// before Repair has tried.
	Done   string `json:"done,omitempty"`
	Failed string `json:"failed,omitempty"`

	fix func(context.Context, *repairer) (string, error)
}

// Check compares, and changes nothing. An error is what kept it from comparing at
// all, such as a materialization root that another gloved holds (it matches
// safefile.ErrLocked); what could be compared and disagrees is a Finding.
func Check(ctx context.Context, c Config) ([]Finding, error) {
	k := &check{Config: c.filled(), view: view{cut: map[string]int64{}}, byID: map[string]session.Record{}, lives: map[string]bool{}}
	defer k.close()
	if err := k.holdRoot(); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{
		k.journals, k.sessions, k.directories, k.groups, k.runtimeFiles, k.mounts, k.loops, k.claims, k.strays,
	} {
		if err := errors.Join(step(ctx), ctx.Err()); err != nil {
			return nil, err
		}
	}
	return k.found, nil
}

func (c Config) filled() Config {
	if c.UIDRange == (monitor.UIDRange{}) {
		c.UIDRange = monitor.DefaultUIDRange
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// A check is one comparison on its way.
type check struct {
	Config
	view     view
	found    []Finding
	root     *os.File // nil: there is none
	rootID   safefile.Identity
	lock     *safefile.Lock
	store    *session.Store    // over the view; nil: there is none, or it does not open
	receipts *receipt.Producer // likewise
	bounds   []bound           // every receipt that is at hand
	records  []session.Record
	byID     map[string]session.Record
	lives    map[string]bool // sessions whose monitor proved itself, or which a monitor undoes
	strayed  bool            // a monitor lives of which no record tells what it has
}

func (k *check) report(code, subject, detail, repair string, fix func(context.Context, *repairer) (string, error)) {
	k.found = append(k.found, Finding{Code: code, Subject: subject, Detail: detail, Repair: repair, Repairable: fix != nil, fix: fix})
}

// holdRoot opens the materialization root and takes the lock of its executor, if
// there ever was one.
func (k *check) holdRoot() error {
	if k.Root == "" {
		return nil
	}
	root, id, err := safefile.OpenOwnerDir(k.Root)
	if errors.Is(err, safefile.ErrNotFound) {
		return nil // sessions that need it are found to have no directory
	}
	if err != nil {
		return err
	}
	k.root, k.rootID = root, id
	k.lock, err = safefile.Handover(func() (*safefile.Lock, error) { return lockExisting(filepath.Join(k.Root, ".lock")) })
	if err != nil {
		return fmt.Errorf("materialization root: %w", err)
	}
	return nil
}

// lockExisting is safefile.LockFile for a file that is there; nil means that none is.
func lockExisting(path string) (*safefile.Lock, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return safefile.LockFile(path)
}

// held reports whether a process holds the lock of the file at path. It creates
// nothing.
func held(path string) (bool, error) {
	lock, err := lockExisting(path)
	switch {
	case errors.Is(err, safefile.ErrLocked):
		return true, nil
	case err != nil || lock == nil:
		return false, err
	}
	return false, lock.Unlock()
}

func (k *check) close() {
	if k.store != nil {
		_ = k.store.Close() // nothing was written
	}
	if k.receipts != nil {
		_ = k.receipts.Close()
	}
	if k.lock != nil {
		_ = k.lock.Unlock()
	}
	if k.root != nil {
		_ = k.root.Close()
	}
}

// groupHost finds the place of control groups; it is nil, and reported, where
// there is none.
func (k *check) groupHost() *cgroup.Host {
	host, err := cgroup.Detect()
	if err != nil {
		k.report(GroupsUnknown, k.Root, err.Error(), "glove doctor says what this host lacks", nil)
		return nil
	}
	return host
}
