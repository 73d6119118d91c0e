package cgroup

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestIdentifyAndObserve(t *testing.T) {
	c := start(t, "sleep")
	id, err := Identify(c.pid())
	if err != nil {
		t.Fatal(err)
	}
	see := func(what string, id ProcessIdentity, want Observation) {
		t.Helper()
		if got, err := Observe(id); got != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	see("alive", id, Exact)
	other := id
	other.StartTicks++
	see("other start", other, Mismatch)
	other = id
	other.Cgroup.Ino++
	see("other group", other, Mismatch)
	other = id
	other.PID = os.Getpid()
	see("other process", other, Mismatch)
	other = id
	other.BootID = "01234567-89ab-cdef-0123-456789abcdef"
	see("other boot", other, Absent)
	if err := unix.Kill(c.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "zombie", func() bool { st, err := realEnv().stat(c.pid()); return err == nil && st.dead() })
	see("zombie", id, Absent)
	if _, err := Identify(c.pid()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Identify of a zombie: %v, want not found", err)
	}
	_ = c.cmd.Wait()
	see("reaped", id, Absent)
	if _, err := Observe(ProcessIdentity{}); !hasCode(err, CodeInvalid) {
		t.Errorf("Observe of nothing: %v", err)
	}
	if _, err := Identify(0); !hasCode(err, CodeInvalid) {
		t.Errorf("Identify(0): %v", err)
	}
}

// TestMemberMovedIsMismatch keeps a supervisor from trusting a process that left.
func TestMemberMovedIsMismatch(t *testing.T) {
	h := host(t)
	g, other := group(t, h, wide), group(t, h, wide)
	c := run(t, g, "sleep")
	c.line()
	id, err := Identify(c.pid())
	if err != nil || id.Cgroup != g.Identity() {
		t.Fatalf("Identify = %+v, %v", id, err)
	}
	if err := other.Add(c.pid()); err != nil {
		t.Fatal(err)
	}
	if o, err := Observe(id); o != Mismatch || err != nil {
		t.Errorf("Observe = %v, %v, want mismatch", o, err)
	}
}

// TestKillWithoutHelp takes away what the kernel offers for killing: cgroup.kill on v2,
// the freezer on v1.
func TestKillWithoutHelp(t *testing.T) {
	g := group(t, host(t), wide)
	c := run(t, g, "family")
	switch x := g.c.(type) {
	case *v2Group:
		e := *x.e
		e.write = func(dir int, file, value string) error {
			if file == "cgroup.kill" {
				return unix.ENOENT
			}
			return writeFile(dir, file, value)
		}
		x.e, x.d.e = &e, &e
	case *v1Group:
		for _, p := range x.parts {
			if p.roles[0] == "freezer" {
				p.roles = []string{"freezer-unused"}
			}
		}
	}
	for range 8 {
		c.line()
	}
	hits := mustUsage(t, g).PIDLimitHits
	if err := g.Kill(); err != nil {
		t.Fatalf("Kill: %v", err)
	}
	eventually(t, "group is empty", func() bool { p, err := g.Populated(); return err == nil && !p })
	if got := mustUsage(t, g).PIDLimitHits; got != hits {
		t.Errorf("killing counted as %d refused forks, before %d", got, hits)
	}
}
