package transport

import (
	"errors"
	"io"
	"os"
	"sync"
)

// A Stdio is the channel that was inherited from whoever started us. Close ends
// a Read that waits, which closing a blocking descriptor does not.
type Stdio struct {
	in   *io.PipeReader
	out  io.WriteCloser
	once sync.Once
	err  error
}

// NewStdio returns the channel made of in and out. A goroutine reads in; after
// Close it lives until in ends or gives its next bytes.
func NewStdio(in io.Reader, out io.WriteCloser) *Stdio {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, in)
		_ = pw.CloseWithError(err) // nil is EOF
	}()
	return &Stdio{in: pr, out: out}
}

// TakeStdio takes standard input and output for the protocol. From then on
// descriptor 1 is standard error and descriptor 0 is /dev/null: a stray print
// anywhere in the process, or a child that inherits them, cannot put a byte into
// the channel or take one out of it.
func TakeStdio() (*Stdio, error) {
	in, err := duplicate(0, "stdin")
	if err != nil {
		return nil, err
	}
	out, err := duplicate(1, "stdout")
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	null, err := os.Open(os.DevNull)
	if err == nil {
		err = errors.Join(replace(int(null.Fd()), 0), null.Close(), replace(2, 1))
	}
	if err != nil {
		return nil, errors.Join(&Error{Code: CodeIO, Err: err}, in.Close(), out.Close())
	}
	return NewStdio(in, out), nil
}

// Read implements io.Reader.
func (s *Stdio) Read(b []byte) (int, error) { return s.in.Read(b) }

// Write implements io.Writer.
func (s *Stdio) Write(b []byte) (int, error) { return s.out.Write(b) }

// Close ends reading and closes the output.
func (s *Stdio) Close() error {
	s.once.Do(func() { s.err = errors.Join(s.in.Close(), s.out.Close()) })
	return s.err
}
