//go:build linux

package run

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/host"
)

// bin is where the programs under test were built.
var bin string

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "glove-run-tests-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-o", dir, "gloved.dev/cmd/gloved", "gloved.dev/cmd/glove")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs them too
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin = dir
	return m.Run()
}

func glove() string { return filepath.Join(bin, "glove") }

// readSources looks at everything the programs are made of, so that the go command does
// not take a result from before a change.
func readSources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"cmd", "rpc", "runtime", "journal", "policy", "internal"} {
		err := filepath.WalkDir(filepath.Join("../..", dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// usable skips where no session can run at all.
func usable(t *testing.T) {
	t.Helper()
	readSources(t)
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
}

// TestScripts runs testdata/script. Beside testscript's own commands there are
//
//	exits CODE COMMAND...   run a command that must end with exactly that status
//	mode MODE FILE...       set the mode of files, in octal
//	nothing-left            no private state of a run remains
//
// Each script has a HOME and an XDG_RUNTIME_DIR of its own and starts in a project.
func TestScripts(t *testing.T) {
	usable(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setUpScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": scriptExits, "mode": scriptMode, "nothing-left": scriptNothingLeft,
		},
	})
}

func setUpScript(env *testscript.Env) error {
	for name, path := range map[string]string{"HOME": "home", "XDG_RUNTIME_DIR": "run"} {
		dir := filepath.Join(env.WorkDir, path)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			return err
		}
		env.Setenv(name, dir)
	}
	env.Setenv("XDG_CONFIG_HOME", "")
	env.Setenv("XDG_STATE_HOME", "")
	env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
	project := filepath.Join(env.WorkDir, "project")
	env.Cd = project
	return os.MkdirAll(project, 0o755)
}

func scriptExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func scriptMode(ts *testscript.TestScript, _ bool, args []string) {
	mode, err := strconv.ParseUint(args[0], 8, 32)
	ts.Check(err)
	for _, name := range args[1:] {
		ts.Check(os.Chmod(ts.MkAbs(name), os.FileMode(mode)))
	}
}

func scriptNothingLeft(ts *testscript.TestScript, _ bool, _ []string) {
	left, err := os.ReadDir(ts.Getenv("XDG_RUNTIME_DIR"))
	ts.Check(err)
	if len(left) > 0 {
		ts.Fatalf("%d entries are left, the first is %s", len(left), left[0].Name())
	}
}
