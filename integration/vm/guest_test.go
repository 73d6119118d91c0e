package vm_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// inGuest skips unless the test runs inside the lane's VM.
func inGuest(t *testing.T) {
	t.Helper()
	if os.Getenv("GLOVE_VM") != "1" {
		t.Skip("only inside the guest; TestVM takes it there")
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestGuestCgroups holds the guest to being a pure v2 host with all the controllers we use.
func TestGuestCgroups(t *testing.T) {
	inGuest(t)
	group := "/sys/fs/cgroup"
	if os.Geteuid() != 0 {
		group += "/lane.scope"
	}
	controllers := strings.Fields(read(t, group+"/cgroup.controllers"))
	for _, want := range []string{"cpu", "memory", "pids", "io"} {
		if !slices.Contains(controllers, want) {
			t.Errorf("%s has the controllers %v, without %s", group, controllers, want)
		}
	}
	for line := range strings.Lines(read(t, "/proc/self/mounts")) {
		if strings.Fields(line)[2] == "cgroup" {
			t.Errorf("a cgroup v1 hierarchy is mounted: %s", line)
		}
	}
	if got := read(t, "/proc/self/cgroup"); got != "0::"+strings.TrimPrefix(group, "/sys/fs/cgroup") && got != "0::/" {
		t.Errorf("in cgroup %q, want that of %s", got, group)
	}
}

// TestGuestDelegation makes a group and moves a child into it, which root may do at the top and
// uid 1000 in the scope that belongs to it.
func TestGuestDelegation(t *testing.T) {
	inGuest(t)
	parent := "/sys/fs/cgroup"
	if os.Geteuid() != 0 {
		parent += "/lane.scope"
	}
	group := filepath.Join(parent, "guest-test")
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	}()
	cmd := exec.CommandContext(t.Context(), "/bin/busybox", "sh", "-c",
		`echo $$ >`+group+`/cgroup.procs && cat /proc/self/cgroup`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.HasSuffix(strings.TrimSpace(string(out)), "/guest-test") {
		t.Errorf("the child is in %q", out)
	}
}

// TestGuestTools looks for what the guest promises and for what nobody may lean on there.
func TestGuestTools(t *testing.T) {
	inGuest(t)
	for _, tool := range []string{"mkfs.ext4", "e2fsck", "debugfs", "setpriv", "unshare", "nsenter", "sh"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Error(err)
		}
	}
	if os.Getenv("GLOVE_TEST_REQUIRE") != "" {
		t.Error("GLOVE_TEST_REQUIRE is set: tests that want a fuller system must skip here")
	}
	if _, err := os.Stat("/proc/net/route"); errors.Is(err, os.ErrNotExist) {
		t.Error("no /proc/net")
	} else if routes := strings.Count(read(t, "/proc/net/route"), "\n"); routes != 0 {
		t.Errorf("%d routes; the guest has no network", routes)
	}
}
