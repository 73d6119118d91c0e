package fsck

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// lasting is a session that goes on until it is told to end.
const lasting = "echo up; read line; exit 3"

// TestHealthyHostHasNoFindings: an empty state, ended sessions, and sessions that
// live under detached monitors agree with their records, and go on.
func TestHealthyHostHasNoFindings(t *testing.T) {
	w := newWorld(t, lasting)
	w.check()
	w.open()
	w.start(w.create("s1"))
	w.start(w.create("s2"))
	_ = w.create("s3")
	w.check()
	w.repair()
	w.open()
	for _, id := range []string{"s1", "s2"} {
		_, err := w.Write(t.Context(), id, []byte("\n"))
		must(t, err)
		if rec := w.settled(id); rec.State != session.Exited || *rec.Terminal.ExitCode != 3 {
			t.Errorf("%s is %+v after fsck", id, rec)
		}
	}
	w.check()
}

// TestOtherGlovedKeepsUsOut: a root or a journal that is in use is not compared.
func TestOtherGlovedKeepsUsOut(t *testing.T) {
	w := newWorld(t, "exit 0")
	if _, err := Check(t.Context(), w.config()); err == nil {
		t.Error("compared beside a gloved")
	}
	if _, err := Repair(t.Context(), w.config(), nil); err == nil {
		t.Error("repaired beside a gloved")
	}
	c := w.config()
	c.Root = ""
	if _, err := Check(t.Context(), c); err == nil {
		t.Error("compared journals that are in use")
	}
}

// TestKilledMonitorAndGloved: the session is lost, and recorded so.
func TestKilledMonitorAndGloved(t *testing.T) {
	w := newWorld(t, lasting)
	w.create("s1")
	w.create("s2")
	w.killedGloved("", "s1", "s2")
	w.killMonitor("s1")
	w.check(SessionLost)
	report := w.repair()
	if len(report.Repaired) != 2 || report.Repaired[0].Code != SessionLost || report.Repaired[1].Code != SocketOrphan {
		t.Errorf("repaired %+v", report.Repaired)
	}
	rec := w.record("s1")
	if rec.State != session.Failed || rec.FailureCode != session.RecoveredWithoutProcess && rec.FailureCode != session.RecoveredTerminated {
		t.Errorf("s1 is %+v", rec)
	}
	if w.record("s2").State != session.Running {
		t.Error("s2 was touched")
	}
}

// TestSessionThatEndedAlone: its receipt is made of what its monitor left, once.
func TestSessionThatEndedAlone(t *testing.T) {
	w := newWorld(t, lasting)
	rec := w.start(w.create("s1"))
	w.close()
	must(t, unix.Kill(int(rec.Process.PID), unix.SIGKILL))
	w.monitorGone(filepath.Join(w.path("root"), runtime.DirName("s1")))
	w.check(SessionEnded)
	w.repair()
	if rec := w.record("s1"); rec.State != session.Exited || rec.Terminal.Sequence != 1 {
		t.Errorf("s1 is %+v", rec)
	}
}

// TestReceiptBeforeRecord: gloved was killed between the two.
func TestReceiptBeforeRecord(t *testing.T) {
	w := newWorld(t, "exit 5")
	w.create("s1")
	w.killedGloved("settle.receipt", "s1")
	w.monitorGone(filepath.Join(w.path("root"), runtime.DirName("s1")))
	w.check(ReceiptUnrecorded)
	w.repair()
	if rec := w.record("s1"); rec.State != session.Exited || *rec.Terminal.ExitCode != 5 || rec.Terminal.Sequence != 1 {
		t.Errorf("s1 is %+v", rec)
	}
}

// TestUnfinishedStart: gloved was killed when "starting" was durable.
func TestUnfinishedStart(t *testing.T) {
	w := newWorld(t, lasting)
	w.create("s1")
	w.killedGloved("start.starting", "s1")
	w.monitorGone(filepath.Join(w.path("root"), runtime.DirName("s1")))
	w.check(StartUnfinished)
	w.repair()
	if rec := w.record("s1"); rec.State != session.Failed {
		t.Errorf("s1 is %+v", rec)
	}
}

