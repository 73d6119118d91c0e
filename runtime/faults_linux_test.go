package runtime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/require"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime/monitor"
)

// failsAt starts rec, which must fail at the step and leave nothing.
func (w *world) failsAt(rec session.Record, step string) {
	w.t.Helper()
	before := w.inventory()
	_, err := w.start(rec)
	var e *Error
	if !errors.As(err, &e) || e.Code != CodeSetup || e.Step != step {
		w.t.Errorf("start: %v, want step %s", err, step)
	}
	w.same(before)
}

// TestGrantsThatChanged replaces what a grant or the launch names between its
// resolution and its use.
func TestGrantsThatChanged(t *testing.T) {
	program := func(w *world) string { return w.path("program") }
	setUp := func(t *testing.T) *world {
		dir := t.TempDir()
		from, err := os.ReadFile(realPath(t, "/bin/true"))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, "program"), from, 0o755))
		w := newWorldAt(t, dir, generous, filepath.Join(dir, "program"))
		w.trust()
		return w
	}
	t.Run("granted path absent", func(t *testing.T) {
		w := setUp(t)
		rec := w.create(w.grant("read"))
		must(t, os.Remove(w.path("work")))
		if _, err := w.start(rec); session.CodeOf(err) != session.InvalidPlan {
			t.Errorf("start: %v", err)
		}
	})
	t.Run("granted path became a symlink", func(t *testing.T) {
		w := setUp(t)
		rec := w.create(w.grant("read"))
		must(t, os.Remove(w.path("work")))
		must(t, os.Symlink("/etc", w.path("work")))
		if _, err := w.start(rec); session.CodeOf(err) != session.InvalidPlan {
			t.Errorf("start: %v", err)
		}
	})
	for _, kind := range []string{"read", "copy"} {
		t.Run("granted path swapped at the last moment, "+kind, func(t *testing.T) {
			w := setUp(t)
			rec := w.create(w.grant(kind))
			w.arm(crashpoint.AcquirePaths, "stop")
			w.whileStopped(func() {
				must(t, os.Remove(w.path("work")))
				must(t, os.Symlink("/etc", w.path("work")))
			}, func() { w.failsAt(rec, "grants") })
		})
	}
	t.Run("program absent", func(t *testing.T) {
		w := setUp(t)
		rec := w.create()
		must(t, os.Remove(program(w)))
		if _, err := w.start(rec); err == nil {
			t.Error("started")
		}
	})
	t.Run("program became a symlink", func(t *testing.T) {
		w := setUp(t)
		rec := w.create()
		w.arm(crashpoint.StartDirectory, "stop")
		w.whileStopped(func() {
			must(t, os.Remove(program(w)))
			must(t, os.Symlink("/bin/true", program(w)))
		}, func() { w.failsAt(rec, "executable") })
	})
	// What was hashed and mounted is the old object: it runs, and the receipt is
	// about it.
	t.Run("program replaced after it was hashed", func(t *testing.T) {
		w := setUp(t)
		rec := w.create()
		w.arm(crashpoint.StartStarting, "stop")
		w.whileStopped(func() {
			must(t, os.WriteFile(w.path("other"), []byte("#!/bin/sh\nexit 9\n"), 0o755))
			must(t, os.Rename(w.path("other"), program(w)))
		}, func() {
			if _, err := w.start(rec); err != nil {
				// Its links and change time are part of what was bound.
				var e *Error
				if !errors.As(err, &e) || e.Code != CodeSetup {
					t.Errorf("start: %v", err)
				}
				return
			}
			if _, rec := w.finish(rec.SessionID); *rec.Terminal.ExitCode != 0 {
				t.Errorf("the other program ran: %v", *rec.Terminal.ExitCode)
			}
		})
	})
	t.Run("program written after it was hashed", func(t *testing.T) {
		w := setUp(t)
		rec := w.create()
		w.arm(crashpoint.StartStarting, "stop")
		w.whileStopped(func() {
			f, err := os.OpenFile(program(w), os.O_WRONLY|os.O_APPEND, 0)
			must(t, err)
			_, err = f.WriteString("x")
			must(t, err)
			must(t, f.Close())
		}, func() {
			_, err := w.start(rec)
			if !errors.Is(err, &monitor.Error{Code: monitor.CodeMismatch}) {
				t.Errorf("start: %v", err)
			}
		})
		if got, _ := w.store.Get(rec.SessionID); endOf(got) != launchEnd {
			t.Errorf("the session is %v", endOf(got))
		}
	})
}

