package vm_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A tally counts what a guest's "go test -v" output says of its top-level tests.
type tally struct {
	passed, failed, skipped int
	failures                []string       // names, in order
	reasons                 map[string]int // why tests were skipped
}

// String is one line for the summary.
func (t *tally) String() string {
	if t.passed+t.failed+t.skipped == 0 {
		return "ran nothing"
	}
	s := fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
	for _, reason := range slices.Sorted(maps.Keys(t.reasons)) {
		s += fmt.Sprintf("; %d× %s", t.reasons[reason], reason)
	}
	return s
}

// limit bounds what one guest may write into the test's log, and one line of it.
const (
	logLimit  = 4 << 20
	lineLimit = 8 << 10
)

// A lineWriter copies whole lines to out, marked so that a guest's results cannot be taken for the
// host's, and counts the results in them.
type lineWriter struct {
	tally
	out     io.Writer
	partial []byte
	written int
	last    string // the line before, where a skip's reason stands
	// recent are the lines since the last test began, evidence those of the tests that failed:
	// what a report must show when it shows little.
	recent, evidence []string
}

var (
	verdict = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+)`)
	begins  = regexp.MustCompile(`^=== RUN +[^/]+$`)
)

const (
	maxRecent   = 80
	maxEvidence = 240
)

// Write takes any piece of the stream. It fails only if out does.
func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			w.partial = append(w.partial, p...)
			if len(w.partial) > lineLimit {
				w.partial = w.partial[:lineLimit]
			}
			return n, nil
		}
		line := string(append(w.partial, p[:i]...))
		w.partial, p = w.partial[:0], p[i+1:]
		if err := w.line(line); err != nil {
			return 0, err
		}
	}
}

// Flush handles a last line without an end.
func (w *lineWriter) Flush() {
	if len(w.partial) > 0 {
		_ = w.line(string(w.partial)) // the log of a test that is over takes no more; nothing to do
		w.partial = nil
	}
}

func (w *lineWriter) line(line string) error {
	if begins.MatchString(line) {
		w.recent = w.recent[:0]
	}
	if w.recent = append(w.recent, fmt.Sprintf("%.*s", lineLimit/8, line)); len(w.recent) > maxRecent {
		w.recent = w.recent[1:]
	}
	if m := verdict.FindStringSubmatch(line); m != nil {
		switch m[1] {
		case "PASS":
			w.passed++
		case "FAIL":
			w.failed++
			w.failures = append(w.failures, m[2])
			w.keep()
		case "SKIP":
			w.skipped++
			w.skip(w.last)
		}
	}
	w.last = line
	if w.written > logLimit {
		return nil
	}
	n, err := fmt.Fprintf(w.out, "| %.*s\n", lineLimit, line)
	w.written += n
	return err
}

// keep makes evidence of the lines of the test that has just failed, or never ended.
func (w *lineWriter) keep() {
	w.evidence = append(w.evidence, w.recent...)
	w.evidence = w.evidence[max(0, len(w.evidence)-maxEvidence):]
	w.recent = w.recent[:0]
}

// skip notes the reason in a line like "    file_test.go:12: requires: mkfs.ext4".
func (w *lineWriter) skip(line string) {
	if w.reasons == nil {
		w.reasons = map[string]int{}
	}
	reason := strings.TrimSpace(line)
	if _, after, ok := strings.Cut(reason, ".go:"); ok {
		_, reason, _ = strings.Cut(after, ": ")
	}
	w.reasons[reason]++
}

func TestTally(t *testing.T) {
	const stream = `=== RUN   TestA
--- PASS: TestA (0.00s)
=== RUN   TestB
    b_test.go:7: requires: mkfs.ext4
--- SKIP: TestB (0.00s)
=== RUN   TestC
=== RUN   TestC/sub
    c_test.go:9: got 1
    --- FAIL: TestC/sub (0.00s)
--- FAIL: TestC (0.01s)
FAIL`
	for step := 1; step <= len(stream); step += 7 {
		var out bytes.Buffer
		w := &lineWriter{out: &out}
		for rest := stream; rest != ""; {
			n := min(step, len(rest))
			if _, err := io.WriteString(w, rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		w.Flush()
		const want = "1 passed, 1 failed, 1 skipped; 1× requires: mkfs.ext4"
		if got := w.String(); got != want || !slices.Equal(w.failures, []string{"TestC"}) {
			t.Errorf("step %d: %q %v, want %q", step, got, w.failures, want)
		}
		if got, want := out.String(), "| "+strings.ReplaceAll(stream, "\n", "\n| ")+"\n"; got != want {
			t.Errorf("step %d: copied %q, want %q", step, got, want)
		}
		if want := strings.Split(stream[strings.Index(stream, "=== RUN   TestC"):strings.LastIndex(stream, "\n")], "\n"); !slices.Equal(w.evidence, want) {
			t.Errorf("step %d: evidence %q, want %q", step, w.evidence, want)
		}
	}
}

func TestTallyBoundsItsLog(t *testing.T) {
	var out bytes.Buffer
	w := &lineWriter{out: &out}
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	for range 16 {
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
	}
	short := bytes.Repeat([]byte("line\n"), 1<<20)
	if _, err := w.Write(short); err != nil {
		t.Fatal(err)
	}
	if len(w.partial) > lineLimit || out.Len() > logLimit+lineLimit+16 {
		t.Errorf("holds %d bytes of a line and wrote %d", len(w.partial), out.Len())
	}
}
