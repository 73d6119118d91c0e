package runtime

import (
	"context"
	"errors"
	"time"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

// settleTimeout bounds the durable steps of one session's end.
const settleTimeout = time.Minute

// adopt takes a session whose monitor lives under our eyes, until its end is
// on record.
func (e *Executor) adopt(h *handle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[h.id] = h
	delete(e.presets, h.id)
	e.wg.Go(func() { e.follow(h) })
}

func (e *Executor) follow(h *handle) {
	client := h.connection()
	select {
	case <-client.Ended():
	case <-client.Done():
	case <-e.closed:
		return
	}
	select {
	case <-e.closed:
		return // we let go of it; its end is for the next gloved
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if err := e.settle(ctx, h); err != nil {
		e.Log.Error("not settled", "session", h.id, "error", err)
	}
}

// settle puts a session's end on record and gives up its monitor. A session
// whose receipt cannot be written yet, because no controller has presented its
// anchor, keeps its handle and is settled by the next Reconcile.
func (e *Executor) settle(ctx context.Context, h *handle) error {
	h.settling.Lock()
	defer h.settling.Unlock()
	if h.isSettled() {
		return nil
	}
	if !e.Receipts.Status().Opened {
		return &Error{Code: CodeNotReconciled}
	}
	rec, err := e.Store.Get(h.id)
	if err == nil && !rec.State.Terminal() {
		err = e.record(ctx, rec, h)
	}
	if err != nil {
		return err
	}
	if c := h.connection(); c != nil {
		if err := c.Finish(ctx); err != nil {
			e.Log.Warn("monitor did not take its leave", "session", h.id, "error", err)
		}
	}
	saved, err := monitor.OpenTranscript(e.dir(h.id))
	if err != nil && !errors.Is(err, safefile.ErrNotFound) {
		e.Log.Warn("transcript", "session", h.id, "error", err)
	}
	h.end(saved, err)
	return nil
}

// record writes the end of a session that was running: from its receipt if
// that is already durable, from its outcome if its monitor left one, otherwise
// from what can be proven about its process.
func (e *Executor) record(ctx context.Context, rec session.Record, h *handle) error {
	reservation := h.reservation
	if rec.State == session.Running || rec.State == session.Stopping {
		env, err := e.Receipts.Lookup(rec.SessionID, rec.ControllerPlanDigest, rec.ProfileDigest)
		if err != nil {
			return err
		}
		if env != nil {
			return e.exited(ctx, *env)
		}
		o, err := monitor.ReadOutcome(e.dir(rec.SessionID), rec.SessionID, rec.Monitor[locatorKey])
		switch {
		case err == nil && o.ProfileDigest == rec.ProfileDigest:
			h.mu.Lock()
			h.signal = int(o.Signal)
			h.mu.Unlock()
			return e.receipted(ctx, rec, o, reservation)
		case err == nil:
			e.Log.Error("the outcome is of another profile", "session", rec.SessionID)
		case !errors.Is(err, safefile.ErrNotFound):
			e.Log.Error("the outcome cannot be used", "session", rec.SessionID, "error", err)
		}
	}
	return e.recovered(ctx, rec, reservation)
}

// receipted turns an outcome into the receipt, then into the record's end.
func (e *Executor) receipted(ctx context.Context, rec session.Record, o *monitor.Outcome, reservation *receipt.Reservation) (err error) {
	if reservation == nil {
		reservation, err = e.Receipts.ReserveRecovered(rec.SessionID, rec.ControllerPlanDigest, rec.ProfileDigest)
		if err != nil {
			return err
		}
	}
	env, err := reservation.CommitResource(ctx, resourceReceipt(rec, o), &o.Confinement)
	if err != nil {
		return err
	}
	return e.exited(ctx, env)
}

// exited ends the record by a receipt that is durable.
func (e *Executor) exited(ctx context.Context, env receipt.Envelope) error {
	ref, ok := env.TerminalReference()
	if !ok {
		return &Error{Code: CodeStorage, Err: errors.New("the receipt ends no session")}
	}
	_, err := e.Store.MarkExited(ctx, internalKey("exit"), ref, e.Receipts.Confirm)
	return err
}

// internalKey names a step of our own. It is random because a controller's
// keys share the name space: a key that could be guessed could be used up.
func internalKey(step string) string { return "glove:" + step + ":" + monitor.NewKey() }

func resourceReceipt(rec session.Record, o *monitor.Outcome) receipt.Resource {
	// A clock that was set back must not make the end lie before the beginning.
	started := min(o.StartedAtMS, rec.RunningAtMS)
	finished := max(o.FinishedAtMS, started, rec.RunningAtMS, rec.StoppingAtMS)
	r := receipt.Resource{
		SchemaVersion: 1, ProfileDigest: o.ProfileDigest, Backend: receipt.BackendLinux,
		BackendID:            "linux-production:" + backendSuffix[o.Mechanisms.Memory],
		ObservationAuthority: receipt.AuthorityLocal, IndependentlyVerified: true,
		Mechanisms:       receipt.Mechanisms{CPUTime: o.Mechanisms.CPUTime, Memory: o.Mechanisms.Memory, PIDs: o.Mechanisms.PIDs, WallTime: o.Mechanisms.WallTime, Disk: o.Mechanisms.Disk, TerminalOutput: o.Mechanisms.TerminalOutput, SchemaVersion: 1},
		ConfiguredLimits: receipt.Limits(o.Limits),
		Observed:         receipt.Observed(o.Observed),
		TerminationCause: o.Cause,
		StartedAtMS:      started, FinishedAtMS: finished,
	}
	if o.ExitCode != nil {
		code := int64(*o.ExitCode)
		r.ExitCode = &code
	}
	return r
}

// backendSuffix completes the backend id by mechanism.
var backendSuffix = map[string]string{"cgroup_v2": "cgroup-v2-v1", "cgroup_v1": "cgroup-v1-v1"}

// Stop ends a session: TERM, the grace, then KILL, then its record. A session
// that has ended already is returned as it is.
func (e *Executor) Stop(ctx context.Context, key, id string) (session.Record, error) {
	rec, err := e.Store.Get(id)
	if err != nil || rec.State.Terminal() {
		return rec, err
	}
	if rec.State != session.Running && rec.State != session.Stopping {
		return rec, &Error{Code: CodeNotRunning}
	}
	h, err := e.handle(id)
	if err != nil {
		return rec, err
	}
	if rec.State == session.Running {
		if _, err := e.Store.MarkStopping(ctx, session.ProcessRequest{
			IdempotencyKey: stopKey(key), SessionID: id, Process: *rec.Process,
		}); err != nil && !errors.Is(err, &session.Error{Code: session.InvalidState}) {
			return rec, err // unless it ended, or another stop came first
		}
	}
	if c := h.connection(); c != nil {
		if _, err := c.Stop(ctx, e.StopGrace); err != nil && !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}) {
			return rec, err
		}
	}
	if err := e.Settled(ctx, id); err != nil {
		return rec, err
	}
	return e.Store.Get(id)
}

// stopKey keeps the controller's key of a stop apart from the keys of a
// start's steps, at any length.
func stopKey(key string) string { return "stop:" + digest.SHA256Hex([]byte(key)) }

// Cleanup forgets the files and the transcript of an ended session. Its record
// and its receipt stay.
func (e *Executor) Cleanup(_ context.Context, id string) (session.Record, error) {
	rec, err := e.Store.Get(id)
	if err != nil {
		return rec, err
	}
	if !rec.State.Terminal() {
		return rec, &Error{Code: CodeNotRunning}
	}
	e.mu.Lock()
	if h := e.live[id]; h != nil {
		h.close()
		delete(e.live, id)
	}
	e.mu.Unlock()
	e.removeDir(id)
	return rec, nil
}
