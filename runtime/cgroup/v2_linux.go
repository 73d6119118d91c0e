package cgroup

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// baseTries bounds how often a base is made again that another supervisor, closing
// as the last one, removes under us.
const baseTries = 64

// v2Host is a base on cgroup v2.
type v2Host struct {
	e      *env
	parent *dir // where the base "glove" is ours to make and remove; nil in a delegated group

	mu  sync.Mutex
	dir *dir // the base
}

func (h *v2Host) mechanism() string { return MechanismV2 }

func (h *v2Host) base() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dir.path
}

// reopen makes the shared base if it is missing and opens it.
func (h *v2Host) reopen() error {
	var err error
	for range baseTries {
		var d *dir
		if d, err = makeBase(h.e, h.parent); err != nil {
			return err
		}
		if err = handDown(d); err == nil {
			h.mu.Lock()
			old := h.dir
			h.dir = d
			h.mu.Unlock()
			if old != nil {
				old.close()
			}
			return nil
		}
		d.close()
		if !gone(err) {
			return err
		}
	}
	return err
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
			return nil, fail(CodeIO, "open_base", name, err)
		}
		if d.uid != uint32(e.euid) {
			d.close()
			return nil, &Error{Code: CodeNotDelegated, Op: "open_base", Name: name, Fix: fixDelegate}
		}
		return d, nil
	}
	return nil, fail(CodeIO, "open_base", name, unix.ENOENT)
}

// hold returns a handle of the base of its own.
func (h *v2Host) hold() (*dir, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return openDir(h.e, h.dir.fd(), ".", h.dir.path)
}

func (h *v2Host) create(name string, lim Limits) (control, error) {
	var err error
	for range baseTries {
		var g *v2Group
		g, err = h.make(name)
		if err == nil {
			if err = g.limit(lim); err == nil {
				return g, nil
			}
			_ = g.remove()
			g.close()
			return nil, err
		}
		if !gone(err) || h.parent == nil {
			break
		}
		if err := h.reopen(); err != nil {
			return nil, err
		}
	}
	return nil, createError(name, err)
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
	base, err := h.hold()
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
	base, err := h.hold()
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
	h.mu.Lock()
	defer h.mu.Unlock()
	names, err := h.dir.subdirs()
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fail(CodeIO, "list_groups", h.dir.path, err)
	}
	return names, nil
}

func (h *v2Host) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dir.close()
	if h.parent == nil {
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
