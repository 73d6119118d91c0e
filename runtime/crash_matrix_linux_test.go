package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
)

// dieWord begins the action that kills the processes of a set: gloved, the
// monitor, init.
const (
	dieWord  = "die "
	diedFile = "died" // how many there were
	deadline = 30 * time.Second
)

// die kills, in the process that has come to a point, who is to die there: the
// others first, and then itself. If it is to live on, it goes on when they are
// dead.
func die(dir, set string) {
	who, err := strconv.Atoi(set)
	if err != nil {
		return
	}
	self := os.Getpid()
	gloved, monitorPID := os.Getppid(), self
	if os.Args[0] == glovedRole {
		gloved, monitorPID = self, monitorUnder(dir)
	}
	var pids []int
	if who&diesMonitor != 0 && monitorPID != 0 {
		pids = append(pids, monitorPID)
	}
	if who&diesInit != 0 && monitorPID != 0 {
		pids = append(pids, childrenOf(monitorPID)...)
	}
	if who&diesGloved != 0 {
		pids = append(pids, gloved)
	}
	_ = os.WriteFile(filepath.Join(dir, diedFile), []byte(strconv.Itoa(len(pids))), 0o600)
	suicide := false
	var dying []unix.PollFd
	for _, pid := range pids {
		if pid == self {
			suicide = true
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it is gone
		}
		dying = append(dying, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	}
	if suicide {
		_ = unix.Kill(self, unix.SIGKILL)
	}
	// The pidfd tells when the last thread has gone, and with an init's its namespace; the
	// state in /proc is the first thread's.
	for i := range dying {
		for {
			if _, err := unix.Poll(dying[i:i+1], int(deadline.Milliseconds())); err != unix.EINTR {
				break
			}
		}
		_ = unix.Close(int(dying[i].Fd))
	}
}

// monitorUnder is the monitor of the one session that has one below a state
// directory, by the lock it holds; 0 if there is none.
func monitorUnder(dir string) int {
	locks, _ := filepath.Glob(filepath.Join(dir, "root", dirPrefix+"*", "*"))
	table, _ := os.ReadFile("/proc/locks")
	for _, path := range locks {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			if strings.Contains(line, fmt.Sprintf(":%d 0 EOF", st.Ino)) {
				pid, _ := strconv.Atoi(strings.Fields(line)[4])
				return pid
			}
		}
	}
	return 0
}

func childrenOf(parent int) (pids []int) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		pid, _ := strconv.Atoi(filepath.Base(name))
		if state, of := processState(pid); of == parent && state != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processState is the state letter of a process and its parent; "" if it is gone.
func processState(pid int) (state string, parent int) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	parent, _ = strconv.Atoi(fields[1])
	return fields[0], parent
}

const untilQuick = "echo up; until test -e /workspace/quick; do sleep 0.02; done"

// A crashCase is one cell of the crash table.
type crashCase struct {
	point crashpoint.Point
	who   int
	name  string
	ends  []end
}

// cells are those of the crash table in which processes die.
func cells() (all []crashCase) {
	for _, row := range outcomes {
		for _, p := range row.points {
			for i, v := range victims {
				if v.who != diesPower && row.ends[i] != nil {
					all = append(all, crashCase{p, v.who, v.name, row.ends[i]})
				}
			}
		}
	}
	return all
}

// shortCells is how far apart those cells are that a short run takes.
const shortCells = 7

// TestCrashMatrix kills gloved, the monitor, init, or several of them, at each
// durable or external step of a session's life. What must then be true is in
// recoverAll.
func TestCrashMatrix(t *testing.T) {
	for n, c := range cells() {
		if testing.Short() && n%shortCells != 0 {
			continue
		}
		t.Run(string(c.point)+"/"+strings.ReplaceAll(c.name, ", ", "+"), func(t *testing.T) { c.run(t) })
	}
}

