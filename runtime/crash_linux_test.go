package runtime

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
	"gloved.dev/runtime/sandbox"
)

// A test says in a file beside the materialization root what is to happen at
// which crash point: the point and "fail", "die" with a set of victims, "stop" or
// "pass"; another file may say it of another point. The first process that passes
// the point takes the file away and does it; "stop" keeps it there until a file
// "go" appears.
const (
	armedFile = "armed"
	firedFile = "fired"
	alsoArmed = "also-armed"
	alsoFired = "also-fired"
	goFile    = "go"
)

func crash(scope string, p crashpoint.Point) error {
	dir := filepath.Dir(scope)
	if strings.HasSuffix(scope, ".jsonl") { // a journal, which is in the state directory
		dir = filepath.Dir(dir)
	}
	if dir == powerDir {
		return crashWithPower(p)
	}
	action := ""
	for armed, fired := range map[string]string{armedFile: firedFile, alsoArmed: alsoFired} {
		data, err := os.ReadFile(filepath.Join(dir, armed))
		point, then, _ := strings.Cut(string(data), " ")
		if err == nil && point == string(p) && os.Rename(filepath.Join(dir, armed), filepath.Join(dir, fired)) == nil {
			action = then
		}
	}
	if set, dies := strings.CutPrefix(action, dieWord); dies {
		die(dir, set)
		return nil
	}
	switch action {
	case "fail":
		return syscall.EIO
	case "stop":
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := os.Stat(filepath.Join(dir, goFile)); err == nil {
				return nil
			}
			<-tick.C
		}
	}
	return nil
}

func (w *world) arm(p crashpoint.Point, action string) {
	w.t.Helper()
	_ = os.Remove(w.path(firedFile))
	must(w.t, os.WriteFile(w.path("arm.new"), []byte(string(p)+" "+action), 0o600))
	must(w.t, os.Rename(w.path("arm.new"), w.path(armedFile)))
}

func (w *world) fired() bool {
	_, err := os.Stat(w.path(firedFile))
	return err == nil
}

// A roleT is the testing.TB of a helper process: what fails ends it.
type roleT struct {
	testing.TB
	ctx context.Context
}

func (r roleT) Helper()                  {}
func (r roleT) Context() context.Context { return r.ctx }
func (r roleT) Cleanup(func())           {}
func (r roleT) Error(args ...any)        { fmt.Fprintln(os.Stderr, args...) }
func (r roleT) Errorf(f string, a ...any) {
	fmt.Fprintf(os.Stderr, f+"\n", a...)
}
func (r roleT) Logf(f string, a ...any) { fmt.Fprintf(os.Stderr, f+"\n", a...) }
func (r roleT) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(3)
}
func (r roleT) Fatalf(f string, a ...any) { r.Fatal(fmt.Sprintf(f, a...)) }

// glovedRole is the argv[0] of a helper process that is a gloved over the state
// in a directory: it does one thing after the other and says so.
const glovedRole = "test-gloved"

func playGloved(args []string) {
	if crashpoint.Hook == nil {
		panic("the hook is set first")
	}
	w := &world{t: roleT{ctx: context.Background()}, dir: args[0]}
	w.load()
	w.open()
	fmt.Println("open")
	for _, verb := range args[1:] {
		verb, id, _ := strings.Cut(verb, ":")
		var err error
		switch verb {
		case "trust":
			w.trust()
		case "start":
			var rec session.Record
			if rec, err = w.store.Get(id); err == nil {
				_, err = w.start(rec)
			}
		case "stop":
			_, err = w.Stop(w.t.Context(), "stop-"+id, id)
		case "wait":
			err = w.Settled(w.t.Context(), id)
		case "up": // it has printed something
			_, err = w.Read(w.t.Context(), id, 0, 1, 20*time.Second)
		case "rotate":
			err = w.rotate(id)
		case "cleanup":
			_, err = w.Cleanup(w.t.Context(), id)
		case "hold":
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
		fmt.Println(verb, err == nil)
		if err != nil {
			fmt.Fprintln(os.Stderr, verb, err)
		}
	}
	w.close()
	os.Exit(0)
}

// A helper is a gloved in a process of its own.
type helper struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	err   *bytes.Buffer
}

