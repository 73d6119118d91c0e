package runtime

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// vanishBound is how long a killed process may take to be gone.
const (
	vanishBound = time.Second
	vanishPoll  = 5 * time.Millisecond
)

// An Issue is something reconciliation found and did not settle by itself.
type Issue struct {
	SessionID string
	Code      string // mismatch, monitor_silent, monitor_version, quarantined, storage, unacknowledged
	Detail    string // for the operator
}

// Codes of Issue.
const (
	IssueMismatch    = "mismatch"       // the recorded process id belongs to something else; nothing was signalled
	IssueSilent      = "monitor_silent" // a monitor holds the socket but does not prove itself
	IssueVersion     = CodeVersion      // a monitor of another protocol version; nothing was asked of it or signalled
	IssueQuarantined = "quarantined"    // a control group would not empty
	IssueStorage     = "storage"        // the end could not be written
	// IssueUnacknowledged: the end is not written before the receipts are acknowledged.
	IssueUnacknowledged = CodeUnacknowledged
)

// Adopt connects to every monitor that still runs one of our sessions. It
// needs no receipts, so that clients can reattach before a controller comes.
func (e *Executor) Adopt(ctx context.Context) error {
	candidates, err := e.Store.Candidates()
	if err != nil {
		return err
	}
	for _, rec := range candidates {
		if _, err := e.takeOver(ctx, rec); err != nil {
			e.Log.Warn("not adopted", "session", rec.SessionID, "state", rec.State, "error", err)
		}
	}
	e.spares.Refill(monitor.SpareDelay) // for who stays longer than for one question
	return nil
}

// takeOver returns the handle of a session, connecting to its monitor if need
// be. It returns nil when there is no monitor, an error when there is one that
// cannot be taken over.
func (e *Executor) takeOver(ctx context.Context, rec session.Record) (*handle, error) {
	if h := e.handle(rec.SessionID); h != nil {
		return h, nil
	}
	client, _, err := e.reach(ctx, rec)
	if client == nil || err != nil {
		return nil, err
	}
	h := newHandle(rec.SessionID, client)
	e.adopt(h)
	if rec.State == session.Stopping {
		// Whoever asked for the stop may be gone; what was asked for happens.
		e.wg.Go(func() {
			if err := e.stop(e.ctx, h); err != nil && e.ctx.Err() == nil {
				e.Log.Error("stop", "session", rec.SessionID, "error", err)
			}
		})
	}
	return h, crashpoint.At(e.Root, crashpoint.ReconcileAdopted)
}

// Reconcile settles every session that is not where its record says: adopted
// ones go on, ended ones get their receipts, lost ones their truthful end. What
// nobody owns is swept. It runs once the receipts' anchor has been presented
// and again whenever asked; sessions start only after it succeeded once.
func (e *Executor) Reconcile(ctx context.Context) error {
	if !e.Receipts.Reconciled() {
		return &Error{Code: CodeNotReconciled}
	}
	e.starting.Lock()
	defer e.starting.Unlock()
	return e.reconcileLocked(ctx)
}

