package runtime

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// vanishBound is how long a killed process may take to be gone.
const vanishBound = time.Second

// An Issue is something reconciliation found and did not settle by itself.
type Issue struct {
	SessionID string
	Code      string // mismatch, monitor_silent, quarantined, storage
	Detail    string // for the operator
}

// Codes of Issue.
const (
	IssueMismatch    = "mismatch"       // the recorded process id belongs to something else; nothing was signalled
	IssueSilent      = "monitor_silent" // a monitor holds the socket but does not prove itself
	IssueQuarantined = "quarantined"    // a control group would not empty
	IssueStorage     = "storage"        // the end could not be written
)

// Adopt connects to every monitor that still runs one of our sessions. It
// needs no receipts, so that clients can reattach before a controller comes.
func (e *Executor) Adopt(ctx context.Context) error {
	candidates, err := e.Store.Candidates()
	if err != nil {
		return err
	}
	for _, rec := range candidates {
		if _, err := e.reconnect(ctx, rec); err != nil {
			e.Log.Warn("not adopted", "session", rec.SessionID, "state", rec.State, "error", err)
		}
	}
	return nil
}

// reconnect finds the session's monitor and takes the session over. It returns
// false when there is no monitor, an error when there is one that cannot be
// taken over.
func (e *Executor) reconnect(ctx context.Context, rec session.Record) (bool, error) {
	e.mu.Lock()
	known := e.live[rec.SessionID] != nil
	e.mu.Unlock()
	if known {
		return true, nil
	}
	dir, _, err := safefile.OpenOwnerDir(e.dir(rec.SessionID))
	if errors.Is(err, safefile.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	client, status, err := monitor.Dial(ctx, dir, rec.SessionID, rec.Monitor[locatorKey])
	switch {
	case errors.Is(err, &monitor.Error{Code: monitor.CodeGone}):
		return false, nil
	case err != nil:
		return false, err
	}
	live := status.State == monitor.StateRunning || status.State == monitor.StateEnded && status.Outcome != nil
	if !live || rec.State == session.Starting {
		// It never came to its release, and its gloved is gone: it undoes itself.
		defer client.Close()
		return false, client.Finish(ctx)
	}
	h := &handle{id: rec.SessionID, client: client, settled: make(chan struct{})}
	e.adopt(h)
	if status.State == monitor.StateEnded {
		client.MarkEnded()
	}
	return true, nil
}

// Reconcile settles every session that is not where its record says: adopted
// ones go on, ended ones get their receipts, lost ones their truthful end. What
// nobody owns is swept. It runs once the receipts' anchor has been presented
// and again whenever asked; sessions start only after it succeeded once.
func (e *Executor) Reconcile(ctx context.Context) error {
	if !e.Receipts.Status().Opened {
		return &Error{Code: CodeNotReconciled}
	}
	e.starting.Lock()
	defer e.starting.Unlock()
	issues, err := e.reconcile(ctx)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.issues = issues
	if err != nil {
		return err
	}
	if len(issues) > 0 {
		return &Error{Code: CodeReconciliation, Err: errors.New(issues[0].Code + ": " + issues[0].Detail)}
	}
	e.reconciled = true
	return nil
}

// Issues returns what the last Reconcile could not settle.
func (e *Executor) Issues() []Issue {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.issues)
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
	adopted, err := e.reconnect(ctx, rec)
	if err != nil {
		return &Issue{rec.SessionID, IssueSilent, err.Error()}
	}
	if adopted {
		e.mu.Lock()
		h := e.live[rec.SessionID]
		e.mu.Unlock()
		if c := h.connection(); c == nil || isClosed(c.Ended()) || isClosed(c.Done()) {
			err = e.settle(ctx, h)
		}
	} else {
		err = e.record(ctx, rec, nil)
	}
	var issue *issueError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &issue):
		return &Issue{rec.SessionID, issue.code, issue.Error()}
	}
	return &Issue{rec.SessionID, IssueStorage, err.Error()}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
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
		id := observed(*rec.Process)
		what, err := cgroup.Observe(id)
		switch {
		case err != nil:
			return err
		case what == cgroup.Mismatch:
			return &issueError{IssueMismatch, errors.New("the recorded process id belongs to another process now")}
		case what == cgroup.Exact:
			code = session.RecoveredTerminated
		}
	}
	if err := e.destroyGroup(ctx, rec); err != nil {
		return &issueError{IssueQuarantined, err}
	}
	if code == session.RecoveredTerminated {
		if err := e.vanished(ctx, observed(*rec.Process)); err != nil {
			return &issueError{IssueQuarantined, err}
		}
	}
	if reservation != nil {
		reservation.Release()
	}
	_, err := e.Store.MarkFailed(ctx, internalKey("recovered"), rec.SessionID, code)
	return err
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
	if errors.Is(err, cgroup.ErrNotFound) || err == nil && (id.Dev != rec.Cgroup.Dev || id.Ino != rec.Cgroup.Ino) {
		return nil // gone, or another has the name now: not ours to touch
	}
	if err != nil {
		return err
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
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		what, err := cgroup.Observe(id)
		if err != nil || what != cgroup.Exact {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
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
	if err := e.sweepDirs(keepDirs); err != nil {
		return nil, err
	}
	return e.sweepGroups(ctx, keepGroups)
}

// maxRootEntries bounds how many names of the root are looked at.
const maxRootEntries = 10000

func (e *Executor) sweepDirs(keep map[string]bool) error {
	d, err := os.Open(e.Root)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(maxRootEntries)
	if err != nil && len(names) > 0 {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "glove-sessionfs-s") && !keep[name] {
			e.removeName(name)
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
