package runtime

import (
	"errors"
	"net"
	"os"
	"testing"
)

// TestSocketInAReadGrant: what listens on the host can be reached through a
// socket that a session sees; so a tree with one in it is not shown.
func TestSocketInAReadGrant(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "echo in")
	w.trust()
	l, err := net.Listen("unix", w.path("work/engine.sock"))
	must(t, err)
	// The attack works outside: whoever may write the socket may connect.
	c, err := net.Dial("unix", w.path("work/engine.sock"))
	must(t, err)
	must(t, c.Close())
	var refused *Error
	if _, err := w.start(w.create(w.grant("read"))); !errors.As(err, &refused) || refused.Step != "grants" {
		t.Errorf("start = %v, want a failure at step grants", err)
	}
	must(t, l.Close())
	_ = os.Remove(w.path("work/engine.sock")) // closing has removed it
	if out, _ := w.run(w.grant("read")); out != "in\r\n" {
		t.Errorf("without the socket: output %q", out)
	}
}
