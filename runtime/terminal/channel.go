package terminal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"os"
	"sync"
	"time"
)

// Channel is a session's terminal. Its methods may be called from any
// goroutine. Reads go on working after the end and after Close; everything
// else does not.
type Channel struct {
	cfg    Config
	master *os.File      // ours, non-blocking; closed by Close
	input  chan struct{} // holds one token; whoever has it may write
	done   chan struct{} // closed when the drain has ended
	stop   chan struct{} // closed to make the drain end
	reason error         // what that end is called; set before stop is closed
	end1   sync.Once     // closes stop
	close1 sync.Once
	hold1  sync.Once

	mu     sync.RWMutex
	ring   *ring
	sum    hash.Hash
	total  uint64        // bytes read, kept or not
	over   bool          // past the output limit
	ended  bool          // nothing will be appended any more
	err    error         // why, if not by the end of the stream
	wake   chan struct{} // closed at the next change; nil if nobody waits
	wakeMu sync.Mutex    // guards wake when only mu's read side is held
}

// New takes over master, and Config.Hold, and starts draining. The given files
// are closed when New fails. The window size is set before the first byte is
// read. The descriptor may be in blocking or non-blocking mode.
func New(master *os.File, c Config) (*Channel, error) {
	release := func() {
		if master != nil {
			master.Close()
		}
		if c.Hold != nil {
			c.Hold.Close()
		}
	}
	cfg, err := c.withDefaults()
	if err != nil || master == nil {
		release()
		return nil, ErrConfig
	}
	own, err := pollable(master)
	if err != nil {
		release()
		return nil, wrap(ErrIO, err)
	}
	master.Close()
	master = own
	ch := &Channel{
		cfg: cfg, master: own, input: make(chan struct{}, 1),
		done: make(chan struct{}), stop: make(chan struct{}),
		ring: newRing(cfg.RingBytes), sum: sha256.New(),
	}
	if err := ch.setSize(cfg.Rows, cfg.Cols); err != nil {
		release()
		return nil, err
	}
	go ch.drain()
	return ch, nil
}

// Done is closed when the drain has ended and the Commitment is final.
func (c *Channel) Done() <-chan struct{} { return c.done }

// Total is how many bytes the program has printed, those past the limit
// included.
func (c *Channel) Total() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.total
}

// Commitment is about everything read so far; it is final, and may be
// Complete, once Done is closed.
func (c *Channel) Commitment() Commitment {
	c.mu.Lock() // Sum is not promised to be safe beside Write or itself
	defer c.mu.Unlock()
	return Commitment{
		Schema:    Schema,
		SHA256:    hex.EncodeToString(c.sum.Sum(nil)),
		ByteCount: c.total,
		Complete:  c.ended && c.err == nil,
	}
}

// Err is nil while the drain runs and after the stream ended by itself;
// otherwise it says what ended it.
func (c *Channel) Err() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.err
}

// Read gives at most max bytes from cursor on, without waiting. max must be
// 1..Config.MaxRead. A cursor beyond the end is ErrAhead. After a failure of
// the terminal what had been read can still be had, and then comes ErrIO.
func (c *Channel) Read(cursor uint64, max int) (Chunk, error) {
	ch, _, err := c.read(cursor, max, false)
	return ch, err
}

// WaitRead is Read, but if there is nothing yet it waits for something, for
// the end, or until timeout (MinWait..MaxWait) has passed, which gives an empty
// Chunk and no error.
func (c *Channel) WaitRead(ctx context.Context, cursor uint64, max int, timeout time.Duration) (Chunk, error) {
	if timeout < MinWait || timeout > MaxWait {
		return Chunk{}, ErrBounds
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		ch, wake, err := c.read(cursor, max, true)
		if wake == nil {
			return ch, err
		}
		select {
		case <-wake:
		case <-timer.C:
			return c.Read(cursor, max)
		case <-ctx.Done():
			return Chunk{}, context.Cause(ctx)
		}
	}
}

// piece is how many bytes a reader copies before it lets the drain go on.
const piece = 32 << 10

// read does one Read. If there is nothing to give and wait is set, it gives a
// channel instead that is closed when that changes.
func (c *Channel) read(cursor uint64, max int, wait bool) (Chunk, <-chan struct{}, error) {
	if max < 1 || max > c.cfg.MaxRead {
		return Chunk{}, nil, ErrBounds
	}
	c.mu.RLock()
	ring := c.ring
	if cursor > ring.end {
		c.mu.RUnlock()
		return Chunk{}, nil, ErrAhead
	}
	ch := Chunk{Oldest: ring.start, Cursor: cursor}
	if cursor < ring.start {
		ch.Cursor, ch.Truncated = ring.start, true
	}
	ch.Next = ch.Cursor
	n := min(max, int(ring.end-ch.Cursor))
	if n == 0 {
		defer c.mu.RUnlock()
		if !c.ended {
			if wait {
				return ch, c.waiter(), nil
			}
			return ch, nil, nil
		}
		return c.atEnd(ch)
	}
	ch.Data = make([]byte, 0, n)
	for {
		ch.Data = append(ch.Data, ring.span(ch.Next, min(piece, n-len(ch.Data)))...)
		ch.Next = ch.Cursor + uint64(len(ch.Data))
		if len(ch.Data) == n {
			break
		}
		// Let the drain in. If it overtakes us, what we have is the answer.
		c.mu.RUnlock()
		c.mu.RLock()
		if ring.start > ch.Next {
			break
		}
	}
	defer c.mu.RUnlock()
	ch.EOF = c.ended && ch.Next == ring.end && !c.failed()
	ch.LimitExceeded = ch.EOF && c.over
	return ch, nil, nil
}

// atEnd completes an answer that found nothing more in an ended stream.
func (c *Channel) atEnd(ch Chunk) (Chunk, <-chan struct{}, error) {
	if c.failed() {
		return Chunk{}, nil, c.err
	}
	ch.EOF, ch.LimitExceeded = true, c.over
	return ch, nil, nil
}

// failed says whether the stream ended by a failure of the terminal. Callers
// hold mu.
func (c *Channel) failed() bool { return errors.Is(c.err, ErrIO) }

// waiter gives the channel that the next change closes. Callers hold mu for
// reading, which keeps changes out.
func (c *Channel) waiter() <-chan struct{} {
	c.wakeMu.Lock()
	defer c.wakeMu.Unlock()
	if c.wake == nil {
		c.wake = make(chan struct{})
	}
	return c.wake
}

// changed wakes all waiters, at no cost if there are none. Each of them waits
// at the end of the stream, so each has something to do. Callers hold mu.
func (c *Channel) changed() {
	if c.wake != nil {
		close(c.wake)
		c.wake = nil
	}
}
