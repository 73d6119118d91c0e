package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gloved.dev/internal/require"
	"golang.org/x/sys/unix"
)

const creators = 16

// TestConcurrentCreators has many supervisors find, use and leave the same base at
// once, in one process and in several.
func TestConcurrentCreators(t *testing.T) {
	require.Root(t)
	var wg sync.WaitGroup
	for i := range creators {
		wg.Go(func() {
			if err := createRounds(fmt.Sprintf("glove-test-thread-%d-%d", os.Getpid(), i)); err != nil {
				t.Errorf("goroutine %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	var all []*child
	for range creators {
		all = append(all, start(t, "creator"))
	}
	for _, c := range all {
		c.release()
	}
	for i, c := range all {
		if got := c.line(); got != "ok" {
			t.Errorf("process %d: %s", i, got)
		}
	}
	h := host(t)
	if names, err := h.Names("glove-test-thread-"); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// createRounds lets the base come and go.
func createRounds(name string) error {
	for range 8 {
		h, err := Detect()
		if err != nil {
			return err
		}
		g, err := h.Create(name, wide)
		if err != nil {
			return err
		}
		again, err := h.Open(name, g.Identity())
		if err != nil {
			return err
		}
		again.Close()
		if err := g.Destroy(context.Background()); err != nil {
			return err
		}
		g.Close()
		if err := h.Close(); err != nil {
			return err
		}
	}
	return nil
}

func helperCreator() int {
	await()
	if err := createRounds(fmt.Sprintf("glove-test-thread-p%d", os.Getpid())); err != nil {
		say(err)
		return 1
	}
	say("ok")
	return 0
}

// TestSameNameOnce has many creators race for one name: exactly one may win, and
// the others may not harm it.
func TestSameNameOnce(t *testing.T) {
	h := host(t)
	name := fmt.Sprintf("glove-test-race-%d", os.Getpid())
	var mu sync.Mutex
	var won []*Group
	var wg sync.WaitGroup
	for range creators {
		wg.Go(func() {
			g, err := h.Create(name, wide)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, g)
			} else if !errors.Is(err, ErrExists) {
				t.Errorf("Create: %v, want exists", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d creators got the name", len(won))
	}
	g := won[0]
	defer g.Close()
	if id, err := h.Lookup(name); err != nil || id != g.Identity() {
		t.Errorf("Lookup = %+v, %v, want %+v", id, err, g.Identity())
	}
	if err := g.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAdoption(t *testing.T) {
	first := host(t)
	g := group(t, first, wide)
	c := run(t, g, "sleep")
	c.line()

	second := host(t)
	adopted, err := second.Open(g.Name(), g.Identity())
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	defer adopted.Close()
	if u := mustUsage(t, adopted); u.PIDs == 0 {
		t.Errorf("adopted group shows %+v", u)
	}
	right := g.Identity()
	for _, wrong := range []Identity{
		{},
		{right.Dev + 1, right.Ino, right.PathDigest},
		{right.Dev, right.Ino + 1, right.PathDigest},
		{right.Dev, right.Ino, pathDigest("/elsewhere")},
	} {
		if _, err := second.Open(g.Name(), wrong); !errors.Is(err, ErrMismatch) {
			t.Errorf("Open with %+v: %v, want mismatch", wrong, err)
		}
	}
	if err := unix.Kill(c.pid(), 0); err != nil {
		t.Errorf("a refused adoption touched the process: %v", err)
	}
	if err := adopted.Destroy(t.Context()); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	if _, err := second.Open(g.Name(), right); !errors.Is(err, ErrNotFound) {
		t.Errorf("Open after Destroy: %v, want not found", err)
	}

	// Another group takes the name; a holder of the first must not remove it.
	other, err := second.Create(g.Name(), wide)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := first.Open(g.Name(), right); !errors.Is(err, ErrMismatch) {
		t.Errorf("Open of a successor: %v, want mismatch", err)
	}
	if err := g.Destroy(t.Context()); !errors.Is(err, ErrMismatch) {
		t.Errorf("Destroy through a stale handle: %v, want mismatch", err)
	}
	if id, err := first.Lookup(g.Name()); err != nil || id != other.Identity() {
		t.Errorf("the successor is gone: %v", err)
	}
	if err := other.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNamesAndSweep(t *testing.T) {
	h := host(t)
	prefix := fmt.Sprintf("glove-test-sweep-%d-", os.Getpid())
	for _, n := range []string{"b", "a"} {
		g, err := h.Create(prefix+n, wide)
		if err != nil {
			t.Fatal(err)
		}
		c := run(t, g, "sleep")
		c.line()
		g.Close() // as if the supervisor had died
	}
	// A crash in the middle of creating leaves less than a whole group.
	if v1, ok := h.b.(*v1Host); ok {
		p, err := v1.hs[len(v1.hs)-1].enter(v1.e, prefix+"half")
		if err != nil {
			t.Fatal(err)
		}
		p.close()
		if _, err := h.Lookup(prefix + "half"); !errors.Is(err, ErrMismatch) {
			t.Errorf("Lookup of half a group: %v, want mismatch", err)
		}
		if _, err := h.Create(prefix+"half", wide); !errors.Is(err, ErrExists) {
			t.Errorf("Create over half a group: %v, want exists", err)
		}
	}
	names, err := h.Names(prefix)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) < 2 || names[0] != prefix+"a" || !slices.IsSorted(names) {
		t.Errorf("Names = %q", names)
	}
	for _, n := range names {
		if err := h.Sweep(t.Context(), n); err != nil {
			t.Errorf("Sweep(%s): %v", n, err)
		}
	}
	if names, err := h.Names(prefix); err != nil || len(names) != 0 {
		t.Errorf("after the sweep: %q, %v", names, err)
	}
	if err := h.Sweep(t.Context(), prefix+"a"); err != nil {
		t.Errorf("Sweep of nothing: %v", err)
	}
	for _, p := range []string{"", "/", "glove-host-"} {
		if _, err := h.Names(p); !hasCode(err, CodeInvalid) {
			t.Errorf("Names(%q) = %v, want invalid", p, err)
		}
	}
}

// nobody owns the delegated groups of the unprivileged tests.
const nobody = 65534

// TestDelegatedUnprivileged gives a user groups of its own in every hierarchy, as an
// administrator or systemd would, and does a whole life there.
func TestDelegatedUnprivileged(t *testing.T) {
	h := host(t)
	c := start(t, "delegate", "GLOVE_UID="+strconv.Itoa(nobody))
	delegate(t, h, c.pid(), nobody, false)
	c.release()
	if got := c.line(); got != "ok "+h.Mechanism() {
		t.Errorf("helper: %s", got)
	}
}

// TestDelegatedWithOthers is a delegated scope with a shell in it: everybody moves to
// the leaf. Only v2 has that rule.
func TestDelegatedWithOthers(t *testing.T) {
	h := host(t)
	if h.Mechanism() != MechanismV2 {
		require.Environment(t, require.CgroupV2)
	}
	shell := start(t, "sleep")
	c := start(t, "delegate")
	where := delegate(t, h, c.pid(), 0, true)
	for _, d := range where {
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(shell.pid())), 0); err != nil {
			t.Fatal(err)
		}
	}
	c.release()
	if got := c.line(); got != "ok "+h.Mechanism() {
		t.Errorf("helper: %s", got)
	}
	ms, err := realEnv().membership(shell.pid())
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := pathOf(ms, ""); !hasLeafPrefix(filepath.Base(p)) {
		t.Errorf("the shell is in %s, want a leaf", p)
	}
}

// delegate makes a group in every hierarchy, gives it to uid and puts pid into it.
func delegate(t *testing.T, h *Host, pid, uid int, mark bool) []string {
	t.Helper()
	var tops []string
	switch b := h.b.(type) {
	case *v1Host:
		for _, x := range b.hs {
			tops = append(tops, realPath(t, x.parent))
		}
	case *v2Host:
		tops = []string{realPath(t, b.parent)}
	}
	var out []string
	for _, top := range tops {
		d := filepath.Join(top, fmt.Sprintf("glove-test-delegated-%d", os.Getpid()))
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeAll(t, d) })
		files, err := filepath.Glob(d + "/cgroup.*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range append(files, d) {
			if err := os.Chown(f, uid, uid); err != nil {
				t.Fatal(err)
			}
		}
		if mark {
			if err := unix.Setxattr(d, "user.delegate", []byte("1"), 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(d, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			t.Fatal(err)
		}
		out = append(out, d)
	}
	return out
}

// removeAll removes a tree of groups whose last members are about to be reaped.
func removeAll(t *testing.T, top string) {
	d, err := openDir(realEnv(), unix.AT_FDCWD, top, top)
	if err != nil {
		t.Errorf("remove %s: %v", top, err)
		return
	}
	parent, err := openDir(realEnv(), unix.AT_FDCWD, filepath.Dir(top), filepath.Dir(top))
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	defer parent.close()
	pids, _ := d.pids()
	for _, pid := range pids {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	for range 1000 {
		if err = d.removeTree(parent, filepath.Base(top)); !errors.Is(err, errBusy) {
			break
		}
		sleep(context.Background(), 1e6)
	}
	if err != nil {
		t.Errorf("remove %s: %v", top, err)
	}
}

// helperDelegate becomes the user and lives one group's life.
func helperDelegate() int {
	await()
	if uid, err := strconv.Atoi(os.Getenv("GLOVE_UID")); err == nil {
		if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
			say(err)
			return 1
		}
	}
	mechanism, err := delegatedLife()
	if err != nil {
		say(strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	say("ok", mechanism)
	return 0
}

func delegatedLife() (string, error) {
	h, err := Detect()
	if err != nil {
		return "", err
	}
	defer h.Close()
	if !strings.Contains(h.Base(), "glove-test-delegated-") {
		return "", fmt.Errorf("base is %s", h.Base())
	}
	// Another supervisor that starts from where we are now finds the same place.
	again, err := Detect()
	if err != nil {
		return "", err
	}
	defer again.Close()
	if again.Base() != h.Base() {
		return "", fmt.Errorf("bases %s and %s", h.Base(), again.Base())
	}
	g, err := h.Create("glove-test-session", wide)
	if err != nil {
		return "", err
	}
	defer g.Close()
	cmd, err := spawn("sleep")
	if err != nil {
		return "", err
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		return "", err
	}
	id, err := Identify(cmd.Process.Pid)
	if err != nil || id.Cgroup != g.Identity() {
		return "", fmt.Errorf("identity %+v, %v, want %+v", id, err, g.Identity())
	}
	adopted, err := again.Open(g.Name(), g.Identity())
	if err != nil {
		return "", err
	}
	defer adopted.Close()
	if u, err := adopted.Usage(); err != nil || u.PIDs == 0 {
		return "", fmt.Errorf("usage %+v, %w", u, err)
	}
	if err := adopted.Destroy(context.Background()); err != nil {
		return "", err
	}
	_ = cmd.Wait()
	return h.Mechanism(), nil
}
