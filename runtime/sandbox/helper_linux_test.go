package sandbox

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gloved.dev/internal/require"
	"golang.org/x/sys/unix"
)

// helperEnv names the part the test binary plays when it is started as a helper.
const helperEnv = "GLOVE_SANDBOX_TEST_HELPER"

// The parts. daemon is an unprivileged user; monitor is root of that user's own user
// namespace and runs the tests again; holder starts a session and waits to be killed.
const (
	partDaemon = "daemon"
	partHolder = "holder"
)

func runHelper(part string) int {
	switch part {
	case partDaemon:
		return runDaemon()
	case partHolder:
		return runHolder()
	}
	return 1
}

// runDaemon makes a user and a mount namespace, as an unprivileged daemon does for
// its monitors, and runs the tests in them.
func runDaemon() int {
	exe, err := SealedExe()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	cmd := exec.Command(fdPath(int(exe.Fd())), os.Args[1:]...)
	cmd.Env = append(os.Environ(), helperEnv+"=")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// runHolder starts a session that would run for ever, says its processes' ids, and
// blocks until it is killed.
func runHolder() int {
	t := &holderTB{}
	s, err := Start(context.Background(), shell(t, "setsid sleep 1000 & setsid sleep 1000 & wait"), Hooks{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	drain(s)
	if err := s.Release(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(s.Init().PID, s.Launch().PID)
	select {}
}

// holderTB is the little of testing.TB that config needs outside a test.
type holderTB struct{ testing.TB }

func (*holderTB) Helper()        {}
func (*holderTB) Cleanup(func()) {}
func (*holderTB) Fatalf(format string, args ...any) {
	fmt.Printf(format+"\n", args...)
	os.Exit(1)
}

// needRoom skips where no session could be started at all: a plain unprivileged
// process. TestUserNamespace covers that user by way of a namespace.
func needRoom(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		require.Skip(t, "starting a session needs root or a user namespace's root")
	}
}

// TestUserNamespace runs the other tests once more as an unprivileged daemon's
// monitor: root of a user namespace that maps one ordinary uid.
func TestUserNamespace(t *testing.T) {
	if !rootMode() {
		require.Environment(t, require.RealRoot)
	}
	require.Root(t)
	exe, err := SealedExe()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.v", "-test.timeout=5m"}
	if testing.Short() {
		args = append(args, "-test.short")
	}
	cmd := exec.CommandContext(t.Context(), fdPath(int(exe.Fd())), args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+partDaemon, "HOME=/", "TMPDIR=/tmp")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUID + 1, Gid: testUID + 1}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("tests in a user namespace: %v\n%s", err, out)
	}
	if n := strings.Count(string(out), "--- PASS: "); n < 10 {
		t.Errorf("only %d tests passed in a user namespace:\n%s", n, out)
	}
	t.Logf("%d tests passed in a user namespace", strings.Count(string(out), "--- PASS: "))
}

func itoa(n int) string { return strconv.Itoa(n) }
