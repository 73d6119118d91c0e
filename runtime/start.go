package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/ident"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
	"gloved.dev/runtime/quota"
	"gloved.dev/runtime/workspace"
)

// MaxStartKey is the longest idempotency key of a start: room is left for the
// names of its steps.
const MaxStartKey = 112

// supports is what this runtime can launch beyond read binds and ephemeral
// copies.
var supports = policy.Support{}

// Start takes a created session to running under an authorization. The same
// key with the same authorization returns the session's present record. admit
// is asked once more just before anything happens.
//
// A start that fails before the process tree exists leaves the session in
// preparing, to be tried again with the same key while the authorization
// lasts; one that fails later ends it as failed/launch_failed.
func (e *Executor) Start(ctx context.Context, key string, a session.Authorization, admit func() error) (session.Record, error) {
	return e.StartObserved(ctx, key, a, admit, nil)
}

// StartObserved is Start; progress, which may be nil, is told how much of the
// granted trees has been copied, from another goroutine.
func (e *Executor) StartObserved(ctx context.Context, key string, a session.Authorization, admit func() error, progress func(monitor.Progress)) (session.Record, error) {
	if !ident.ID(key) || len(key) > MaxStartKey {
		return session.Record{}, &session.Error{Code: session.InvalidRequest,
			Err: fmt.Errorf("the idempotency key of a start has 1 to %d bytes", MaxStartKey)}
	}
	e.starting.Lock()
	defer e.starting.Unlock()
	if rec, done, err := e.replayed(ctx, key, a); done {
		return rec, err
	}
	if e.Receipts.Reconciled() && e.NotReady() != "" {
		if err := e.reconcileLocked(ctx); err != nil {
			return session.Record{}, err
		}
	}
	if isClosed(e.closed) {
		return session.Record{}, &Error{Code: CodeClosed}
	}
	if code := e.NotReady(); code != "" {
		return session.Record{}, &Error{Code: code}
	}
	if err := admit(); err != nil {
		return session.Record{}, err
	}
	var launch *policy.ResolvedLaunch
	resolve := func(now time.Time, r session.Record) (err error) {
		launch, err = e.resolve(now, r.Plan)
		return err
	}
	rec, err := e.Store.ReserveStart(ctx, key+".reserve", a, resolve)
	if err != nil {
		return rec, err
	}
	if err := crashpoint.At(e.Root, crashpoint.StartReserved); err != nil {
		return rec, err
	}
	// A replayed key brings the record of then; what counts is now.
	if rec, err = e.Store.Get(a.SessionID); err != nil || rec.State != session.Preparing {
		return rec, err
	}
	if launch == nil {
		if err := resolve(e.Clock.Now(), rec); err != nil {
			return rec, &Error{Code: CodeSetup, Step: "resolve", Err: err}
		}
	}
	// From here on what was begun is finished or undone: a controller that
	// hangs up does not leave a half-started session. Only Close ends it early.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	return e.launch(ctx, key, rec, launch, progress)
}

// replayed answers a start that was already made: whoever lost the answer gets
// it again, whether or not this gloved could start anything now. A session past
// preparing cannot be reserved, so that asking the store changes nothing.
func (e *Executor) replayed(ctx context.Context, key string, a session.Authorization) (session.Record, bool, error) {
	rec, err := e.Store.Get(a.SessionID)
	if err != nil || rec.State == session.Created || rec.State == session.Preparing {
		return rec, false, nil // ReserveStart says what is wrong, in its order
	}
	refuse := func(time.Time, session.Record) error { return &session.Error{Code: session.InvalidState} }
	if _, err := e.Store.ReserveStart(ctx, key+".reserve", a, refuse); err != nil {
		return rec, true, err
	}
	rec, err = e.Store.Get(a.SessionID)
	return rec, true, err
}

