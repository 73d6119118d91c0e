package runtime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// Config is what an Executor is made of. All members but the last three are
// required.
type Config struct {
	// Root is the materialization root, an owner directory: each session has a
	// directory of its own in it.
	Root     string
	Policy   *policy.Policy
	Store    *session.Store
	Receipts *receipt.Producer
	Log      *slog.Logger
	// UIDRange is where sessions of a root daemon get their host users from;
	// the zero value means monitor.DefaultUIDRange.
	UIDRange monitor.UIDRange
	// StopGrace is how long a harness that is asked to end may take; zero means
	// monitor.DefaultGrace.
	StopGrace time.Duration
	Clock     clock.Clock
}

// An Executor runs sessions. Its methods are safe for concurrent use.
type Executor struct {
	Config
	root        *os.File
	groupPrefix string // begins the names of our sessions' control groups
	lock        *safefile.Lock
	mechanisms  monitor.Mechanisms

	starting sync.Mutex // starts are serialised

	mu         sync.Mutex
	live       map[string]*handle
	foreign    map[string]bool     // sessions of another build that are waited for
	presets    map[string]Terminal // of sessions that have not started
	reconciled bool
	issues     []Issue
	wg         sync.WaitGroup
	closed     chan struct{}
	spares     monitor.Spares
	ctx        context.Context // ends with Close
	cancel     context.CancelFunc
}

// New returns an Executor after proving that this host can enforce all six
// limits; otherwise there is no runtime and none is advertised. It starts
// nothing and looks at no session: that is Reconcile's.
func New(c Config) (*Executor, error) {
	host, err := cgroup.Detect()
	if err != nil {
		return nil, err
	}
	m := host.Mechanism()
	if err := host.Close(); err != nil {
		return nil, err
	}
	root, id, err := safefile.OpenOwnerDir(c.Root)
	if err != nil {
		return nil, err
	}
	// Two executors on one root would settle and sweep each other's sessions.
	lock, err := safefile.Handover(func() (*safefile.Lock, error) { return safefile.LockFile(filepath.Join(c.Root, ".lock")) })
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("materialization root: %w", err)
	}
	if c.UIDRange == (monitor.UIDRange{}) {
		c.UIDRange = monitor.DefaultUIDRange
	}
	if c.StopGrace == 0 {
		c.StopGrace = monitor.DefaultGrace
	}
	if c.Clock == nil {
		c.Clock = clock.System()
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Executor{Config: c, ctx: ctx, cancel: cancel, root: root, groupPrefix: groupPrefix(id), lock: lock, live: map[string]*handle{}, foreign: map[string]bool{}, presets: map[string]Terminal{}, closed: make(chan struct{}),
		spares: monitor.Spares{UIDRange: c.UIDRange, Root: c.Root, Groups: groupPrefix(id)},
		mechanisms: monitor.Mechanisms{CPUTime: m, Memory: m, PIDs: m, WallTime: "watchdog",
			Disk: "filesystem_quota", TerminalOutput: "byte_counter"}}, nil
}

// groupPrefix tells this root's control groups from those of every other
// gloved on the machine: they all lie in one place.
func groupPrefix(root safefile.Identity) string {
	return "glove-session-" + digest.New("glove.materialization-root").U64(root.Dev).U64(root.Ino).Sum()[:12] + "-"
}

// Mechanisms names what enforces each limit on this host.
func (e *Executor) Mechanisms() monitor.Mechanisms { return e.mechanisms }

// Close lets go of every session without ending any: their monitors go on. A
// start on its way is undone, unless its harness was already let go; a
// settlement on its way is finished.
func (e *Executor) Close() error {
	e.mu.Lock()
	if isClosed(e.closed) {
		e.mu.Unlock()
		return nil
	}
	close(e.closed)
	e.mu.Unlock()
	e.cancel()
	e.starting.Lock()
	defer e.starting.Unlock()
	e.spares.Close()
	e.wg.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, h := range e.live {
		h.close()
	}
	return errors.Join(e.lock.Unlock(), e.root.Close())
}

// NotReady returns the code of what keeps sessions from being started, or "".
func (e *Executor) NotReady() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !e.reconciled && len(e.issues) > 0:
		return CodeReconciliation
	case !e.Receipts.Reconciled() || !e.reconciled:
		return CodeNotReconciled
	}
	return ""
}

// dirName is the session's directory below the root, by the naming that the
// orphan sweep recognises: the length keeps one id from being the prefix of
// another's name.
func dirName(id string) string { return fmt.Sprintf("%s%d-%s", dirPrefix, len(id), id) }

const dirPrefix = "glove-sessionfs-s"

func (e *Executor) dir(id string) string { return filepath.Join(e.Root, dirName(id)) }

// Names of the monitor locator in the starting record. The key is there and in
// the monitor's memory, nowhere else: the store is as private as the socket.
const (
	locatorVersion = "protocol"
	locatorKey     = "key"
	locatorCgroup  = "cgroup"
)

// Get returns a session's record.
func (e *Executor) Get(id string) (session.Record, error) { return e.Store.Get(id) }

// handle returns the handle of a session that runs, or has ended and is not on
// record yet; nil for any other.
func (e *Executor) handle(id string) *handle {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.live[id]
}

