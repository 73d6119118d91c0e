package cgroup

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// baseTries bounds how often a base is made again that another supervisor, closing
// as the last one, removes under us.
const baseTries = 64

// v2Host is a base on cgroup v2: either the delegated group dir, or "glove" below
// parent, which is made and opened anew for each use: another supervisor, closing as
// the last one, removes it while it is empty, and a handle of a removed directory
// would never work again.
type v2Host struct {
	e      *env
	parent *dir
	dir    *dir
}

func (h *v2Host) mechanism() string { return MechanismV2 }

func (h *v2Host) base() string {
	if h.dir != nil {
		return h.dir.path
	}
	return joinPath(h.parent.path, baseName)
}

// makeReady returns a handle of the base, made if it was missing and with its
// controllers handed down.
func (h *v2Host) makeReady() (*dir, error) {
	if h.dir != nil {
		return openDir(h.e, h.dir.fd(), ".", h.dir.path)
	}
	d, err := makeBase(h.e, h.parent)
	if err != nil {
		return nil, err
	}
	if err := handDown(d); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// existing returns a handle of the base without making it.
func (h *v2Host) existing() (*dir, error) {
	if h.dir != nil {
		return openDir(h.e, h.dir.fd(), ".", h.dir.path)
	}
	return h.parent.child(baseName)
}

// gone tells that a directory was removed while we used it.
func gone(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) }

// makeBase makes and opens "glove" below parent and refuses one that is another
// user's: whoever owns it could watch, move and end what we put there.
func makeBase(e *env, parent *dir) (*dir, error) {
	name := joinPath(parent.path, baseName)
	for range baseTries {
		err := e.mkdir(parent.fd(), baseName)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, notDelegated("create_base", name, err)
		}
		d, err := parent.child(baseName)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, notDelegated("open_base", name, err) // another user's, with a private umask
		}
		if d.uid != uint32(e.euid) {
			d.close()
			return nil, &Error{Code: CodeNotDelegated, Op: "open_base", Name: name, Fix: fixDelegate}
		}
		return d, nil
	}
	return nil, fail(CodeIO, "open_base", name, unix.ENOENT)
}

func (h *v2Host) create(name string, lim Limits) (control, error) {
	var g *v2Group
	var err error
	for range baseTries {
		if g, err = h.make(name); err == nil || !gone(err) || h.parent == nil {
			break
		}
	}
	if err != nil {
		return nil, createError(name, err)
	}
	if err := g.limit(lim); err != nil {
		_ = g.remove()
		g.close()
		return nil, err
	}
	return g, nil
}

func createError(name string, err error) error {
	var typed *Error
	switch {
	case errors.As(err, &typed):
		return err
	case errors.Is(err, unix.EEXIST):
		return fail(CodeExists, "create_group", name, err)
	}
	return notDelegated("create_group", name, err)
}

// make makes an empty group without limits.
func (h *v2Host) make(name string) (*v2Group, error) {
	base, err := h.makeReady()
	if err != nil {
		return nil, err
	}
	if err := h.e.mkdir(base.fd(), name); err != nil {
		base.close()
		return nil, err
	}
	d, err := base.child(name)
	if err != nil {
		_ = base.rmdir(name)
		base.close()
		return nil, err
	}
	g, err := newV2Group(h.e, base, d, name)
	if err != nil {
		_ = base.rmdir(name)
		d.close()
		base.close()
	}
	return g, err
}

func (h *v2Host) open(name string) (control, error) {
	base, err := h.existing()
	if gone(err) {
		return nil, fail(CodeNotFound, "open_group", name, err)
	}
	if err != nil {
		return nil, fail(CodeIO, "open_base", name, err)
	}
	d, err := base.child(name)
	if err != nil {
		base.close()
		if gone(err) {
			return nil, fail(CodeNotFound, "open_group", name, err)
		}
		return nil, fail(CodeIO, "open_group", name, err)
	}
	g, err := newV2Group(h.e, base, d, name)
	if err != nil {
		d.close()
		base.close()
		return nil, fail(CodeIO, "open_group", name, err)
	}
	return g, nil
}

func (h *v2Host) wreck(name string) (control, error) { return h.open(name) }

func (h *v2Host) entries() ([]string, error) {
	base, err := h.existing()
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fail(CodeIO, "open_base", h.base(), err)
	}
	defer base.close()
	names, err := base.subdirs()
	if err != nil && !gone(err) {
		return nil, fail(CodeIO, "list_groups", base.path, err)
	}
	return names, nil
}

func (h *v2Host) close() error {
	if h.dir != nil {
		h.dir.close()
		return nil
	}
	// Refused while anybody's group is in it.
	_ = h.parent.rmdir(baseName)
	h.parent.close()
	return nil
}

// limit puts the limits in force and reads them back.
func (g *v2Group) limit(lim Limits) error {
	pids := strconv.FormatUint(uint64(lim.PIDs), 10)
	if lim.PIDs > MaxPIDs {
		pids = "max"
	}
	steps := []struct{ file, value string }{
		{"memory.max", strconv.FormatUint(lim.MemoryBytes, 10)},
		{"memory.swap.max", "0"},
		{"memory.oom.group", "1"},
		{"pids.max", pids},
	}
	for _, s := range steps {
		err := g.d.write(s.file, s.value)
		if s.file == "memory.swap.max" && errors.Is(err, unix.ENOENT) {
			err = g.e.noSwap()
		}
		if err != nil {
			return fail(CodeNotEnforced, "set_limit", s.file, err)
		}
	}
	return verifyLimits(lim, g.d, "memory.max", g.d, "pids.max")
}

// noSwap accepts a kernel that cannot limit swap if there is none.
func (e *env) noSwap() error {
	data, err := e.readProc("swaps")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.Count(strings.TrimSpace(string(data)), "\n") > 0 { // the first line is a heading
		return &Error{Code: CodeNotEnforced, Op: "set_limit", Name: "memory.swap.max",
			Fix: "boot with swapaccount=1, or turn swap off with: swapoff -a"}
	}
	return nil
}

// verifyLimits reads the limits back: the kernel rounds memory down to pages, and
// nothing else is accepted.
func verifyLimits(lim Limits, mem *dir, memFile string, pids *dir, pidsFile string) error {
	got, err := mem.number(memFile)
	if err != nil {
		return fail(CodeIO, "verify_limit", memFile, err)
	}
	want := min(lim.MemoryBytes, 1<<63-1)
	page := uint64(os.Getpagesize())
	if got > want || got/page != want/page {
		return fail(CodeNotEnforced, "verify_limit", memFile, nil)
	}
	got, err = pids.number(pidsFile)
	if err != nil {
		return fail(CodeIO, "verify_limit", pidsFile, err)
	}
	if got != uint64(lim.PIDs) && (lim.PIDs <= MaxPIDs || got != ^uint64(0)) {
		return fail(CodeNotEnforced, "verify_limit", pidsFile, nil)
	}
	return nil
}

func (d *dir) number(file string) (uint64, error) {
	s, err := d.read(file)
	if err != nil {
		return 0, err
	}
	return parseNumber([]byte(s))
}