// resolve says what the plan means on this host today.
func (e *Executor) resolve(now time.Time, raw []byte) (*policy.ResolvedLaunch, error) {
	plan, err := policy.DecodePlan(raw)
	if err != nil {
		return nil, err
	}
	launch, err := e.Policy.ResolveLaunch(plan, now, nil)
	if err != nil {
		return nil, err
	}
	if launch.RequiresDirectWrite {
		return nil, &session.Error{Code: session.InvalidAuthorization, Err: errors.New("direct writes are never launched")}
	}
	if err := launch.Unsupported(supports); err != nil {
		return nil, &Error{Code: CodeUnsupported, Err: err}
	}
	return launch, nil
}

func (e *Executor) launch(ctx context.Context, key string, rec session.Record, launch *policy.ResolvedLaunch, progress func(monitor.Progress)) (session.Record, error) {
	spec := e.spec(rec, launch)
	if err := e.clearDir(ctx, rec.SessionID); err != nil {
		return rec, &Error{Code: CodeSetup, Step: "directory", Err: err}
	}
	if err := crashpoint.At(e.Root, crashpoint.StartDirectory); err != nil {
		return rec, &Error{Code: CodeSetup, Step: "directory", Err: err}
	}
	client, group, err := e.spares.Spawn(ctx, spec)
	defer e.spares.Refill(monitor.SpareDelay)
	if err != nil {
		e.removeDir(rec.SessionID)
		return rec, setupError("monitor", err)
	}
	l := &launching{Executor: e, group: group, key: key, rec: rec, spec: spec, launch: launch, progress: progress,
		h: newHandle(rec.SessionID, client)}
	out, err := l.run(ctx, client)
	if err != nil {
		return out, l.fail(ctx, err)
	}
	return out, nil
}

// launching is one start on its way.
type launching struct {
	*Executor
	key     string
	rec     session.Record
	spec    monitor.Spec
	launch  *policy.ResolvedLaunch
	group   string // the name of its control group
	h       *handle
	started bool // the starting record is durable

	progress func(monitor.Progress)
}

func (l *launching) run(ctx context.Context, client *monitor.Client) (session.Record, error) {
	id := l.rec.SessionID
	if err := crashpoint.At(l.Root, crashpoint.StartSpawned); err != nil {
		return l.rec, setupError("monitor", err)
	}
	named := make(chan error, 1) // both wait for the disk; let them do so together
	go func() { named <- l.root.Sync() }()
	client.OnProgress = l.progress
	prepared, err := client.Prepare(ctx)
	if err == nil {
		err = crashpoint.At(l.Root, crashpoint.StartPrepared)
	}
	if err != nil {
		return l.rec, setupError("prepare", err)
	}
	if err := <-named; err != nil {
		return l.rec, setupError("directory", err)
	}
	if err := l.markStarting(ctx, prepared); err != nil {
		return l.rec, err
	}
	launched, err := client.Launch(ctx, prepared.ProfileDigest)
	if err == nil {
		err = crashpoint.At(l.Root, crashpoint.StartLaunched)
	}
	if err != nil {
		return l.rec, setupError("launch", err)
	}
	out, err := l.Store.MarkRunning(ctx, session.ProcessRequest{
		IdempotencyKey: l.key + ".running", SessionID: id, Process: processIdentity(launched.Process),
		Filesystem: filesystemIdentity(l.spec.Limits.DiskBytes, prepared.Partitions),
	})
	if err != nil {
		return l.rec, err
	}
	l.rec = out
	return out, l.release(context.WithoutCancel(ctx), client)
}

// release lets the harness run. If the answer is lost, so is the knowledge of
// whether it does: then the record stands, and following the session finds out.
func (l *launching) release(ctx context.Context, client *monitor.Client) error {
	if err := crashpoint.At(l.Root, crashpoint.StartRunning); err != nil {
		return setupError("release", err)
	}
	_, err := client.Release(ctx)
	if err != nil && !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}) {
		return setupError("release", err)
	}
	l.adopt(l.h)
	return crashpoint.At(l.Root, crashpoint.StartReleased)
}