// whileStopped runs act, which will come to a point armed with "stop", and
// meanwhile change.
func (w *world) whileStopped(change, act func()) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !w.fired() {
			if !wait(ctx, 2*time.Millisecond) {
				w.t.Error("the point was not passed")
				break
			}
		}
		change()
		if err := os.WriteFile(w.path(goFile), nil, 0o600); err != nil {
			w.t.Error(err)
		}
	}()
	act()
	<-done
}

// TestStatusWhileLaunching asks a monitor for its state while it launches.
func TestStatusWhileLaunching(t *testing.T) {
	w := newWorld(t, generous, "/bin/true")
	w.trust()
	rec := w.create()
	w.arm(crashpoint.LaunchTree, "stop")
	w.whileStopped(func() {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		now, err := w.store.Get(rec.SessionID)
		if err != nil || now.State != session.Starting {
			t.Errorf("the session is %v, %v", endOf(now), err)
			return
		}
		dir, err := os.Open(w.dir0(rec.SessionID))
		if err != nil {
			t.Error(err)
			return
		}
		defer dir.Close()
		c, status, err := monitor.Dial(ctx, dir, rec.SessionID, now.Monitor[locatorKey])
		if err != nil || status.State != monitor.StatePrepared {
			t.Errorf("status %v, %v", status, err)
			return
		}
		c.Close()
	}, func() {
		if _, err := w.start(rec); err != nil {
			t.Error(err)
		}
	})
	if _, rec := w.finish(rec.SessionID); endOf(rec) != exitedEnd {
		t.Errorf("the session is %v", endOf(rec))
	}
}

func (w *world) dir0(id string) string { return w.Executor.dir(id) }

// TestLimitMetBeforeTheRelease: the wall clock runs out while the child is still
// held back. That is an end like any other, with its receipt.
func TestLimitMetBeforeTheRelease(t *testing.T) {
	w := newWorld(t, limited(func(l *policy.Limits) { l.WallTimeMS = 1 }), "/bin/sh", "-c", "echo ran")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	out, rec := w.finish(rec.SessionID)
	if rec.State != session.Exited || rec.Terminal.TerminationCause != receipt.CauseWallTimeLimit {
		t.Errorf("the session is %v, output %q", endOf(rec), out)
	}
}

// TestCloseWhileStarting ends gloved in an orderly way in the middle of a start.
func TestCloseWhileStarting(t *testing.T) {
	w := newWorld(t, generous, "/bin/true")
	rec := w.create()
	w.close()
	before := w.inventory()
	w.open()
	w.trust()
	w.arm(crashpoint.AcquireScratch, "stop")
	closed := make(chan struct{})
	w.whileStopped(func() {
		go func() { defer close(closed); w.close() }()
		<-w.Executor.closed
	}, func() {
		if _, err := w.start(rec); err == nil {
			t.Error("started")
		}
	})
	<-closed
	w.recoverAll(rec.SessionID, before, waitingEnd)
}

// tinyRoot makes the materialization root a filesystem of its own.
func tinyRoot(t *testing.T, w *world, size string) {
	t.Helper()
	require.Root(t)
	must(t, unix.Mount("tmpfs", w.path("root"), "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0700,size="+size))
	t.Cleanup(func() {
		w.close()
		if err := unix.Unmount(w.path("root"), 0); err != nil {
			t.Error(err)
		}
	})
}

// fill takes all room of the root.
func (w *world) fill() {
	w.t.Helper()
	f, err := os.OpenFile(w.path("root/ballast"), os.O_CREATE|os.O_WRONLY, 0o600)
	must(w.t, err)
	defer f.Close()
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		w.t.Fatal(err)
	}
}

