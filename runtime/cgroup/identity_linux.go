package cgroup

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// pathDomain begins what is digested as a group's path.
const pathDomain = "glove.linux-cgroup-path:"

func pathDigest(path string) string {
	sum := sha256.Sum256([]byte(pathDomain + path))
	return hex.EncodeToString(sum[:])
}

// committed are the v1 controllers whose hierarchies an identity commits, in order.
var committed = []string{"memory", "pids", "cpuacct"}

func identityV2(d *dir) Identity {
	return Identity{Dev: d.dev, Ino: d.ino, PathDigest: pathDigest(d.path)}
}

// identityV1 takes the directories of the committed controllers, in order.
func identityV1(dirs []*dir) Identity {
	var text strings.Builder
	text.WriteString("v1")
	for i, d := range dirs {
		fmt.Fprintf(&text, "\n%s:%d:%d:%s", committed[i], d.dev, d.ino, d.path)
	}
	return Identity{Dev: dirs[0].dev, Ino: dirs[0].ino, PathDigest: pathDigest(text.String())}
}

// mountOf returns the mount that shows path in the hierarchy of a v1 controller, or
// of v2 for "", and where below it.
func mountOf(ms []mount, controller, path string) (mount, string, bool) {
	for _, m := range ms {
		if controller == "" && m.fstype != "cgroup2" ||
			controller != "" && (m.fstype != "cgroup" || !slices.Contains(m.super, controller)) {
			continue
		}
		if rel, ok := below(path, m.root); ok {
			return m, rel, true
		}
	}
	return mount{}, "", false
}

// usesV1 tells which version has the memory controller: it is bound to one
// hierarchy at a time, so this does not depend on which group asks.
func usesV1(ms []mount) bool {
	return slices.ContainsFunc(ms, func(m mount) bool {
		return m.fstype == "cgroup" && slices.Contains(m.super, "memory")
	})
}

// groupOf returns the identity of the group a process is directly in.
func (e *env) groupOf(pid int) (Identity, error) {
	mounts, err := e.mounts()
	if err != nil {
		return Identity{}, err
	}
	ms, err := e.membership(pid)
	if err != nil {
		return Identity{}, err
	}
	if !usesV1(mounts) {
		d, err := e.openMember(mounts, ms, "")
		if err != nil {
			return Identity{}, err
		}
		defer d.close()
		return identityV2(d), nil
	}
	var dirs []*dir
	for _, c := range committed {
		d, err := e.openMember(mounts, ms, c)
		if err != nil {
			return Identity{}, err
		}
		defer d.close()
		dirs = append(dirs, d)
	}
	return identityV1(dirs), nil
}

// openMember opens the group a membership puts a process in.
func (e *env) openMember(mounts []mount, ms []membership, controller string) (*dir, error) {
	name, magic := controller, int64(unix.CGROUP_SUPER_MAGIC)
	if controller == "" {
		name, magic = MechanismV2, unix.CGROUP2_SUPER_MAGIC
	}
	path, ok := pathOf(ms, controller)
	if !ok {
		return nil, fail(CodeMissingController, "find_group", name, nil)
	}
	m, rel, ok := mountOf(mounts, controller, path)
	if !ok {
		return nil, fail(CodeNoMount, "find_group", name, nil)
	}
	top, err := openMount(e, m, magic)
	if err != nil {
		return nil, fail(CodeIO, "open_mount", m.point, err)
	}
	defer top.close()
	d, err := top.walk(rel)
	if err != nil {
		return nil, fail(CodeIO, "open_group", path, err)
	}
	d.path = path
	return d, nil
}
