package control

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gloved.dev/rpc/transcript"
)

// bin is where the programs under test were built.
var bin string

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	dir, err := os.MkdirTemp("", "glove-control-")
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
		err := filepath.WalkDir(filepath.Join("../..", dir), func(_ string, _ fs.DirEntry, err error) error { return err })
		if err != nil {
			t.Fatal(err)
		}
	}
}

func gloved() string { return filepath.Join(bin, "gloved") }
func glove() string  { return filepath.Join(bin, "glove") }

// transcripts are the golden transcripts of the repository.
func transcripts(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("../../testdata/transcripts/*.transcript")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no transcripts found: %v", err)
	}
	return paths
}

func TestGoldenTranscripts(t *testing.T) {
	readSources(t)
	for _, path := range transcripts(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".transcript"), func(t *testing.T) {
			t.Parallel()
			file, err := transcript.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			options := transcript.Options{Launcher: transcript.Launcher{Command: []string{gloved()}}, Patience: time.Minute, TempDir: t.TempDir()}
			if err := transcript.Check(file, options); err != nil {
				t.Error(err)
			}
		})
	}
}

// state is a gloved's files: a policy, a key, and room for the rest.
type state struct {
	dir  string
	vars transcript.Vars
}

func newState(t *testing.T) *state {
	t.Helper()
	readSources(t)
	sandbox, err := transcript.NewSandbox(&transcript.File{Path: "../../testdata/transcripts/x.transcript"}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &state{dir: sandbox.Dir, vars: sandbox.Vars}
}

// base are the options every gloved needs; full adds policy and store.
func (s *state) base() []string {
	return []string{"--audit-key", s.vars["AUDIT_KEY"], "--journal", s.vars["JOURNAL"]}
}

func (s *state) full() []string {
	return append(s.base(), "--session-policy", s.vars["POLICY"], "--session-store", s.vars["STORE"])
}

// resident starts a gloved with a socket and returns its runtime directory. It is told to
// end when the test does, and must end well.
func (s *state) resident(t *testing.T) string {
	t.Helper()
	dir := s.vars["RUNTIME"]
	command := exec.Command(gloved(), append(s.full(), "--runtime-dir", dir)...)
	stderr, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	said := watch(stderr, `"msg":"serving"`)
	t.Cleanup(func() {
		if err := command.Process.Signal(os.Interrupt); err != nil {
			t.Errorf("signal: %v", err)
		}
		text := <-said.rest
		if err := command.Wait(); err != nil {
			t.Errorf("the resident gloved ended with %v; it said\n%s", err, text)
		}
		if _, err := os.Lstat(filepath.Join(dir, "gloved.sock")); err == nil {
			t.Error("the socket was left behind")
		}
	})
	said.wait(t)
	return dir
}

// plan is one that the default policy admits for a minute.
func plan() string {
	return `{"schema_version":1,"runtime_id":"codex","runtime_template_id":"codex-safe",` +
		`"adapter_command_digest":"0129a3a97cacbef9bd8a2df44ea3b1e01ae8dad706cbe0c27c2237881b5107e7",` +
		`"sandbox_backend":"linux_production","egress_policy_id":"no-network","tool_policy_id":"sage-readonly",` +
		`"path_grants":[],"library_projections":[],"secret_handles":[],` +
		`"limits":{"cpu_time_ms":1000,"memory_bytes":67108864,"pids":16,"wall_time_ms":2000,"disk_bytes":4194304,"terminal_output_bytes":1048576},` +
		`"policy_revision":7,"expires_at_ms":` + strconv.FormatInt(time.Now().Add(time.Minute).UnixMilli(), 10) + `}`
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
