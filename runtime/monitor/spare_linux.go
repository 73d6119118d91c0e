package monitor

import (
	"bytes"
	"context"
	"io"
	"os"
	"sync"
	"time"
)

// Spares keeps one monitor started ahead of need, because starting a process of
// ours is a good part of starting a session. A spare knows nothing and holds
// nothing: it waits for its Spec, and ends by itself when the gloved that keeps
// it does. A Spares keeps none until Refill. Its methods may be used concurrently.
type Spares struct {
	// UIDRange is that of the sessions to come; for those of another, a spare is
	// of no use. It does not change.
	UIDRange UIDRange

	mu     sync.Mutex
	spare  *blank
	timer  *time.Timer
	closed bool
}

// A blank is a monitor that has no Spec yet. It has a copy of the mounts as
// they were when it was made, and processes of a session of its ground.
type blank struct {
	*Process
	link   *os.File
	mounts []byte
	ground ground
}

// Spawn gives spec to the spare, or to a new monitor where there is no spare
// that is as good, and returns when its socket listens.
func (s *Spares) Spawn(ctx context.Context, spec Spec) (*Process, error) {
	b := s.take()
	if b != nil && b.ground.UIDRange != spec.UIDRange {
		b.Kill()
		b = nil
	}
	if b == nil {
		return Spawn(ctx, spec)
	}
	return b.fill(ctx, spec)
}

// take returns the spare if a monitor started now would be no different. The
// mounts can have changed, where they do not propagate into the spare's copy.
func (s *Spares) take() *blank {
	s.mu.Lock()
	b := s.spare
	s.spare = nil
	s.mu.Unlock()
	if b == nil {
		return nil
	}
	now, err := ownMounts()
	if err != nil || len(now) == maxMounts || b.isGone() || !bytes.Equal(now, b.mounts) {
		b.Kill()
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
	defer s.mu.Unlock() // also so that Close does not miss one being made
	if s.closed || s.spare != nil {
		return
	}
	if b, err := newBlank(s.UIDRange); err == nil {
		s.spare = b
	}
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
		s.spare.Kill()
		s.spare = nil
	}
}

// maxMounts bounds the mount table that is compared; a host with a larger one
// has no spare.
const maxMounts = 1 << 20

// ownMounts is the calling process's mount table. It is read before a blank is
// made, so that a change in between counts as one.
func ownMounts() ([]byte, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxMounts))
}