// markStarting makes what was prepared durable, with room for its receipt.
func (l *launching) markStarting(ctx context.Context, p monitor.Prepared) (err error) {
	id := l.rec.SessionID
	l.h.reservation, err = l.Receipts.Reserve(id, l.rec.ControllerPlanDigest, p.ProfileDigest)
	if err == nil {
		err = crashpoint.At(l.Root, crashpoint.StartReservation)
	}
	if err != nil {
		return err
	}
	rec, err := l.Store.MarkStarting(ctx, session.StartingRequest{
		IdempotencyKey: l.key + ".starting", SessionID: id,
		AuthorizationID: l.rec.Authorization.AuthorizationID, ProfileDigest: p.ProfileDigest,
		Cgroup:      &session.CgroupIdentity{Schema: 1, Dev: p.Cgroup.Dev, Ino: p.Cgroup.Ino},
		Filesystem:  filesystemIdentity(l.spec.Limits.DiskBytes, p.Partitions),
		Monitor:     session.Monitor{locatorVersion: fmt.Sprint(monitor.ProtocolVersion), locatorKey: l.spec.Key, locatorCgroup: p.CgroupName},
		Reservation: l.h.reservation,
	}, func(now time.Time, r session.Record) error {
		_, err := l.resolve(now, r.Plan) // policy is frozen, expiry is not
		return err
	})
	if err != nil {
		return err
	}
	l.rec, l.started = rec, true
	return crashpoint.At(l.Root, crashpoint.StartStarting)
}

// fail undoes a start and returns why it failed. The record says so only when
// nothing of it is left; otherwise the next Reconcile finds out.
func (l *launching) fail(ctx context.Context, cause error) error {
	ctx = context.WithoutCancel(ctx)
	l.Log.Error("start failed", "session", l.rec.SessionID, "error", cause)
	if err := l.undo(ctx); err != nil {
		l.Log.Error("a failed start is not undone", "session", l.rec.SessionID, "error", err)
		return errors.Join(cause, err)
	}
	if l.h.reservation != nil {
		l.h.reservation.Release()
	}
	if err := crashpoint.At(l.Root, crashpoint.FailUndone); err != nil {
		return errors.Join(cause, err)
	}
	if l.started {
		code := session.LaunchFailed
		if l.rec.State == session.Running {
			code = session.SupervisorError
		}
		if _, err := l.Store.MarkFailed(ctx, l.key+".failed", l.rec.SessionID, code); err != nil {
			l.Log.Error("record", "session", l.rec.SessionID, "error", err)
			return errors.Join(cause, err)
		}
	}
	l.removeDir(l.rec.SessionID)
	_ = crashpoint.At(l.Root, crashpoint.FailRecorded)
	return cause
}

// undo has the monitor give everything back and go. One that cannot be told is
// waited for: it undoes by itself what was not released when we hang up.
func (l *launching) undo(ctx context.Context) error {
	finish, cancel := context.WithTimeout(ctx, monitor.DialTimeout)
	defer cancel()
	if err := l.h.connection().Finish(finish); err != nil {
		l.Log.Error("undo", "session", l.rec.SessionID, "error", err)
	}
	l.h.connect(nil)
	if err := l.gone(ctx, l.rec.SessionID); err != nil {
		return err
	}
	// The group is gone too, unless the monitor died of something else. Its name is
	// no other's.
	return l.sweepGroup(ctx, l.group)
}

func setupError(step string, err error) error {
	var m *monitor.Error
	if errors.As(err, &m) && m.Step != "" {
		step = m.Step
	}
	return &Error{Code: CodeSetup, Step: step, Err: err}
}