// gloved runs verbs in a process of its own. It runs from the same sealed file
// as this one, so that all processes of a test can be told by it.
func (w *world) gloved(verbs ...string) *helper {
	w.t.Helper()
	exe, err := sandbox.SealedExe()
	must(w.t, err)
	h := &helper{err: &bytes.Buffer{}}
	h.cmd = &exec.Cmd{Path: fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), Args: append([]string{glovedRole, w.dir}, verbs...), Stderr: h.err}
	h.in, err = h.cmd.StdinPipe()
	must(w.t, err)
	out, err := h.cmd.StdoutPipe()
	must(w.t, err)
	h.lines = bufio.NewScanner(out)
	must(w.t, h.cmd.Start())
	return h
}

// said waits until the helper has said line; it is false if it failed or ended
// before.
func (h *helper) said(line string) bool {
	for h.lines.Scan() {
		if h.lines.Text() == line {
			return true
		}
		if strings.HasSuffix(h.lines.Text(), " false") {
			break
		}
	}
	return false
}

func (h *helper) kill(t testing.TB) {
	t.Helper()
	must(t, h.cmd.Process.Kill())
	_ = h.cmd.Wait()
}

// end waits for the helper's own end, or for the kill it was armed for, and
// returns what it had acknowledged.
func (h *helper) end() (acknowledged []string) {
	for h.lines.Scan() {
		if verb, ok := strings.CutSuffix(h.lines.Text(), " true"); ok {
			acknowledged = append(acknowledged, verb)
		}
	}
	h.in.Close()
	_ = h.cmd.Wait()
	return acknowledged
}

// An inventory is everything a session could leave behind.
type inventory struct {
	processes, groups, mounts, loops, fds, files, users []string
}

func (w *world) inventory() inventory {
	w.t.Helper()
	var i inventory
	exe, err := sandbox.SealedExe()
	must(w.t, err)
	want, err := safefile.Stat(exe)
	must(w.t, err)
	procs, err := filepath.Glob("/proc/[0-9]*/exe")
	must(w.t, err)
	ours := map[string]string{} // directories in /proc, and the command lines
	for _, p := range procs {
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil && st.Dev == want.Dev && st.Ino == want.Ino && filepath.Base(filepath.Dir(p)) != strconv.Itoa(os.Getpid()) {
			cmd, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
			ours[filepath.Dir(p)] = string(bytes.ReplaceAll(cmd, []byte{0}, []byte(" ")))
		}
	}
	spare := map[string]bool{} // the users, the directories and the groups of blank monitors
	for p, cmd := range ours {
		if blank := blankOf(p, ours); blank == "" {
			i.processes = append(i.processes, p+" "+cmd)
		} else {
			maps.Copy(spare, heldBy(blank))
		}
	}
	host, err := cgroup.Detect()
	must(w.t, err)
	defer host.Close()
	root, err := os.Open(w.path("root"))
	must(w.t, err)
	defer root.Close()
	id, err := safefile.Stat(root)
	must(w.t, err)
	i.groups, err = host.Names(groupPrefix(id))
	must(w.t, err)
	i.groups = slices.DeleteFunc(i.groups, func(name string) bool {
		return spare[monitor.GroundPrefix+strings.TrimPrefix(name, groupPrefix(id))]
	})
	i.mounts = linesWith(w.t, "/proc/self/mountinfo", w.dir)
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		i.loops = append(i.loops, linesWith(w.t, b, w.dir)...)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	must(w.t, err)
	for _, f := range fds {
		target, err := os.Readlink("/proc/self/fd/" + f.Name())
		if err == nil && !strings.HasPrefix(target, "/proc/self/fd") && !strings.HasSuffix(target, "/fd") {
			i.fds = append(i.fds, target)
		}
	}
	slices.Sort(i.fds)
	entries, err := os.ReadDir(w.path("root"))
	must(w.t, err)
	for _, e := range entries {
		if !spare[e.Name()] {
			i.files = append(i.files, e.Name())
		}
	}
	locks, err := filepath.Glob("/run/glove/uids/*")
	must(w.t, err)
	for _, l := range locks {
		uid, _ := strconv.ParseUint(filepath.Base(l), 10, 32)
		if uint32(uid) < testUIDs.First || uint32(uid) >= testUIDs.First+testUIDs.Count {
			continue
		}
		if spare[l] {
			continue
		}
		if lock, err := safefile.LockFile(l); err != nil {
			i.users = append(i.users, l)
		} else {
			must(w.t, lock.Unlock())
		}
	}
	return i
}

