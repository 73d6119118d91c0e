package host

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"gloved.dev/internal/require"
)

const probeEnv = "GLOVE_HOST_TEST_PROBE"

// TestMain also plays a process in a user namespace where no further one is allowed.
func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		fmt.Println("before:", tryNamespace(0, true))
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			fmt.Println("sysctl:", err)
			os.Exit(1)
		}
		c := judgeUserNS(facts{userNS: tryNamespace(0, true), sysctl: readSysctls()})
		fmt.Println("after:", c.Status, c.Recovery)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestForbiddenNamespaceIsNoticed forbids namespaces for real, in a namespace of
// its own, as the setting is per user namespace.
func TestForbiddenNamespaceIsNoticed(t *testing.T) {
	if err := tryNamespace(0, true); err != nil {
		require.Environment(t, require.UserNamespaces)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{probeEnv + "=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text := string(out)
	if !strings.Contains(text, "before: <nil>\n") ||
		!strings.Contains(text, "after: failed sudo sysctl -w user.max_user_namespaces=") {
		t.Errorf("got:\n%s", text)
	}
}

func TestInterruptedChecksFail(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Usable(Checks(ctx)); err == nil {
		t.Error("an interrupted check passed")
	}
}
