package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gloved.dev/journal/receipt"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/cgroup"
)

// Bounds of the soak. The ordinary form is short; GLOVE_TEST_SOAK=10m is the long one.
const (
	soakVariable  = "GLOVE_TEST_SOAK"
	soakOrdinary  = 20 * time.Second
	soakShort     = 5 * time.Second
	soakAtOnce    = 50
	soakMost      = 20_000          // sessions in all
	soakPatience  = 4 * time.Minute // for one answer, over as many gloveds as it takes: fifty starts may be before it
	soakMostLines = 12
)

// soakScript answers each line, with much output to some, and ends at the word bye.
const soakScript = `echo up; while read l; do case $l in bye) echo leaving; exit 7;; burst) seq 1 3000;; esac; echo "got $l"; done; exit 9`

// soakFor is how long the soak lasts.
func soakFor(t testing.TB) time.Duration {
	t.Helper()
	if text := os.Getenv(soakVariable); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < time.Second || d > 24*time.Hour {
			t.Fatalf("%s is %q; it is a time such as 10m", soakVariable, text)
		}
		return d
	}
	if testing.Short() {
		return soakShort
	}
	return soakOrdinary
}

// A soak is a site whose gloved is killed and restarted while many use it.
type soak struct {
	*site
	until time.Time
	log   string // where gloved's messages go

	mu  sync.Mutex
	pid int // of the gloved that serves

	begun                                             atomic.Int64 // sessions
	attached, resized, detached, written, reconnected atomic.Int64
	ends                                              sync.Map // id → the wire.Session it ended as
}

// TestSoak starts, follows, resizes, leaves, stops and kills sessions, fifty at a time, at
// random, while their gloved is killed, ended and restarted at random. At the end
// every session has its one truthful end, the chain of receipts verifies and is as long as
// the sessions that left an outcome, and the host is as it was before.
func TestSoak(t *testing.T) {
	duration := soakFor(t)
	s := &soak{site: newSite(t, soakScript), log: filepath.Join(t.TempDir(), "gloved.log")}
	s.until = time.Now().Add(duration)
	cmd := s.serve()
	defer func() { s.given(cmd) }()
	c := s.open()
	s.acknowledge(c)
	idle := descriptors(t, cmd.Process.Pid)
	seed := uint64(time.Now().UnixNano())
	t.Logf("%v, seed %d", duration, seed)

	var workers sync.WaitGroup
	for i := range soakAtOnce {
		workers.Go(func() { s.worker(rand.New(rand.NewPCG(seed, uint64(i))), i) })
	}
	random := rand.New(rand.NewPCG(seed, 1000))
	restarts := map[string]int{}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for next := time.Now().Add(time.Second); time.Now().Before(s.until); <-tick.C {
		if time.Now().Before(next) {
			continue
		}
		next = time.Now().Add(time.Duration(1+random.IntN(8)) * time.Second)
		how, signal := "killed", syscall.SIGKILL
		if random.IntN(3) == 0 {
			how, signal = "terminated", syscall.SIGTERM
		}
		must(t, cmd.Process.Signal(signal))
		_ = cmd.Wait() // it was asked to end
		restarts[how]++
		c.Close()
		cmd = s.serve()
		c = s.open()
		s.acknowledge(c)
	}
	workers.Wait()
	if t.Failed() {
		return
	}
	s.acknowledge(c)
	failed := s.verdicts()
	receipts := s.chain(c)
	t.Logf("%d sessions: %d receipts, %d failed (%v); gloved %v; attached %d, wrote %d lines, resized %d, detached %d, connected again %d times",
		s.begun.Load(), receipts, len(failed), count(failed), restarts, s.attached.Load(), s.written.Load(), s.resized.Load(), s.detached.Load(), s.reconnected.Load())
	if int64(receipts+len(failed)) != s.begun.Load() {
		t.Errorf("%d receipts and %d sessions that failed, of %d", receipts, len(failed), s.begun.Load())
	}
	if restarts["killed"]+restarts["terminated"] == 0 || receipts == 0 {
		t.Error("nothing was put to the test")
	}
	eventually(t, func() error {
		if now := descriptors(t, cmd.Process.Pid); now > idle+spareDescriptors {
			return fmt.Errorf("gloved has %d descriptors, had %d", now, idle)
		}
		return nil
	})
	must(t, c.Close())
	must(t, cmd.Process.Signal(syscall.SIGTERM))
	must(t, cmd.Wait())
	s.conserved()
}

