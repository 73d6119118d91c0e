package vm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

// trees are the folders whose packages run in the guest; every package with tests below one of
// them is taken, so that there is no list to forget a new one in.
var trees = []string{"integration/vm", "integration/escape", "runtime"}

// users are those that every package runs as: by their name in the subtest, and for lane --user.
// uid 1000 has a delegated cgroup there, as a user under systemd has.
var users = []string{"root", "1000"}

const (
	// full is the time that must be left for the guests to run their long tests too; with less,
	// which is what a plain "go test ./..." leaves, they run with -test.short.
	full = 20 * time.Minute
	// oneRun bounds a single run, grace what the lane gets to report after the guest's own time.
	oneRun = 15 * time.Minute
	grace  = 20 * time.Second
	// later is the value of laneVariable by which a caller that runs this package as a step of
	// its own keeps it out of "go test ./...".
	laneVariable = "GLOVE_TEST_VM"
	later        = "later"
)

// chosen are the tests of packages that cannot run whole in the guest. The
// executor's crash matrix takes an hour under emulation, and some of its faults
// are made with programs that the guest does not have; the session's life, its
// adoption and its conservation on pure cgroup v2 are what the lane is for. As a
// user they run inside integration/escape.
var chosen = map[string]string{
	"runtime":            "^Test(RunEndsInAReceipt|Adoption|Unruly|Replays|Conservation|ReconcileMeanwhile)$",
	"runtime/fsck":       "^Test(HealthyHostHasNoFindings|KilledMonitorAndGloved|ProcessOfAnotherIdentity|UsersAndStrays)$",
	"integration/escape": "^Test(Escape|Whole)$", // as root, which attacks as a user's gloved too
}

// elsewhere are packages of the approval program: they need nothing that only
// the guest has, and take programs and users that it lacks.
var elsewhere = map[string]bool{"runtime/broker": true, "runtime/gate": true, "runtime/room": true}

// A run is one test binary, as one user, in one guest.
type run struct {
	dir, user, binary string
}

func (r run) String() string { return r.dir + " as " + r.user }

func TestVM(t *testing.T) {
	ownStage(t)
	prepare(t)
	var runs []run
	for _, dir := range packages(t) {
		if elsewhere[dir] {
			continue
		}
		binary := build(t, dir)
		for _, user := range users {
			if binary == "" || user != users[0] && chosen[dir] != "" {
				break
			}
			runs = append(runs, run{dir, user, binary})
		}
	}
	results := make([]tally, len(runs))
	t.Run("run", func(t *testing.T) {
		for i, r := range runs {
			t.Run(strings.ReplaceAll(r.dir, "/", "_")+"/"+r.user, func(t *testing.T) {
				t.Parallel()
				results[i] = boot(t, r)
			})
		}
	})
	for i, r := range runs {
		t.Logf("summary: %s: %s", r, &results[i])
	}
}

// ownStage skips what boots machines where that is not wanted, or not yet.
func ownStage(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots virtual machines; -short leaves that out")
	}
	if os.Getenv(laneVariable) == later {
		t.Skipf("%s=%s: the caller runs the VM lane as a step of its own", laneVariable, later)
	}
}

// root is the top of the repository; the tests of a package run in the package's directory.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// prepare makes sure of QEMU and of the cached base.
func prepare(t *testing.T) {
	t.Helper()
	if os.Getenv("GLOVE_VM") != "" {
		t.Skip("this is the guest")
	}
	require.Linux(t)
	if runtime.GOARCH != "amd64" {
		require.Skip(t, "an amd64 host; the guest is one")
	}
	for _, tool := range []string{"bash", "qemu-system-x86_64", "cpio", "flock", "apt-get", "dpkg-deb"} {
		require.Tool(t, tool)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash", "./lane", "--prepare").CombinedOutput()
	if err != nil {
		require.Skip(t, fmt.Sprintf("the guest's base, which could not be made (%v): %s", err, out))
	}
}

// packages returns the folders with tests below trees, relative to the root of the repository.
func packages(t *testing.T) []string {
	t.Helper()
	top := root(t)
	var dirs []string
	for _, tree := range trees {
		err := filepath.WalkDir(filepath.Join(top, tree), func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "testdata":
				return fs.SkipDir
			case !strings.HasSuffix(path, "_test.go"):
				return nil
			}
			dir, err := filepath.Rel(top, filepath.Dir(path))
			if err == nil && !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dirs
}

// build compiles the tests of one package into a static binary and returns its path. If they do not
// compile, t fails, and goes on with the other packages.
func build(t *testing.T, dir string) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), strings.ReplaceAll(dir, "/", "-")+".test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-o", binary, "./"+dir)
	cmd.Dir = root(t)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("building the tests of %s: %v\n%s", dir, err, out)
		return ""
	}
	return binary
}