// blankOf returns the blank monitor that a process of ours is or is a descendant of: gloved
// may keep one ready, and that an init and a launch.
func blankOf(proc string, ours map[string]string) string {
	for range 3 {
		if strings.HasPrefix(ours[proc], "gloved-monitor") && isBlank(proc) {
			return proc
		}
		stat, _ := os.ReadFile(filepath.Join(proc, "stat"))
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 {
			return ""
		}
		proc = "/proc/" + fields[1]
	}
	return ""
}

// heldBy are the claim that a monitor has on a host user, and its directory's name.
func heldBy(proc string) map[string]bool {
	held := map[string]bool{}
	fds, _ := filepath.Glob(filepath.Join(proc, "fd/*")) // none of one that has just ended
	for _, fd := range fds {
		target, _ := os.Readlink(fd)
		if strings.HasPrefix(target, "/run/glove/uids/") {
			held[target] = true
		}
		if filepath.Base(target) == monitor.LockName {
			held[filepath.Base(filepath.Dir(target))] = true
		}
	}
	return held
}

// isBlank reports whether a monitor has no session yet, by where the lock is that each
// holds as long as it lives.
func isBlank(proc string) bool {
	fds, err := filepath.Glob(filepath.Join(proc, "fd/*"))
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); filepath.Base(target) == monitor.LockName {
			return strings.Contains(target, "/"+monitor.GroundPrefix)
		}
	}
	return err == nil
}

// spareFDs is how many descriptors gloved may hold for a blank monitor.
const spareFDs = 4

func linesWith(t testing.TB, path, part string) (out []string) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENXIO) {
		return nil // a loop device that went away meanwhile
	}
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return out
}

// same waits, bounded, until everything is as it was: monitors need a moment
// to leave.
func (w *world) same(before inventory) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		after := w.inventory()
		diff := compare(before, after)
		if diff == "" {
			return
		}
		if !wait(ctx, 20*time.Millisecond) {
			w.t.Fatalf("left behind:\n%s", diff)
		}
	}
}

func compare(before, after inventory) string {
	var out strings.Builder
	for _, k := range []struct {
		name string
		b, a []string
	}{{"processes", before.processes, after.processes}, {"groups", before.groups, after.groups}, {"mounts", before.mounts, after.mounts},
		{"loops", before.loops, after.loops}, {"files", before.files, after.files}, {"users", before.users, after.users}} {
		// What was there before may be gone: an earlier session's monitor that was
		// about to leave.
		if more := slices.DeleteFunc(slices.Clone(k.a), func(x string) bool { return slices.Contains(k.b, x) }); len(more) > 0 {
			fmt.Fprintf(&out, "%s: %q\n", k.name, more)
		}
	}
	if len(after.fds) > len(before.fds)+spareFDs {
		fmt.Fprintf(&out, "descriptors: %d, were %d: %q\n", len(after.fds), len(before.fds), after.fds)
	}
	return out.String()
}

// An end is what a session's record may say after a crash.
type end struct {
	state session.State
	what  string // the cause or the failure code
}