// TestFullDiskAtTheEnd fills the disk while a session runs. Room for the outcome
// was held, so that there is a receipt with or without a gloved.
func TestFullDiskAtTheEnd(t *testing.T) {
	for _, away := range []bool{false, true} {
		w := newWorld(t, generous, "/bin/sh", "-c", "echo a; read l; head -c 300000 /dev/zero | tr '\\0' x; exit 4")
		w.close()
		tinyRoot(t, w, "256k")
		w.open()
		w.trust()
		rec, err := w.start(w.create())
		must(t, err)
		w.fill()
		must2(w.Write(t.Context(), rec.SessionID, []byte("\n")))(t)
		if away {
			w.close()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for {
				if _, err := os.Stat(filepath.Join(w.dir0(rec.SessionID), monitor.OutcomeName)); err == nil {
					break
				}
				if !wait(ctx, 5*time.Millisecond) {
					t.Fatal("no outcome")
				}
			}
			w.open()
			w.trust()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		must(t, w.Settled(ctx, rec.SessionID))
		if rec, err = w.store.Get(rec.SessionID); err != nil || endOf(rec) != exitedEnd || *rec.Terminal.ExitCode != 4 {
			t.Errorf("away %v: the session is %v, %v", away, endOf(rec), err)
		}
	}
}

// TestOutcomeThatIsInNoFile takes the reserve away as well: what the monitor
// tells must do.
func TestOutcomeThatIsInNoFile(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "read l; exit 4")
	w.close()
	tinyRoot(t, w, "256k")
	w.open()
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	must(t, os.Remove(filepath.Join(w.dir0(rec.SessionID), "reserve")))
	w.fill()
	must2(w.Write(t.Context(), rec.SessionID, []byte("\n")))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, w.Settled(ctx, rec.SessionID))
	if _, err := os.Stat(filepath.Join(w.dir0(rec.SessionID), monitor.OutcomeName)); err == nil {
		t.Error("there was room for the outcome after all")
	}
	if rec, err = w.store.Get(rec.SessionID); err != nil || endOf(rec) != exitedEnd || *rec.Terminal.ExitCode != 4 {
		t.Errorf("the session is %v, %v", endOf(rec), err)
	}
}

// TestFullDiskAtTheStart: nothing begins that could not be brought to an end. What has
// its room from before can.
func TestFullDiskAtTheStart(t *testing.T) {
	w := newWorld(t, generous, "/bin/true")
	w.close()
	tinyRoot(t, w, "256k")
	w.open()
	w.trust()
	first, second := w.create(), w.create()
	w.spare()
	w.fill()
	before := w.inventory()
	_, err := w.start(first)
	must(t, err)
	if _, rec := w.finish(first.SessionID); endOf(rec) != exitedEnd {
		t.Errorf("with room made before, the session is %v", endOf(rec))
	}
	_, err = w.Cleanup(t.Context(), first.SessionID)
	must(t, err)
	w.spares.Close()
	must(t, os.Remove(w.path("root/ballast")))
	w.fill()
	if _, err := w.start(second); err == nil {
		t.Error("started")
	}
	w.same(before)
	must(t, os.Remove(w.path("root/ballast")))
}

// spare waits until there is a spare.
func (w *world) spare() {
	w.t.Helper()
	w.spares.Refill(0)
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	for found := ""; found == ""; {
		must(w.t, w.spares.Still(func(dir, _ string) error { found = dir; return nil }))
		if found == "" && !wait(ctx, 5*time.Millisecond) {
			w.t.Fatal("no spare was made")
		}
	}
}

// TestSettlementIsTriedAgain makes the first tries to write an end fail.
func TestSettlementIsTriedAgain(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "read l; exit 3")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	w.arm(crashpoint.SettleBegun, "fail")
	must2(w.Write(t.Context(), rec.SessionID, []byte("\n")))(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := false
	for h := w.handle(rec.SessionID); h != nil && !h.isSettled(); {
		seen = seen || len(w.Issues()) == 1
		if !wait(ctx, time.Millisecond) {
			t.Fatal("not settled")
		}
	}
	if !w.fired() || !seen || len(w.Issues()) != 0 {
		t.Errorf("fired %v, reported %v, issues left %v", w.fired(), seen, w.Issues())
	}
	if rec, err = w.store.Get(rec.SessionID); err != nil || endOf(rec) != exitedEnd {
		t.Errorf("the session is %v, %v", endOf(rec), err)
	}
}

// TestUnruly are harnesses that do not want to end, or end in odd ways. Stop
// ends them all in bounded time.
func TestUnruly(t *testing.T) {
	for name, script := range map[string]string{
		"ignores TERM":             "trap '' TERM HUP INT; echo up; while :; do sleep 0.1; done",
		"stops itself":             "echo up; kill -STOP $$; sleep 1000",
		"closes its terminal":      "echo up; exec sleep 1000 <&- >&- 2>&-",
		"leaves its session":       "(setsid sh -c 'trap \"\" TERM; sleep 1000' &); echo up; sleep 1000",
		"its children ignore TERM": "(trap '' TERM; sleep 1000) & echo up; wait",
		"forks for ever":           "echo up; while :; do (:); done",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, generous, "/bin/sh", "-c", script)
			w.trust()
			before := w.inventory()
			rec, err := w.start(w.create())
			must(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			k, err := w.Read(ctx, rec.SessionID, 0, 100, 10*time.Second)
			if err != nil || !strings.HasPrefix("up\r\n", string(k.Data)) {
				t.Fatalf("read %q, %v", k.Data, err)
			}
			rec, err = w.Stop(ctx, "stop", rec.SessionID)
			if err != nil || rec.State != session.Exited {
				t.Errorf("the session is %v, %v", endOf(rec), err)
			}
			if again, err := w.Stop(ctx, "another", rec.SessionID); err != nil || endOf(again) != endOf(rec) {
				t.Errorf("stopping again: %v, %v", endOf(again), err)
			}
			_, err = w.Cleanup(ctx, rec.SessionID)
			must(t, err)
			w.same(before)
		})
	}
}