// spareDescriptors is how many gloved may hold for a monitor it keeps ready, and for a
// journal that was rotated meanwhile.
const spareDescriptors = 4

// serve starts the next gloved, and keeps what it says.
func (s *soak) serve() *exec.Cmd {
	s.t.Helper()
	args := s.args("--runtime-dir", s.vars["RUNTIME"])
	cmd := exec.Command(args[0], args[1:]...)
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(s.t, err)
	defer log.Close()
	cmd.Stderr = log
	must(s.t, cmd.Start())
	s.mu.Lock()
	s.pid = cmd.Process.Pid
	s.mu.Unlock()
	return cmd
}

// open connects to the gloved that was just started.
func (s *soak) open() *client.Client {
	s.t.Helper()
	var c *client.Client
	eventually(s.t, func() (err error) {
		c, err = client.DialRuntimeDir(s.ctx(soakPatience), s.vars["RUNTIME"], client.Options{})
		return err
	})
	return c
}

// given shows, after a failure, what the last gloved does and has said, and ends what is
// left of the sessions.
func (s *soak) given(cmd *exec.Cmd) {
	if !s.t.Failed() {
		return
	}
	_ = cmd.Process.Signal(syscall.SIGQUIT) // it may be gone; else it says what each goroutine waits for
	_ = cmd.Wait()                          // it was told to end
	if text, err := os.ReadFile(s.log); err == nil {
		s.t.Logf("gloved said:\n%s", text[max(0, len(text)-soakTail):])
	}
	for _, pid := range holders(s.dir) {
		if pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // a monitor takes its session along
		}
	}
}

// soakTail is how much of the log is shown.
const soakTail = 64 << 10

// acknowledge pages to the head and acknowledges it. A page that reaches the head may
// already let sessions end, and the head move: then it is paged again.
func (s *soak) acknowledge(c *client.Client) {
	s.t.Helper()
	deadline := time.Now().Add(soakPatience) // a head that moves all the time is a failure too
	if s.head.KeyID == "" {
		s.head = wire.Anchor{KeyID: c.Hello().Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}
	}
	for {
		page, err := c.PageReceipts(s.ctx(soakPatience), s.head, 1000)
		must(s.t, err)
		if n := len(page.Envelopes); n > 0 {
			var last receipt.Envelope
			must(s.t, json.Unmarshal(page.Envelopes[n-1], &last))
			s.head.Sequence, s.head.HeadHMAC = int64(last.Sequence), last.ThisHMAC
		}
		if page.HasMore {
			continue
		}
		s.n++
		_, err = c.AcknowledgeReceipts(s.ctx(soakPatience), s.key("ack"), s.head)
		if err == nil {
			return
		}
		if !errors.Is(err, rpc.AuditReconciliationFailed) || time.Now().After(deadline) {
			s.t.Fatal(err)
		}
	}
}

// A soaker uses the gloved that there is, and the next one when that is gone.
type soaker struct {
	*soak
	random  *rand.Rand
	c       *client.Client
	id      string
	seen    []byte // the transcript so far
	started bool   // its command provably ran: the start was answered at once, or there is output
}

func (s *soak) worker(random *rand.Rand, n int) {
	w := &soaker{soak: s, random: random}
	defer func() {
		if w.c != nil {
			w.c.Close()
		}
	}()
	for i := 0; time.Now().Before(s.until) && s.begun.Load() < soakMost && !s.t.Failed(); i++ {
		w.id, w.seen = fmt.Sprintf("w%d-%d", n, i), nil
		s.begun.Add(1)
		if err := w.life(); err != nil {
			s.t.Errorf("session %s: %v", w.id, err)
			return
		}
	}
}

// try asks until there is an answer that no gloved's end is the reason of. What it asks
// must bear being asked twice.
func (w *soaker) try(ask func(ctx context.Context, c *client.Client) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), soakPatience)
	defer cancel()
	for {
		err := w.once(ctx, ask)
		var refused *rpc.Error
		lost := err != nil && !errors.As(err, &refused)
		again := refused != nil && slices.Contains([]rpc.Code{rpc.ShuttingDown, rpc.ServerBusy, rpc.AuditReconciliationRequired, rpc.SessionReconciliationFailed}, refused.Code)
		if !lost && !again {
			return err
		}
		if lost && w.c != nil {
			w.c.Close()
			w.c = nil
		}
		select {
		case <-time.After(time.Duration(20+w.random.IntN(100)) * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("no answer in %v: %w", soakPatience, err)
		}
	}
}

