package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/require"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
)

// TestHalfRemovedGroup: a monitor that dies while it removes its control group
// leaves some of its directories, one for each v1 hierarchy. Whichever went
// first, the rest is removed.
func TestHalfRemovedGroup(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "exit 0")
	host, err := cgroup.Detect()
	must(t, err)
	defer host.Close()
	if host.Mechanism() != cgroup.MechanismV1 {
		require.Environment(t, require.CgroupV1)
	}
	name := w.groupPrefix + "half"
	for i := 0; ; i++ {
		g, err := host.Create(name, cgroup.Limits{MemoryBytes: 16 << 20, PIDs: 4})
		must(t, err)
		id := g.Identity()
		g.Close()
		parts := groupDirs(t, name)
		if len(parts) < 2 {
			t.Fatalf("the group has the directories %q", parts)
		}
		if i == len(parts) {
			must(t, host.Sweep(t.Context(), name))
			return
		}
		must(t, os.Remove(parts[i]))
		rec := session.Record{SessionID: "half", Cgroup: &session.CgroupIdentity{Schema: 1, Dev: id.Dev, Ino: id.Ino},
			Monitor: session.Monitor{locatorCgroup: name}}
		if err := w.destroyGroup(t.Context(), rec); err != nil {
			t.Errorf("without %s: %v", parts[i], err)
		}
		if left := groupDirs(t, name); len(left) > 0 {
			t.Fatalf("without %s: %q is left", parts[i], left)
		}
	}
}

// groupDirs finds the directories of a group in every v1 hierarchy, each once.
func groupDirs(t *testing.T, name string) (dirs []string) {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	must(t, err)
	seen := map[string]bool{}
	for line := range strings.Lines(string(own)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for controller := range strings.SplitSeq(fields[1], ",") {
			for _, base := range []string{fields[2], "/"} {
				dir, err := filepath.EvalSymlinks(filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(controller, "name="), base, "glove", name))
				if errors.Is(err, os.ErrNotExist) || seen[dir] {
					continue
				}
				must(t, err)
				seen[dir] = true
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}