func (c crashCase) run(t *testing.T) {
	program, grants, verbs := "echo out", []string(nil), []string{"start", "wait"}
	recovery := slices.Contains([]crashpoint.Point{crashpoint.RecoverObserved, crashpoint.RecoverEmptied,
		crashpoint.RecoverRecorded, crashpoint.SweepDirectories, crashpoint.SweepGroups}, c.point)
	adopted := c.point == crashpoint.ReconcileAdopted
	failing := slices.Contains([]crashpoint.Point{crashpoint.UndoBegun, crashpoint.UndoDone, crashpoint.FailUndone,
		crashpoint.FailRecorded}, c.point)
	switch c.point {
	case crashpoint.StopStopping, crashpoint.StopAsked:
		program, grants, verbs = "test -e /workspace/quick || { echo up; sleep 1000; }", []string{"read"}, []string{"start", "up", "stop"}
	case crashpoint.CleanupBegun, crashpoint.CleanupRemoved:
		verbs = append(verbs, "cleanup")
	case crashpoint.ReconcileAdopted, crashpoint.StartReleased, crashpoint.ReleaseDone: // it is not to end by itself yet
		program, grants = untilQuick, []string{"read"}
	}
	w := newWorld(t, generous, "/bin/sh", "-c", program)
	if slices.Contains(crashpoint.Rotate, c.point) {
		verbs = []string{"start", "wait", "cleanup", "rotate"}
		w.trust()
		_, old := w.run() // which can be archived
		_, err := w.Cleanup(t.Context(), old.SessionID)
		must(t, err)
	}
	rec := w.create(w.grants(grants)...)
	w.close()
	before := w.inventory()
	action := dieWord + strconv.Itoa(c.who)
	switch {
	case recovery:
		w.arm(crashpoint.StartLaunched, dieWord+strconv.Itoa(diesGloved))
		w.gloved("trust", "start:"+rec.SessionID).end()
		verbs = nil
	case adopted:
		h := w.gloved("trust", "start:"+rec.SessionID, "up:"+rec.SessionID, "hold")
		if !h.said("up true") {
			t.Fatalf("it does not run: %s", h.err)
		}
		h.kill(t)
		if verbs = nil; c.who&diesGloved == 0 {
			verbs = []string{"wait"}
		}
	case failing:
		must(t, os.WriteFile(w.path(alsoArmed), []byte(string(crashpoint.LaunchTerminal)+" fail"), 0o600))
	}
	w.arm(c.point, action)
	h := w.gloved(append([]string{"trust"}, withID(verbs, rec.SessionID)...)...)
	acknowledged := h.end()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	died := func() string { n, _ := os.ReadFile(w.path(diedFile)); return string(n) }
	for !w.fired() || died() == "" { // a monitor may come there after its gloved has ended
		if !wait(ctx, 5*time.Millisecond) {
			t.Fatalf("the point was not passed: %s", h.err)
		}
	}
	if n := died(); n != strconv.Itoa(setSize(c.who)) {
		t.Errorf("%s died, want %d", n, setSize(c.who))
	}
	w.honours(rec.SessionID, acknowledged)
	if len(grants) > 0 {
		w.quick(t)
	}
	got := w.recoverAll(rec.SessionID, before, c.ends...)
	t.Logf("| %s | %s | %s %s |", c.point, c.name, got.state, got.what)
	if t.Failed() {
		t.Logf("gloved said: %s", h.err)
	}
}

// honours checks that what was acknowledged before a crash is on record after it.
func (w *world) honours(id string, acknowledged []string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), deadline)
	defer cancel()
	store, err := session.Open(w.path("state/sessions.jsonl"), session.Options{})
	// A gloved that died while it forked lives on for an instant in the child, lock included.
	for errors.Is(err, journal.ErrLocked) && wait(ctx, 10*time.Millisecond) {
		store, err = session.Open(w.path("state/sessions.jsonl"), session.Options{})
	}
	must(w.t, err)
	defer store.Close()
	rec, err := store.Get(id)
	must(w.t, err)
	for _, verb := range acknowledged {
		ok := true
		switch verb {
		case "start", "up":
			ok = rec.Process != nil
		case "stop", "wait":
			ok = rec.State.Terminal() || rec.State == session.Preparing // nothing to wait for
		case "cleanup":
			_, err := os.Lstat(filepath.Join(w.path("root"), dirName(id)))
			ok = errors.Is(err, os.ErrNotExist)
		}
		if !ok {
			w.t.Errorf("%s was acknowledged and the session is %v", verb, endOf(rec))
		}
	}
}

// rotate archives what has ended and is acknowledged, but for one session.
func (w *world) rotate(keep string) error {
	ctx := w.t.Context()
	page, err := w.receipts.Page(ctx, receipt.Genesis(w.receipts.KeyID()), 1000)
	for err == nil && page.HasMore {
		last := page.Envelopes[len(page.Envelopes)-1]
		page, err = w.receipts.Page(ctx, receipt.Anchor{KeyID: last.KeyID, Sequence: last.Sequence, HeadHMAC: last.ThisHMAC}, 1000)
	}
	if err == nil {
		err = w.receipts.Acknowledge(ctx, page.LocalAnchor)
	}
	if err == nil {
		_, err = w.store.Rotate(ctx, session.RotateOptions{Acknowledged: page.LocalAnchor.Sequence,
			Keep: func(r session.Record) bool { return r.SessionID == keep }})
	}
	if err == nil {
		_, err = w.receipts.Rotate(ctx, receipt.RotateOptions{})
	}
	return err
}

func setSize(who int) (n int) {
	for ; who != 0; who &= who - 1 {
		n++
	}
	return n
}

func (w *world) grants(kinds []string) (out []policy.AliasGrant) {
	for _, k := range kinds {
		out = append(out, w.grant(k))
	}
	return out
}

func withID(verbs []string, id string) (out []string) {
	for _, v := range verbs {
		out = append(out, v+":"+id)
	}
	return out
}
