package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"

	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// ErrDetached says that the person pressed the detach key.
var ErrDetached = errors.New("console: detached")

// An Input sends bytes to one session.
type Input struct {
	ID string
	// Client returns the connection of the moment, waiting for one where the last was
	// lost and is being replaced.
	Client func(context.Context) (*client.Client, error)

	lost atomic.Bool
}

// Lost reports whether input was on its way when a connection was lost. It may or may
// not have arrived; it is not sent again, because typing twice is worse.
func (i *Input) Lost() bool { return i.lost.Load() }

// Control characters of a transparent terminal.
const (
	endOfInput = 0x04 // ^D
	quoteNext  = 0x16 // ^V
)

const (
	// chunk is how much is read at once.
	chunk = 16 << 10
	// maxRun is how much of one line a transparent terminal is given before what came
	// so far is handed on: its line buffer holds 4095 bytes (N_TTY_BUF_SIZE).
	maxRun = 1024
	// ends is how many times the end of input is announced: on a terminal each reader
	// uses one up, while at a pipe's end all readers find it.
	ends = 16
)

// Type sends what a person types, until in ends, the session ends, or the detach key
// (zero: none) is pressed, which is ErrDetached.
func (i *Input) Type(ctx context.Context, in io.Reader, detach byte) error {
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		data, leave := buf[:n], false
		if at := bytes.IndexByte(data, detach); detach != 0 && at >= 0 {
			data, leave = data[:at], true
		}
		if len(data) > 0 {
			if err := i.send(ctx, data); err != nil {
				return err
			}
		}
		switch {
		case leave:
			return ErrDetached
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
}

// Pour sends all of in to a transparent terminal, and then the end of input.
func (i *Input) Pour(ctx context.Context, in io.Reader) error {
	var enc encoder
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if err := i.send(ctx, enc.encode(buf[:n])); err != nil {
				return err
			}
		}
		if err != nil { // also of an input that was closed from the start
			sent := i.send(ctx, enc.end())
			if err == io.EOF {
				return sent
			}
			return errors.Join(err, sent)
		}
	}
}

// encoder writes bytes so that a transparent terminal hands on exactly them.
type encoder struct {
	run int // bytes of the present line not handed on yet
	out []byte
}

func (e *encoder) encode(data []byte) []byte {
	e.out = e.out[:0]
	for _, b := range data {
		if b == endOfInput || b == quoteNext || b == 0 { // NUL marks a handing-on inside the kernel
			e.out = append(e.out, quoteNext)
		}
		e.out = append(e.out, b)
		if e.run++; b == '\n' {
			e.run = 0
		} else if e.run == maxRun {
			e.out = append(e.out, endOfInput)
			e.run = 0
		}
	}
	return e.out
}

// end is the end of input, after handing on what is left of a line.
func (e *encoder) end() []byte {
	n := ends
	if e.run > 0 {
		n++
	}
	return bytes.Repeat([]byte{endOfInput}, n)
}

// send sends data however long the program takes to read it.
func (i *Input) send(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		part := data[:min(len(data), wire.MaxWriteBytes)]
		c, err := i.Client(ctx)
		if err != nil {
			return err
		}
		r, err := c.WriteStdin(ctx, i.ID, part)
		if err == nil {
			data = data[r.Written:]
			continue
		}
		var refused *rpc.Error
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &refused):
			i.lost.Store(true)
			data = data[len(part):]
			continue
		case refused.Code != rpc.SessionInputFailed:
			return err
		}
		// Slow readers are waited for: the answer says what was taken.
		var taken int
		if n, ok := number(refused.Data["written"]); ok {
			taken = min(max(n, 0), len(part))
		}
		data = data[taken:]
	}
	return nil
}

func number(v any) (int, bool) {
	switch n := v.(type) {
	case float64:
		return int(n), true
	case int:
		return n, true
	case json.Number:
		i, err := n.Int64()
		return int(i), err == nil
	}
	return 0, false
}
