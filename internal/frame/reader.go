package frame

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
)

const (
	// MaxBytes bounds one frame, its LF included: 1 MiB.
	MaxBytes = 1 << 20
	// chunk is how much one read asks for. A frame is assembled from chunks, so
	// a peer that announces nothing can make us hold no more than it sent.
	chunk = 16 << 10
	// keep is the largest buffer an idle reader holds on to.
	keep = 64 << 10
	// maxEmptyReads bounds readers that return neither bytes nor an error.
	maxEmptyReads = 100
	// SampleBytes bounds what Sample returns.
	SampleBytes = 256
)

// A Reader splits a byte stream into frames. It is for one goroutine, except
// for Sample.
type Reader struct {
	src      io.Reader
	max      int
	buf      []byte // what was read; buf[start:] is not yet returned
	start    int
	scanned  int // buf[start:scanned] holds no LF
	skipping bool
	err      error // the source's first error, returned when buf is used up

	mu     sync.Mutex
	sample []byte
	total  int64
}

// NewReader returns a Reader of src. A frame may have at most maxBytes bytes,
// its LF included; 0 means MaxBytes.
func NewReader(src io.Reader, maxBytes int) *Reader {
	if maxBytes <= 0 {
		maxBytes = MaxBytes
	}
	return &Reader{src: src, max: maxBytes}
}

// Next returns the next frame that is not blank, without its LF and without a
// CR before it. The bytes are valid until the following call.
//
// An *Error with CodeFrameTooLarge stands for a frame that was skipped, one with
// CodeParseError for a last line that has no LF; reading may go on after both.
// Any other error is the source's own and is returned for ever: io.EOF at its
// end.
func (r *Reader) Next() ([]byte, error) {
	for {
		line, err := r.line()
		if err != nil {
			return nil, err
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(bytes.TrimLeft(line, " \t")) > 0 {
			return line, nil
		}
	}
}

func (r *Reader) line() ([]byte, error) {
	for {
		if i := bytes.IndexByte(r.buf[r.scanned:], '\n'); i >= 0 {
			end := r.scanned + i
			line := r.buf[r.start:end]
			tooLong := r.skipping || len(line)+1 > r.max
			r.start, r.scanned, r.skipping = end+1, end+1, false
			if tooLong {
				return nil, r.tooLarge()
			}
			return line, nil
		}
		r.scanned = len(r.buf)
		if r.skipping || len(r.buf)-r.start >= r.max {
			// No LF within the bound: forget what came and skip to the LF.
			r.skipping = true
			r.buf, r.start, r.scanned = r.buf[:0], 0, 0
		}
		if r.err != nil {
			return r.end()
		}
		r.fill()
	}
}

// end reports what is left when the source has ended: first the unterminated
// line, then the source's error.
func (r *Reader) end() ([]byte, error) {
	left := len(bytes.TrimSpace(r.buf[r.start:])) > 0
	skipped := r.skipping
	r.buf, r.start, r.scanned, r.skipping = nil, 0, 0, false
	switch {
	case !errors.Is(r.err, io.EOF):
		return nil, r.err
	case skipped:
		return nil, r.tooLarge()
	case left:
		// A line without its end may be half of one; it must not take effect.
		return nil, parseError("", "the last line has no line feed")
	}
	return nil, r.err
}

func (r *Reader) tooLarge() *Error {
	return &Error{Number: NumberInvalidRequest, Code: CodeFrameTooLarge,
		Message: fmt.Sprintf("a frame has at most %d bytes, its line feed included", r.max)}
}

// fill reads one chunk behind what is held.
func (r *Reader) fill() {
	r.compact()
	for range maxEmptyReads {
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		if n > 0 {
			r.note(r.buf[len(r.buf) : len(r.buf)+n])
			r.buf = r.buf[:len(r.buf)+n]
		}
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// compact makes room for a chunk: it moves what is held to the front, grows
// (doubling, to at most max plus a chunk), or lets a large buffer go.
func (r *Reader) compact() {
	held := len(r.buf) - r.start
	if held == 0 && cap(r.buf) > keep {
		r.buf, r.start, r.scanned = nil, 0, 0
	}
	if cap(r.buf)-len(r.buf) >= chunk && r.start == 0 {
		return
	}
	size := cap(r.buf)
	if size-held < chunk {
		size = min(max(2*size, held+chunk), r.max+chunk)
	}
	to := r.buf[:0]
	if size > cap(r.buf) {
		to = make([]byte, 0, size)
	}
	r.buf = append(to, r.buf[r.start:]...)
	r.scanned -= r.start
	r.start = 0
}

func (r *Reader) note(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += int64(len(b))
	if room := SampleBytes - len(r.sample); room > 0 {
		r.sample = append(r.sample, b[:min(room, len(b))]...)
	}
}

// Sample returns the first bytes the source gave, at most SampleBytes, and how
// many it gave in all. It may be called while Next waits: a client shows it when
// what answers is no server.
func (r *Reader) Sample() (first []byte, total int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.sample), r.total
}
