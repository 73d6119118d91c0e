package cgroup

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// control is what one cgroup version does for a [Group]. Its methods are never
// called after close.
type control interface {
	identity() Identity
	add(pid int) error
	limit(lim Limits) error
	dir() *os.File // the group's directory on v2, nil on v1
	usage() (Usage, error)
	cpuMicros() (uint64, error)
	populated() (bool, error)
	kill() error
	// remove removes the empty group depth-first; errBusy while it is in use.
	remove() error
	events() (eventSource, error)
	close()
}

// eventSource wakes a watcher. It never blocks an operating system thread.
type eventSource interface {
	// C is sent to, without blocking, whenever memory or pids events may have changed.
	C() <-chan struct{}
	Close()
}

// errBusy is the cause of a remove that may succeed later.
var errBusy = errors.New("group is in use")

func isNotFound(err error) bool { return errors.Is(err, ErrNotFound) }

// Group is one session's control group, held by descriptors. Its methods may be
// called concurrently; after [Group.Close] they fail with [CodeClosed].
type Group struct {
	name string

	mu     sync.RWMutex // held for reading by every use of c, for writing by Close
	c      control
	closed bool
}

// use runs f on the control unless the group is closed.
func (g *Group) use(op string, f func(control) error) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return fail(CodeClosed, op, g.name, nil)
	}
	return f(g.c)
}

// Name returns the name the group was created or opened with.
func (g *Group) Name() string { return g.name }

// Identity returns the group's durable identity. It stays valid after Close.
func (g *Group) Identity() Identity { return g.c.identity() }

// Add moves a process, all its threads included, into the group and confirms from
// /proc that it is there. The caller must hold the process in a state where its
// PID cannot be reused: its own unreaped, blocked child. On failure the process
// may be in some of the hierarchies; kill it, then destroy the group.
func (g *Group) Add(pid int) error {
	if pid < 1 {
		return fail(CodeInvalid, "add", "pid", nil)
	}
	return g.use("add", func(c control) error { return c.add(pid) })
}

// Limit puts other limits in force and reads them back. On v1 the limit on memory can
// be lowered only.
func (g *Group) Limit(lim Limits) error {
	if err := lim.check(); err != nil {
		return err
	}
	return g.use("set_limit", func(c control) error { return c.limit(lim) })
}

// FD returns the group's directory for CLONE_INTO_CGROUP (Linux 5.7) and true on
// v2, and false on v1. The group keeps the file; do not close it.
func (g *Group) FD() (*os.File, bool) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return nil, false
	}
	f := g.c.dir()
	return f, f != nil
}

// Usage reads all counters. It works until the group is destroyed, also after its
// last process has gone.
func (g *Group) Usage() (u Usage, err error) {
	err = g.use("usage", func(c control) (err error) {
		u, err = c.usage()
		return err
	})
	return u, err
}

func (g *Group) cpuMicros() (n uint64, err error) {
	err = g.use("usage", func(c control) (err error) {
		n, err = c.cpuMicros()
		return err
	})
	return n, err
}

// Populated reports whether any live process is in the group or below it.
func (g *Group) Populated() (p bool, err error) {
	err = g.use("populated", func(c control) (err error) {
		p, err = c.populated()
		return err
	})
	return p, err
}

// Kill sends SIGKILL to everything in the group and in groups made inside it. On
// v2 the kernel does it in one step (cgroup.kill, Linux 5.14). Otherwise the
// group is frozen, each member is held by a pidfd, its membership is checked
// again, and only then is it signalled, until none is left or [KillBound] has
// passed. Killed processes may still be dying when Kill returns.
func (g *Group) Kill() error {
	return g.use("kill", func(c control) error { return c.kill() })
}

// Destroy removes the group and groups made inside it. What still lives in it is
// killed. If it does not empty until ctx ends or [DestroyBound] has passed, it is
// left as it is and the error is [ErrQuarantined], naming the group; calling again
// later is allowed. Destroying what is gone already succeeds.
func (g *Group) Destroy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, DestroyBound)
	defer cancel()
	pause := time.Millisecond
	for turn := 0; ; turn++ {
		err := g.use("destroy", func(c control) error { return destroyOnce(c, turn%16 == 0) })
		if !errors.Is(err, errBusy) {
			return err
		}
		if !sleep(ctx, pause) {
			return fail(CodeQuarantined, "destroy", g.name, errors.Join(err, context.Cause(ctx)))
		}
		pause = min(2*pause, 10*time.Millisecond)
	}
}

// destroyOnce makes one attempt; kill says whether to signal members again.
func destroyOnce(c control, kill bool) error {
	populated, err := c.populated()
	if err != nil {
		return err
	}
	if !populated {
		return c.remove()
	}
	if kill {
		if err := c.kill(); err != nil {
			return errors.Join(errBusy, err)
		}
	}
	return errBusy
}

// sleep waits and reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Close releases the descriptors and leaves the group in place. It may be called
// more than once.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		g.c.close()
	}
}
