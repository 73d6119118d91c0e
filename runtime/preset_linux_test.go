package runtime

import (
	"errors"
	"strings"
	"testing"

	"gloved.dev/journal/session"
)

// TestTerminalIsSetBeforeTheStart: the size and the kind of a terminal are those that
// were said of the session before it started, from its first byte on.
func TestTerminalIsSetBeforeTheStart(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", `stty size; stty -a | grep -o -e '[-]*opost' -e '[-]*echo ' -e '[-]*icanon'; printf 'a\nb\n'; read line; echo "$line"`)
	w.trust()
	plain, pipe := w.create(), w.create()
	must(t, w.Resize(t.Context(), plain.SessionID, Terminal{Rows: 11, Columns: 22}))
	must(t, w.Resize(t.Context(), plain.SessionID, Terminal{Rows: 33, Columns: 44})) // the last word counts
	must(t, w.Resize(t.Context(), pipe.SessionID, Terminal{Rows: 55, Columns: 66, Transparent: true}))

	_, err := w.start(plain)
	must(t, err)
	if err := w.Resize(t.Context(), plain.SessionID, Terminal{Rows: 1, Columns: 1, Transparent: true}); !errors.Is(err, &Error{Code: CodeNotRunning}) {
		t.Errorf("a started session's terminal was made transparent: %v", err)
	}
	_, err = w.Write(t.Context(), plain.SessionID, []byte("in\r"))
	must(t, err)
	// The terminal echoes, but whether before or after what is printed is not said.
	out, rec := w.finish(plain.SessionID)
	if !strings.Contains(out, "33 44\r\n") || !strings.Contains(out, "\nopost\r\n") || rec.State != session.Exited {
		t.Errorf("output %q, state %s", out, rec.State)
	}

	_, err = w.start(pipe)
	must(t, err)
	_, err = w.Write(t.Context(), pipe.SessionID, []byte("in\x16\x04\n"))
	must(t, err)
	out, _ = w.finish(pipe.SessionID)
	if want := "55 66\n-opost\nicanon\n-echo \na\nb\nin\x04\n"; out != want {
		t.Errorf("output %q, want %q", out, want)
	}

	must(t, w.Resize(t.Context(), w.create().SessionID, Terminal{Rows: 1, Columns: 1}))
	if err := w.Resize(t.Context(), "nobody", Terminal{Rows: 1, Columns: 1}); !errors.Is(err, &session.Error{Code: session.NotFound}) {
		t.Errorf("resize of a session that is not there: %v", err)
	}
}

// TestEndSignal: what ended a harness is told as long as this executor lives.
func TestEndSignal(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "kill -USR1 $$")
	w.trust()
	_, rec := w.run()
	if n := w.EndSignal(rec.SessionID); n != 10 {
		t.Errorf("ended by signal %d, want 10", n)
	}
	if n := w.EndSignal("nobody"); n != 0 {
		t.Errorf("a session that is not there was ended by %d", n)
	}
}
