package service

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"time"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime"
	"gloved.dev/runtime/monitor"
)

// startTimeout bounds start_session: copying a granted tree may take minutes.
const startTimeout = 15 * time.Minute

// Runtime is the component that starts, attaches and ends sessions. It exists
// only where a runtime was constructed that can enforce every limit.
type Runtime struct {
	executor *runtime.Executor
	followers
}

// NewRuntime returns the component around a reconciled or not yet reconciled
// executor.
func NewRuntime(e *runtime.Executor) *Runtime {
	return &Runtime{executor: e}
}

// Methods implements rpc.Component.
func (r *Runtime) Methods() []rpc.Method {
	started := []rpc.Code{rpc.SessionNotFound, rpc.SessionArchived, rpc.InvalidSessionState, rpc.SessionStorageFailed}
	with := func(more ...rpc.Code) []rpc.Code { return append(append([]rpc.Code(nil), started...), more...) }
	return []rpc.Method{
		rpc.NewMethod(wire.MethodStartSession, "start a created session under a short-lived authorization",
			rpc.MethodOptions{Mutating: true, Durable: true, Ordered: true, Timeout: startTimeout,
				Errors: with(rpc.InvalidAuthorization, rpc.InvalidPlan, rpc.IdempotencyConflict, rpc.SessionCapacity,
					rpc.SessionStartFailed, rpc.AuditReconciliationRequired, rpc.SessionReconciliationFailed)}, r.start),
		rpc.NewMethod(wire.MethodAttach, "read a session's output from a cursor on, or follow it",
			rpc.MethodOptions{Errors: with(rpc.SessionAttachFailed)}, r.attach),
		rpc.NewMethod(wire.MethodAttachCredit, "tell how far a follower has read",
			rpc.MethodOptions{Notification: true}, r.credit),
		rpc.NewMethod(wire.MethodWriteStdin, "send bytes to a session's terminal",
			rpc.MethodOptions{Ordered: true, Errors: with(rpc.SessionInputFailed)}, r.write),
		rpc.NewMethod(wire.MethodResize, "set the size of a session's terminal",
			rpc.MethodOptions{Ordered: true, Errors: with(rpc.SessionResizeFailed)}, r.resize),
		rpc.NewMethod(wire.MethodSignal, "signal the foreground process group of a session",
			rpc.MethodOptions{Ordered: true, Errors: with(rpc.SessionSignalFailed)}, r.signal),
		rpc.NewMethod(wire.MethodDetach, "say up to where the output was read; the session goes on",
			rpc.MethodOptions{Errors: with(rpc.SessionDetachFailed)}, r.detach),
		rpc.NewMethod(wire.MethodStopSession, "ask the session to end, then end it",
			rpc.MethodOptions{Mutating: true, Durable: true, Ordered: true, Timeout: 2 * time.Minute,
				Errors: with(rpc.IdempotencyConflict, rpc.SessionStopFailed)}, r.stop),
		rpc.NewMethod(wire.MethodCleanupSession, "forget the output and files of an ended session",
			rpc.MethodOptions{Mutating: true, Ordered: true, Errors: with(rpc.SessionCleanupFailed)}, r.cleanup),
	}
}

// Notifications implements rpc.NotificationSource.
func (r *Runtime) Notifications() []rpc.Notification {
	return []rpc.Notification{
		{Name: wire.NotifySessionOutput, Summary: "a piece of followed output", Params: reflect.TypeFor[wire.SessionOutputParams]()},
		{Name: wire.NotifySessionEnded, Summary: "a followed session has ended", Params: reflect.TypeFor[wire.SessionEndedParams]()},
		{Name: wire.NotifySessionProgress, Summary: "how much a start has copied so far", Params: reflect.TypeFor[wire.SessionProgressParams]()},
	}
}

// linuxBackend is the backend this component runs sessions with.
const linuxBackend = "linux_production"

