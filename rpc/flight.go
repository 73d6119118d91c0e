package rpc

import (
	"sync"

	"gloved.dev/internal/frame"
)

const (
	// MaxInFlight bounds the requests of one connection being worked on. More
	// wait unread.
	MaxInFlight = 64
	// MaxInFlightBytes bounds the parameters of those requests together, so that
	// 64 large frames on each of many connections do not fill memory. One request
	// is always admitted.
	MaxInFlightBytes = 8 << 20
)

// flight counts what a connection has in flight. All counts change under mu;
// idle is closed when nothing is left and nothing more is admitted.
type flight struct {
	mu      sync.Mutex
	room    sync.Cond
	ids     map[frame.ID]bool
	n       int
	bytes   int
	closing bool
	idle    chan struct{}
}

func newFlight() *flight {
	f := &flight{ids: make(map[frame.ID]bool), idle: make(chan struct{})}
	f.room.L = &f.mu
	return f
}

func (f *flight) full(size int) bool {
	return f.n >= MaxInFlight || f.n > 0 && f.bytes+size > MaxInFlightBytes
}

// begin admits a request, waiting for room. It is called by the reading
// goroutine only, so that waiting leaves the rest unread.
func (f *flight) begin(id frame.ID, size int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ids[id] {
		return NewError(DuplicateID, "").With("id", id.Value())
	}
	for f.full(size) && !f.closing {
		f.room.Wait()
	}
	if f.closing {
		return NewError(ShuttingDown, "")
	}
	f.ids[id] = true
	f.n++
	f.bytes += size
	return nil
}

// release frees the id. It comes before the answer goes out: the peer may use
// the id again as soon as it reads the answer.
func (f *flight) release(id frame.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.ids, id)
}

// end frees the room, after the answer went out.
func (f *flight) end(size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n--
	f.bytes -= size
	f.room.Signal()
	f.closeIfIdle()
}

// drain admits no more and returns a channel that is closed when nothing is in
// flight.
func (f *flight) drain() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closing {
		f.closing = true
		f.room.Broadcast()
		f.closeIfIdle()
	}
	return f.idle
}

func (f *flight) closeIfIdle() {
	if !f.closing || f.n > 0 {
		return
	}
	select {
	case <-f.idle:
	default:
		close(f.idle)
	}
}
