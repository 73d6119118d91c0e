package monitor

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gloved.dev/runtime/sandbox"
)

// Spares starts monitors, and keeps one started ahead of need, with what every session
// needs, because that is the greater part of starting a session. A spare has a directory
// and a control group under names of its own, and gives both up and ends when the gloved
// that keeps it does. A Spares keeps none until Refill. Its methods may be used
// concurrently.
type Spares struct {
	// UIDRange is that of the sessions to come.
	UIDRange UIDRange
	// Root is the owner directory in which every session has its own.
	Root string
	// Groups begins the names of the control groups.
	Groups string

	mu     sync.Mutex
	spare  *blank
	timer  *time.Timer
	closed bool
	old    sync.WaitGroup // of spares that are being discarded
}

// Spawn gives spec to the spare, or to a new monitor where there is no spare that is as
// good. It returns a connection to the monitor, and the name of its control group, when
// the monitor has taken spec.Dir, which must not exist before, and its socket listens.
// The monitor undoes everything when the connection is lost before the release.
func (s *Spares) Spawn(ctx context.Context, spec Spec) (*Client, string, error) {
	b := s.take()
	if b != nil {
		if err := os.Rename(b.ground.Dir, spec.Dir); err != nil {
			b.discard()
			return nil, "", err
		}
	} else {
		var err error
		if b, err = newBlank(ctx, spec.Dir, s.Groups+newTail(), s.UIDRange); err != nil {
			return nil, "", err
		}
	}
	c, err := b.fill(ctx, spec)
	if err != nil {
		b.discard()
		return nil, "", err
	}
	return c, b.ground.Cgroup, nil
}

// newTail ends the names of what is made ahead.
func newTail() string { return NewKey()[:16] }

// take returns the spare if a monitor started now would be no different. The mounts can
// have changed, where they do not propagate into the spare's copy, and so can the few
// files that every session sees.
func (s *Spares) take() *blank {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.spare
	s.spare = nil
	if b == nil {
		return nil
	}
	now, err := hostState()
	if err != nil || len(now) >= maxHostState || b.isGone() || !bytes.Equal(now, b.host) {
		s.old.Go(b.discard)
		return nil
	}
	return b
}

// Refill starts a spare after a while, if there is none then. A spare that
// cannot be started is no error: Spawn will meet the reason, if it lasts.
func (s *Spares) Refill(after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(after, s.refill)
}

func (s *Spares) refill() {
	s.mu.Lock()
	defer s.mu.Unlock() // also so that nobody misses one being made
	if s.closed || s.spare != nil {
		return
	}
	tail := newTail()
	if b, err := newBlank(context.Background(), filepath.Join(s.Root, GroundPrefix+tail), s.Groups+tail, s.UIDRange); err == nil {
		s.spare = b
	}
}

// Still calls f with the names of the directory and the control group of the spare, or
// with "" twice, and has no spare made or taken meanwhile: for whoever removes what
// belongs to nobody.
func (s *Spares) Still(f func(dir, group string) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old.Wait()
	if s.spare == nil {
		return f("", "")
	}
	return f(filepath.Base(s.spare.ground.Dir), s.spare.ground.Cgroup)
}

// Close ends the spare; there will be no other.
func (s *Spares) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.spare != nil {
		s.spare.discard()
		s.spare = nil
	}
	s.old.Wait()
}

// maxHostState bounds the state that is compared; a host with more has no spare.
const maxHostState = 1 << 20

// hostState is the calling process's mount table, and what the paths that every session
// sees refer to. It is read before a blank is made, so that a change in between counts as
// one.
func hostState() ([]byte, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	state, err := io.ReadAll(io.LimitReader(f, maxHostState))
	if err != nil {
		return nil, err
	}
	return sandbox.AppendSystem(state), nil
}
