package runtime

import (
	"fmt"
	"time"

	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

// Foreign tells by a session's record alone whether its monitor is of a build that
// this one does not understand: it returns CodeVersion, with the versions and the way
// out, and nil for a session that this build can take over, that has no monitor yet,
// or whose end is on record. Such a monitor is asked for nothing and never signalled.
func Foreign(rec session.Record) error {
	switch rec.State {
	case session.Starting, session.Running, session.Stopping:
	default:
		return nil
	}
	ours, theirs := fmt.Sprint(monitor.ProtocolVersion), rec.Monitor[locatorVersion]
	if theirs == ours {
		return nil
	}
	return &Error{Code: CodeVersion, Err: fmt.Errorf("the session's monitor speaks version %.20q of the monitor protocol, this gloved version %q; "+
		"the gloved build that started it can go on with it or stop it; without that it runs on to its end or its limits, which is then put on record", theirs, ours)}
}

// foreignLook is how often a session that cannot be taken over is looked at for its end.
const foreignLook = time.Second

// awaitForeign has a session that another build's monitor holds settled soon after that
// has left. It looks at nothing but the lock that the monitor holds as long as it lives.
func (e *Executor) awaitForeign(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.foreign[id] || isClosed(e.closed) {
		return
	}
	e.foreign[id] = true
	e.wg.Go(func() {
		for wait(e.ctx, foreignLook) {
			if alive, err := monitor.Alive(e.dir(id)); err != nil || alive {
				continue
			}
			// Close waits for us with this lock held: never wait for it.
			if e.starting.TryLock() {
				e.settleForeign(id)
				e.starting.Unlock()
				return
			}
		}
	})
}

// settleForeign reconciles, with starting held, once a session of another build ended.
func (e *Executor) settleForeign(id string) {
	e.mu.Lock()
	delete(e.foreign, id)
	e.mu.Unlock()
	if err := e.reconcileLocked(e.ctx); err != nil && e.ctx.Err() == nil {
		e.Log.Error("reconcile", "session", id, "error", err)
	}
}
