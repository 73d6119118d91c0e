package room

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Main()
	Main()
	if len(os.Args) == 3 && os.Args[1] == actArgument {
		os.Exit(act(os.Args[2]))
	}
	os.Exit(m.Run())
}

// options are a room whose gate's home lies inside the canonical workspace, where it must not.
func options(t *testing.T) Options {
	t.Helper()
	dir, err := os.MkdirTemp("", "room-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := Options{Canonical: dir + "/ws", InstallRoot: dir + "/install", Home: dir + "/ws/.approval", Policy: dir + "/ws/APPROVAL.md",
		Log: dir + "/ws/.approval/log/events.jsonl", Getenv: func(string) string { return "" }, UID: 65534, GID: 65534}
	for _, d := range []string{o.Canonical, o.InstallRoot, filepath.Dir(o.Log), o.Home + "/keys"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{o.Log, o.Policy, o.Home + "/vault.enc", o.Home + "/env", o.Home + "/keys/k", o.Canonical + "/plain"} {
		if err := os.WriteFile(f, []byte("content of "+filepath.Base(f)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return o
}

// inside runs a shell line and returns its exit code and output.
func inside(t *testing.T, o Options, line string) (int, string) {
	t.Helper()
	require.Linux(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out := make(chan string, 1)
	go func() { data, _ := io.ReadAll(r); out <- string(data) }()
	exit, err := Run(t.Context(), o, []string{"sh", "-c", line}, null, w, w)
	w.Close()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return exit, <-out
}

// TestReq116DenialWinsInsideAnAllowedRoot covers the gate's files even where the operator put them
// into the folder that the room reads.
func TestReq116DenialWinsInsideAnAllowedRoot(t *testing.T) {
	o := options(t)
	if exit, out := inside(t, o, "cat "+o.Canonical+"/plain"); exit != 0 || out != "content of plain" {
		t.Fatalf("exit %d, %q", exit, out)
	}
	for _, path := range []string{o.Log, o.Policy, o.Home + "/vault.enc", o.Home + "/env", o.Home + "/keys/k"} {
		if data, err := os.ReadFile(path); err != nil || !strings.HasPrefix(string(data), "content") {
			t.Fatalf("outside: %q %v", data, err)
		}
		if exit, out := inside(t, o, "cat "+path); exit == 0 || strings.Contains(out, "content") {
			t.Errorf("%s: exit %d, %q", path, exit, out)
		}
	}
	if exit, out := inside(t, o, "ls -A "+o.Home+" && cat "+o.Home+"/*"); exit == 0 || strings.Contains(out, "vault") {
		t.Errorf("exit %d, %q", exit, out)
	}
}

func TestCodesAreTheClosedList(t *testing.T) {
	if got := strings.Join(Codes(), " "); got != "sandbox-unsupported sandbox-unavailable workspace-unavailable command-unresolvable timeout" {
		t.Fatal(got)
	}
}

func TestCanonicalMustBeReal(t *testing.T) {
	o := options(t)
	link := filepath.Join(filepath.Dir(o.Canonical), "link")
	if err := os.Symlink(o.Canonical, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, o.Canonical + "/plain", o.Canonical + "/none", "relative"} {
		o.Canonical = path
		_, err := Describe(o)
		if e, ok := errors.AsType[*Error](err); !ok || e.Code != CodeWorkspace {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestCommandBringsNoMoreThanItsPrefix decides what comes along with a program.
func TestCommandBringsNoMoreThanItsPrefix(t *testing.T) {
	o := options(t)
	dir := filepath.Dir(o.Canonical)
	program := func(path string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tool, alone, installed := program(dir+"/tool/bin/run"), program(dir+"/run"), program(o.InstallRoot+"/bin/codex")
	for path, bring := range map[string]string{
		tool: dir + "/tool", alone: alone, installed: installed, program(o.Canonical + "/script"): "",
	} {
		p, err := resolve(path, &o)
		if err != nil || p.bring != bring {
			t.Errorf("%s brings %+v, %v", path, p, err)
		}
	}
	for _, path := range []string{program(o.Home + "/keys/run"), "no-such", dir, "./x", "", "a\x00b"} {
		if p, err := resolve(path, &o); err == nil && !strings.HasPrefix(path, o.Canonical) {
			t.Errorf("%q resolves to %+v", path, p)
		}
	}
}

// TestSeatbeltGolden pins the text of the profile: allowances first, denials last.
func TestSeatbeltGolden(t *testing.T) {
	got := Seatbelt([]string{"/private/tmp/room/work"}, []string{"/private/tmp/room/work", `/Users/a "b"\c/ws`}, []string{"/Users/a/.approval", "/Users/a/APPROVAL.md"})
	golden := filepath.Join("testdata", "seatbelt.sb")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("the profile has changed:\n%s", got)
	}
	if strings.LastIndex(got, "(allow") > strings.LastIndex(got, "(deny file-read* file-write*") {
		t.Fatal("an allowance comes after the last denial")
	}
}