func (w *soaker) once(ctx context.Context, ask func(ctx context.Context, c *client.Client) error) (err error) {
	if w.c == nil {
		if w.c, err = client.DialRuntimeDir(ctx, w.vars["RUNTIME"], client.Options{}); err != nil {
			w.c = nil
			return errors.New(err.Error()) // a refusal to open is no answer
		}
		w.reconnected.Add(1)
	}
	return ask(ctx, w.c)
}

// life is that of one session, from its creation to its cleanup.
func (w *soaker) life() error {
	w.started = false
	began, err := w.begin()
	if err != nil {
		return err
	}
	if began {
		if err := w.use(); err != nil {
			return err
		}
	}
	if err := w.finish(); err != nil {
		return err
	}
	err = w.try(func(ctx context.Context, c *client.Client) error {
		_, err := c.CleanupSession(ctx, w.id, client.WithKey("clean-"+w.id))
		return err
	})
	if errors.Is(err, rpc.SessionArchived) {
		return nil // between its end and now
	}
	return err
}

// begin creates and starts the session. It reports whether it ever ran: a gloved that
// is killed in the middle of a start ends it.
func (w *soaker) begin() (bool, error) {
	var rec *wire.Session
	plan := []byte(w.plan())
	err := w.try(func(ctx context.Context, c *client.Client) (err error) {
		rec, err = c.CreateSession(ctx, "create-"+w.id, &wire.CreateSessionParams{SessionID: w.id, ControllerPlanDigest: strings.Repeat("a", 64), Plan: plan})
		return err
	})
	if err != nil {
		return false, fmt.Errorf("create: %w", err)
	}
	asked := 0
	err = w.try(func(ctx context.Context, c *client.Client) error {
		asked++
		_, err := c.StartSession(ctx, "start-"+w.id, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "auth-" + w.id, SessionID: w.id,
			ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
			ApprovedAtMS: rec.CreatedAtMS, ExpiresAtMS: rec.CreatedAtMS + 100_000})
		return err
	})
	if err != nil {
		now, statusErr := w.status()
		if statusErr != nil || now.State != "failed" {
			return false, fmt.Errorf("start: %w; the session is %+v, %v", err, now, statusErr)
		}
		return false, nil
	}
	// The answer to a start that was asked for again is where the first one has got to:
	// one that came to nothing may be on record as running until it is reconciled.
	w.started = asked == 1
	now, err := w.wait("running")
	return err == nil && now.State != "failed", err
}

func (w *soaker) status() (rec *wire.Session, err error) {
	err = w.try(func(ctx context.Context, c *client.Client) (err error) {
		rec, err = c.SessionStatus(ctx, w.id)
		return err
	})
	return rec, err
}

// use does to a session what people do, in no order.
func (w *soaker) use() error {
	for range w.random.IntN(soakMostLines) {
		var err error
		switch w.random.IntN(6) {
		case 0, 1:
			err = w.write(fmt.Sprintf("line %d\n", w.random.IntN(1000)))
		case 2:
			err = w.write("burst\n")
		case 3:
			w.resized.Add(1)
			rows, columns := 1+w.random.IntN(200), 1+w.random.IntN(400)
			err = w.try(func(ctx context.Context, c *client.Client) error { return c.Resize(ctx, w.id, rows, columns) })
		case 4:
			w.detached.Add(1)
			err = w.try(func(ctx context.Context, c *client.Client) error {
				_, err := c.Detach(ctx, w.id, int64(len(w.seen)))
				return err
			})
			if w.c != nil {
				w.c.Close()
				w.c = nil
			}
		case 5:
			err = w.read(w.random.IntN(300))
		}
		if over, err := w.over(err); over || err != nil {
			return err
		}
	}
	return nil
}

// over tells a session that has ended meanwhile from one that refused what it should not.
func (w *soaker) over(cause error) (bool, error) {
	if cause == nil {
		return false, nil
	}
	look := w.status
	if !w.started {
		look = func() (*wire.Session, error) { return w.wait() }
	}
	rec, err := look()
	if err == nil && (rec.State == "exited" || rec.State == "failed") {
		return true, nil
	}
	return false, fmt.Errorf("%w; the session is %+v, %v", cause, rec, err)
}