// Capabilities implements rpc.CapabilitySource.
func (r *Runtime) Capabilities(c *wire.Capabilities) {
	m := r.executor.Mechanisms()
	c.Backends = append(c.Backends, wire.BackendCapability{
		Backend: linuxBackend, LifecycleOperational: true,
		ResourceEnforcement: wire.ResourceEnforcement{
			CPUTime: m.CPUTime, Memory: m.Memory, PIDs: m.PIDs, WallTime: m.WallTime, Disk: m.Disk,
			TerminalOutput: m.TerminalOutput, ReceiptSchemaVersion: 1,
		},
	})
}

// Health implements rpc.HealthSource: a runtime that has not reconciled starts
// nothing, and says so.
func (r *Runtime) Health(_ context.Context, h *wire.Health) {
	status := wire.ComponentHealth{Name: "runtime", Status: wire.StatusReady}
	if code := r.executor.NotReady(); code != "" {
		status.Status, status.Code = wire.StatusDegraded, code
	} else if issues := r.executor.Issues(); len(issues) > 0 {
		// An end that is not on record yet, or a session that cannot be reached.
		status.Status, status.Code = wire.StatusDegraded, string(rpc.SessionReconciliationFailed)
		if !slices.ContainsFunc(issues, func(i runtime.Issue) bool { return i.Code != runtime.IssueVersion }) {
			status.Code = runtime.IssueVersion
		}
	}
	h.Components = append(h.Components, status)
}

func (r *Runtime) start(ctx context.Context, call *rpc.Call, p *wire.StartSessionParams) (*wire.Session, error) {
	a := p.Authorization
	if a.SchemaVersion != 1 || a.ApprovedAtMS < 0 || a.ExpiresAtMS < 0 {
		return nil, rpc.NewError(rpc.InvalidAuthorization, "the authorization is ill-formed")
	}
	rec, err := r.executor.StartObserved(ctx, call.IdempotencyKey, session.Authorization{
		SchemaVersion: 1, AuthorizationID: a.AuthorizationID, SessionID: a.SessionID,
		ControllerPlanDigest: a.ControllerPlanDigest, PlanContentDigest: a.PlanContentDigest,
		ApprovedAtMS: uint64(a.ApprovedAtMS), ExpiresAtMS: uint64(a.ExpiresAtMS),
	}, call.Admit, func(p monitor.Progress) {
		_ = call.Peer.Notify(wire.NotifySessionProgress, wire.SessionProgressParams{ // a peer that is gone needs none
			SessionID: a.SessionID, Bytes: number(p.Bytes), Entries: number(p.Entries)})
	})
	if err != nil {
		return nil, runtimeError(rpc.SessionStartFailed, err)
	}
	return sessionRecord(rec), nil
}

func (r *Runtime) attach(ctx context.Context, call *rpc.Call, p *wire.AttachParams) (*wire.AttachResult, error) {
	switch {
	case p.MaxBytes < 1 || p.MaxBytes > wire.MaxAttachBytes:
		return nil, badParam("/max_bytes", "max_bytes is 1 to 65536")
	case p.WaitMS < 0 || p.WaitMS > wire.MaxWaitMS:
		return nil, badParam("/wait_ms", "wait_ms is 0 to 30000")
	case p.Cursor < 0:
		return nil, badParam("/cursor", "cursor is not negative")
	case p.Follow && p.WaitMS != 0:
		return nil, badParam("/wait_ms", "follow answers at once; leave wait_ms out")
	}
	if p.WaitMS > 0 {
		var cancel context.CancelFunc
		ctx, cancel = untilDraining(ctx, call)
		defer cancel()
	}
	c, err := r.executor.Read(ctx, p.SessionID, uint64(p.Cursor), p.MaxBytes, time.Duration(p.WaitMS)*time.Millisecond)
	if err != nil && ctx.Err() != nil && !isDone(call) { // what only waited answers with what there is
		c, err = r.executor.Read(context.WithoutCancel(ctx), p.SessionID, uint64(p.Cursor), p.MaxBytes, 0)
	}
	if err != nil {
		return nil, runtimeError(rpc.SessionAttachFailed, err)
	}
	if p.Follow {
		if err := r.follow(call, r.executor, p.SessionID, c); err != nil {
			return nil, err
		}
	}
	return &wire.AttachResult{OldestCursor: int64(c.Oldest), NextCursor: int64(c.Next),
		Truncated: c.Truncated, EOF: c.EOF, Data: c.Data}, nil
}

