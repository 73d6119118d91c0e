package runtime

import (
	"context"
	"errors"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/digest"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

// Stop ends a session: TERM, the grace, then KILL, then its record. A session
// that has ended already is returned as it is, and one that somebody else is
// stopping is waited for. CodeUnacknowledged says that it has ended, and that its
// record waits for the receipts to be acknowledged.
func (e *Executor) Stop(ctx context.Context, key, id string) (session.Record, error) {
	rec, err := e.Store.Get(id)
	if err != nil || rec.State.Terminal() {
		return rec, err
	}
	if rec.State != session.Running && rec.State != session.Stopping {
		return rec, &Error{Code: CodeNotRunning}
	}
	h := e.handle(id)
	if h == nil { // it ended just now, or it could not be adopted
		if rec, err = e.Store.Get(id); err != nil || rec.State.Terminal() {
			return rec, err
		}
		if err := Foreign(rec); err != nil {
			return rec, err
		}
		return rec, &Error{Code: CodeMonitor, Err: errors.New("the session was not adopted")}
	}
	if err := e.markStopping(ctx, h, key); err != nil {
		return rec, err
	}
	if err := e.stop(ctx, h); err != nil {
		return rec, err
	}
	if err := crashpoint.At(e.Root, crashpoint.StopAsked); err != nil {
		return rec, err
	}
	if !h.isSettled() && !e.Receipts.Reconciled() {
		// Whoever has to acknowledge them first may be the one who asks.
		return rec, &Error{Code: CodeUnacknowledged}
	}
	select {
	case <-h.settled:
	case <-ctx.Done():
		return rec, ctx.Err()
	}
	return e.Store.Get(id)
}

// markStopping records that the session is being stopped, unless somebody else
// did, or it has ended. Never while its end is being written: the receipt and
// the record must agree on what came last.
func (e *Executor) markStopping(ctx context.Context, h *handle, key string) error {
	h.settling.Lock()
	defer h.settling.Unlock()
	rec, err := e.Store.Get(h.id)
	if err != nil || rec.State != session.Running || h.over() {
		return err
	}
	if _, err := e.Store.MarkStopping(ctx, session.ProcessRequest{
		IdempotencyKey: stopKey(key), SessionID: h.id, Process: *rec.Process,
	}); err != nil {
		return err
	}
	return crashpoint.At(e.Root, crashpoint.StopStopping)
}

// stop asks the session's monitor to end it, over a new connection should the
// present one break.
func (e *Executor) stop(ctx context.Context, h *handle) error {
	for {
		c, changed := h.watch()
		if c == nil || h.isSettled() {
			return nil
		}
		_, err := c.Stop(ctx, e.StopGrace)
		if err == nil || !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}) {
			return err
		}
		select {
		case <-changed:
		case <-h.settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopKey keeps the controller's key of a stop apart from the keys of a
// start's steps, at any length.
func stopKey(key string) string { return "stop:" + digest.SHA256Hex([]byte(key)) }

// Cleanup forgets the files and the transcript of an ended session. Its record
// and its receipt stay, so that cleaning up again is no mistake.
func (e *Executor) Cleanup(_ context.Context, id string) (session.Record, error) {
	rec, err := e.Store.Get(id)
	if err != nil {
		return rec, err
	}
	if !rec.State.Terminal() {
		return rec, &Error{Code: CodeNotRunning}
	}
	if err := crashpoint.At(e.Root, crashpoint.CleanupBegun); err != nil {
		return rec, err
	}
	err = e.removeName(dirName(id))
	if err == nil {
		err = e.root.Sync() // or a power cut would bring back what was said to be gone
	}
	if err != nil {
		return rec, &Error{Code: CodeStorage, Err: err}
	}
	return rec, crashpoint.At(e.Root, crashpoint.CleanupRemoved)
}