// TestExpiredStart: a start that was reserved and can no longer come.
func TestExpiredStart(t *testing.T) {
	w := newWorld(t, lasting)
	rec := w.create("s1")
	_, err := w.store.ReserveStart(t.Context(), "reserve", authorize(rec), func(time.Time, session.Record) error { return nil })
	must(t, err)
	w.check()
	c := w.config()
	c.Clock = clock.NewFake(time.Now().Add(time.Hour))
	found, err := Check(t.Context(), c)
	must(t, err)
	expect(t, "found", found, []string{SessionExpired})
	report, err := Repair(t.Context(), c, nil)
	must(t, err)
	expect(t, "left", report.Left, nil)
	if rec := w.record("s1"); rec.FailureCode != session.AuthorizationExpired {
		t.Errorf("s1 is %+v", rec)
	}
}

// TestRemovedDirectoryOfALiveSession: what still runs is ended by its exact
// identity.
func TestRemovedDirectoryOfALiveSession(t *testing.T) {
	w := newWorld(t, lasting)
	rec := w.start(w.create("s1"))
	w.close()
	must(t, os.RemoveAll(filepath.Join(w.path("root"), runtime.DirName("s1"))))
	w.check(DirectoryMissing)
	w.repair()
	if got := w.record("s1"); got.FailureCode != session.RecoveredTerminated {
		t.Errorf("s1 is %+v", got)
	}
	if what, err := cgroup.Observe(runtime.ProcessOf(*rec.Process)); err != nil || what != cgroup.Absent {
		t.Errorf("its process is %v, %v", what, err)
	}
}

// TestOrphans: directories, groups, sockets and notes that no session needs.
func TestOrphans(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1")
	w.close()
	root := w.path("root")
	must(t, os.MkdirAll(filepath.Join(root, runtime.DirName("gone"), "below"), 0o700))
	must(t, os.Mkdir(filepath.Join(root, removing+"x"), 0o700))
	listen(t, filepath.Join(root, runtime.DirName("s1"), monitor.SocketName)).Close()
	listen(t, w.path("run/gloved.sock")).Close()
	must(t, os.WriteFile(w.path("run/gloved.holder"), []byte("1 resident x\n"), 0o600))
	p := w.group(w.prefix() + "gone")
	w.check(DirectoryOrphan, RemovalUnfinished, SocketOrphan, SocketOrphan, NoteStale, GroupOrphan)
	if !alive(p) {
		t.Error("comparing ended a process")
	}
	w.repair()
	if alive(p) {
		t.Error("what was in the orphaned group lives on")
	}
	if _, err := os.Stat(filepath.Join(root, runtime.DirName("s1"), monitor.TranscriptName)); err != nil {
		t.Errorf("the transcript of an ended session: %v", err)
	}
}

// listen makes a socket of our kind, which stays when it is closed.
func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	_ = os.Remove(path)
	dir, err := os.Open(filepath.Dir(path)) // the path may be too long for an address
	must(t, err)
	defer dir.Close()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)), Net: "unix"})
	must(t, err)
	l.SetUnlinkOnClose(false)
	must(t, os.Chmod(path, 0o600))
	t.Cleanup(func() { l.Close() })
	return l
}

// group makes a control group with a process in it.
func (w *world) group(name string) *os.Process {
	w.t.Helper()
	host, err := cgroup.Detect()
	must(w.t, err)
	defer host.Close()
	g, err := host.Create(name, cgroup.Limits{MemoryBytes: 64 << 20, PIDs: 8})
	must(w.t, err)
	defer g.Close()
	p := sleeper(w.t, nil)
	must(w.t, g.Add(p.Pid))
	w.t.Cleanup(func() {
		host, err := cgroup.Detect()
		if err == nil {
			_ = host.Sweep(context.Background(), name)
			_ = host.Close()
		}
	})
	return p
}

// sleeper is a process that ends with the test.
func sleeper(t testing.TB, attr *syscall.SysProcAttr) *os.Process {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	cmd.SysProcAttr = attr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process
}

// alive tells a living process from a zombie.
func alive(p *os.Process) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.Pid) + "/stat")
	at := bytes.LastIndexByte(stat, ')')
	return err == nil && at > 0 && stat[at+2] != 'Z'
}

