//go:build linux

package run

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/policy"
)

func TestSessionsFromTheCommandLine(t *testing.T) {
	h := newHouse(t, "/bin/sh", "-c", "echo first words; read line; exit 9")
	h.start("one")
	h.start("two")
	h.create("made")
	h.create("made-too")
	for _, c := range []struct {
		args   string
		status int
		want   string // in the output, or else in the errors
	}{
		{"sessions list", 0, "one       running"},
		{"sessions list -q --state running", 0, "two\n"},
		{"sessions list --state exited", 0, "no such sessions"},
		{"sessions list --json", 0, `"session_id": "one"`},
		{"sessions show one", 0, "running"},
		{"sessions show on", 0, "running"}, // a prefix
		{"sessions logs o", 0, "first words"},
		{"sessions show three", 1, "session_not_found"},
		{"sessions attach one", 2, "attach needs a terminal"},
		{"status", 0, "2 running"},
		{"status", 0, "a resident gloved (process"},
		{"status --json", 0, `"running": 2`},
		{"sessions cleanup one", 1, "glove sessions stop one ends it"},
		{"sessions stop made", 1, "it has not run"},
		{"sessions stop mad", 1, "made, made-too"},
		{"sessions stop one", 0, "one is exited (signaled)"},
		{"sessions logs one", 0, "first words"},
		{"sessions logs -f one", 0, "first words"},
		{"sessions cleanup one", 0, "one is exited"},
		{"sessions logs one", 1, "its output was removed by cleanup"},
		{"sessions list --state exited", 0, "1:"},
	} {
		out, errs, status := h.glove(strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out+errs, c.want) {
			t.Errorf("glove %s: status %d (want %d), want %q in %q and %q", c.args, status, c.status, c.want, out, errs)
		}
	}
	if _, err := h.client.WriteStdin(t.Context(), "two", []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := h.glove("sessions", "logs", "-f", "two"); status != 0 || !strings.Contains(out, "first words") {
		t.Errorf("logs -f: %d, %q, %q", status, out, errs)
	}
	if out, _, _ := h.glove("sessions", "show", "two"); !strings.Contains(out, "exit 9") {
		t.Errorf("show: %q", out)
	}
}

// TestAttachAndReattach: the screen is rebuilt at another size, a viewer sees what the
// writer does and is not heard, and the end brings the session's status.
func TestAttachAndReattach(t *testing.T) {
	h := newHouse(t, "/bin/bash", "--norc", "--noediting")
	h.start("s")
	attach := func(rows, columns uint16, more ...string) *desk {
		return sit(t, rows, columns, append([]string{"sessions", "attach", "s", "--runtime-dir", h.path("run")}, more...)...)
	}
	d := attach(20, 70)
	d.raw(true)
	d.types("echo remembered $((40+2)); stty size\r")
	d.expect("remembered 42")
	d.expect("20 70")
	d.types("\x1c") // Ctrl-\
	d.expect("detached; the session goes on")
	d.ends(0)

	d = attach(30, 90, "--detach-key", "ctrl-]")
	d.expect("remembered 42")
	d.expect("20 70")
	d.types("stty size\r")
	d.expect("30 90")
	viewer := attach(10, 40, "--view")
	viewer.raw(true)
	viewer.expect("30 90")
	viewer.types("exit 1\r") // is not passed on
	d.types("echo both see $((1+1))\r")
	d.expect("both see 2")
	viewer.expect("both see 2")
	viewer.types("\x1c")
	viewer.ends(0)
	d.types("exit 5\r")
	d.expect("the session has ended: exited")
	d.ends(5)
}

// TestAttachToAFullScreen: a program that draws the whole screen is asked to do it anew.
func TestAttachToAFullScreen(t *testing.T) {
	h := newHouse(t, "/bin/bash", "--norc", "--noediting", "-c",
		`draw() { printf '\033[H\033[2Jframe %s end' "$(stty size)"; }; trap draw WINCH; printf '\033[?1049h\033[?25l'; draw; while :; do read -t 1 x; done`)
	h.start("s")
	d := sit(t, 25, 77, "sessions", "attach", "s", "--runtime-dir", h.path("run"))
	d.expect("\x1b[?1049h\x1b[?25l") // the modes are carried over
	d.expect("frame 25 77 end")
	d.types("\x1c")
	d.expect("\x1b[?1049l\x1b[?25h")
	d.ends(0)
	if _, _, status := h.glove("sessions", "stop", "s"); status != 0 {
		t.Errorf("stop: %d", status)
	}
}

// TestStartAsTheController: an owner without a controller starts what the policy permits.
func TestStartAsTheController(t *testing.T) {
	h := newHouse(t, "/bin/sh", "-c", "pwd; ls -d /workspace; read line; exit 4")
	h.kill()
	h.serve() // nobody has acknowledged anything here
	policy := "--session-policy=" + h.path("policy.json")
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"start", policy, "--session-id", "mine"}, 0, "mine is running\n"},
		{[]string{"start", policy, "--session-id", "mine"}, 1, "session_conflict"},
		{[]string{"start", policy, "--json"}, 0, `"state": "running"`},
		{[]string{"start", policy, "--template", "no"}, 2, "one of t"},
		{[]string{"start", policy, "--profile", "no"}, 2, "one of p"},
		{[]string{"start"}, 2, "--session-policy FILE"},
		{[]string{"start", "--session-policy", h.path("config.json")}, 1, "session_policy_invalid"},
	} {
		out, errs, status := h.glove(append([]string{"sessions"}, c.args...)...)
		if status != c.status || !strings.Contains(out+errs, c.want) {
			t.Errorf("%q: %d, %q, %q", c.args, status, out, errs)
		}
	}
	if _, err := h.client.WriteStdin(t.Context(), "mine", []byte("\n")); err != nil {
		t.Fatal(err)
	}
	if out, errs, status := h.glove("sessions", "logs", "-f", "mine"); status != 0 || !strings.Contains(out, "/workspace") {
		t.Errorf("logs: %d, %q, %q", status, out, errs)
	}
	if out, _, _ := h.glove("sessions", "show", "mine"); !strings.Contains(out, "exit 4") {
		t.Errorf("show: %q", out)
	}
}