// write sends a line once: whether one got through that had no answer cannot be known.
func (w *soaker) write(line string) error {
	w.written.Add(1)
	asked := false
	return w.try(func(ctx context.Context, c *client.Client) error {
		if asked {
			return nil
		}
		asked = true
		_, err := c.WriteStdin(ctx, w.id, []byte(line))
		return err
	})
}

// read reads on from where it was; each byte must follow the last.
func (w *soaker) read(waitMS int) error {
	w.attached.Add(1)
	return w.try(func(ctx context.Context, c *client.Client) error {
		r, err := c.Attach(ctx, &wire.AttachParams{SessionID: w.id, Cursor: int64(len(w.seen)), MaxBytes: 65536, WaitMS: int64(waitMS)})
		if err != nil {
			return err
		}
		if r.Truncated || r.NextCursor != int64(len(w.seen)+len(r.Data)) {
			return rpc.NewError(rpc.Internal, fmt.Sprintf("from %d on came %d bytes, up to %d, truncated %v", len(w.seen), len(r.Data), r.NextCursor, r.Truncated))
		}
		w.seen = append(w.seen, r.Data...)
		w.started = w.started || len(r.Data) > 0
		return nil
	})
}

// finish ends the session in one of the ways there are, waits for its end to be on
// record, and compares the whole transcript with what was read while it ran.
func (w *soaker) finish() error {
	byMonitor := false
	switch w.random.IntN(8) {
	case 0, 1, 2: // stopped
	case 3:
		byMonitor = w.killMonitor()
	default:
		if _, err := w.over(w.write("bye\n")); err != nil {
			return err
		}
	}
	err := w.try(func(ctx context.Context, c *client.Client) error {
		_, err := c.StopSession(ctx, "stop-"+w.id, w.id)
		return err
	})
	rec, statusErr := w.wait()
	if statusErr != nil {
		return fmt.Errorf("stop: %w; %w", err, statusErr)
	}
	w.ends.Store(w.id, *rec)
	if rec.State == "failed" && !byMonitor && w.started {
		return fmt.Errorf("it failed by itself: %+v", rec)
	}
	if rec.State == "exited" && rec.ExitCode != nil && *rec.ExitCode == 7 {
		return w.complete()
	}
	return nil
}

// wait waits for the session's end, or for one of states.
func (w *soaker) wait(states ...string) (*wire.Session, error) {
	states = append(states, "exited", "failed")
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(soakPatience); ; <-tick.C {
		rec, err := w.status()
		if err != nil || slices.Contains(states, rec.State) {
			return rec, err
		}
		if time.Now().After(deadline) {
			return rec, fmt.Errorf("it does not become one of %v: %+v", states, rec)
		}
	}
}

// complete reads the saved transcript from the start and finds in it what was seen.
func (w *soaker) complete() error {
	seen := w.seen
	w.seen = nil
	for {
		before := len(w.seen)
		if err := w.read(0); err != nil {
			if errors.Is(err, rpc.SessionArchived) {
				return nil
			}
			return fmt.Errorf("the whole transcript: %w", err)
		}
		if len(w.seen) == before {
			break
		}
	}
	if !bytes.HasPrefix(w.seen, seen) || !bytes.HasSuffix(w.seen, []byte("leaving\r\n")) {
		return fmt.Errorf("the transcript of %d bytes does not begin with the %d that were followed", len(w.seen), len(seen))
	}
	return nil
}

// killMonitor kills the session's monitor, if it still has one.
func (w *soaker) killMonitor() bool {
	dirs, _ := filepath.Glob(filepath.Join(w.vars["MATERIALIZATIONS"], "*-"+w.id))
	if len(dirs) != 1 {
		return false
	}
	for _, pid := range holders(dirs[0]) {
		w.mu.Lock()
		daemon := w.pid
		w.mu.Unlock()
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); pid != daemon && err == nil && exe != program && pid != os.Getpid() {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may just have left
		}
	}
	return true
}

