package journal

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
)

// An Outline is what can be told of a journal without reading all of it.
type Outline struct {
	Bytes    int64
	Records  uint64
	Archives uint64 // how many it was rotated into
}

// Peek looks at the first and the last complete record of the journal at path. It
// proves each by itself and nothing in between, and needs no lock. An absent or
// empty file is the zero Outline.
func Peek(path string) (Outline, error) {
	f, err := openRead(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Outline{}, nil
	}
	if err != nil {
		return Outline{}, err
	}
	defer f.Close()
	first, err := firstArchive(f)
	if errors.Is(err, ErrTornTail) {
		return Outline{}, nil // no record is complete
	}
	if err != nil {
		return Outline{}, err
	}
	out, err := peekLast(f)
	if first != nil {
		out.Archives = first.Number()
	}
	return out, err
}

func peekLast(f *os.File) (Outline, error) {
	st, err := f.Stat()
	if err != nil || st.Size() == 0 {
		return Outline{}, err
	}
	out := Outline{Bytes: st.Size()}
	buf := make([]byte, min(st.Size(), 2*(MaxRecord+1)))
	if _, err := f.ReadAt(buf, st.Size()-int64(len(buf))); err != nil && !errors.Is(err, io.EOF) {
		return out, err
	}
	whole := int64(len(buf)) == st.Size()
	// A writer may be in the middle of the line after it.
	buf = buf[:bytes.LastIndexByte(buf, '\n')+1]
	if len(buf) == 0 {
		return out, nil
	}
	line, why := lastLine(buf, whole)
	if why != "" {
		return out, &CorruptError{Reason: ReasonMalformed, Err: errors.New(why)}
	}
	w := newWalker(nil)
	e, ok := w.quick(line)
	if !ok {
		var reason Reason
		if e, reason, err = w.slow(line); reason != "" {
			return out, &CorruptError{Seq: e.Seq, Reason: reason, Err: err}
		}
	}
	out.Records = e.Seq
	return out, nil
}
