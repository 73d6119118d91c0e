package frame

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// frames reads everything and describes it: frames as they are, skipped ones by
// their code, then the source's error.
func frames(src io.Reader, limit int) []string {
	r := NewReader(src, limit)
	var out []string
	for {
		line, err := r.Next()
		var bad *Error
		switch {
		case errors.As(err, &bad):
			out = append(out, "!"+bad.Code)
		case err != nil:
			return append(out, "end "+err.Error())
		default:
			out = append(out, string(line))
		}
	}
}

// shapes are the streams of the reader's table and the seeds of its fuzz target.
var shapes = []struct {
	name, in string
	want     []string
}{
	{"empty", "", []string{"end EOF"}},
	{"one", "{}\n", []string{"{}", "end EOF"}},
	{"two", "a\nb\n", []string{"a", "b", "end EOF"}},
	{"cr", "a\r\nb\n", []string{"a", "b", "end EOF"}},
	{"one cr only", "a\r\r\n", []string{"a\r", "end EOF"}},
	{"cr inside", "a\rb\n", []string{"a\rb", "end EOF"}},
	{"blank", "\n\r\n \t\n\na\n\n", []string{"a", "end EOF"}},
	{"unterminated", "a\nb", []string{"a", "!parse_error", "end EOF"}},
	{"unterminated blank", "a\n \t\r", []string{"a", "end EOF"}},
	{"at the bound", "123456789012345\n", []string{"123456789012345", "end EOF"}},
	{"past the bound", "1234567890123456\n", []string{"!frame_too_large", "end EOF"}},
	{"at the bound with cr", "12345678901234\r\n", []string{"12345678901234", "end EOF"}},
	{"past the bound with cr", "123456789012345\r\n", []string{"!frame_too_large", "end EOF"}},
	{"goes on", strings.Repeat("x", 100) + "\nok\n", []string{"!frame_too_large", "ok", "end EOF"}},
	{"too large unterminated", "ok\n" + strings.Repeat("x", 100), []string{"ok", "!frame_too_large", "end EOF"}},
	{"too large blanks", strings.Repeat(" ", 100) + "\nok\n", []string{"!frame_too_large", "ok", "end EOF"}},
	{"nul", "\x00\n", []string{"\x00", "end EOF"}},
}

const shapeBound = 16

func TestReader(t *testing.T) {
	readers := map[string]func(io.Reader) io.Reader{
		"whole":       func(r io.Reader) io.Reader { return r },
		"one byte":    iotest.OneByteReader,
		"half":        iotest.HalfReader,
		"data at eof": iotest.DataErrReader,
	}
	for _, tt := range shapes {
		for how, wrap := range readers {
			if got := frames(wrap(strings.NewReader(tt.in)), shapeBound); fmt.Sprint(got) != fmt.Sprint(tt.want) {
				t.Errorf("%s, %s: got %q, want %q", tt.name, how, got, tt.want)
			}
		}
	}
}

func TestReaderKeepsSourceError(t *testing.T) {
	want := errors.New("torn wire")
	r := NewReader(io.MultiReader(strings.NewReader("a\nhalf"), iotest.ErrReader(want)), 0)
	if line, err := r.Next(); string(line) != "a" || err != nil {
		t.Fatalf("Next: %q, %v", line, err)
	}
	for range 2 {
		if _, err := r.Next(); err != want {
			t.Fatalf("Next: %v, want %v: half a line must not count as one", err, want)
		}
	}
	if _, err := NewReader(stuck{}, 0).Next(); err != io.ErrNoProgress {
		t.Errorf("a source that gives nothing: %v, want %v", err, io.ErrNoProgress)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// endless gives n bytes of c without keeping them anywhere.
type endless struct {
	n int
	c byte
}

func (e *endless) Read(b []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	n := min(len(b), e.n)
	for i := range b[:n] {
		b[i] = e.c
	}
	e.n -= n
	return n, nil
}

func TestHundredMiBLine(t *testing.T) {
	src := io.MultiReader(&endless{100 << 20, 'x'}, strings.NewReader("\nok\n"))
	r := NewReader(src, 0)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := r.Next()
	runtime.ReadMemStats(&after)
	if !errors.Is(err, &Error{Code: CodeFrameTooLarge}) {
		t.Fatalf("Next: %v, want %s", err, CodeFrameTooLarge)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4*MaxBytes {
		t.Errorf("%d bytes were allocated to skip 100 MiB", got)
	}
	if cap(r.buf) > MaxBytes+chunk {
		t.Errorf("the buffer has %d bytes, more than a frame and a chunk", cap(r.buf))
	}
	if line, err := r.Next(); string(line) != "ok" || err != nil {
		t.Fatalf("after it: %q, %v", line, err)
	}
	if _, total := r.Sample(); total != 100<<20+4 {
		t.Errorf("total %d, want %d", total, 100<<20+4)
	}
}

func TestReaderLetsLargeBufferGo(t *testing.T) {
	big := strings.Repeat("x", MaxBytes-1) + "\n"
	r := NewReader(io.MultiReader(strings.NewReader(big), strings.NewReader("a\n")), 0)
	for range 2 {
		if _, err := r.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(r.buf) > keep {
		t.Errorf("an idle reader holds %d bytes", cap(r.buf))
	}
}

func TestSample(t *testing.T) {
	r := NewReader(strings.NewReader(strings.Repeat("s", 1000)+"\n"), 0)
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	if first, total := r.Sample(); len(first) != SampleBytes || total != 1001 {
		t.Errorf("Sample: %d bytes of %d", len(first), total)
	}
}

// FuzzReader: however the bytes arrive, the frames are the same, none is longer
// than the bound, and together they are the input.
func FuzzReader(f *testing.F) {
	if len(shapes) < 10 {
		f.Fatal("the seeds are gone")
	}
	for i, s := range shapes {
		f.Add([]byte(s.in), uint8(i))
	}
	f.Fuzz(func(t *testing.T, in []byte, step uint8) {
		whole := frames(bytes.NewReader(in), shapeBound)
		chunked := frames(&stepReader{in, int(step)%7 + 1}, shapeBound)
		if fmt.Sprint(whole) != fmt.Sprint(chunked) {
			t.Fatalf("whole %q, in steps %q", whole, chunked)
		}
		var want []string
		lines := bytes.SplitAfter(in, []byte("\n"))
		for _, l := range lines {
			body, ended := bytes.CutSuffix(l, []byte("\n"))
			switch trimmed := bytes.TrimSuffix(body, []byte("\r")); {
			case len(body) >= shapeBound:
				want = append(want, "!frame_too_large")
			case !ended && len(bytes.TrimSpace(body)) > 0:
				want = append(want, "!parse_error")
			case ended && len(bytes.TrimLeft(trimmed, " \t")) > 0:
				want = append(want, string(trimmed))
			}
		}
		if want = append(want, "end EOF"); fmt.Sprint(want) != fmt.Sprint(whole) {
			t.Fatalf("got %q, want %q", whole, want)
		}
	})
}

type stepReader struct {
	b    []byte
	step int
}

func (s *stepReader) Read(b []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.b[:min(s.step, len(s.b))])
	s.b = s.b[n:]
	return n, nil
}
