package cgroup

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// part is a group's directory in one hierarchy.
type part struct {
	roles  []string
	parent *dir
	d      *dir
}

func (p *part) close() {
	p.d.close()
	p.parent.close()
}

// v1Group is one directory in each hierarchy. One found half-made has fewer parts
// and no files; it can only be killed and removed.
type v1Group struct {
	e     *env
	name  string
	parts []*part
	fs    files

	memPeak, pidPeak high
	killed           high // refused forks before a kill without freezer, plus one
}

// at returns the directory of a role, nil if there is none.
func (g *v1Group) at(role string) *dir {
	for _, p := range g.parts {
		if slices.Contains(p.roles, role) {
			return p.d
		}
	}
	return nil
}

func (g *v1Group) dirs() []*dir {
	var out []*dir
	for _, p := range g.parts {
		out = append(out, p.d)
	}
	return out
}

func (g *v1Group) openFiles() error {
	if err := g.fs.open(g.at("memory"),
		[]string{"memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.failcnt", "memory.oom_control"},
		"memory.memsw.failcnt"); err != nil {
		return err
	}
	if err := g.fs.open(g.at("cpuacct"), []string{"cpuacct.usage"}); err != nil {
		return err
	}
	return g.fs.open(g.at("pids"), []string{"pids.current", "pids.events"}, "pids.peak")
}

// limit puts the limits in force and reads them back. The memory limit comes first,
// as the one on memory and swap together may never be the smaller.
func (g *v1Group) limit(lim Limits) error {
	mem, pids := g.at("memory"), g.at("pids")
	bytes := strconv.FormatUint(lim.MemoryBytes, 10)
	if err := mem.write("memory.limit_in_bytes", bytes); err != nil {
		return fail(CodeNotEnforced, "set_limit", "memory.limit_in_bytes", err)
	}
	err := mem.write("memory.memsw.limit_in_bytes", bytes)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		// No swap accounting: anonymous memory then stays unless there is nowhere to go.
		if err = mem.write("memory.swappiness", "0"); err == nil {
			err = g.e.noSwap()
		}
	}
	if err != nil {
		return fail(CodeNotEnforced, "set_limit", "memory.memsw.limit_in_bytes", err)
	}
	n := strconv.FormatUint(uint64(lim.PIDs), 10)
	if lim.PIDs > MaxPIDs {
		n = "max"
	}
	if err := pids.write("pids.max", n); err != nil {
		return fail(CodeNotEnforced, "set_limit", "pids.max", err)
	}
	return verifyLimits(lim, mem, "memory.limit_in_bytes", pids, "pids.max")
}

func (g *v1Group) identity() Identity {
	dirs := make([]*dir, 0, len(committed))
	for _, role := range committed {
		d := g.at(role)
		if d == nil {
			return Identity{} // half-made; equals no real identity
		}
		dirs = append(dirs, d)
	}
	return identityV1(dirs)
}

func (g *v1Group) dir() *os.File { return nil }

func (g *v1Group) close() {
	g.fs.close()
	for _, p := range g.parts {
		p.close()
	}
}

// discard undoes a failed create.
func (g *v1Group) discard() {
	_ = g.remove()
	g.close()
}

// add enters the freezer first and the counters last, so that whatever is counted
// can also be killed.
func (g *v1Group) add(pid int) error {
	text := strconv.Itoa(pid)
	for _, p := range slices.Backward(g.parts) {
		if err := p.d.write("cgroup.procs", text); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return fail(CodeNotFound, "add", text, err)
			}
			return notDelegated("add", joinPath(p.d.path, "cgroup.procs"), err)
		}
	}
	ms, err := g.e.membership(pid)
	if err != nil {
		return err
	}
	for _, p := range g.parts {
		if got, ok := pathOf(ms, p.roles[0]); !ok || got != p.d.path {
			return fail(CodeMismatch, "add", text, nil)
		}
	}
	return nil
}

func (g *v1Group) cpuMicros() (uint64, error) {
	n, err := g.fs.number("cpuacct.usage") // nanoseconds
	return n / 1000, err
}

func (g *v1Group) usage() (Usage, error) {
	var u Usage
	var errs [7]error
	u.CPUMicros, errs[0] = g.cpuMicros()
	u.MemoryBytes, errs[1] = g.fs.number("memory.usage_in_bytes")
	u.PIDs, errs[2] = g.fs.number("pids.current")
	u.MemoryLimitHits, errs[3] = g.memoryHits()
	u.OOMKills, errs[4] = g.sum("memory", "memory.oom_control", "oom_kill")
	u.PIDLimitHits, errs[5] = g.pidHits()
	u.MemoryPeakBytes, errs[6] = peak(g.fs, "memory.max_usage_in_bytes", &g.memPeak, u.MemoryBytes)
	if err := errors.Join(errs[:]...); err != nil {
		return Usage{}, err
	}
	var err error
	// Kernels of the 6 series may leave failcnt at 0; a kill was a hit in any case.
	u.MemoryLimitHits = max(u.MemoryLimitHits, u.OOMKills)
	u.PIDsPeak, err = pidsPeak(g.fs, &g.pidPeak, u, func() (uint64, error) { return g.at("pids").number("pids.max") })
	return u, err
}

