package monitor

import (
	"context"
	"errors"
	"time"

	"gloved.dev/runtime/terminal"
)

const (
	// maxRead and maxWrite bound one transcript read and one input write.
	maxRead  = 512 << 10
	maxWrite = 64 << 10
	// maxWait bounds how long one read waits for output.
	maxWait = 30 * time.Second
	// maxGrace bounds how long stop waits between TERM and KILL.
	maxGrace = 60 * time.Second
)

func (s *session) channel() (*terminal.Channel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil {
		return nil, fault(CodeState, "there is no terminal in state %s", s.state)
	}
	return s.term, nil
}

func (s *session) read(ctx context.Context, a readParams) (Chunk, error) {
	t, err := s.channel()
	if err != nil {
		return Chunk{}, err
	}
	wait := min(time.Duration(a.WaitMS)*time.Millisecond, maxWait)
	size := min(max(a.MaxBytes, 1), maxRead)
	var c terminal.Chunk
	if wait > 0 {
		c, err = t.WaitRead(ctx, a.Cursor, size, wait)
	} else {
		c, err = t.Read(a.Cursor, size)
	}
	switch {
	case errors.Is(err, terminal.ErrAhead):
		return Chunk{}, fault(CodeCursor, "%v", err)
	case errors.Is(err, context.Canceled):
		return Chunk{}, err
	case err != nil:
		return Chunk{}, fault(CodeRead, "%v", err)
	}
	return Chunk{Oldest: c.Oldest, Next: c.Next, Truncated: c.Truncated, EOF: c.EOF, Data: c.Data}, nil
}

func (s *session) write(ctx context.Context, data []byte) (int, error) {
	t, err := s.channel()
	if err != nil {
		return 0, err
	}
	if len(data) == 0 || len(data) > maxWrite {
		return 0, fault(CodeInput, "input has 1 to %d bytes", maxWrite)
	}
	n, err := t.Write(ctx, data)
	if err != nil {
		e := s.inputFault(err)
		e.Written = uint32(n)
		return n, e
	}
	return n, nil
}

// inputFault tells a terminal that has ended from one that does not take what
// it is given.
func (s *session) inputFault(err error) *Error {
	if errors.Is(err, terminal.ErrEnded) || errors.Is(err, terminal.ErrClosed) || errors.Is(err, terminal.ErrOutputLimit) {
		return fault(CodeState, "%v", err)
	}
	return fault(CodeInput, "%v", err)
}

func (s *session) resize(rows, cols uint16) error {
	t, err := s.channel()
	if err != nil {
		return err
	}
	if err := t.Resize(rows, cols); err != nil {
		return s.inputFault(err)
	}
	return nil
}

func (s *session) signal(name string) error {
	t, err := s.channel()
	if err != nil {
		return err
	}
	sig, ok := terminal.ParseSignal(name)
	if !ok {
		return fault(CodeInput, "the signal is interrupt, terminate or hangup")
	}
	if err := t.Signal(sig); err != nil {
		return s.inputFault(err)
	}
	return nil
}