// holders are the processes that have something open below dir.
func holders(dir string) (pids []int) {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*") // what ends meanwhile holds nothing
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, dir+"/") {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			if !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// verdicts checks how each session ended and returns those that failed, with their code.
func (s *soak) verdicts() map[string]string {
	failed := map[string]string{}
	s.ends.Range(func(key, value any) bool {
		id, rec := key.(string), value.(wire.Session)
		if rec.State == "failed" {
			failed[id] = rec.FailureCode
		} else if rec.Receipt == nil {
			s.t.Errorf("session %s ended without a receipt: %+v", id, rec)
		}
		return true
	})
	for id, code := range failed {
		if !slices.Contains([]string{"launch_failed", "recovered_terminated", "recovered_without_process"}, code) {
			s.t.Errorf("session %s failed as %s", id, code)
		}
	}
	return failed
}

func count(failed map[string]string) map[string]int {
	n := map[string]int{}
	for _, code := range failed {
		n[code]++
	}
	return n
}

// chain verifies every receipt from the first on, archived ones too, and that each
// session that exited has exactly one. It returns their number.
func (s *soak) chain(c *client.Client) int {
	s.t.Helper()
	key, err := receipt.LoadKey(s.vars["AUDIT_KEY"])
	must(s.t, err)
	anchor, seen := receipt.Genesis(key.ID()), map[string]bool{}
	for more := true; more; {
		page, err := c.PageReceipts(s.ctx(soakPatience), wire.Anchor{KeyID: anchor.KeyID, Sequence: int64(anchor.Sequence), HeadHMAC: anchor.HeadHMAC}, 1000)
		must(s.t, err)
		for _, raw := range page.Envelopes {
			var e receipt.Envelope
			must(s.t, json.Unmarshal(raw, &e))
			anchor, err = key.Verify(anchor, e, receipt.Expectation{RequireConfinement: true})
			must(s.t, err)
			end, _ := s.ends.Load(e.SessionID)
			if rec, ok := end.(wire.Session); !ok || seen[e.SessionID] || rec.State != "exited" || rec.Receipt.Sequence != int64(e.Sequence) {
				s.t.Errorf("receipt %d of session %s (again: %v), which is %+v", e.Sequence, e.SessionID, seen[e.SessionID], end)
			}
			seen[e.SessionID] = true
		}
		more = page.HasMore
	}
	return len(seen)
}

// conserved checks, with no gloved left, that nothing is left of any session.
func (s *soak) conserved() {
	s.t.Helper()
	store, err := os.ReadFile(s.vars["STORE"])
	must(s.t, err)
	host, err := cgroup.Detect()
	must(s.t, err)
	defer host.Close()
	prefix := groupPrefix(s.t, store)
	eventually(s.t, func() error {
		var left []string
		groups, err := host.Names(prefix)
		if err != nil {
			return err
		}
		left = append(left, groups...)
		for _, pid := range holders(s.dir) {
			if pid != os.Getpid() {
				left = append(left, fmt.Sprintf("process %d", pid))
			}
		}
		entries, err := os.ReadDir(s.vars["MATERIALIZATIONS"])
		if err != nil {
			return err
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				left = append(left, e.Name())
			}
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		if bytes.Contains(mounts, []byte(s.dir)) {
			left = append(left, "a mount")
		}
		if n := running(s.t, program); n != 0 {
			left = append(left, fmt.Sprintf("%d gloveds", n))
		}
		if len(left) > 0 {
			return fmt.Errorf("left behind: %q", left)
		}
		return nil
	})
	out, err := exec.Command("go", "run", "gloved.dev/cmd/glove", "fsck", "--config", s.config()).CombinedOutput()
	if err != nil || len(out) > 0 {
		s.t.Errorf("glove fsck: %v\n%s", err, out)
	}
}

// groupPrefix is what the names of this site's control groups begin with.
func groupPrefix(t testing.TB, store []byte) string {
	t.Helper()
	const word, digits = "glove-session-", 12
	at := bytes.Index(store, []byte(word))
	if at < 0 || len(store) < at+len(word)+digits+1 {
		t.Fatal("the store names no control group")
	}
	return string(store[at : at+len(word)+digits+1])
}

// config writes a configuration file with this site's options.
func (s *site) config() string {
	s.t.Helper()
	raw, err := json.Marshal(map[string]any{"schema_version": 1, "persistent_service": true, "runtime_directory": s.vars["RUNTIME"],
		"audit_key": s.vars["AUDIT_KEY"], "receipt_journal": s.vars["JOURNAL"], "session_policy": s.vars["POLICY"], "session_store": s.vars["STORE"], "materialization_root": s.vars["MATERIALIZATIONS"]})
	must(s.t, err)
	path := filepath.Join(s.dir, "config.json")
	must(s.t, os.WriteFile(path, raw, 0o600))
	return path
}