// TestAttachOutlivesGloved: a gloved that is killed takes no viewer along. The next one shows
// the screen as it is by then, and the keys go on; and nobody waits for an end that has no
// place to go.
func TestAttachOutlivesGloved(t *testing.T) {
	h := newHouse(t, "/bin/bash", "--norc", "--noediting")
	h.start("s")
	d := sit(t, 20, 90, "sessions", "attach", "s", "--runtime-dir", h.path("run"))
	d.raw(true)
	d.types("echo before $((40+2))\r")
	d.expect("before 42")
	h.kill()
	d.expect("gloved is gone; the session goes on")
	h.serve()
	d.expect("\x1b[2J") // painted anew
	d.eventually("keys are passed on", func() bool {
		d.types("echo after $((50+3))\r")
		return strings.Contains(d.text(), "after 53")
	})
	h.kill()
	h.serve()
	d.expect("gloved is gone; the session goes on")
	d.eventually("the end of an unrecorded session is told", func() bool {
		d.types("exit 5\r")
		return strings.Contains(d.text(), "end_not_on_record")
	})
	d.ends(125)
	if out, errs, _ := h.glove("sessions", "stop", "s"); !strings.Contains(out+errs, "receipts acknowledge") {
		t.Errorf("stop of what has ended: %q, %q", out, errs)
	}
	if out, errs, status := h.glove("receipts", "acknowledge"); status != 0 || !strings.Contains(out, "acknowledged receipts: 0") {
		t.Errorf("acknowledge: %d, %q, %q", status, out, errs)
	}
	d.eventually("the end is on record", func() bool {
		out, _, _ := h.glove("receipts", "list")
		return strings.Contains(out, "exited")
	})
	if out, errs, status := h.glove("receipts", "acknowledge"); status != 0 || !strings.Contains(out, "acknowledged receipts: 1") {
		t.Errorf("acknowledge again: %d, %q, %q", status, out, errs)
	}
	if out, _, _ := h.glove("receipts", "list", "--json", "--after", "1"); out != "" {
		t.Errorf("after the last there is %q", out)
	}
	if out, errs, _ := h.glove("sessions", "show", "s"); !strings.Contains(out, "exit 5") {
		t.Errorf("show: %q, %q", out, errs)
	}
}

// TestLeavingWhileGlovedIsAway: the detach key works without anybody to be told.
func TestLeavingWhileGlovedIsAway(t *testing.T) {
	h := newHouse(t, "/bin/bash", "--norc", "--noediting")
	h.start("s")
	d := sit(t, 20, 90, "sessions", "attach", "s", "--runtime-dir", h.path("run"))
	d.raw(true)
	h.kill()
	d.expect("gloved is gone; the session goes on")
	d.types("\x1c")
	d.expect("detached; the session goes on")
	d.ends(0)
	h.serve()
	h.trust()
}

// TestOneWriter: one glove of a user's types into a session.
func TestOneWriter(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	h := newHouse(t, "/bin/bash", "--norc", "--noediting")
	h.start("s")
	attach := func(more ...string) *desk {
		return sit(t, 20, 70, append([]string{"sessions", "attach", "s", "--runtime-dir", h.path("run")}, more...)...)
	}
	first := attach()
	first.raw(true)
	second := attach()
	second.expect("attached_elsewhere")
	second.ends(1)
	forced := attach("--force")
	forced.raw(true)
	forced.types("echo forced $((1+1))\r")
	first.expect("forced 2")
	forced.types("\x1c")
	forced.ends(0)
	first.types("\x1c")
	first.ends(0)
	again := attach()
	again.raw(true)
	again.types("exit 0\r")
	again.ends(0)
}

// TestCopyingIsTold: whoever starts a session hears how much has been copied for it.
func TestCopyingIsTold(t *testing.T) {
	h := newHouse(t, "/bin/true")
	must(t, os.WriteFile(h.path("work/file"), bytes.Repeat([]byte("x"), 4<<20), 0o600))
	h.plan.PathGrants = []policy.AliasGrant{{Alias: "work", Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy,
		MaxBytes: 16 << 20, TTLSecs: 60, Cleanup: policy.CleanupRemove}}
	h.start("s")
	select {
	case p := <-h.progress:
		if p.SessionID != "s" || p.Bytes < 1 || p.Bytes > 4<<20 || p.Entries > 1 {
			t.Errorf("told %+v", p)
		}
	case <-time.After(patience):
		t.Error("nothing was told")
	}
}

// TestGlovedThatDoesNotStart: what it says is shown as it says it.
func TestGlovedThatDoesNotStart(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(config, []byte(`{"schema_version": 1, "persistent_service": false, "runtime_directory": "/nonexistent/run", "audit_key": "/nonexistent/key", "receipt_journal": "/nonexistent/j"}`), 0o600))
	out, err := exec.CommandContext(t.Context(), glove(), "rpc", "--config", config, "health").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "  it said:\n  gloved: ") || strings.Contains(string(out), `\n`) {
		t.Errorf("%v\n%s", err, out)
	}
}