func endOf(rec session.Record) end {
	if rec.Terminal != nil {
		return end{rec.State, rec.Terminal.TerminationCause}
	}
	return end{rec.State, rec.FailureCode}
}

var (
	exitedEnd   = end{session.Exited, receipt.CauseExited}
	signaledEnd = end{session.Exited, receipt.CauseSignaled}
	killedEnd   = end{session.Failed, session.RecoveredTerminated}
	lostEnd     = end{session.Failed, session.RecoveredWithoutProcess}
	launchEnd   = end{session.Failed, session.LaunchFailed}
	errorEnd    = end{session.Failed, session.SupervisorError}
	brokenEnd   = end{session.Exited, receipt.CauseSupervisorError}
	createdEnd  = end{session.Created, ""}   // its start did not come
	waitingEnd  = end{session.Preparing, ""} // to be tried again with the same key
)

// recoverAll is the next gloved's start, over what a crash left. Then everything
// must be in order: the record of id says one of the ends, a receipt is there
// exactly if it is exited, the retry of the start gives the same answer, the
// session can be cleaned up, nothing is left, and a new session runs.
func (w *world) recoverAll(id string, before inventory, ends ...end) end {
	w.t.Helper()
	w.verified(journal.StatusClean, journal.StatusTorn)
	w.open()
	w.trust()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	must(w.t, w.Settled(ctx, id))
	rec, err := w.store.Get(id)
	must(w.t, err)
	got := endOf(rec)
	w.createdAgain(rec)
	if !slices.Contains(ends, got) {
		w.t.Errorf("the session is %v, want one of %v", got, ends)
	}
	if rec.State == session.Preparing || rec.State == session.Created {
		if rec, err = w.start(rec); err != nil {
			w.t.Fatalf("the retry: %v", err)
		}
		_, rec = w.finish(id)
		if endOf(rec) != exitedEnd {
			w.t.Errorf("after the retry the session is %v", endOf(rec))
		}
	} else if again, err := w.start(rec); err != nil || endOf(again) != got {
		w.t.Errorf("the retry of the start gives %v, %v", endOf(again), err)
	}
	w.oneReceipt(rec)
	_, err = w.Cleanup(ctx, id)
	must(w.t, err)
	_, other := w.run()
	if endOf(other) != exitedEnd {
		w.t.Errorf("the next session is %v", endOf(other))
	}
	_, err = w.Cleanup(ctx, other.SessionID)
	must(w.t, err)
	w.close()
	w.verified(journal.StatusClean)
	w.same(before)
	return got
}

// verified reads the journals as a stranger would.
func (w *world) verified(allowed ...journal.Status) {
	w.t.Helper()
	for _, name := range []string{"state/sessions.jsonl", "state/receipts.jsonl"} {
		if v, err := journal.VerifyFile(w.path(name), journal.VerifyOptions{}); err != nil || !slices.Contains(allowed, v.Status) {
			w.t.Fatalf("%s: %+v, %v", name, v, err)
		}
	}
}

// createdAgain repeats the request that made a session.
func (w *world) createdAgain(rec session.Record) {
	w.t.Helper()
	same, err := w.store.Create(w.t.Context(), session.CreateRequest{IdempotencyKey: "create-" + rec.SessionID, SessionID: rec.SessionID,
		ControllerPlanDigest: rec.ControllerPlanDigest, Plan: rec.Plan},
		func(time.Time) ([]byte, session.PlanInfo, error) {
			return nil, session.PlanInfo{}, errors.New("a repeated create is not judged again")
		})
	if err != nil || same.PlanContentDigest != rec.PlanContentDigest {
		w.t.Errorf("create %s again: %v", rec.SessionID, err)
	}
}

