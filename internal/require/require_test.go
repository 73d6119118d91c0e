package require_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"gloved.dev/internal/require"
)

// recorder is a testing.TB that notes how a test would have ended. Only the methods that require
// calls are its own; any other panics on the nil TB inside, which the test would notice.
type recorder struct {
	testing.TB
	verdict string
	message string
}

type ended struct{}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) { r.end("skip", format, args) }

func (r *recorder) Fatalf(format string, args ...any) { r.end("fatal", format, args) }

func (r *recorder) end(verdict, format string, args []any) {
	r.verdict, r.message = verdict, fmt.Sprintf(format, args...)
	panic(ended{})
}

// watch runs f with a recorder and returns what it did; an empty verdict means that f returned.
func watch(t *testing.T, f func(testing.TB)) (verdict, message string) {
	t.Helper()
	r := &recorder{}
	defer func() {
		switch v := recover().(type) {
		case nil, ended:
		default:
			panic(v)
		}
		verdict, message = r.verdict, r.message
	}()
	f(r)
	return
}

func TestSkipByMode(t *testing.T) {
	for mode, want := range map[string]string{"": "skip", "all": "fatal", "ALL": "fatal", "alll": "fatal"} {
		t.Setenv(require.Variable, mode)
		verdict, message := watch(t, func(tb testing.TB) { require.Skip(tb, "a thing") })
		if verdict != want {
			t.Errorf("mode %q: %s, want %s", mode, verdict, want)
		}
		if known := mode == "" || mode == "all"; known != strings.Contains(message, "a thing") {
			t.Errorf("mode %q: message %q", mode, message)
		}
	}
}

func TestTool(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "gloved-test-tool")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	t.Setenv(require.Variable, "all")
	var got string
	if verdict, message := watch(t, func(tb testing.TB) { got = require.Tool(tb, "gloved-test-tool") }); verdict != "" {
		t.Fatalf("%s: %s", verdict, message)
	}
	if got != program {
		t.Errorf("got %q, want %q", got, program)
	}
	verdict, message := watch(t, func(tb testing.TB) { require.Tool(tb, "gloved-no-such-tool") })
	if verdict != "fatal" || !strings.Contains(message, "gloved-no-such-tool") {
		t.Errorf("missing tool: %s %q", verdict, message)
	}
}

func TestRootAndNotRoot(t *testing.T) {
	t.Setenv(require.Variable, "all")
	root, _ := watch(t, func(tb testing.TB) { require.Root(tb) })
	notRoot, _ := watch(t, func(tb testing.TB) { require.NotRoot(tb) })
	wantRoot, wantNot := "fatal", ""
	if os.Geteuid() == 0 {
		wantRoot, wantNot = "", "skip"
	}
	if root != wantRoot || notRoot != wantNot {
		t.Errorf("Root ended %q (want %q), NotRoot ended %q (want %q)", root, wantRoot, notRoot, wantNot)
	}
}

func TestLinux(t *testing.T) {
	t.Setenv(require.Variable, "")
	want := "skip"
	if runtime.GOOS == "linux" {
		want = ""
	}
	if got, _ := watch(t, func(tb testing.TB) { require.Linux(tb) }); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEnvironmentIsAClosedList(t *testing.T) {
	t.Setenv(require.Variable, "all")
	for kind := require.CgroupV2; kind <= require.RealRoot; kind++ {
		verdict, message := watch(t, func(tb testing.TB) { require.Environment(tb, kind) })
		if verdict != "skip" || !strings.Contains(message, kind.Missing()) || kind.Missing() == "" {
			t.Errorf("kind %d: %s %q", kind, verdict, message)
		}
	}
	for _, kind := range []require.Kind{-1, require.RealRoot + 1} {
		if verdict, _ := watch(t, func(tb testing.TB) { require.Environment(tb, kind) }); verdict != "fatal" {
			t.Errorf("kind %d outside the list: %s, want fatal", kind, verdict)
		}
	}
}
