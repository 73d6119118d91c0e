package cgroup

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// v2Group is one directory of the unified hierarchy.
type v2Group struct {
	e      *env
	parent *dir
	d      *dir
	name   string
	fs     files

	memPeak, pidPeak high // for kernels that do not keep a peak
}

// newV2Group takes over parent and d if it succeeds.
func newV2Group(e *env, parent, d *dir, name string) (*v2Group, error) {
	g := &v2Group{e: e, parent: parent, d: d, name: name, fs: files{}}
	err := g.fs.open(d,
		[]string{"cpu.stat", "memory.current", "memory.events", "pids.current", "pids.events", "cgroup.events"},
		"memory.peak", "memory.events.local", "pids.peak", "pids.events.local")
	if err != nil {
		g.fs.close()
		return nil, err
	}
	return g, nil
}

func (g *v2Group) identity() Identity { return identityV2(g.d) }

func (g *v2Group) dir() *os.File { return g.d.f }

func (g *v2Group) close() {
	g.fs.close()
	g.d.close()
	g.parent.close()
}

func (g *v2Group) add(pid int) error {
	if err := g.d.write("cgroup.procs", strconv.Itoa(pid)); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return fail(CodeNotFound, "add", strconv.Itoa(pid), err)
		}
		return notDelegated("add", joinPath(g.d.path, "cgroup.procs"), err)
	}
	ms, err := g.e.membership(pid)
	if err != nil {
		return err
	}
	if p, ok := pathOf(ms, ""); !ok || p != g.d.path {
		return fail(CodeMismatch, "add", strconv.Itoa(pid), nil)
	}
	return nil
}

func (g *v2Group) cpuMicros() (uint64, error) { return g.fs.keyed("cpu.stat", "usage_usec", false) }

// usage prefers the ".local" files, which leave out limits that somebody inside
// put on groups of their own. Kills count wherever below they happened.
func (g *v2Group) usage() (Usage, error) {
	var u Usage
	local := g.fs.either("memory.events.local", "memory.events")
	pids := g.fs.either("pids.events.local", "pids.events")
	var errs [7]error
	u.CPUMicros, errs[0] = g.cpuMicros()
	u.MemoryBytes, errs[1] = g.fs.number("memory.current")
	u.PIDs, errs[2] = g.fs.number("pids.current")
	u.MemoryLimitHits, errs[3] = g.fs.keyed(local, "max", false)
	u.OOMs, errs[4] = g.fs.keyed(local, "oom", false)
	u.OOMKills, errs[5] = g.fs.keyed("memory.events", "oom_kill", false)
	u.PIDLimitHits, errs[6] = g.fs.keyed(pids, "max", false)
	if err := errors.Join(errs[:]...); err != nil {
		return Usage{}, err
	}
	var err1, err2 error
	u.MemoryPeakBytes, err1 = peak(g.fs, "memory.peak", &g.memPeak, u.MemoryBytes)
	u.PIDsPeak, err2 = pidsPeak(g.fs, &g.pidPeak, u, func() (uint64, error) { return g.d.number("pids.max") })
	return u, errors.Join(err1, err2)
}

// peak reads the kernel's peak, or keeps one of our own.
func peak(fs files, name string, seen *high, now uint64) (uint64, error) {
	if _, ok := fs[name]; !ok {
		return seen.raise(now), nil
	}
	n, err := fs.number(name)
	return max(n, now), err
}

// pidsPeak does the same for tasks; once a fork was refused the peak was the limit.
func pidsPeak(fs files, seen *high, u Usage, limit func() (uint64, error)) (uint64, error) {
	if _, ok := fs["pids.peak"]; !ok && u.PIDLimitHits > 0 {
		n, err := limit()
		if err != nil {
			return 0, fail(CodeIO, "read", "pids.max", err)
		}
		if n != ^uint64(0) {
			seen.raise(n)
		}
	}
	return peak(fs, "pids.peak", seen, u.PIDs)
}

func (g *v2Group) populated() (bool, error) {
	n, err := g.fs.keyed("cgroup.events", "populated", false)
	if isNotFound(err) {
		return false, nil // removed, hence empty
	}
	return n != 0, err
}

// kill uses cgroup.kill, which no fork escapes and which reaches frozen groups too.
func (g *v2Group) kill() error {
	err := g.d.write("cgroup.kill", "1")
	switch {
	case err == nil, errors.Is(err, unix.ENODEV):
		return nil
	case !errors.Is(err, unix.ENOENT):
		return fail(CodeIO, "kill", joinPath(g.d.path, "cgroup.kill"), err)
	}
	if !g.d.has("cgroup.procs") {
		return nil // removed
	}
	k := killer{e: g.e, dirs: []*dir{g.d}, member: g.contains,
		freeze: func() { _ = g.d.write("cgroup.freeze", "1") },
		thaw: func() {
			_ = g.d.each(func(d *dir) error { _ = d.write("cgroup.freeze", "0"); return nil })
		}}
	return k.run()
}

// contains reports whether a membership is in this group or in one made inside it.
func (g *v2Group) contains(ms []membership) bool {
	p, ok := pathOf(ms, "")
	return ok && inside(p, g.d.path)
}

func inside(p, group string) bool { return p == group || strings.HasPrefix(p, group+"/") }

func (g *v2Group) remove() error { return removed(g.d.removeTree(g.parent, g.name), g.name) }

// removed gives the error of a removal its type and lets busy and typed ones through.
func removed(err error, name string) error {
	var typed *Error
	switch {
	case err == nil, errors.Is(err, errBusy), errors.As(err, &typed):
		return err
	case errors.Is(err, errTooLarge):
		return fail(CodeQuarantined, "remove", name, err)
	}
	return fail(CodeIO, "remove", name, err)
}

func (g *v2Group) events() (eventSource, error) {
	w, err := newWaker()
	if err != nil {
		return nil, err
	}
	err = w.inotify(g.fs["memory.events"], g.fs[g.fs.either("pids.events.local", "pids.events")])
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}