// oneReceipt checks that the session has its one receipt, or none.
func (w *world) oneReceipt(rec session.Record) {
	w.t.Helper()
	count := 0
	for anchor := receipt.Genesis(w.receipts.KeyID()); ; {
		page, err := w.receipts.Page(w.t.Context(), anchor, 1000)
		must(w.t, err)
		for _, v := range page.Envelopes {
			if v.SessionID == rec.SessionID {
				count++
			}
			anchor = receipt.Anchor{KeyID: v.KeyID, Sequence: v.Sequence, HeadHMAC: v.ThisHMAC}
		}
		if !page.HasMore {
			break
		}
	}
	if want := map[bool]int{true: 1}[rec.State == session.Exited]; count != want {
		w.t.Errorf("session %s is %v and has %d receipts", rec.SessionID, endOf(rec), count)
	}
}

// TestStartFailsAtEachStep lets each step fail without a crash: nothing may be
// left, and the record says why.
func TestStartFailsAtEachStep(t *testing.T) {
	points := slices.Concat(crashpoint.Start[1:len(crashpoint.Start)-1], crashpoint.Acquire, crashpoint.Launch)
	for _, p := range points {
		t.Run(string(p), func(t *testing.T) {
			w := newWorld(t, generous, "/bin/sh", "-c", "echo out")
			w.trust()
			before := w.inventory()
			rec := w.create()
			w.arm(p, "fail")
			_, err := w.start(rec)
			if err == nil || !w.fired() {
				t.Fatalf("the start went on: %v", err)
			}
			w.same(before)
			got, err := w.store.Get(rec.SessionID)
			must(t, err)
			want := end{session.Preparing, ""}
			switch {
			case p == crashpoint.StartRunning || p == crashpoint.ReleaseBegun:
				want = errorEnd
			case p == crashpoint.StartStarting || p == crashpoint.StartLaunched || slices.Contains(crashpoint.Launch, p):
				want = launchEnd
			}
			if endOf(got) != want {
				t.Errorf("the session is %v, want %v", endOf(got), want)
			}
			if want.state == session.Preparing {
				if _, err := w.start(rec); err != nil {
					t.Fatalf("the retry: %v", err)
				}
				if _, rec := w.finish(rec.SessionID); endOf(rec) != exitedEnd {
					t.Errorf("after the retry the session is %v", endOf(rec))
				}
			}
		})
	}
}

