package runtime

import (
	"context"
	"errors"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/monitor"
)

const (
	// settleTimeout bounds the durable steps of one session's end.
	settleTimeout = time.Minute
	// firstRetry and lastRetry bound the pause before what failed (a full disk, a
	// monitor that does not answer) is tried again; it doubles from try to try.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 30 * time.Second
	// leaveBound is how long a monitor that lives but does not answer may take to
	// be gone, or to answer.
	leaveBound = 5 * time.Second
	leavePoll  = 10 * time.Millisecond
)

// adopt takes a session whose monitor lives under our eyes, until its end is
// on record.
func (e *Executor) adopt(h *handle) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.live[h.id] = h
	delete(e.presets, h.id)
	e.wg.Go(func() { e.follow(h) })
}

// follow stays with a session until its end is on record or we let go of it.
// A broken connection ends no session: it is made again as long as the monitor
// lives. What fails is tried again, and reported meanwhile.
func (e *Executor) follow(h *handle) {
	pause := firstRetry
	for {
		if c := h.connection(); c != nil && !isClosed(c.Ended()) {
			select {
			case <-c.Ended():
			case <-c.Done():
			case <-h.settled:
			case <-e.closed:
			}
		}
		if isClosed(e.closed) || h.isSettled() {
			return
		}
		err := e.advance(h)
		if err == nil {
			pause = firstRetry
			continue
		}
		var retry <-chan time.Time
		if !errors.Is(err, &Error{Code: CodeNotReconciled}) { // for that the next Reconcile does it
			timer := time.NewTimer(pause)
			defer timer.Stop()
			retry, pause = timer.C, min(2*pause, lastRetry)
		}
		select {
		case <-retry:
		case <-h.settled:
			return
		case <-e.closed:
			return
		}
	}
}

// advance does what the state of a session's connection asks for: to make it
// again, or to settle.
func (e *Executor) advance(h *handle) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	if c := h.connection(); c != nil && !isClosed(c.Ended()) {
		if err := e.reconnect(ctx, h); err != nil {
			e.Log.Error("monitor not reached", "session", h.id, "error", err)
			h.note(&Issue{h.id, IssueSilent, err.Error()})
			return err
		}
		h.note(nil)
		if !h.over() {
			return nil
		}
	}
	return e.settle(ctx, h)
}

// reconnect replaces a broken connection. A monitor that is provably gone
// leaves the handle without one.
func (e *Executor) reconnect(ctx context.Context, h *handle) error {
	rec, err := e.Store.Get(h.id)
	if err != nil {
		return err
	}
	c, _, err := e.reach(ctx, rec)
	if err != nil {
		return err
	}
	e.mu.Lock()
	closed := isClosed(e.closed)
	if !closed {
		h.connect(c)
	}
	e.mu.Unlock()
	if (closed || h.isSettled()) && c != nil {
		c.Close()
	}
	return nil
}

// reach connects to the monitor of a session and proves it. It returns no
// client and no error if there provably is no monitor that has anything to say:
// its process is gone, or it has undone a start that never came to its release.
// Whatever else keeps it from being asked is an error, and no reason to touch
// the session.
func (e *Executor) reach(ctx context.Context, rec session.Record) (*monitor.Client, monitor.Status, error) {
	client, status, err := e.dial(ctx, rec)
	if client == nil || err != nil {
		return nil, status, err
	}
	switch {
	case rec.State != session.Starting && status.State == monitor.StateRunning:
		return client, status, nil
	case rec.State != session.Starting && status.State == monitor.StateEnded && status.Outcome != nil:
		client.MarkEnded()
		return client, status, nil
	}
	// It never came to its release, and its gloved is gone: it undoes itself.
	defer client.Close()
	return nil, status, client.Finish(ctx)
}

func (e *Executor) dial(ctx context.Context, rec session.Record) (*monitor.Client, monitor.Status, error) {
	path := e.dir(rec.SessionID)
	dir, _, err := safefile.OpenOwnerDir(path)
	if errors.Is(err, safefile.ErrNotFound) {
		return nil, monitor.Status{}, nil
	}
	if err != nil {
		return nil, monitor.Status{}, err
	}
	defer dir.Close()
	if err := Foreign(rec); err != nil {
		// It is not even greeted: what a greeting means to it is not known. It ends by
		// itself, and its outcome can be read then.
		if alive, lockErr := monitor.Alive(path); lockErr != nil || alive {
			return nil, monitor.Status{}, errors.Join(err, lockErr)
		}
		return nil, monitor.Status{}, nil
	}
	patience, cancel := context.WithTimeout(ctx, leaveBound)
	defer cancel()
	for {
		client, status, err := monitor.Dial(patience, dir, rec.SessionID, rec.Monitor[locatorKey])
		if err == nil {
			return client, status, nil
		}
		alive, lockErr := monitor.Alive(path)
		switch {
		case lockErr != nil:
			return nil, monitor.Status{}, errors.Join(err, lockErr)
		case !alive:
			return nil, monitor.Status{}, nil
		case !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}):
			return nil, monitor.Status{}, err
		}
		// It lives but nothing listens or answers: it is about to leave.
		if !wait(patience, leavePoll) {
			return nil, monitor.Status{}, errors.New("the monitor lives but does not answer")
		}
	}
}

// wait pauses for d; it is false if ctx ended first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