// untilDraining ends ctx when the peer will send no more.
func untilDraining(ctx context.Context, call *rpc.Call) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-call.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

func isDone(call *rpc.Call) bool {
	select {
	case <-call.Peer.Done():
		return true
	default:
		return false
	}
}

func (r *Runtime) write(ctx context.Context, call *rpc.Call, p *wire.WriteStdinParams) (*wire.WriteStdinResult, error) {
	if len(p.Data) == 0 || len(p.Data) > wire.MaxWriteBytes {
		return nil, badParam("/data", "data is 1 to 65536 bytes")
	}
	if err := call.Admit(); err != nil {
		return nil, err
	}
	n, err := r.executor.Write(ctx, p.SessionID, p.Data)
	if err != nil {
		// How much was taken matters: sending it again would type it twice.
		return nil, withWritten(runtimeError(rpc.SessionInputFailed, err), n)
	}
	return &wire.WriteStdinResult{Written: n}, nil
}

func withWritten(err error, n int) error {
	var e *rpc.Error
	if errors.As(err, &e) && n > 0 {
		return e.With("written", n)
	}
	return err
}

func (r *Runtime) resize(ctx context.Context, call *rpc.Call, p *wire.ResizeParams) (*wire.Empty, error) {
	switch {
	case p.Rows < 1 || p.Rows > wire.MaxTerminalDim:
		return nil, badParam("/rows", "rows is 1 to 4096")
	case p.Columns < 1 || p.Columns > wire.MaxTerminalDim:
		return nil, badParam("/columns", "columns is 1 to 4096")
	}
	if err := call.Admit(); err != nil {
		return nil, err
	}
	size := runtime.Terminal{Rows: uint16(p.Rows), Columns: uint16(p.Columns), Transparent: p.Transparent}
	return nil, runtimeError(rpc.SessionResizeFailed, r.executor.Resize(ctx, p.SessionID, size))
}

func (r *Runtime) signal(ctx context.Context, call *rpc.Call, p *wire.SignalParams) (*wire.Empty, error) {
	switch p.Signal {
	case wire.SignalInterrupt, wire.SignalTerminate, wire.SignalHangup:
	default:
		return nil, badParam("/signal", "signal is interrupt, terminate or hangup")
	}
	if err := call.Admit(); err != nil {
		return nil, err
	}
	return nil, runtimeError(rpc.SessionSignalFailed, r.executor.Signal(ctx, p.SessionID, p.Signal))
}

func (r *Runtime) detach(ctx context.Context, call *rpc.Call, p *wire.DetachParams) (*wire.DetachResult, error) {
	if p.TranscriptCursor < 0 {
		return nil, badParam("/transcript_cursor", "transcript_cursor is not negative")
	}
	// A cursor that was never given out is a mistake the client should hear of.
	if _, err := r.executor.Read(ctx, p.SessionID, uint64(p.TranscriptCursor), 1, 0); err != nil {
		return nil, runtimeError(rpc.SessionDetachFailed, err)
	}
	r.drop(call.Peer, p.SessionID)
	return &wire.DetachResult{TranscriptCursor: p.TranscriptCursor}, nil
}

