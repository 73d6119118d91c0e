package scripts

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"gloved.dev/internal/require"
	"gloved.dev/rpc/transcript"
)

// bin is where the programs under test were built.
var bin string

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "glove-scripts-")
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
	bin = dir
	return m.Run()
}

// readSources looks at everything the programs are made of. The go command remembers what
// a test looked at: without this it would take a result from before a change for good. It
// notices nothing before the first test has begun, so tests call this.
func readSources(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"cmd", "rpc", "runtime", "journal", "policy", "internal"} {
		err := filepath.WalkDir(filepath.Join("../../..", dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestScripts runs the command lines of testdata/script on the real programs. Beside
// testscript's own commands there are
//
//	mode MODE FILE...   set the mode of files, in octal
//	root                skip unless the test runs as root
//	chown UID FILE...   give files to another user
//	fill SIZE FILE      write a file of so many bytes
//	expand FILE...      replace variables in files and make them owner files
//
// Each script has $STATE with a key ($STATE/audit.key) and a valid policy
// ($STATE/session-policy.json), $EXPIRES a minute ahead in Unix milliseconds, and a HOME
// of its own.
func TestScripts(t *testing.T) {
	readSources(t)
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup:               setUpScript,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"mode":   scriptMode,
			"chown":  scriptChown,
			"fill":   scriptFill,
			"expand": scriptExpand,
			"root": func(ts *testscript.TestScript, _ bool, _ []string) {
				if os.Geteuid() != 0 {
					require.Root(t)
				}
			},
		},
	})
}

func setUpScript(env *testscript.Env) error {
	// testscript makes its directories for everybody; owner files want their own.
	if err := os.Chmod(env.WorkDir, 0o700); err != nil {
		return err
	}
	sandbox, err := transcript.NewSandbox(&transcript.File{Path: "../../../testdata/transcripts/x.transcript"}, env.WorkDir)
	if err != nil {
		return err
	}
	home := filepath.Join(env.WorkDir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	env.Setenv("STATE", sandbox.Dir)
	env.Setenv("EXPIRES", strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10))
	env.Setenv("HOME", home)
	env.Setenv("XDG_CONFIG_HOME", "")
	env.Setenv("XDG_STATE_HOME", "")
	env.Setenv("PATH", bin+":"+env.Getenv("PATH"))
	return nil
}

func scriptMode(ts *testscript.TestScript, _ bool, args []string) {
	mode, err := strconv.ParseUint(args[0], 8, 32)
	ts.Check(err)
	for _, name := range args[1:] {
		ts.Check(os.Chmod(ts.MkAbs(name), os.FileMode(mode)))
	}
}

func scriptChown(ts *testscript.TestScript, _ bool, args []string) {
	uid, err := strconv.Atoi(args[0])
	ts.Check(err)
	for _, name := range args[1:] {
		ts.Check(os.Chown(ts.MkAbs(name), uid, -1))
	}
}

func scriptFill(ts *testscript.TestScript, _ bool, args []string) {
	size, err := strconv.ParseInt(args[0], 10, 64)
	ts.Check(err)
	if size > 1<<30 {
		ts.Check(fmt.Errorf("%d bytes are more than a script needs", size))
	}
	file, err := os.OpenFile(ts.MkAbs(args[1]), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	ts.Check(err)
	ts.Check(file.Truncate(size))
	ts.Check(file.Close())
}

func scriptExpand(ts *testscript.TestScript, _ bool, args []string) {
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), func(variable string) string { return ts.Getenv(variable) })
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o600))
		ts.Check(os.Chmod(ts.MkAbs(name), 0o600)) // the script's own files are for everybody
	}
}
