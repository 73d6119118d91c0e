//go:build linux

package run

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

// nobody is the user that the tests of an unprivileged glove run as.
const nobody = 65534

// asNobody runs glove as nobody, in the control groups of those directories.
func asNobody(t *testing.T, groups []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	return asNobodyWith(t, groups, func(string) {}, args...)
}

// asNobodyWith lets furnish put things into the home, which is also the runtime
// directory and where the PATH begins; it must leave no private state of a run.
func asNobodyWith(t *testing.T, groups []string, furnish func(home string), args ...string) (stdout, stderr string, status int) {
	t.Helper()
	home, err := os.MkdirTemp("/tmp", "glove-nobody-") // t.TempDir's parents are root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	project := filepath.Join(home, "project")
	if err := os.Mkdir(project, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{home, project} {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	furnish(home)
	// A shell puts itself into the groups before it gives root up; glove inherits them.
	script := `for g do case $g in --) shift; break;; esac; echo $$ > "$g/cgroup.procs" || exit 99; shift; done
		exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"`
	argv := append([]string{"-c", script, "sh"}, groups...)
	argv = append(append(argv, "--", glove()), args...)
	cmd := exec.Command("sh", argv...)
	cmd.Dir = project
	cmd.Env = []string{"PATH=" + home + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + home, "XDG_RUNTIME_DIR=" + home}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(home, "glove-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	return out.String(), errs.String(), status
}

// delegated makes a group in every v1 hierarchy that sessions need and gives it to
// nobody, as an administrator would.
func delegated(t *testing.T) []string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch fields[1] {
		case "memory", "pids", "cpuacct", "freezer", "cpu,cpuacct", "cpuacct,cpu":
		default:
			continue
		}
		dir := filepath.Join("/sys/fs/cgroup", fields[1], fields[2], "glove-run-test-"+strconv.Itoa(os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			require.Skip(t, "no control group could be made to delegate: "+err.Error())
		}
		t.Cleanup(func() { removeGroup(t, dir) })
		for _, name := range []string{"", "cgroup.procs", "tasks"} {
			if err := os.Chown(filepath.Join(dir, name), nobody, nobody); err != nil {
				t.Fatal(err)
			}
		}
		groups = append(groups, dir)
	}
	return groups
}

// removeGroup removes the group and the base that glove made in it, once the monitor has
// gone; what a session left below that is a failure.
func removeGroup(t *testing.T, dir string) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		_ = os.Remove(filepath.Join(dir, "glove")) // there only if glove came so far
		err := os.Remove(dir)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Error(err)
			return
		}
	}
}

func v1(t *testing.T) {
	t.Helper()
	require.Root(t)
	usable(t)
	if _, err := os.Stat("/sys/fs/cgroup/memory/memory.limit_in_bytes"); err != nil {
		require.Environment(t, require.CgroupV1)
	}
}

func TestUnprivilegedInDelegatedGroups(t *testing.T) {
	v1(t)
	out, errs, status := asNobody(t, delegated(t), "run", "--", "sh", "-c", "id -u; cat /proc/self/uid_map; touch here; ls; exit 6")
	if status != 6 || !strings.HasPrefix(out, "1000\n") || !strings.Contains(out, "here") || !strings.Contains(errs, "glove: exited 6") {
		t.Errorf("status %d, output %q, errors %q", status, out, errs)
	}
}

// TestUnprivilegedWithoutGroups: what cannot be enforced is said, and nothing runs.
func TestUnprivilegedWithoutGroups(t *testing.T) {
	v1(t)
	out, errs, status := asNobody(t, nil, "run", "--", "echo", "ran")
	if status != 125 || out != "" || !strings.Contains(errs, "limits_unenforceable") || !strings.Contains(errs, "next: ") {
		t.Errorf("status %d, output %q, errors %q", status, out, errs)
	}
	out, _, status = asNobody(t, nil, "doctor")
	if status != 1 || !strings.Contains(out, "FAILED") || !strings.Contains(out, "fix: ") {
		t.Errorf("doctor: status %d, output %q", status, out)
	}
}

// TestScopeIsAskedForOnce: where a systemd user manager could delegate a group, glove
// executes itself in a scope of its own, with the command line it was given, and once.
func TestScopeIsAskedForOnce(t *testing.T) {
	v1(t)
	furnish := func(home string) {
		must(t, os.MkdirAll(filepath.Join(home, "systemd", "private"), 0o755))
		must(t, os.WriteFile(filepath.Join(home, "systemd-run"), []byte("#!/bin/sh\nprintf '%s\\n' \"$@\"\nwhile [ \"$1\" != -- ]; do shift; done; shift\nexec \"$@\"\n"), 0o755))
	}
	out, errs, status := asNobodyWith(t, nil, furnish, "run", "--quiet", "--", "sh", "-c", "exit 3")
	want := "--user\n--scope\n--quiet\n--collect\n-p\nDelegate=yes\n--\n" + glove() + "\nrun\n--quiet\n--\nsh\n-c\nexit 3\n"
	// This scope delegates nothing, so that the second glove must say so and not ask again.
	if out != want || status != 125 || strings.Count(errs, "limits_unenforceable") != 1 {
		t.Errorf("status %d, output %q, want %q; errors %q", status, out, want, errs)
	}
	out, errs, status = asNobodyWith(t, delegated(t), furnish, "run", "--quiet", "--", "sh", "-c", "exit 3")
	if out != "" || status != 3 {
		t.Errorf("with groups of its own: status %d, output %q, errors %q", status, out, errs)
	}
}
