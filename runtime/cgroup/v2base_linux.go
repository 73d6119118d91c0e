package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// needed are the controllers without which a limit would not hold; cpu is handed
// down when possible, for fairness between sessions, but CPU time is counted by
// the core (cpu.stat, Linux 4.15).
var needed = []string{"memory", "pids"}

const (
	fixDelegate = "run it under: systemd-run --user --scope -p Delegate=yes -- COMMAND (as root: systemd-run --scope -p Delegate=yes -- COMMAND)"
	fixKernel   = "boot with systemd.unified_cgroup_hierarchy=1 cgroup_enable=memory"
	fixUserCtl  = `as root: mkdir -p /etc/systemd/system/user@.service.d && printf '[Service]\nDelegate=cpu memory pids\n' > /etc/systemd/system/user@.service.d/delegate.conf && systemctl daemon-reload, then log in again`
)

// busyBound is how long another supervisor that shares our group, and is about to
// step into a leaf of its own, is waited for.
const busyBound = time.Second

// detectV2 finds the base in the order: the parent of the leaf we are already
// in; our own group if it is marked as delegated; the top, if we may write there;
// our own group if we may write there.
func detectV2(e *env, mounts []mount, own []membership) (backend, error) {
	self, err := e.openMember(mounts, own, "")
	if err != nil {
		return nil, err
	}
	defer self.close()
	m, rel, _ := mountOf(mounts, "", self.path)
	top, err := openMount(e, m, unix.CGROUP2_SUPER_MAGIC)
	if err != nil {
		return nil, fail(CodeIO, "open_mount", m.point, err)
	}
	defer top.close()

	if hasLeafPrefix(path.Base(self.path)) && rel != "." {
		parent, err := top.walk(path.Dir(rel))
		if err != nil {
			return nil, fail(CodeIO, "open_group", path.Dir(self.path), err)
		}
		parent.path = path.Dir(self.path)
		return inOwn(e, parent, nil)
	}
	if !isRoot(self) && e.marked(self.fd()) {
		return stepAside(e, self)
	}
	if isRoot(top) {
		h, err := atTop(e, top)
		if err == nil {
			return h, nil
		}
		if isRoot(self) {
			return nil, err
		}
	}
	return stepAside(e, self)
}

// isRoot tells the root of the whole hierarchy, which alone may have both
// processes and controllers handed down, from a root that a cgroup namespace shows.
func isRoot(d *dir) bool { return d.path == "/" && !d.has("cgroup.type") }

// atTop makes or finds the shared base "/glove".
func atTop(e *env, top *dir) (*v2Host, error) {
	if err := handDown(top); err != nil {
		return nil, err
	}
	parent, err := openDir(e, top.fd(), ".", top.path)
	if err != nil {
		return nil, fail(CodeIO, "open_group", top.path, err)
	}
	h := &v2Host{e: e, parent: parent}
	for range baseTries {
		var base *dir
		if base, err = h.makeReady(); err == nil {
			base.close()
			return h, nil
		}
		if !gone(err) {
			break
		}
	}
	parent.close()
	return nil, err
}

// inOwn uses d, which it takes over, as the base. A leaf given is undone on failure.
func inOwn(e *env, d *dir, undo func()) (backend, error) {
	err := handDownPatiently(d)
	if err != nil {
		d.close()
		if undo != nil {
			undo()
		}
		return nil, err
	}
	return &v2Host{e: e, dir: d}, nil
}

// stepAside moves this process into a leaf below its own group and makes the group
// the base.
func stepAside(e *env, self *dir) (backend, error) {
	if err := offered(self); err != nil {
		return nil, err
	}
	sweepLeaves(self)
	name, err := enterLeaf(e, self)
	if err != nil {
		return nil, err
	}
	if e.marked(self.fd()) {
		evacuate(self, name)
	}
	d, err := openDir(e, self.fd(), ".", self.path)
	if err != nil {
		return nil, fail(CodeIO, "open_group", self.path, err)
	}
	return inOwn(e, d, func() {
		// The group still has no controllers handed down, so it takes us back.
		if self.write("cgroup.procs", "0") == nil {
			_ = self.rmdir(name)
		}
	})
}