// reconcileLocked is Reconcile with starting held: nothing starts meanwhile.
func (e *Executor) reconcileLocked(ctx context.Context) error {
	if isClosed(e.closed) {
		return &Error{Code: CodeClosed}
	}
	issues, err := e.reconcile(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.issues = issues
	if err != nil {
		return err
	}
	for _, i := range issues {
		// A session of another build is accounted for: its record stands, it keeps its
		// directory and its group, and its limits hold without us.
		if i.Code != IssueVersion {
			return &Error{Code: CodeReconciliation, Err: errors.New(i.Code + ": " + i.Detail)}
		}
	}
	e.reconciled = true
	return nil
}

// Issues returns what is not settled and why: what the last Reconcile found,
// and what has failed since with a session of ours.
func (e *Executor) Issues() []Issue {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []Issue
	for _, h := range e.live {
		if i := h.trouble(); i != nil {
			out = append(out, *i)
		}
	}
	for _, i := range e.issues {
		if e.live[i.SessionID] == nil {
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b Issue) int { return strings.Compare(a.SessionID, b.SessionID) })
	return out
}

func (e *Executor) reconcile(ctx context.Context) ([]Issue, error) {
	var issues []Issue
	candidates, err := e.Store.Candidates()
	if err != nil {
		return nil, err
	}
	for _, rec := range candidates {
		if issue := e.reconcileOne(ctx, rec); issue != nil {
			e.Log.Error("reconcile", "session", issue.SessionID, "code", issue.Code, "detail", issue.Detail)
			issues = append(issues, *issue)
		}
	}
	expired, err := e.Store.Expired()
	if err != nil {
		return nil, err
	}
	for _, rec := range expired {
		if _, err := e.Store.MarkFailed(ctx, internalKey("expired"), rec.SessionID, session.AuthorizationExpired); err != nil {
			issues = append(issues, Issue{rec.SessionID, IssueStorage, err.Error()})
		}
	}
	swept, err := e.sweep(ctx)
	return append(issues, swept...), err
}

func (e *Executor) reconcileOne(ctx context.Context, rec session.Record) *Issue {
	h, err := e.takeOver(ctx, rec)
	switch {
	case errors.Is(err, &Error{Code: CodeVersion}):
		e.awaitForeign(rec.SessionID)
		return &Issue{rec.SessionID, IssueVersion, err.Error()}
	case err != nil:
		return &Issue{rec.SessionID, IssueSilent, err.Error()}
	case h == nil:
		// A session of ours leaves the live ones only after its record has ended:
		// the record that was listed may be older.
		if rec, err = e.Store.Get(rec.SessionID); err == nil && !rec.State.Terminal() {
			err = e.record(ctx, rec, nil)
		}
	case h.over():
		err = e.settle(ctx, h)
	default:
		return h.trouble()
	}
	if err == nil {
		return nil
	}
	return issueOf(rec.SessionID, err)
}

func issueOf(id string, err error) *Issue {
	var issue *issueError
	if errors.As(err, &issue) {
		return &Issue{id, issue.code, issue.Error()}
	}
	return &Issue{id, IssueStorage, err.Error()}
}

type issueError struct {
	code string
	err  error
}

func (i *issueError) Error() string { return i.err.Error() }
func (i *issueError) Unwrap() error { return i.err }

// recovered ends a session that left neither receipt nor outcome, by what can
// be proven of its process. A process that is not exactly the recorded one is
// reported and never signalled.
func (e *Executor) recovered(ctx context.Context, rec session.Record, reservation *receipt.Reservation) error {
	code := session.RecoveredWithoutProcess
	if rec.Process != nil {
		what, err := e.observe(ctx, observed(*rec.Process))
		switch {
		case err != nil:
			return err
		case what == cgroup.Mismatch:
			return &issueError{IssueMismatch, errors.New("the recorded process id belongs to another process now")}
		case what == cgroup.Exact:
			code = session.RecoveredTerminated
		}
	}
	if err := crashpoint.At(e.Root, crashpoint.RecoverObserved); err != nil {
		return err
	}
	if err := e.destroyGroup(ctx, rec); err != nil {
		return &issueError{IssueQuarantined, err}
	}
	if err := crashpoint.At(e.Root, crashpoint.RecoverEmptied); err != nil {
		return err
	}
	if code == session.RecoveredTerminated {
		if err := e.vanished(ctx, observed(*rec.Process)); err != nil {
			return &issueError{IssueQuarantined, err}
		}
	}
	if reservation != nil {
		reservation.Release()
	}
	if _, err := e.Store.MarkFailed(ctx, internalKey("recovered"), rec.SessionID, code); err != nil {
		return err
	}
	return crashpoint.At(e.Root, crashpoint.RecoverRecorded)
}

// observe tells what has become of a process. One that is just dying has left
// its group before it is gone; it gets a moment before it counts as another.
func (e *Executor) observe(ctx context.Context, id cgroup.ProcessIdentity) (cgroup.Observation, error) {
	ctx, cancel := context.WithTimeout(ctx, vanishBound)
	defer cancel()
	for {
		what, err := cgroup.Observe(id)
		if err != nil || what != cgroup.Mismatch || !wait(ctx, vanishPoll) {
			return what, err
		}
	}
}

func observed(p session.ProcessIdentity) cgroup.ProcessIdentity {
	return cgroup.ProcessIdentity{Schema: p.Schema, PID: int(p.PID), BootID: p.BootID, StartTicks: p.StartTicks,
		Cgroup: cgroup.Identity{Dev: p.CgroupDev, Ino: p.CgroupIno, PathDigest: p.CgroupPathDigest}}
}

// destroyGroup removes what is left of the session's control group, with all
// that lives in it, if it is the one that was recorded.
func (e *Executor) destroyGroup(ctx context.Context, rec session.Record) error {
	name := rec.Monitor[locatorCgroup]
	if rec.Cgroup == nil || name == "" {
		return nil
	}
	host, err := cgroup.Detect()
	if err != nil {
		return err
	}
	defer host.Close()
	id, err := host.Lookup(name)
	switch {
	case errors.Is(err, cgroup.ErrNotFound), errors.Is(err, cgroup.ErrMismatch):
		// Gone, or half gone: on v1 a group is a directory in each hierarchy, and
		// whoever removed it may have died in between; asked without an identity,
		// a mismatch says just that. The name is this session's alone.
		return host.Sweep(ctx, name)
	case err != nil:
		return err
	case id.Dev != rec.Cgroup.Dev || id.Ino != rec.Cgroup.Ino:
		return nil // another has the name now: not ours to touch
	}
	g, err := host.Open(name, id)
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Destroy(ctx)
}

// vanished waits, bounded, until a process whose group was killed is gone.
func (e *Executor) vanished(ctx context.Context, id cgroup.ProcessIdentity) error {
	ctx, cancel := context.WithTimeout(ctx, vanishBound)
	defer cancel()
	for {
		what, err := cgroup.Observe(id)
		if err != nil || what != cgroup.Exact {
			return err
		}
		if !wait(ctx, vanishPoll) {
			return errors.New("the killed process does not go away")
		}
	}
}

// sweep removes directories and control groups that bear our names and belong
// to no session that could need them. Names are ours by the root's own tag, so
// that another gloved's are never touched.
func (e *Executor) sweep(ctx context.Context) ([]Issue, error) {
	records, err := e.Store.List()
	if err != nil {
		return nil, err
	}
	keepDirs, keepGroups := map[string]bool{}, map[string]bool{}
	for _, r := range records {
		if r.State != session.Created && r.State != session.Preparing {
			keepDirs[dirName(r.SessionID)] = true // transcripts stay until cleanup
		}
		if r.State == session.Starting || r.State == session.Running || r.State == session.Stopping {
			keepGroups[r.Monitor[locatorCgroup]] = true
		}
	}
	var issues []Issue
	err = e.spares.Still(func(dir, group string) (err error) {
		keepDirs[dir], keepGroups[group] = true, true
		if err = e.sweepDirs(ctx, keepDirs); err != nil {
			return err
		}
		if err = crashpoint.At(e.Root, crashpoint.SweepDirectories); err != nil {
			return err
		}
		if issues, err = e.sweepGroups(ctx, keepGroups); err != nil {
			return err
		}
		return crashpoint.At(e.Root, crashpoint.SweepGroups)
	})
	return issues, err
}

// maxRootEntries bounds how many names of the root are looked at.
const maxRootEntries = 10000

func (e *Executor) sweepDirs(ctx context.Context, keep map[string]bool) error {
	d, err := os.Open(e.Root)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxRootEntries + 1)
	switch {
	case err != nil && !errors.Is(err, io.EOF): // EOF is an empty root
		return err
	case len(names) > maxRootEntries:
		return fmt.Errorf("the materialization root holds more than %d entries", maxRootEntries)
	}
	for _, name := range names {
		if (strings.HasPrefix(name, dirPrefix) || strings.HasPrefix(name, monitor.GroundPrefix)) && !keep[name] {
			// A start's monitor that lost its gloved undoes what it made. Without its
			// directory nobody would know of it any more: not the next start of the
			// session either, which needs the same names.
			err := e.goneFrom(ctx, filepath.Join(e.Root, name))
			if errors.Is(err, &Error{Code: CodeMonitor}) {
				e.Log.Error("keep directory", "name", name, "error", err)
				continue
			}
			if err := e.removeName(name); err != nil {
				e.Log.Error("remove directory", "name", name, "error", err)
			}
		}
	}
	return nil
}

func (e *Executor) sweepGroups(ctx context.Context, keep map[string]bool) ([]Issue, error) {
	host, err := cgroup.Detect()
	if err != nil {
		return nil, err
	}
	defer host.Close()
	names, err := host.Names(e.groupPrefix)
	if err != nil {
		return nil, err
	}
	var issues []Issue
	for _, name := range names {
		if keep[name] {
			continue
		}
		if err := host.Sweep(ctx, name); err != nil {
			issues = append(issues, Issue{"", IssueQuarantined, err.Error()})
		}
	}
	return issues, nil
}