// TestEndlessOutput reads much output through a ring that holds less: no byte is
// taken for another, and the end is never lost.
func TestEndlessOutput(t *testing.T) {
	const volume = 32 << 20
	w := newWorld(t, limited(func(l *policy.Limits) { l.TerminalOutputBytes = 2 * volume }), "/bin/sh", "-c", "head -c 33554432 /dev/zero; echo end")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var last []byte
	for cursor := uint64(0); ; {
		k, err := w.Read(ctx, rec.SessionID, cursor, 64<<10, 10*time.Second)
		must(t, err)
		if k.Next < cursor {
			t.Fatalf("the cursor went back from %d to %d", cursor, k.Next)
		}
		last = append(last, k.Data...)
		last = last[max(0, len(last)-5):]
		if cursor = k.Next; k.EOF {
			if cursor != volume+5 {
				t.Errorf("the end is at %d", cursor)
			}
			break
		}
	}
	if !bytes.Equal(last, []byte("end\r\n")) {
		t.Errorf("the end is %q", last)
	}
	if _, rec := w.finish(rec.SessionID); endOf(rec) != exitedEnd {
		t.Errorf("the session is %v", endOf(rec))
	}
}

// TestOwnersFileIsReadable grants what only root can read to a session of a root
// gloved, which runs as another user.
func TestOwnersFileIsReadable(t *testing.T) {
	require.Root(t)
	w := newWorld(t, generous, "/bin/sh", "-c", "cat /workspace/secret; cat /workspace/theirs; (: >/workspace/new); stat -c %u /workspace/secret")
	must(t, os.WriteFile(w.path("work/secret"), []byte("for the owner\n"), 0o600))
	must(t, os.WriteFile(w.path("work/theirs"), []byte("another's\n"), 0o600))
	must(t, os.Chown(w.path("work/theirs"), 12345, 12345))
	must(t, os.Chmod(w.path("work"), 0o700))
	w.trust()
	out, rec := w.run(w.grant("read"))
	if !w.mapsOwners() {
		// The filesystem knows no ID-mapped mounts: then the owners stay.
		if strings.Contains(out, "for the owner") || strings.Contains(out, "another's") || rec.State != session.Exited {
			t.Errorf("plain: output %q, record %v", out, endOf(rec))
		}
		return
	}
	if !strings.HasPrefix(out, "for the owner\r\n") || strings.Contains(out, "another's") || !strings.Contains(out, "Read-only") || !strings.HasSuffix(out, "1000\r\n") {
		t.Errorf("output %q, record %v", out, endOf(rec))
	}
}

// mapsOwners reports whether the kernel can make ID-mapped mounts of the
// directory the world lies on: by the session's log, which says if it could not.
func (w *world) mapsOwners() bool {
	logs, err := filepath.Glob(w.path("root/*/" + monitor.LogName))
	must(w.t, err)
	for _, l := range logs {
		if len(linesWith(w.t, l, "a grant keeps its owners")) > 0 {
			return false
		}
	}
	return len(logs) > 0
}

// TestReplays answers a repeated start at each state the same, and another
// request under the same key never.
func TestReplays(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "read l")
	w.trust()
	rec := w.create()
	started, err := w.start(rec)
	must(t, err)
	for _, trusted := range []bool{true, false} {
		if again, err := w.start(rec); err != nil || again.State != session.Running || again.Process.PID != started.Process.PID {
			t.Errorf("trusted %v: %v, %v", trusted, endOf(again), err)
		}
		other := w.authorize(rec)
		other.AuthorizationID = "another"
		if _, err := w.Start(t.Context(), "start-"+rec.SessionID, other, admitted); session.CodeOf(err) != session.IdempotencyConflict {
			t.Errorf("the key for another: %v", err)
		}
		if _, err := w.Start(t.Context(), "another", w.authorize(rec), admitted); session.CodeOf(err) != session.InvalidState {
			t.Errorf("another key: %v", err)
		}
		w.close()
		w.open()
	}
	w.trust()
	stopped, err := w.Stop(t.Context(), "stop", rec.SessionID)
	must(t, err)
	if again, err := w.start(rec); err != nil || endOf(again) != endOf(stopped) {
		t.Errorf("after the end: %v, %v", endOf(again), err)
	}
}