// TestAdoption kills gloved while a session runs; the next one goes on with it:
// same cursors, same input, same end.
func TestAdoption(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", `echo first; read line; echo "got $line"; exit 5`)
	rec := w.create()
	w.close()
	before := w.inventory()
	h := w.gloved("trust", "start:"+rec.SessionID, "hold")
	if !h.said("start true") {
		t.Fatalf("no start: %s", h.err)
	}
	h.kill(t)
	w.open()
	if _, err := w.store.Get(rec.SessionID); err != nil || w.handle(rec.SessionID) == nil {
		t.Fatalf("not adopted: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first, err := w.Read(ctx, rec.SessionID, 0, 100, 20*time.Second)
	if err != nil || string(first.Data) != "first\r\n" {
		t.Fatalf("read %q, %v", first.Data, err)
	}
	if n, err := w.Write(ctx, rec.SessionID, []byte("x\n")); err != nil || n != 2 {
		t.Fatalf("wrote %d, %v", n, err)
	}
	w.trust()
	out, rec := w.finish(rec.SessionID)
	if out != "first\r\nx\r\ngot x\r\n" || endOf(rec) != exitedEnd || *rec.Terminal.ExitCode != 5 {
		t.Errorf("output %q, record %v", out, endOf(rec))
	}
	w.oneReceipt(rec)
	if again := w.readAll(ctx, rec.SessionID); again != out {
		t.Errorf("the saved transcript is %q", again)
	}
	_, err = w.Cleanup(ctx, rec.SessionID)
	must(t, err)
	w.close()
	w.same(before)
}

// TestEndBeforeAcknowledgement: an adopted session that ends, or is stopped, before a
// controller has acknowledged the receipts says so instead of keeping who asks waiting,
// and ends on record as soon as it can.
func TestEndBeforeAcknowledgement(t *testing.T) {
	for _, how := range []string{"it ends", "it is stopped"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, generous, "/bin/sh", "-c", "read line; exit 5")
			rec, want := w.create(), exitedEnd
			w.close()
			h := w.gloved("trust", "start:"+rec.SessionID, "hold")
			if !h.said("start true") {
				t.Fatalf("no start: %s", h.err)
			}
			h.kill(t)
			w.open()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if how == "it ends" {
				must2(w.Write(ctx, rec.SessionID, []byte("x\n")))(t)
			} else {
				want = signaledEnd
				if _, err := w.Stop(ctx, "stop", rec.SessionID); !errors.Is(err, &Error{Code: CodeUnacknowledged}) {
					t.Errorf("stop: %v", err)
				}
			}
			for len(w.Issues()) == 0 && wait(ctx, 5*time.Millisecond) {
			}
			if i := w.Issues(); len(i) != 1 || i[0].Code != IssueUnacknowledged || i[0].SessionID != rec.SessionID {
				t.Errorf("issues %v", i)
			}
			if _, err := w.Stop(ctx, "stop again", rec.SessionID); !errors.Is(err, &Error{Code: CodeUnacknowledged}) {
				t.Errorf("stop of what has ended: %v", err)
			}
			w.trust()
			must(t, w.Settled(ctx, rec.SessionID))
			rec, err := w.store.Get(rec.SessionID)
			must(t, err)
			if endOf(rec) != want || len(w.Issues()) != 0 {
				t.Errorf("the session is %v, issues %v", endOf(rec), w.Issues())
			}
			w.oneReceipt(rec)
		})
	}
}

// TestEndWhileAway lets a session end while no gloved lives: the outcome becomes
// exactly one receipt, when a controller has acknowledged the head.
func TestEndWhileAway(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "test -e /workspace/quick || read line; exit 6")
	rec := w.create(w.grant("read"))
	w.close()
	before := w.inventory()
	h := w.gloved("trust", "start:"+rec.SessionID, "hold")
	if !h.said("start true") {
		t.Fatalf("no start: %s", h.err)
	}
	h.in.Close() // let go of in an orderly way
	h.end()
	w.open()
	must2(w.Write(t.Context(), rec.SessionID, []byte("\n")))(t)
	w.close()
	dir := filepath.Join(w.path("root"), dirName(rec.SessionID))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for alive := true; alive; {
		var err error
		if alive, err = monitor.Alive(dir); err != nil || !wait(ctx, 5*time.Millisecond) {
			t.Fatalf("the monitor stays: %v", err)
		}
	}
	w.open()
	got, err := w.store.Get(rec.SessionID)
	if err != nil || got.State != session.Running {
		t.Fatalf("before the acknowledgement: %v, %v", endOf(got), err)
	}
	w.close()
	w.quick(t)
	w.recoverAll(rec.SessionID, before, exitedEnd)
}

// quick makes the sessions to come end at once, if their program looks for it.
func (w *world) quick(t testing.TB) {
	must(t, os.WriteFile(w.path("work/quick"), nil, 0o644))
	w.quickNext = true
}

func must2[T any](_ T, err error) func(testing.TB) {
	return func(t testing.TB) { t.Helper(); must(t, err) }
}

// TestBrokenConnectionEndsNothing cuts the connection to a monitor that lives.
func TestBrokenConnectionEndsNothing(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "echo a; read l; echo b")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	for range 5 {
		c, changed := w.handle(rec.SessionID).watch()
		c.Close()
		<-changed
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for cut := true; cut; { // a request may meet the moment without a connection
		_, err := w.Write(ctx, rec.SessionID, []byte("\n"))
		cut = errors.Is(err, &monitor.Error{Code: monitor.CodeGone})
	}
	if out, rec := w.finish(rec.SessionID); out != "a\r\n\r\nb\r\n" || endOf(rec) != exitedEnd {
		t.Errorf("output %q, record %v", out, endOf(rec))
	}
}