func (e *Executor) spec(rec session.Record, l *policy.ResolvedLaunch) monitor.Spec {
	t := e.terminalOf(rec.SessionID)
	spec := monitor.Spec{
		Rows: t.Rows, Columns: t.Columns, Transparent: t.Transparent,
		SessionID: rec.SessionID, Dir: e.dir(rec.SessionID), Key: monitor.NewKey(),
		ControllerPlanDigest: rec.ControllerPlanDigest,
		Executable:           l.Executable, Argv: l.Argv, Environment: l.Env, WorkDir: l.WorkDir,
		ReadOnlyPaths: append([]string{}, l.ReadOnlyPaths...), Grants: []monitor.Grant{},
		Limits: monitor.Limits(l.Limits), UIDRange: e.UIDRange,
	}
	for _, g := range l.Grants {
		spec.Grants = append(spec.Grants, monitor.Grant{
			Alias: g.Alias, HostPath: g.HostPath, Target: g.Target,
			Copy: g.Materialization == policy.MaterializeCopy, MaxBytes: g.MaxBytes,
			Source: monitor.SourceIdentity{Dev: g.Identity.Dev, Ino: g.Identity.Ino, Mode: g.Identity.Mode},
		})
	}
	return spec
}

// clearDir removes the session's directory as a try of an earlier gloved left it, when
// its monitor has gone: it lost its gloved, so it does.
func (e *Executor) clearDir(ctx context.Context, id string) error {
	if _, err := os.Lstat(e.dir(id)); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := e.gone(ctx, id); err != nil {
		return err
	}
	return e.removeName(dirName(id))
}

// goneBound is how long a monitor that lost its gloved may take to undo what it
// had made: its bounds for closing a sandbox and emptying a group, and some.
const goneBound = 15 * time.Second

// gone waits until a session's monitor does not live any more.
func (e *Executor) gone(ctx context.Context, id string) error { return e.goneFrom(ctx, e.dir(id)) }

func (e *Executor) goneFrom(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, goneBound)
	defer cancel()
	for {
		alive, err := monitor.Alive(dir)
		if err != nil || !alive {
			return err
		}
		if !wait(ctx, leavePoll) {
			return &Error{Code: CodeMonitor, Err: errors.New("the monitor of a failed start does not go away")}
		}
	}
}

func (e *Executor) sweepGroup(ctx context.Context, name string) error {
	host, err := cgroup.Detect()
	if err != nil {
		return err
	}
	return errors.Join(host.Sweep(ctx, name), host.Close())
}

// removeDir removes what a failed start left; what remains of it the next start
// or Reconcile finds.
func (e *Executor) removeDir(id string) {
	if err := e.removeName(dirName(id)); err != nil {
		e.Log.Error("remove directory", "session", id, "error", err)
	}
}

func (e *Executor) removeName(name string) error {
	if err := workspace.RemoveTree(e.root, name); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func processIdentity(p monitor.ProcessID) session.ProcessIdentity {
	return session.ProcessIdentity{Schema: 1, PID: p.PID, BootID: p.BootID, StartTicks: p.StartTicks,
		CgroupDev: p.Cgroup.Dev, CgroupIno: p.Cgroup.Ino, CgroupPathDigest: p.Cgroup.PathDigest}
}

// filesystemIdentity is the division of the disk limit as the store keeps it:
// scratch is what the partitions leave.
func filesystemIdentity(limit uint64, parts []monitor.Partition) *session.FilesystemIdentity {
	f := &session.FilesystemIdentity{Schema: 1, DiskLimitBytes: limit, Partitions: []session.Partition{}}
	for _, p := range parts {
		if p.Alias != quota.Scratch {
			f.Partitions = append(f.Partitions, session.Partition{Alias: p.Alias, QuotaBytes: p.Bytes})
		}
	}
	slices.SortFunc(f.Partitions, func(a, b session.Partition) int {
		if a.Alias < b.Alias {
			return -1
		}
		return 1
	})
	return f
}
