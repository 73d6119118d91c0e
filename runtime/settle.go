package runtime

import (
	"context"
	"errors"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

// Unacknowledged is what is said of a session whose end has no place to go yet.
const Unacknowledged = "the session has ended; its end goes on record once the receipts are paged and acknowledged"

// settle puts a session's end on record and gives up its monitor. A session
// whose receipt cannot be written yet, because no controller has acknowledged
// the receipts before it, keeps its handle and is settled by the next Reconcile:
// until then nothing moves the head that the controller is looking at.
func (e *Executor) settle(ctx context.Context, h *handle) error {
	h.settling.Lock()
	defer h.settling.Unlock()
	if h.isSettled() {
		return nil
	}
	if !e.Receipts.Reconciled() {
		h.note(&Issue{h.id, IssueUnacknowledged, Unacknowledged})
		return &Error{Code: CodeNotReconciled}
	}
	err := crashpoint.At(e.Root, crashpoint.SettleBegun)
	var rec session.Record
	if err == nil {
		rec, err = e.Store.Get(h.id)
	}
	if err == nil && !rec.State.Terminal() {
		err = e.record(ctx, rec, h)
	}
	if err != nil {
		e.Log.Error("not settled", "session", h.id, "error", err)
		h.note(issueOf(h.id, err))
		return err
	}
	h.note(nil)
	if err := crashpoint.At(e.Root, crashpoint.SettleExited); err != nil {
		return err
	}
	if c := h.connection(); c != nil {
		if err := c.Finish(ctx); err != nil {
			e.Log.Warn("monitor did not take its leave", "session", h.id, "error", err)
		}
	} else if err := e.destroyGroup(ctx, rec); err != nil {
		// Its monitor died between its outcome and its tidying up. What will not
		// go now is swept, or reported, by the next Reconcile.
		e.Log.Error("left behind", "session", h.id, "error", err)
	}
	e.mu.Lock()
	delete(e.live, h.id)
	e.mu.Unlock()
	close(h.settled)
	h.connect(nil)
	return crashpoint.At(e.Root, crashpoint.SettleFinished)
}

// record writes the end of a session that was running: from its receipt if
// that is already durable, from its outcome if its monitor left one or still
// tells it, otherwise from what can be proven about its process. h is nil for a
// session without a monitor.
func (e *Executor) record(ctx context.Context, rec session.Record, h *handle) error {
	var reservation *receipt.Reservation
	var client *monitor.Client
	if h != nil {
		reservation, client = h.reservation, h.connection()
	}
	if rec.State == session.Running || rec.State == session.Stopping {
		env, err := e.Receipts.Lookup(rec.SessionID, rec.ControllerPlanDigest, rec.ProfileDigest)
		if err != nil {
			return err
		}
		if env != nil {
			return e.exited(ctx, *env)
		}
		if o := e.outcome(ctx, rec, client); o != nil {
			return e.receipted(ctx, rec, o, reservation)
		}
	}
	return e.recovered(ctx, rec, reservation)
}

// outcome returns what a session's monitor left or, where the disk did not take
// it, still tells over a proven connection; nil if there is nothing of it.
func (e *Executor) outcome(ctx context.Context, rec session.Record, client *monitor.Client) *monitor.Outcome {
	o, err := monitor.ReadOutcome(e.dir(rec.SessionID), rec.SessionID, rec.Monitor[locatorKey])
	if err != nil && client != nil {
		status, statusErr := client.Status(ctx)
		if statusErr == nil && status.Outcome != nil {
			e.Log.Warn("the outcome is in no file; its monitor told it", "session", rec.SessionID, "error", err)
			o, err = status.Outcome, nil
		}
	}
	switch {
	case err == nil && o.ProfileDigest == rec.ProfileDigest && o.SessionID == rec.SessionID:
		return o
	case err == nil:
		e.Log.Error("the outcome is of another profile", "session", rec.SessionID)
	case !errors.Is(err, safefile.ErrNotFound):
		e.Log.Error("the outcome cannot be used", "session", rec.SessionID, "error", err)
	}
	return nil
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
	if receipt.CodeOf(err) == receipt.InvalidReceipt {
		// What cannot be a receipt now never will be: an end without one is
		// better than none.
		e.Log.Error("the outcome makes no receipt", "session", rec.SessionID, "error", err)
		reservation.Release()
		_, err = e.Store.MarkFailed(ctx, internalKey("outcome"), rec.SessionID, session.SupervisorError)
		return err
	}
	if err != nil {
		return err
	}
	if err := crashpoint.At(e.Root, crashpoint.SettleReceipt); err != nil {
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