// memoryHits adds both counters: which of the two equal limits is met first depends
// on the kernel.
func (g *v1Group) memoryHits() (uint64, error) {
	n, err := g.fs.number("memory.failcnt")
	if _, ok := g.fs["memory.memsw.failcnt"]; !ok || err != nil {
		return n, err
	}
	m, err := g.fs.number("memory.memsw.failcnt")
	return n + m, err
}

func (g *v1Group) pidHits() (uint64, error) {
	if n := g.killed.v.Load(); n > 0 {
		return n - 1, nil
	}
	return g.sum("pids", "pids.events", "max")
}

// sum reads a counter that v1 keeps per directory, adding those of groups made
// inside. There are hardly ever any, so it first asks cheaply.
func (g *v1Group) sum(role, file, key string) (uint64, error) {
	total, err := g.fs.keyed(file, key, false)
	if err != nil {
		return 0, err
	}
	d := g.at(role)
	if nested, err := d.nested(); err != nil || !nested {
		return total, err
	}
	err = d.each(func(c *dir) error {
		if c == d {
			return nil
		}
		s, err := c.read(file)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		n, _, err := parseFlat([]byte(s), key)
		total += n
		return err
	})
	return total, err
}

// populated looks at every hierarchy: a process may be in one alone, if its move
// failed half way.
func (g *v1Group) populated() (bool, error) {
	for _, d := range g.dirs() {
		pids, err := d.pids()
		if gone(err) {
			continue
		}
		if err != nil {
			return false, fail(CodeIO, "populated", joinPath(d.path, "cgroup.procs"), err)
		}
		if len(pids) > 0 {
			return true, nil
		}
	}
	return false, nil
}

func (g *v1Group) kill() error {
	k := killer{e: g.e, dirs: g.dirs(), member: g.contains, freeze: g.stopForks, thaw: func() {}}
	if f := g.at("freezer"); f != nil {
		k.freeze = func() { freezeV1(f) }
		k.thaw = func() { thawV1(f) }
	}
	return k.run()
}

func (g *v1Group) contains(ms []membership) bool {
	for _, p := range g.parts {
		if got, ok := pathOf(ms, p.roles[0]); ok && inside(got, p.d.path) {
			return true
		}
	}
	return false
}

// freezeWait bounds the wait for a group to freeze. A member in uninterruptible
// sleep never does; then killing goes on without.
const freezeWait = 50 * time.Millisecond

func freezeV1(d *dir) {
	if d.write("freezer.state", "FROZEN") != nil {
		return
	}
	end := time.Now().Add(freezeWait)
	for time.Now().Before(end) {
		s, err := d.read("freezer.state")
		if err != nil || strings.TrimSpace(s) == "FROZEN" {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// thawV1 also thaws what somebody froze inside: SIGKILL does not wake a task from
// the v1 freezer.
func thawV1(d *dir) {
	_ = d.each(func(d *dir) error {
		_ = d.write("freezer.state", "THAWED")
		return nil
	})
}

// stopForks stands in for a missing freezer: with the limit on tasks at 0 every fork
// fails, so passes converge. The forks refused from here on are not the session's
// fault, so the count so far is kept.
func (g *v1Group) stopForks() {
	if g.killed.v.Load() == 0 {
		if n, err := g.sum("pids", "pids.events", "max"); err == nil {
			g.killed.raise(n + 1)
		}
	}
	if d := g.at("pids"); d != nil {
		_ = d.write("pids.max", "0")
	}
}

// remove removes every part, even after one failed, so that a retry has less to do.
func (g *v1Group) remove() error {
	var errs []error
	for _, p := range g.parts {
		errs = append(errs, removed(p.d.removeTree(p.parent, g.name), g.name))
	}
	return errors.Join(errs...)
}

// events wakes on the out-of-memory notification (an eventfd given to
// cgroup.event_control) and on changes of pids.events.
func (g *v1Group) events() (eventSource, error) {
	w, err := newWaker()
	if err != nil {
		return nil, err
	}
	if err := w.inotify(g.fs["pids.events"]); err != nil {
		w.Close()
		return nil, err
	}
	if err := w.oom(g.at("memory"), g.fs["memory.oom_control"]); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}