// TestEndedSessions: what an ended session answers to every verb.
func TestEndedSessions(t *testing.T) {
	w := newWorld(t, generous, "/bin/echo", "out")
	w.trust()
	_, rec := w.run()
	id := rec.SessionID
	notRunning := &Error{Code: CodeNotRunning}
	if _, err := w.Write(t.Context(), id, []byte("x")); !errors.Is(err, notRunning) {
		t.Errorf("write: %v", err)
	}
	if err := w.Resize(t.Context(), id, Terminal{Rows: 1, Columns: 1}); !errors.Is(err, notRunning) {
		t.Errorf("resize: %v", err)
	}
	if err := w.Signal(t.Context(), id, "interrupt"); !errors.Is(err, notRunning) {
		t.Errorf("signal: %v", err)
	}
	if k, err := w.Read(t.Context(), id, 5, 10, time.Second); err != nil || !k.EOF || k.Next != 5 {
		t.Errorf("read at the end: %+v, %v", k, err)
	}
	if _, err := w.Read(t.Context(), id, 6, 10, 0); !errors.Is(err, &monitor.Error{Code: monitor.CodeCursor}) {
		t.Errorf("read past the end: %v", err)
	}
	if n := len(w.inventory().fds); n > 0 {
		before := n
		for range 50 {
			must2(w.Read(t.Context(), id, 0, 10, 0))(t)
		}
		if now := len(w.inventory().fds); now > before+spareFDs { // a spare monitor may be started meanwhile
			t.Errorf("reading saved transcripts took %d descriptors", now-before)
		}
	}
	for range 2 {
		if again, err := w.Cleanup(t.Context(), id); err != nil || endOf(again) != exitedEnd {
			t.Errorf("cleanup: %v, %v", endOf(again), err)
		}
	}
	if _, err := w.Read(t.Context(), id, 0, 10, 0); !errors.Is(err, notRunning) {
		t.Errorf("read after cleanup: %v", err)
	}
	created := w.create()
	if _, err := w.Cleanup(t.Context(), created.SessionID); !errors.Is(err, notRunning) {
		t.Errorf("cleanup of a session that waits: %v", err)
	}
	if _, err := w.Stop(t.Context(), "s", created.SessionID); !errors.Is(err, notRunning) {
		t.Errorf("stop of a session that waits: %v", err)
	}
	if _, err := w.Stop(t.Context(), "s", "nobody"); session.CodeOf(err) != session.NotFound {
		t.Errorf("stop of nobody: %v", err)
	}
}

// TestMonitorIsToldToGo sends a monitor TERM, as a machine that shuts down does:
// while its session runs, it stops the session and leaves its outcome; while it
// waits for room for that, it goes.
func TestMonitorIsToldToGo(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "echo up; read l")
	w.close()
	tinyRoot(t, w, "256k")
	w.open()
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	must(t, unix.Kill(w.monitorPID(rec.SessionID), unix.SIGTERM))
	if _, rec = w.finish(rec.SessionID); endOf(rec) != signaledEnd {
		t.Errorf("the session is %v", endOf(rec))
	}

	rec, err = w.start(w.create())
	must(t, err)
	pid := w.monitorPID(rec.SessionID)
	must(t, os.Remove(filepath.Join(w.dir0(rec.SessionID), "reserve")))
	w.close()
	w.fill()
	must(t, unix.Kill(pid, unix.SIGTERM)) // the session ends; its outcome has no room
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for alive := true; alive; {
		_ = unix.Kill(pid, unix.SIGTERM) // and now the monitor goes
		if alive, err = monitor.Alive(filepath.Join(w.path("root"), dirName(rec.SessionID))); err != nil || !wait(ctx, 10*time.Millisecond) {
			t.Fatalf("the monitor stays: %v", err)
		}
	}
	w.open()
	w.trust()
	if rec, err = w.store.Get(rec.SessionID); err != nil || endOf(rec) != lostEnd {
		t.Errorf("the session is %v, %v", endOf(rec), err)
	}
}