// TestStrangerIsNeverSignalled gives the record of a lost session the pid of a
// process that is not the session's.
func TestStrangerIsNeverSignalled(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "sleep 1000")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	bystander := exec.Command("/bin/sleep", "1000")
	must(t, bystander.Start())
	defer func() {
		if err := bystander.Process.Kill(); err != nil {
			t.Errorf("the bystander: %v", err)
		}
		if err := bystander.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("the bystander: %v", err)
		}
	}()
	stranger := rec
	process := *rec.Process
	process.PID = uint32(bystander.Process.Pid)
	stranger.Process = &process
	var issue *issueError
	if err := w.recovered(t.Context(), stranger, nil); !errors.As(err, &issue) || issue.code != IssueMismatch {
		t.Errorf("recovered: %v", err)
	}
	if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the bystander is gone: %v", err)
	}
	if now, _ := w.store.Get(rec.SessionID); now.State != session.Running {
		t.Errorf("the session is %v", endOf(now))
	}
	_, err = w.Stop(t.Context(), "stop", rec.SessionID)
	must(t, err)
}

// TestWedgedMonitorIsReported stops a monitor in its tracks: the next gloved says
// so, touches nothing, and goes on when the monitor does.
func TestWedgedMonitorIsReported(t *testing.T) {
	if testing.Short() {
		return // takes as long as a dial may
	}
	w := newWorld(t, generous, "/bin/sh", "-c", "echo a; read l")
	rec := w.create()
	w.close()
	h := w.gloved("trust", "start:"+rec.SessionID, "hold")
	if !h.said("start true") {
		t.Fatalf("no start: %s", h.err)
	}
	h.kill(t)
	pid := w.monitorPID(rec.SessionID)
	must(t, unix.Kill(pid, unix.SIGSTOP))
	w.open() // adopts nothing
	page, err := w.receipts.Page(t.Context(), receipt.Genesis(w.receipts.KeyID()), 1000)
	must(t, err)
	must(t, w.receipts.Acknowledge(t.Context(), page.LocalAnchor))
	if err := w.Reconcile(t.Context()); !errors.Is(err, &Error{Code: CodeReconciliation}) {
		t.Errorf("reconcile: %v", err)
	}
	if i := w.Issues(); len(i) != 1 || i[0].Code != IssueSilent || w.NotReady() != CodeReconciliation {
		t.Errorf("issues %v, not ready: %q", i, w.NotReady())
	}
	must(t, unix.Kill(pid, unix.SIGCONT))
	must(t, w.Reconcile(t.Context()))
	if w.NotReady() != "" || len(w.Issues()) != 0 {
		t.Errorf("after it went on: %q, %v", w.NotReady(), w.Issues())
	}
	if _, err := w.Stop(t.Context(), "stop", rec.SessionID); err != nil {
		t.Error(err)
	}
}

// monitorPID is the monitor of a session that has one.
func (w *world) monitorPID(id string) int {
	w.t.Helper()
	alive, pid := w.monitorOf(id)
	if !alive {
		w.t.Fatal("nobody holds the monitor's lock")
	}
	return pid
}

// monitorOf finds a session's monitor by the lock it holds.
func (w *world) monitorOf(id string) (bool, int) {
	w.t.Helper()
	st, err := os.Stat(filepath.Join(w.path("root"), dirName(id), monitor.LockName))
	if errors.Is(err, os.ErrNotExist) {
		return false, 0
	}
	must(w.t, err)
	ino := st.Sys().(*syscall.Stat_t).Ino
	for _, line := range linesWith(w.t, "/proc/locks", fmt.Sprintf(":%d 0 EOF", ino)) {
		pid, err := strconv.Atoi(strings.Fields(line)[4])
		must(w.t, err)
		return true, pid
	}
	return false, 0
}
