package fsck

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

// identityOf is a process as a record would name it.
func identityOf(t *testing.T, p *os.Process) session.ProcessIdentity {
	t.Helper()
	id, err := cgroup.Identify(p.Pid)
	must(t, err)
	return session.ProcessIdentity{Schema: 1, PID: uint32(id.PID), BootID: id.BootID, StartTicks: id.StartTicks,
		CgroupDev: id.Cgroup.Dev, CgroupIno: id.Cgroup.Ino, CgroupPathDigest: id.Cgroup.PathDigest}
}

// TestProcessOfAnotherIdentity: a recorded process id that belongs to another
// process now, by its start time or its control group, is never signalled; of
// another boot it is gone.
func TestProcessOfAnotherIdentity(t *testing.T) {
	w := newWorld(t, "exit 0")
	p := sleeper(t, nil)
	exact := identityOf(t, p)
	started, moved, boot := exact, exact, exact
	started.StartTicks++
	moved.CgroupIno++
	boot.BootID = "00000000-0000-4000-8000-000000000000"
	for id, as := range map[string]session.ProcessIdentity{"started": started, "moved": moved, "boot": boot} {
		w.invented(id, as, monitor.ProtocolVersion)
		must(t, os.Mkdir(filepath.Join(w.path("root"), runtime.DirName(id)), 0o700))
	}
	w.check(ProcessMismatch, ProcessMismatch, SessionLost)
	w.repair(ProcessMismatch, ProcessMismatch)
	if !alive(p) {
		t.Error("a process of another identity was ended")
	}
	if rec := w.record("boot"); rec.FailureCode != session.RecoveredWithoutProcess {
		t.Errorf("the session of another boot is %+v", rec)
	}
}

// TestMonitorThatDoesNotProveItself: something holds the monitor's lock and says
// nothing, or the wrong thing. Neither it nor the session is touched.
func TestMonitorThatDoesNotProveItself(t *testing.T) {
	w := newWorld(t, lasting)
	w.start(w.create("live"))
	p := sleeper(t, nil)
	gone := identityOf(t, p)
	gone.BootID = "00000000-0000-4000-8000-000000000000"
	w.invented("silent", gone, monitor.ProtocolVersion)
	w.invented("wrong", gone, monitor.ProtocolVersion)
	w.invented("newer", gone, monitor.ProtocolVersion+1)
	w.close()
	silent, wrong := filepath.Join(w.path("root"), runtime.DirName("silent")), filepath.Join(w.path("root"), runtime.DirName("wrong"))
	must(t, os.Mkdir(silent, 0o700))
	must(t, os.Mkdir(wrong, 0o700))
	newer := filepath.Join(w.path("root"), runtime.DirName("newer"))
	must(t, os.Mkdir(newer, 0o700))
	for _, dir := range []string{silent, wrong, newer} {
		lock, err := safefile.LockFile(filepath.Join(dir, monitor.LockName))
		must(t, err)
		defer lock.Unlock()
	}
	// A monitor of ours, of another session: it does not know this one's key.
	must(t, os.Link(filepath.Join(w.path("root"), runtime.DirName("live"), monitor.SocketName), filepath.Join(wrong, monitor.SocketName)))
	found, err := Check(t.Context(), w.config())
	must(t, err)
	expect(t, "found", found, []string{MonitorSilent, MonitorSilent, MonitorVersion})
	report, err := Repair(t.Context(), w.config(), nil)
	must(t, err)
	expect(t, "left", report.Left, []string{MonitorSilent, MonitorSilent, MonitorVersion})
	for _, id := range []string{"silent", "wrong", "newer", "live"} {
		if rec := w.record(id); rec.State != session.Running {
			t.Errorf("%s is %+v", id, rec)
		}
	}
}

// TestSpareThatOutlivedItsGloved: a stopped spare cannot go when its gloved does.
func TestSpareThatOutlivedItsGloved(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.close()
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{glovedRole, w.dir}}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var said string
	_, err = fmt.Fscanln(out, &said)
	must(t, err)
	var place string
	_, err = until(t.Context(), patience, func() (bool, error) {
		places, err := filepath.Glob(filepath.Join(w.path("root"), monitor.GroundPrefix+"*"))
		if len(places) == 1 {
			place = places[0]
		}
		return place != "", err
	})
	must(t, err)
	if place == "" {
		t.Fatal("gloved keeps no spare")
	}
	lock := filepath.Join(place, monitor.LockName)
	_, err = until(t.Context(), patience, func() (bool, error) { return held(lock) })
	must(t, err)
	spare := lockOwner(t, lock)
	must(t, unix.Kill(spare, unix.SIGSTOP))
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	found, err := Check(t.Context(), w.config())
	must(t, err)
	expect(t, "found", found, []string{SpareStray})
	must(t, unix.Kill(spare, unix.SIGCONT))
	gone, err := until(t.Context(), patience, func() (bool, error) {
		lives, err := held(lock)
		return !lives, err
	})
	must(t, err)
	if !gone {
		t.Error("the spare does not go by itself")
	}
	found, err = Check(t.Context(), w.config())
	must(t, err)
	expect(t, "found", found, nil)
}

// TestLoopDevicesAreFound: we use none.
func TestLoopDevicesAreFound(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.close()
	image := filepath.Join(w.path("root"), "image")
	must(t, os.WriteFile(image, make([]byte, 64<<10), 0o600))
	out, err := exec.Command("losetup", "--find", "--show", image).Output()
	if err != nil {
		require.Skip(t, "no loop device can be made here: "+err.Error())
	}
	device := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if device != "" {
			_ = exec.CommandContext(context.Background(), "losetup", "-d", device).Run()
		}
	})
	w.check(LoopFound)
	w.repair(LoopFound)
	must(t, exec.Command("losetup", "-d", device).Run())
	device = ""
	w.check()
}

// TestRepairThatIsKilled kills a repair of several things at each step, runs it
// again, and finds everything as one run would have left it.
func TestRepairThatIsKilled(t *testing.T) {
	points := []string{"recover.observed", "recover.emptied", "recover.recorded", "settle.receipt", "told 1", "told 2", "told 3", "told 4", "told 5"}
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t, lasting)
			for _, id := range []string{"ended", "lost", "live"} {
				w.create(id)
			}
			w.killedGloved("", "ended", "lost", "live")
			must(t, unix.Kill(int(w.record("ended").Process.PID), unix.SIGKILL))
			w.monitorGone(filepath.Join(w.path("root"), runtime.DirName("ended")))
			w.killMonitor("lost")
			w.write(receiptFile, append(w.read(receiptFile), "{"...))
			must(t, os.Mkdir(filepath.Join(w.path("root"), runtime.DirName("gone")), 0o700))
			w.group(w.prefix() + "gone")
			w.check(SessionEnded, SessionLost, JournalTorn, DirectoryOrphan, GroupOrphan)

			w.write(armed, []byte(point))
			cmd := &exec.Cmd{Path: "/proc/self/exe", Args: []string{repairRole, w.dir}, Stderr: os.Stderr}
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() >= 0 {
				t.Fatalf("the repair was not killed: %v", err)
			}
			w.repair()
			ended, lost := w.record("ended"), w.record("lost")
			if ended.State != session.Exited || ended.Terminal.Sequence != 1 || lost.State != session.Failed || w.record("live").State != session.Running {
				t.Errorf("ended %+v, lost %+v", ended, lost)
			}
		})
	}
}