// TestForeignThingsAreLeft: what bears our names and is not ours, or is another
// gloved's, is reported, or not even that, and stays as it is.
func TestForeignThingsAreLeft(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1")
	w.close()
	group := runtime.PlaceOf(w.record("s1")).Group
	root := w.path("root")
	outside := w.path("outside")
	must(t, os.Mkdir(outside, 0o700))
	must(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(root, runtime.DirName("file")), nil, 0o600))
	must(t, os.Symlink(outside, filepath.Join(root, runtime.DirName("link"))))
	must(t, os.Mkdir(filepath.Join(root, runtime.DirPrefix+"99-x"), 0o700))
	must(t, os.Mkdir(filepath.Join(root, runtime.DirName("open")), 0o700))
	must(t, os.Chmod(filepath.Join(root, runtime.DirName("open")), 0o755))       //nolint:gosec // not as we make them
	must(t, os.WriteFile(filepath.Join(root, "a file of somebody"), nil, 0o600)) // no name of ours
	must(t, os.WriteFile(w.path("run/gloved.sock"), nil, 0o600))
	tag := strings.TrimPrefix(w.prefix(), "glove-session-")
	another := "glove-session-" + tag[6:12] + tag[:6] + "-"
	again := w.group(group)                                 // with another identity than s1 had
	nobody := w.group(w.prefix() + strings.Repeat("x", 70)) // none of ours has such a name
	other := w.group(another + "other")                     // another gloved.s
	before := w.tree()
	left := []string{DirectoryForeign, DirectoryForeign, DirectoryForeign, DirectoryForeign, SocketForeign, GroupForeign, GroupForeign}
	w.check(left...)
	w.repair(left...)
	if after := w.tree(); len(before) != len(after) {
		t.Errorf("%d things became %d", len(before), len(after))
	}
	for _, p := range []*os.Process{again, nobody, other} {
		if !alive(p) {
			t.Error("a foreign process was ended")
		}
	}
}

// TestListenerIsLeft: a socket that somebody serves is no orphan.
func TestListenerIsLeft(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.close()
	l := listen(t, w.path("run/gloved.sock"))
	defer l.Close()
	w.check(SocketForeign)
	w.repair(SocketForeign)
}

// TestStrayMonitor: a directory of no session, in which something holds a
// monitor's lock, is left.
func TestStrayMonitor(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.close()
	dir := filepath.Join(w.path("root"), runtime.DirName("gone"))
	must(t, os.Mkdir(dir, 0o700))
	lock, err := safefile.LockFile(filepath.Join(dir, monitor.LockName))
	must(t, err)
	p := w.group(w.prefix() + "gone")
	found, err := Check(t.Context(), w.config())
	must(t, err)
	expect(t, "found", found, []string{MonitorStray})
	if !alive(p) {
		t.Error("its process was ended")
	}
	must(t, lock.Unlock())
	w.repair()
}

// TestMountsAreFound: we make none, so that one which is there is somebody's.
func TestMountsAreFound(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.close()
	dir := filepath.Join(w.path("root"), runtime.DirName("gone"))
	below := filepath.Join(dir, "a b")
	must(t, os.MkdirAll(below, 0o700))
	must(t, unix.Mount("tmpfs", below, "tmpfs", 0, "size=64k"))
	mounted := true
	unmount := func() {
		if mounted {
			must(t, unix.Unmount(below, 0))
			mounted = false
		}
	}
	t.Cleanup(unmount)
	must(t, os.WriteFile(filepath.Join(below, "kept"), nil, 0o600))
	w.check(MountFound, DirectoryOrphan)
	report, err := Repair(t.Context(), w.config(), nil)
	must(t, err)
	expect(t, "left", report.Left, []string{MountFound, DirectoryOrphan}) // nothing is removed through a mount
	if _, err := os.Stat(filepath.Join(below, "kept")); err != nil {
		t.Errorf("removed on another mount: %v", err)
	}
	unmount()
	w.repair()
}

// TestUsersAndStrays: a claim that cannot be made, and processes nobody claims.
func TestUsersAndStrays(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1") // so that the place of the claims exists
	w.close()
	claim := filepath.Join(monitor.ClaimsDir, strconv.FormatUint(uint64(testUIDs.First+testUIDs.Count-1), 10))
	must(t, os.Symlink("/nowhere", claim))
	t.Cleanup(func() { _ = os.Remove(claim) })
	p := sleeper(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testUIDs.First + testUIDs.Count - 2, Gid: testUIDs.First}})
	w.check(ClaimForeign, ProcessStray)
	w.repair(ClaimForeign, ProcessStray)
	if !alive(p) {
		t.Error("a process that nothing identifies was ended")
	}
	must(t, os.Remove(claim))
	must(t, p.Kill())
	_, _ = p.Wait()
	w.check()
}
