package frame

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
)

// A Writer writes frames, each with one LF, one at a time. It is safe for
// concurrent use.
type Writer struct {
	// Timeout bounds one frame's write when the destination has write deadlines
	// and Timeout is not zero. A peer that does not read for so long has lost its
	// connection. Set it before the first write.
	Timeout time.Duration

	mu    sync.Mutex
	dst   io.Writer
	max   int
	buf   []byte
	err   error
	total int64
}

// NewWriter returns a Writer to dst of frames of at most maxBytes bytes, LF
// included; 0 means MaxBytes.
func NewWriter(dst io.Writer, maxBytes int) *Writer {
	if maxBytes <= 0 {
		maxBytes = MaxBytes
	}
	return &Writer{dst: dst, max: maxBytes}
}

// WriteFrame writes line and an LF as one write. It refuses, writing nothing, a
// line that is empty, holds an LF or is too long (*Error, CodeFrameTooLarge).
// Any other error is the destination's; part of the frame may have gone out, so
// every later call returns the same error.
func (w *Writer) WriteFrame(line []byte) error {
	if len(line)+1 > w.max {
		return &Error{Number: NumberInvalidRequest, Code: CodeFrameTooLarge,
			Message: fmt.Sprintf("a frame has at most %d bytes, its line feed included", w.max)}
	}
	if len(line) == 0 || bytes.IndexByte(line, '\n') >= 0 {
		return &Error{Number: NumberInvalidRequest, Code: CodeInvalidRequest, Message: "a frame is one line"}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return w.err
	}
	w.buf = append(append(w.buf[:0], line...), '\n')
	if d, ok := w.dst.(interface{ SetWriteDeadline(time.Time) error }); ok && w.Timeout > 0 {
		// Pipes and files that know no deadline say so; they are written anyway.
		_ = d.SetWriteDeadline(time.Now().Add(w.Timeout))
	}
	n, err := w.dst.Write(w.buf)
	w.total += int64(n)
	if err == nil && n < len(w.buf) {
		err = io.ErrShortWrite
	}
	w.err = err
	if cap(w.buf) > keep {
		w.buf = nil
	}
	return err
}

// Total returns how many bytes went out.
func (w *Writer) Total() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.total
}
