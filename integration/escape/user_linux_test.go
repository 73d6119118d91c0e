package escape

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/cgroup"
)

// asUser runs one test of this binary as anyUser, in control groups that belong to it, and returns
// its output. The test must pass or be skipped there.
func asUser(t *testing.T, test string, env ...string) string {
	t.Helper()
	require.Root(t)
	procs := delegate(t)
	exe := copyForUser(t)
	args := []string{"-test.run=^" + test + "$", "-test.v"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	// A shell is not needed to move first and execute then: the child waits in its role.
	cmd := exec.CommandContext(t.Context(), exe, append([]string{roleUser}, args...)...)
	cmd.Env = append(append(os.Environ(), env...), "HOME=/", "TMPDIR=/tmp", procsVariable+"="+strings.Join(procs, ":"))
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s as user %d: %v\n%s", test, anyUser, err, out)
	}
	return string(out)
}

const (
	roleUser      = "escape:user" // enter the groups, become the user, execute the tests
	procsVariable = "GLOVE_ESCAPE_PROCS"
)

// becomeUser is roleUser.
func becomeUser(args []string) int {
	for _, procs := range strings.Split(os.Getenv(procsVariable), ":") {
		if err := os.WriteFile(procs, []byte("0"), 0); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	if err := syscall.Setgroups(nil); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := syscall.Setresgid(anyUser, anyUser, anyUser); err != nil {
		fmt.Println(err)
		return 1
	}
	if err := syscall.Setresuid(anyUser, anyUser, anyUser); err != nil {
		fmt.Println(err)
		return 1
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err == nil {
		err = syscall.Exec(exe, append([]string{exe}, args...), os.Environ())
	}
	fmt.Println(err)
	return 1
}

func copyForUser(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "glove-test-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	copyProgram(t, dir+"/escape.test", 0o755)
	return dir + "/escape.test"
}

// delegate makes a group in every hierarchy, as an administrator or systemd would, and returns the
// files by which one enters them.
func delegate(t *testing.T) (procs []string) {
	t.Helper()
	h, err := cgroup.Detect()
	must(t, err)
	t.Cleanup(func() { must(t, h.Close()) })
	for _, parent := range parents(t, h) {
		dir := filepath.Join(parent, "glove-escape-"+strconv.Itoa(os.Getpid()))
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() { removeGroups(t, dir) })
		files, err := filepath.Glob(dir + "/cgroup.*")
		must(t, err)
		for _, f := range append(files, dir) {
			must(t, os.Chown(f, anyUser, anyUser))
		}
		procs = append(procs, dir+"/cgroup.procs")
	}
	return procs
}

// parents are the directories that groups of ours are made in.
func parents(t *testing.T, h *cgroup.Host) (dirs []string) {
	t.Helper()
	const top = "/sys/fs/cgroup"
	if h.Mechanism() == cgroup.MechanismV2 {
		// Beside the base, which is root's own. Our own group may be further down; there its controllers
		// would have to be handed on first.
		return []string{filepath.Dir(filepath.Join(top, h.Base()))}
	}
	data, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || f[1] == "" || strings.HasPrefix(f[1], "name=") {
			continue
		}
		for _, role := range strings.Split(f[1], ",") {
			switch role {
			case "memory", "pids", "cpuacct", "freezer":
				dirs = append(dirs, filepath.Join(top, role, f[2]))
			}
		}
	}
	return dirs
}

// removeGroups removes a tree of groups, waiting for the kernel to be done with their last members.
func removeGroups(t *testing.T, top string) {
	t.Helper()
	var err error
	for range 1000 {
		if err = rmdirAll(top); err == nil {
			return
		}
		pause()
	}
	t.Errorf("remove %s: %v", top, err)
}

func rmdirAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := rmdirAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}