// enterLeaf makes a leaf of our own and moves this process into it. Another
// supervisor may take the still empty leaf for a dead one and sweep it; then we
// make the next.
func enterLeaf(e *env, self *dir) (string, error) {
	for try := 0; ; try++ {
		name := leafPrefix + strconv.Itoa(os.Getpid()) + "-" + strings.ToLower(rand.Text()[:8])
		if err := e.mkdir(self.fd(), name); err != nil {
			return "", notDelegated("create_leaf", joinPath(self.path, name), err)
		}
		leaf, err := self.child(name)
		if err == nil {
			err = leaf.write("cgroup.procs", "0")
			leaf.close()
		}
		if err == nil {
			return name, nil
		}
		_ = self.rmdir(name)
		swept := errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV)
		if !swept || try == 8 {
			return "", notDelegated("enter_leaf", joinPath(self.path, name+"/cgroup.procs"), err)
		}
	}
}

// sweepLeaves removes leaves of supervisors that have ended: a populated one refuses.
func sweepLeaves(self *dir) {
	names, err := self.subdirs()
	if err != nil {
		return
	}
	for _, n := range names {
		if hasLeafPrefix(n) {
			_ = self.rmdir(n)
		}
	}
}

// evacuate moves what else lives in a group delegated to us into our leaf, such as
// the shell that was started in the scope. Failures show when controllers are
// handed down.
func evacuate(self *dir, leaf string) {
	l, err := self.child(leaf)
	if err != nil {
		return
	}
	defer l.close()
	data, err := self.readCut("cgroup.procs")
	if err != nil {
		return
	}
	pids, _ := parsePIDs(data)
	for _, pid := range pids {
		if pid > 0 {
			_ = l.write("cgroup.procs", strconv.Itoa(pid))
		}
	}
}

// offered checks that the needed controllers may be handed down from d.
func offered(d *dir) error {
	list, err := d.read("cgroup.controllers")
	if err != nil {
		return fail(CodeIO, "read_controllers", joinPath(d.path, "cgroup.controllers"), err)
	}
	for _, c := range needed {
		if slices.Contains(strings.Fields(list), c) {
			continue
		}
		fix := fixUserCtl
		if d.path == "/" {
			fix = fixKernel
		}
		return &Error{Code: CodeMissingController, Op: "read_controllers", Name: c, Fix: fix,
			Err: fmt.Errorf("not listed in %s", joinPath(d.path, "cgroup.controllers"))}
	}
	return nil
}

// handDown enables the needed controllers for the children of d. It is idempotent.
func handDown(d *dir) error {
	if err := offered(d); err != nil {
		return err
	}
	list, err := d.read("cgroup.subtree_control")
	if err != nil {
		return fail(CodeIO, "read_controllers", joinPath(d.path, "cgroup.subtree_control"), err)
	}
	on := strings.Fields(list)
	for _, c := range needed {
		if slices.Contains(on, c) {
			continue
		}
		if err := d.write("cgroup.subtree_control", "+"+c); err != nil {
			return notDelegated("enable_controllers", joinPath(d.path, "cgroup.subtree_control"), err)
		}
	}
	if !slices.Contains(on, "cpu") {
		// Refused while realtime processes exist, or where it is not offered.
		_ = d.write("cgroup.subtree_control", "+cpu")
	}
	return nil
}

// handDownPatiently waits for other supervisors to leave d.
func handDownPatiently(d *dir) error {
	end := time.Now().Add(busyBound)
	for {
		err := handDown(d)
		var typed *Error
		if err == nil || !errors.As(err, &typed) || typed.Code != CodeBusy || time.Now().After(end) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// notDelegated gives a refusal its code and what to do.
func notDelegated(op, name string, err error) *Error {
	x := &Error{Code: CodeIO, Op: op, Name: name, Err: err}
	switch {
	case errors.Is(err, unix.EBUSY):
		x.Code, x.Fix = CodeBusy, fixDelegate
	case errors.Is(err, unix.EROFS):
		x.Code, x.Fix = CodeNotDelegated, "mount cgroups writable (in a container: --cgroupns=private with a writable /sys/fs/cgroup)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		x.Code, x.Fix = CodeNotDelegated, fixDelegate
	}
	return x
}
