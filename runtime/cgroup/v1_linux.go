package cgroup

import (
	"errors"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// roles are the v1 controllers a group uses: those that limit or count, and the
// freezer, which makes killing certain and is optional.
var roles = []string{"memory", "pids", "cpuacct", "freezer"}

// fixV1 gives this user groups of its own, and puts the shell into them that it will be
// asked from: below its own group is where a supervisor looks. They are none of a
// supervisor's that is there already, whose sessions another user could then end.
func fixV1() string {
	uid := strconv.Itoa(os.Geteuid())
	return "as root: for c in " + strings.Join(roles, " ") + "; do g=/sys/fs/cgroup/$c/user-" + uid + "; mkdir -p $g && chown -R " + uid +
		" $g && echo PID > $g/cgroup.procs; done, PID being that of your shell (echo $$); or boot with systemd.unified_cgroup_hierarchy=1"
}

// hierarchy is one mounted v1 hierarchy. Controllers may share one.
type hierarchy struct {
	roles  []string
	parent *dir // our starting point, below which "glove" is
}

// v1Host is a base in every hierarchy.
type v1Host struct {
	e  *env
	hs []*hierarchy // the first has memory
}

func detectV1(e *env, mounts []mount, own []membership) (backend, error) {
	h := &v1Host{e: e}
	for _, role := range roles {
		if err := h.attach(mounts, own, role); err != nil {
			_ = h.close()
			return nil, err
		}
	}
	return h, nil
}

// attach adds the hierarchy of one role.
func (h *v1Host) attach(mounts []mount, own []membership, role string) error {
	optional := role == "freezer"
	p, ok := pathOf(own, role)
	m, rel, mounted := mountOf(mounts, role, p)
	if !ok || !mounted {
		if optional {
			return nil
		}
		return &Error{Code: CodeMissingController, Op: "find_hierarchy", Name: role,
			Fix: "as root: mkdir -p /sys/fs/cgroup/" + role + " && mount -t cgroup -o " + role + " cgroup /sys/fs/cgroup/" + role}
	}
	for _, x := range h.hs {
		if slices.Contains(m.super, x.roles[0]) {
			x.roles = append(x.roles, role) // co-mounted
			return nil
		}
	}
	x, err := startHierarchy(h.e, m, p, rel)
	if err != nil {
		if optional {
			return nil
		}
		return err
	}
	x.roles = []string{role}
	h.hs = append(h.hs, x)
	return nil
}

// startHierarchy finds where in a hierarchy our groups go: below our own group, so
// that limits around us hold for sessions too; or at the top, for a supervisor that
// may write there and whose own group is a login session's or a service's of
// systemd, which ends before the sessions do.
func startHierarchy(e *env, m mount, own, rel string) (*hierarchy, error) {
	top, err := openMount(e, m, unix.CGROUP_SUPER_MAGIC)
	if err != nil {
		return nil, fail(CodeIO, "open_mount", m.point, err)
	}
	places := []string{rel, "."}
	if strings.HasSuffix(rel, ".scope") || strings.HasSuffix(rel, ".service") || strings.HasSuffix(rel, ".slice") {
		places = []string{".", rel}
	}
	for _, place := range places {
		parent, werr := top.walk(place)
		if werr != nil {
			err = fail(CodeIO, "open_group", own, werr)
			continue
		}
		parent.path = path.Join(m.root, place)
		base, berr := makeBase(e, parent)
		if berr == nil {
			top.close()
			base.close()
			return &hierarchy{parent: parent}, nil
		}
		parent.close()
		var typed *Error
		if errors.As(berr, &typed) && typed.Code == CodeNotDelegated {
			typed.Fix = fixV1()
		}
		if err == nil || place == rel {
			err = berr
		}
	}
	top.close()
	return nil, err
}

// setUpBase prepares a base for children. Both files are absent where they do not
// apply, and refuse where they are set already.
func setUpBase(base *dir) {
	// Before 5.11 limits do not cover nested groups unless asked.
	_ = base.write("memory.use_hierarchy", "1")
	if base.has("cpuset.cpus") {
		// A co-mounted cpuset takes no task until it has cpus and nodes.
		_ = base.write("cgroup.clone_children", "1")
	}
}

func (h *v1Host) mechanism() string { return MechanismV1 }

func (h *v1Host) base() string { return joinPath(h.hs[0].parent.path, baseName) }

// enter makes the group name in one hierarchy. The base is made and opened anew each
// time: another supervisor, closing as the last one, removes it while it is empty,
// and a handle of a removed directory would never work again.
func (x *hierarchy) enter(e *env, name string) (*part, error) {
	var err error
	for range baseTries {
		var base *dir
		if base, err = makeBase(e, x.parent); err != nil {
			return nil, err
		}
		setUpBase(base)
		if err = e.mkdir(base.fd(), name); err == nil {
			d, err := base.child(name)
			if err != nil {
				_ = base.rmdir(name)
				base.close()
				return nil, err
			}
			return &part{roles: x.roles, parent: base, d: d}, nil
		}
		base.close()
		if !gone(err) {
			return nil, err
		}
	}
	return nil, err
}

// create makes the group in every hierarchy, memory first: whoever makes that one
// has the name, so of two creators exactly one goes on.
func (h *v1Host) create(name string, lim Limits) (control, error) {
	g := &v1Group{e: h.e, name: name, fs: files{}}
	for _, x := range h.hs {
		p, err := x.enter(h.e, name)
		if err != nil {
			g.discard()
			return nil, createError(name, err)
		}
		g.parts = append(g.parts, p)
	}
	err := g.openFiles()
	if err == nil {
		err = g.limit(lim)
	}
	if err != nil {
		g.discard()
		return nil, err
	}
	return g, nil
}

func (h *v1Host) open(name string) (control, error) { return h.find(name, false) }

func (h *v1Host) wreck(name string) (control, error) { return h.find(name, true) }

// find opens the parts of a group; partial accepts some of them missing.
func (h *v1Host) find(name string, partial bool) (control, error) {
	g := &v1Group{e: h.e, name: name, fs: files{}}
	missing := 0
	for _, x := range h.hs {
		p, err := x.find(name)
		if gone(err) {
			missing++
			continue
		}
		if err != nil {
			g.close()
			return nil, fail(CodeIO, "open_group", name, err)
		}
		g.parts = append(g.parts, p)
	}
	if len(g.parts) == 0 {
		return nil, fail(CodeNotFound, "open_group", name, nil)
	}
	if partial {
		return g, nil
	}
	if missing > 0 {
		g.close()
		return nil, fail(CodeMismatch, "open_group", name, errors.New("missing in a hierarchy"))
	}
	if err := g.openFiles(); err != nil {
		g.close()
		return nil, fail(CodeIO, "open_group", name, err)
	}
	return g, nil
}

func (x *hierarchy) find(name string) (*part, error) {
	base, err := x.parent.child(baseName)
	if err != nil {
		return nil, err
	}
	d, err := base.child(name)
	if err != nil {
		base.close()
		return nil, err
	}
	return &part{roles: x.roles, parent: base, d: d}, nil
}

func (h *v1Host) entries() ([]string, error) {
	var all []string
	for _, x := range h.hs {
		base, err := x.parent.child(baseName)
		if gone(err) {
			continue
		}
		if err != nil {
			return nil, fail(CodeIO, "list_groups", x.parent.path, err)
		}
		names, err := base.subdirs()
		base.close()
		if err != nil && !gone(err) {
			return nil, fail(CodeIO, "list_groups", base.path, err)
		}
		all = append(all, names...)
	}
	return all, nil
}

func (h *v1Host) close() error {
	for _, x := range h.hs {
		// Refused while anybody's group is in it.
		_ = x.parent.rmdir(baseName)
		x.parent.close()
	}
	return nil
}
