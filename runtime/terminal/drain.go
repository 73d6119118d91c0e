package terminal

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// drainBuffer is the most the drain takes at once. The kernel gives at
	// most about a page at a time, so more would only be memory.
	drainBuffer = 16 << 10
	// lastDrain bounds what is still taken from a terminal that somebody
	// keeps printing to after the drain was told to end.
	lastDrain = 1 << 20
)

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// drain reads the master until the stream ends, the limit is passed, the
// master fails, or stop is closed.
func (c *Channel) drain() {
	defer close(c.done)
	buf := make([]byte, drainBuffer)
	for {
		n, err := c.master.Read(buf)
		if n > 0 && !c.take(buf[:n]) {
			c.limitPassed()
			return
		}
		switch {
		case err == nil:
		case ended(err):
			c.finish(nil)
			return
		case c.stopping():
			if err := c.lastReads(buf); errors.Is(err, ErrOutputLimit) {
				c.limitPassed()
			} else {
				c.finish(err)
			}
			return
		default:
			err = wrap(ErrIO, err)
			c.finish(err)
			if c.cfg.OnError != nil {
				c.cfg.OnError(err)
			}
			return
		}
	}
}

// take accounts for one chunk, in the order the receipts rely on: observer,
// counter, digest, transcript. It is false for the chunk that passes the limit,
// which is counted and hashed but not kept.
func (c *Channel) take(p []byte) bool {
	if c.cfg.Observe != nil {
		c.cfg.Observe(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total += uint64(len(p))
	c.sum.Write(p)
	if c.total > c.cfg.OutputLimit {
		c.over = true
		return false
	}
	c.ring.append(p)
	c.changed()
	return true
}

func (c *Channel) limitPassed() {
	c.finish(ErrOutputLimit)
	if c.cfg.OnLimit != nil {
		c.cfg.OnLimit()
	}
}

// finish makes the end visible to readers.
func (c *Channel) finish(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.err = true, err
	c.changed()
}

func (c *Channel) stopping() bool {
	select {
	case <-c.stop:
		return true
	default:
		return false
	}
}

// interrupt makes the drain end soon, after it has taken what is there. If
// that is not the stream's own end, reason is what it is called.
func (c *Channel) interrupt(reason error) {
	c.end1.Do(func() {
		c.reason = reason
		close(c.stop)
		// Fails only if the file is closed, and then the read has ended too.
		_ = c.master.SetReadDeadline(past)
	})
}

// lastReads takes what the terminal holds right now, without waiting, and says
// how the stream ended. The file's own Read would refuse, its deadline being
// past, so the descriptor is read directly.
func (c *Channel) lastReads(buf []byte) error {
	raw, err := c.master.SyscallConn()
	if err != nil {
		return ErrClosed
	}
	result := c.reason
	for taken := 0; taken < lastDrain; {
		var n int
		var readErr error
		if err := raw.Control(func(fd uintptr) { n, readErr = unix.Read(int(fd), buf) }); err != nil {
			return ErrClosed
		}
		switch {
		case n > 0:
			taken += n
			if !c.take(buf[:n]) {
				return ErrOutputLimit
			}
			continue
		case errors.Is(readErr, unix.EINTR):
			continue
		case readErr == nil, ended(readErr):
			result = nil
		}
		return result
	}
	return result
}

// FinishDrain is for when the program is gone: it drops Config.Hold and waits
// until everything that was printed has been read, which is when the kernel
// says that nobody has the terminal open any more. If ctx ends first, because
// some process still holds it, what is there is taken, the drain ends with an
// incomplete Commitment, and ErrDrainTimeout is the result. Done is closed when
// FinishDrain returns. A stream that had ended otherwise gives that reason: nil
// if it ended by itself.
func (c *Channel) FinishDrain(ctx context.Context) error {
	c.dropHold()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.interrupt(ErrDrainTimeout)
		<-c.done
	}
	return c.Err()
}

func (c *Channel) dropHold() {
	c.hold1.Do(func() {
		if c.cfg.Hold != nil {
			c.cfg.Hold.Close()
		}
	})
}

// Close ends the drain, if it still runs, and closes the master, which hangs
// up on whatever still has the terminal. What is in the transcript can still
// be read. Closing twice is harmless.
func (c *Channel) Close() error {
	var err error
	c.close1.Do(func() {
		c.dropHold()
		c.interrupt(ErrClosed)
		<-c.done
		err = c.master.Close()
	})
	return err
}

// pollable gives a descriptor of the same terminal that is ours alone and on
// which deadlines work. A plain os.File made from a blocking descriptor never
// gets them, and File.Fd may put a descriptor back into blocking mode, so
// neither the given file nor its Fd is used any further.
func pollable(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	dup := -1
	var dupErr error
	if err := raw.Control(func(fd uintptr) {
		dup, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 3)
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	if err := unix.SetNonblock(dup, true); err != nil {
		unix.Close(dup)
		return nil, err
	}
	own := os.NewFile(uintptr(dup), "pty-master")
	// Not every descriptor can be polled; then this says so.
	if err := own.SetDeadline(time.Time{}); err != nil {
		own.Close()
		return nil, err
	}
	return own, nil
}
