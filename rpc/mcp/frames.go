package mcp

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"sync"

	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/broker"
)

// maxFrame bounds one frame in bytes: the largest proposal, escaped, and its envelope.
const maxFrame = broker.MaxProposal + 1<<20

// Answers to what is no frame. They carry no id: none can be trusted.
var (
	answerParse   = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"the frame is no JSON text, or too large, or names a member twice"}}` + "\n")
	answerInvalid = []byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"a frame is one object with method or result"}}` + "\n")
)

// A lockedWriter keeps frames of two writers apart. Each Write is one frame.
type lockedWriter struct {
	mu sync.Mutex
	w  io.WriteCloser
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func (l *lockedWriter) Close() error { return l.w.Close() }

// A filter passes on the lines that are frames.
type filter struct {
	in   io.ReadCloser
	r    *bufio.Reader
	out  io.Writer
	log  *slog.Logger
	left []byte
}

func newFilter(in io.ReadCloser, out io.Writer, log *slog.Logger) *filter {
	return &filter{in: in, r: bufio.NewReaderSize(in, 64<<10), out: out, log: log}
}

// Read implements io.Reader.
func (f *filter) Read(p []byte) (int, error) {
	for len(f.left) == 0 {
		line, err := f.line()
		if err != nil {
			return 0, err
		}
		f.left = line
	}
	n := copy(p, f.left)
	f.left = f.left[n:]
	return n, nil
}

// Close implements io.Closer.
func (f *filter) Close() error { return f.in.Close() }

var errLong = errors.New("the frame is too long")

// line returns the next frame with its newline, nil for one that was refused, or how the stream
// ended. A last piece without a newline is not a frame: its sender did not finish it.
func (f *filter) line() ([]byte, error) {
	line, err := f.take()
	switch {
	case errors.Is(err, errLong):
		return nil, f.refuse(answerParse, err)
	case err != nil:
		return nil, err
	}
	text := bytes.TrimSpace(line)
	if len(text) == 0 {
		return nil, nil
	}
	if err := strictjson.Check(text, strictjson.Limits{MaxBytes: maxFrame, MaxDepth: 32}); err != nil {
		return nil, f.refuse(answerParse, err)
	}
	var version string
	if text[0] != '{' || !isEnvelope(text, &version) {
		return nil, f.refuse(answerInvalid, errors.New("no envelope"))
	}
	return append(text, '\n'), nil
}

func (f *filter) refuse(answer []byte, why error) error {
	f.log.Warn("frame refused", "error", why)
	_, err := f.out.Write(answer)
	return err
}

// take reads one line of bounded length; of a longer one it reads to the end and keeps nothing.
func (f *filter) take() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := f.r.ReadSlice('\n')
		if !long && len(line)+len(part) > maxFrame {
			long, line = true, nil
		}
		if !long {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err
		case long:
			return nil, errLong
		default:
			return line, nil
		}
	}
}
