package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/gate"
)

// watching makes a watch over the desk's gate.
func (d *desk) watching() *watch {
	d.Helper()
	log, err := filepath.Abs(logPath)
	if err != nil {
		d.Fatal(err)
	}
	a := newApp(&ui.Streams{})
	a.clock = d.clock
	g := gate.New(gate.Config{Log: log, Dir: d.dir, Clock: d.clock})
	w := &watch{gate: g, who: "human:ada", show: a.showText(g)}
	if err := w.refresh(); err != nil {
		d.Fatal(err)
	}
	return w
}

// screen presses keys and returns the frame after them.
func screen(w *watch, rows, cols int, keys ...string) string {
	w.frame(rows, cols, false)
	for _, key := range keys {
		w.press(context.Background(), key)
		w.frame(rows, cols, false)
	}
	return strings.Join(w.frame(rows, cols, false), "\n")
}

func wants(t *testing.T, frame string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(frame, part) {
			t.Errorf("the frame lacks %q:\n%s", part, frame)
		}
	}
}

// TestWatchGrantsOnlyWhatWasSeen: a question is granted from its own page, after all of it was on
// the screen, and after a second key.
func TestWatchGrantsOnlyWhatWasSeen(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	d.want(5, "run one --class a.b --as agent:x -- echo 1 2 3 4 5 6 7 8")
	d.want(5, "run two --class a.b --as agent:x -- true")
	w := d.watching()
	wants(t, screen(w, 10, 60), "2 waiting, you are human:ada", "> a.b  one", "  a.b  two")
	wants(t, screen(w, 10, 60, "g"), "enter look") // not from the list
	wants(t, screen(w, 10, 60, keyEnter, "g"), "there is more below")
	wants(t, screen(w, 10, 60, " ", " ", " ", "g"), "GRANT one?")
	wants(t, screen(w, 10, 60, "n"), "nothing was decided")
	if v, _ := w.gate.View(); v.Action("one").State() != gate.StateRequested {
		t.Fatal("it was decided")
	}
	wants(t, screen(w, 10, 60, "g", "y"), "1 waiting", "granted one", "> a.b  two")
	if v, _ := w.gate.View(); v.Action("one").State() != gate.StateGranted || v.Action("one").Granted.Actor != "human:ada" {
		t.Error("it was not granted")
	}
	if len(w.tokens) != 1 || !strings.Contains(w.tokens[0], "token, shown once: ") {
		t.Errorf("tokens %q", w.tokens)
	}
	wants(t, screen(w, 10, 60, keyEnter, "r", "y"), "0 waiting", "nothing waits", "rejected two")
}

func TestWatchSaysWhatIsRefused(t *testing.T) {
	d := newDesk(t)
	d.policy("classes: {a.b: {autonomy: manual, approvers: [eve]}}")
	d.want(5, "run one --class a.b --as agent:x -- true")
	w := d.watching()
	wants(t, screen(w, 30, 70, keyEnter, "g", "y"), "actor-not-approver")
	d.want(0, "reject one --as human:eve") // meanwhile, elsewhere
	wants(t, screen(w, 30, 70, "g", "y"), "already-decided")
	wants(t, screen(w, 30, 70, "q"), "nothing waits")
	if !w.press(context.Background(), "q") {
		t.Error("q does not leave")
	}
}

// Long lines are wrapped, not cut, and a screen of any size holds its frame.
func TestWatchFrames(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	long := strings.Repeat("abcdefghij", 30) + "END"
	d.want(5, "run one --class a.b --as agent:x -- echo "+long)
	w := d.watching()
	w.press(context.Background(), keyEnter)
	all := strings.Join(w.frame(60, 40, false), "")
	if !strings.Contains(strings.ReplaceAll(all, "\n", ""), "END") {
		t.Errorf("the end of a long line is missing: %s", all)
	}
	for _, size := range [][2]int{{1, 1}, {2, 5}, {3, 20}, {24, 80}, {200, 300}} {
		for _, p := range []page{pageList, pageDetail, pageGrant} {
			w.page = p
			frame := w.frame(size[0], size[1], true)
			if len(frame) > max(size[0], 2) {
				t.Errorf("%d rows: a frame of %d", size[0], len(frame))
			}
		}
	}
}

// TestWatchAtATerminal drives the real screen through a pseudo-terminal.
func TestWatchAtATerminal(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	d.want(5, "run one --class a.b --as agent:x -- true")
	keyboard, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	if err := pty.Setsize(keyboard, &pty.Winsize{Rows: 24, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	seen := newScreenReader(keyboard)
	done := make(chan error, 1)
	go func() { done <- d.watching().run(t.Context(), &console.Terminal{In: tty, Out: tty}) }()
	for _, step := range []struct{ key, want string }{
		{"", "1 waiting"}, {"\r", "runs, in"}, {"gy", "one at a time"}, {"g", "GRANT one?"}, {"y", "nothing waits"},
	} {
		if _, err := keyboard.WriteString(step.key); err != nil {
			t.Fatal(err)
		}
		if !seen.until(step.want, 10*time.Second) {
			t.Fatalf("after %q the screen never had %q: %q", step.key, step.want, seen.text())
		}
	}
	if _, err := keyboard.WriteString("q"); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("q does not end it")
	}
	if !seen.until("\x1b[?1049l", 10*time.Second) {
		t.Error("the screen was not given back")
	}
	tty.Close()
	d.want(2, "watch --as human:ada", "no-terminal")
}

// A screenReader collects what a terminal shows.
type screenReader struct {
	chunks chan []byte
	all    bytes.Buffer
	from   int
}

func newScreenReader(r io.Reader) *screenReader {
	s := &screenReader{chunks: make(chan []byte, 1024)}
	go func() {
		defer close(s.chunks)
		for {
			buf := make([]byte, 4096)
			n, err := r.Read(buf)
			if err != nil {
				return
			}
			s.chunks <- buf[:n]
		}
	}()
	return s
}

func (s *screenReader) text() string { return s.all.String()[s.from:] }

// until waits for text after what was waited for before.
func (s *screenReader) until(want string, limit time.Duration) bool {
	timeout := time.After(limit)
	for {
		if at := strings.Index(s.text(), want); at >= 0 {
			s.from += at + len(want)
			return true
		}
		select {
		case chunk, open := <-s.chunks:
			if !open {
				return false
			}
			s.all.Write(chunk)
		case <-timeout:
			return false
		}
	}
}