func (r *Runtime) stop(ctx context.Context, call *rpc.Call, p *wire.SessionParams) (*wire.Session, error) {
	if err := call.Admit(); err != nil {
		return nil, err
	}
	rec, err := r.executor.Stop(ctx, call.IdempotencyKey, p.SessionID)
	if err != nil {
		return nil, runtimeError(rpc.SessionStopFailed, err)
	}
	return sessionRecord(rec), nil
}

func (r *Runtime) cleanup(ctx context.Context, call *rpc.Call, p *wire.SessionParams) (*wire.Session, error) {
	if err := call.Admit(); err != nil {
		return nil, err
	}
	rec, err := r.executor.Cleanup(ctx, p.SessionID)
	if err != nil {
		return nil, runtimeError(rpc.SessionCleanupFailed, err)
	}
	return sessionRecord(rec), nil
}

// runtimeError gives an executor's failure its name on the wire: the store's
// and the receipts' own where they refused, otherwise the method's.
func runtimeError(code rpc.Code, err error) error {
	if err == nil {
		return nil
	}
	var already *rpc.Error
	if errors.As(err, &already) {
		return already
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	var refused *runtime.Error
	if errors.As(err, &refused) {
		switch refused.Code {
		case runtime.CodeNotReconciled:
			return rpc.Wrap(rpc.AuditReconciliationRequired, "", err)
		case runtime.CodeUnacknowledged:
			return rpc.Wrap(rpc.AuditReconciliationRequired, runtime.Unacknowledged, err)
		case runtime.CodeReconciliation:
			return rpc.Wrap(rpc.SessionReconciliationFailed, "", err)
		case runtime.CodeNotRunning:
			return rpc.Wrap(rpc.InvalidSessionState, "", err)
		case runtime.CodeVersion:
			return rpc.Wrap(code, refused.Err.Error(), err) // names versions, nothing of the host's
		case runtime.CodeClosed:
			return rpc.Wrap(rpc.ShuttingDown, "", err)
		case runtime.CodeUnsupported:
			return rpc.Wrap(rpc.InvalidPlan, "this gloved cannot launch what the plan asks for", err).
				With("reason", "grant_not_authorized")
		case runtime.CodeSetup:
			e := rpc.Wrap(code, "", err)
			if refused.Step != "" {
				e = e.With("step", refused.Step)
			}
			return e
		}
		return rpc.Wrap(code, "", err)
	}
	var m *monitor.Error
	if errors.As(err, &m) && m.Code == monitor.CodeState {
		return rpc.Wrap(rpc.InvalidSessionState, "", err)
	}
	if session.CodeOf(err) != "" {
		return sessionError(err)
	}
	var audit *receipt.Error
	if errors.As(err, &audit) {
		return receiptError(err)
	}
	return rpc.Wrap(code, "", err)
}

// buildRuntime constructs the session runtime below the materialization root. Where this
// host cannot enforce every limit there is no runtime, and the operator is told why.
func (b *builder) buildRuntime() error {
	if b.MaterializationRoot == "" {
		return nil
	}
	const option = "--materialization-root"
	if b.store == nil {
		return &BuildError{Option: option, Err: errors.New("it needs --session-store")}
	}
	executor, err := runtime.New(runtime.Config{
		Root: b.MaterializationRoot, Policy: b.policy, Store: b.store, Receipts: b.producer,
		Log: b.Logger, Clock: b.Clock, UIDRange: b.SessionUIDs,
	})
	if err != nil {
		return &BuildError{Option: option, Err: err}
	}
	b.own(executor)
	if err := executor.Adopt(context.Background()); err != nil {
		return &BuildError{Option: option, Err: err}
	}
	b.receipts.unsettled = func() bool { return executor.NotReady() != "" || len(executor.Issues()) > 0 }
	b.receipts.reconciled = func(ctx context.Context) {
		if err := executor.Reconcile(ctx); err != nil {
			b.Logger.Error("reconcile", "error", err)
		}
	}
	b.add(NewRuntime(executor))
	return nil
}