// Read returns transcript from cursor on, live or saved, waiting up to wait
// for something to come.
func (e *Executor) Read(ctx context.Context, id string, cursor uint64, maxBytes int, wait time.Duration) (monitor.Chunk, error) {
	if cursor > ident.MaxInt {
		return monitor.Chunk{}, &monitor.Error{Code: monitor.CodeCursor}
	}
	h := e.handle(id)
	if h == nil {
		return e.readSaved(id, cursor, maxBytes)
	}
	for {
		c, changed := h.watch()
		if c == nil {
			return e.readSaved(id, cursor, maxBytes)
		}
		k, err := c.Read(ctx, cursor, maxBytes, wait)
		if err == nil || !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}) {
			return k, err
		}
		// The monitor has left, or the connection broke: what is to be read is in
		// the file, or on the next connection.
		if k, err := e.readSaved(id, cursor, maxBytes); err == nil {
			return k, nil
		}
		select {
		case <-changed:
		case <-e.closed:
			return monitor.Chunk{}, &Error{Code: CodeMonitor, Err: err}
		case <-ctx.Done():
			return monitor.Chunk{}, ctx.Err()
		}
	}
}

// readSaved reads the transcript that a monitor left. It is opened for each
// read: how many ended sessions are looked at is the clients' choice, how many
// descriptors we have is not.
func (e *Executor) readSaved(id string, cursor uint64, maxBytes int) (monitor.Chunk, error) {
	rec, err := e.Store.Get(id)
	if err != nil {
		return monitor.Chunk{}, err
	}
	if rec.RunningAtMS == 0 {
		return monitor.Chunk{}, &Error{Code: CodeNotRunning, Err: fmt.Errorf("the session is %s", rec.State)}
	}
	if err := Foreign(rec); err != nil {
		return monitor.Chunk{}, err
	}
	saved, err := monitor.OpenTranscript(e.dir(id))
	if err != nil {
		return monitor.Chunk{}, &Error{Code: CodeNotRunning, Err: err}
	}
	defer saved.Close()
	return saved.Read(cursor, maxBytes)
}

// Settled waits until the session's end is on record. It returns at once for
// a session that is not running here.
func (e *Executor) Settled(ctx context.Context, id string) error {
	h := e.handle(id)
	if h == nil {
		return nil
	}
	select {
	case <-h.settled:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Write sends input to the session's terminal and returns how much was taken.
func (e *Executor) Write(ctx context.Context, id string, data []byte) (int, error) {
	c, err := e.client(id)
	if err != nil {
		return 0, err
	}
	return c.Write(ctx, data)
}

// A Terminal says how a session's terminal is. Transparent is decided before
// the session starts: see monitor.Spec.
type Terminal struct {
	Rows, Columns uint16
	Transparent   bool
}

// Resize sets the size of the session's terminal. What is said of a session
// that has not started is remembered for its start by this gloved.
func (e *Executor) Resize(ctx context.Context, id string, t Terminal) error {
	if done, err := e.preset(id, t); done || err != nil {
		return err
	}
	if t.Transparent {
		return &Error{Code: CodeNotRunning, Err: errors.New("a started session's terminal stays of its kind")}
	}
	c, err := e.client(id)
	if err != nil {
		return err
	}
	return c.Resize(ctx, t.Rows, t.Columns)
}

// preset remembers t if the session has not started. There are at most as many
// as the store has sessions that wait.
func (e *Executor) preset(id string, t Terminal) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.live[id] != nil {
		return false, nil
	}
	rec, err := e.Store.Get(id)
	if err != nil {
		return false, err
	}
	if rec.State != session.Created && rec.State != session.Preparing {
		return false, nil
	}
	e.presets[id] = t
	return true, nil
}

// terminalOf returns what was said of the terminal of a session that starts.
func (e *Executor) terminalOf(id string) Terminal {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.presets[id]
}

// EndSignal is the number of the signal that ended a session's harness; 0 if
// none did or its files are gone.
func (e *Executor) EndSignal(id string) int {
	rec, err := e.Store.Get(id)
	if err != nil || !rec.State.Terminal() {
		return 0
	}
	o, err := monitor.ReadOutcome(e.dir(id), id, rec.Monitor[locatorKey])
	if err != nil {
		return 0
	}
	return int(o.Signal)
}

// Signal sends interrupt, terminate or hangup to the foreground process group.
func (e *Executor) Signal(ctx context.Context, id, name string) error {
	c, err := e.client(id)
	if err != nil {
		return err
	}
	return c.Signal(ctx, name)
}

// client returns the connection to a running session's monitor.
func (e *Executor) client(id string) (*monitor.Client, error) {
	h := e.handle(id)
	if h == nil {
		rec, err := e.Store.Get(id)
		if err != nil {
			return nil, err
		}
		if err := Foreign(rec); err != nil {
			return nil, err
		}
		return nil, &Error{Code: CodeNotRunning, Err: fmt.Errorf("the session is %s", rec.State)}
	}
	c := h.connection()
	if c == nil || isClosed(c.Ended()) {
		return nil, &Error{Code: CodeNotRunning, Err: errors.New("the session has ended")}
	}
	return c, nil
}