// boot runs one test binary in a guest of its own and reports the result on t.
func boot(t *testing.T, r run) tally {
	left, short := oneRun, false
	if deadline, ok := t.Deadline(); ok {
		left = min(left, time.Until(deadline)-2*grace)
		short = time.Until(deadline) < full
	}
	if left < 2*grace {
		t.Fatalf("only %v left of go test's -timeout; give more", left.Round(time.Second))
	}
	args := []string{"./lane", "--timeout", seconds(left), "--memory", "2048", "--chdir", "/src/" + r.dir,
		// A disk at /var/lib/test: ext4, for what memory filesystems cannot show.
		"--disk", filepath.Join(t.TempDir(), "disk.img"), "--disk-size", "1G", "--disk-cache", "unsafe"}
	if r.user != "root" {
		args = append(args, "--user", r.user)
	}
	// go.mod marks the root as in the tree, and an (empty) testdata makes the folder to start in.
	top, data := root(t), filepath.Join(root(t), r.dir, "testdata")
	if _, err := os.Stat(data); errors.Is(err, fs.ErrNotExist) {
		data = t.TempDir()
	}
	args = append(args, "--file", filepath.Join(top, "go.mod")+":/src/go.mod", "--file", data+":/src/"+r.dir+"/testdata")
	if shared := filepath.Join(top, "testdata"); exists(shared) {
		args = append(args, "--file", shared+":/src/testdata")
	}
	args = append(args, "--", r.binary, "-test.v", "-test.timeout", (left - grace).String())
	if short {
		args = append(args, "-test.short")
	}
	if only := chosen[r.dir]; only != "" {
		args = append(args, "-test.run", only)
	}
	return execute(t, left+grace, args)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// execute runs the lane, streams what it says, and judges its exit status.
func execute(t *testing.T, limit time.Duration, args []string) tally {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	lines := &lineWriter{out: t.Output()}
	var trouble bytes.Buffer
	cmd := exec.CommandContext(ctx, "bash", args...)
	cmd.Stdout, cmd.Stderr = lines, &trouble
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // the lane cleans up
	cmd.WaitDelay = grace
	err := cmd.Run()
	lines.Flush()
	if trouble.Len() > 0 {
		t.Logf("the lane says:\n%s", &trouble)
	}
	if err != nil && lines.failed == 0 {
		lines.keep() // a test that never ended
	}
	if len(lines.evidence) > 0 {
		t.Logf("of what failed:\n%s", strings.Join(lines.evidence, "\n"))
	}
	var exit *exec.ExitError
	switch {
	case err == nil && lines.passed+lines.skipped == 0:
		t.Error("the guest ran no test")
	case err == nil && lines.failed > 0:
		t.Errorf("%d tests failed and yet the status is 0", lines.failed)
	case err == nil:
	case errors.As(err, &exit) && exit.ExitCode() == 124:
		t.Error("the guest ran out of time")
	case errors.As(err, &exit) && exit.ExitCode() == 125:
		t.Error("the lane itself failed")
	case errors.As(err, &exit):
		t.Errorf("status %d: failed: %s", exit.ExitCode(), strings.Join(lines.failures, ", "))
	default:
		t.Errorf("the lane did not run: %v", err)
	}
	return lines.tally
}

func seconds(d time.Duration) string { return fmt.Sprintf("%d", int(d/time.Second)) }
