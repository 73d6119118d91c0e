package terminal

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// writeSlice is how long a write waits for the kernel to announce room before
// it tries again by itself: a PTY announces room when the program reads, but
// it may do so before the room is really there, and then stays silent.
const writeSlice = 20 * time.Millisecond

// Write sends data, 1..Config.MaxInput bytes, exactly as they are. Writes do
// not mix: each goes out whole before the next begins, unless it fails.
// Config.InputTimeout covers the whole call, waiting for its turn included.
// The result is how many bytes the terminal took, also with an error: part of
// the input may have been delivered when ErrInputTimeout comes.
func (c *Channel) Write(ctx context.Context, data []byte) (int, error) {
	if len(data) < 1 || len(data) > c.cfg.MaxInput {
		return 0, ErrBounds
	}
	if err := c.usable(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.InputTimeout, ErrInputTimeout)
	defer cancel()
	select {
	case c.input <- struct{}{}:
		defer func() { <-c.input }()
	case <-c.done:
		return 0, c.usable()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	return c.writeAll(ctx, data)
}

func (c *Channel) writeAll(ctx context.Context, data []byte) (int, error) {
	total := 0
	for {
		if err := c.usable(); err != nil {
			return total, err
		}
		if ctx.Err() != nil {
			return total, context.Cause(ctx)
		}
		if err := c.master.SetWriteDeadline(c.slice(ctx)); err != nil {
			return total, c.inputError(err)
		}
		n, err := c.master.Write(data[total:])
		total += n
		if err == nil {
			return total, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return total, c.inputError(err)
		}
	}
}

// slice is when to look again: soon, but not after ctx has ended.
func (c *Channel) slice(ctx context.Context) time.Time {
	soon := time.Now().Add(writeSlice)
	if end, ok := ctx.Deadline(); ok && end.Before(soon) {
		return end
	}
	return soon
}

// usable is nil while the terminal lives.
func (c *Channel) usable() error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	switch {
	case !c.ended:
		return nil
	case c.err == nil:
		return ErrEnded
	}
	return c.err
}

// inputError prefers the reason the stream ended to the errno it caused.
func (c *Channel) inputError(err error) error {
	if reason := c.usable(); reason != nil {
		return reason
	}
	if ended(err) {
		return ErrEnded
	}
	if errors.Is(err, os.ErrClosed) {
		return ErrClosed
	}
	return wrap(ErrIO, err)
}

// Resize sets the window size, 1..4096 each; the kernel tells the foreground
// process group by SIGWINCH if it changed.
func (c *Channel) Resize(rows, cols uint16) error {
	if !validSize(rows, cols) {
		return ErrBounds
	}
	if err := c.usable(); err != nil {
		return err
	}
	return c.setSize(rows, cols)
}

func (c *Channel) setSize(rows, cols uint16) error {
	return c.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// Signal sends sig to the foreground process group of the terminal. It refuses
// (ErrNoForeground) if there is none, if it is ours, or if its number is stale:
// the kernel keeps telling a group's number after the group has gone, and by
// then a stranger may bear it.
func (c *Channel) Signal(sig Signal) error {
	number, ok := sig.number()
	if !ok {
		return ErrBounds
	}
	if err := c.usable(); err != nil {
		return err
	}
	return c.control(func(fd int) error {
		group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		if err != nil {
			return err
		}
		if group <= 1 || group == unix.Getpgrp() || !inSession(fd, group) {
			return ErrNoForeground
		}
		if err := unix.Kill(-group, number); errors.Is(err, syscall.ESRCH) {
			return ErrNoForeground
		} else if err != nil {
			return err
		}
		return nil
	})
}

// control runs fn on the descriptor, which stays open meanwhile.
func (c *Channel) control(fn func(fd int) error) error {
	raw, err := c.master.SyscallConn()
	if err != nil {
		return c.inputError(err)
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = fn(int(fd)) }); err != nil {
		return c.inputError(err)
	}
	if result == nil || errors.Is(result, ErrNoForeground) {
		return result
	}
	return c.inputError(result)
}
