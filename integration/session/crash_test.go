package session

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/monitor"
)

// resident starts a gloved with a socket and returns it when it serves.
func (s *site) resident() *exec.Cmd {
	s.t.Helper()
	args := s.args("--runtime-dir", s.vars["RUNTIME"])
	cmd := exec.Command(args[0], args[1:]...)
	stderr, err := cmd.StderrPipe()
	must(s.t, err)
	must(s.t, cmd.Start())
	lines := bufio.NewScanner(stderr)
	var said strings.Builder
	for lines.Scan() {
		said.WriteString(lines.Text() + "\n")
		if strings.Contains(lines.Text(), `"msg":"serving"`) {
			go func() {
				for lines.Scan() { // so that it never waits for us
				}
			}()
			s.t.Cleanup(func() {
				_ = cmd.Process.Signal(os.Interrupt) // it may have been killed
				_ = cmd.Wait()
			})
			return cmd
		}
	}
	s.t.Fatalf("gloved did not serve: %s", said.String())
	return nil
}

func (s *site) dial(o client.Options) *client.Client {
	s.t.Helper()
	c, err := client.DialRuntimeDir(s.ctx(30*time.Second), s.vars["RUNTIME"], o)
	must(s.t, err)
	s.t.Cleanup(func() { c.Close() })
	return c
}

// A follower collects what a followed session prints.
type follower struct {
	mu        sync.Mutex
	out       []byte
	cursor    int64
	truncated bool
	grown     chan struct{}
	ended     chan wire.SessionEndedParams
	hold      chan struct{} // while open, the notes are not taken
	c         *client.Client
}

func newFollower() *follower {
	return &follower{grown: make(chan struct{}, 1), ended: make(chan wire.SessionEndedParams, 1)}
}

func (f *follower) note(n client.Note) {
	if f.hold != nil {
		<-f.hold
	}
	switch n.Method {
	case wire.NotifySessionOutput:
		var p wire.SessionOutputParams
		if json.Unmarshal(n.Params, &p) != nil {
			return
		}
		f.mu.Lock()
		f.out = append(f.out, p.Data...)
		f.cursor = p.Cursor + int64(len(p.Data))
		f.truncated = f.truncated || p.Truncated
		cursor := f.cursor
		f.mu.Unlock()
		_ = f.c.AttachCredit(context.Background(), p.SessionID, cursor)
		select {
		case f.grown <- struct{}{}:
		default:
		}
	case wire.NotifySessionEnded:
		var p wire.SessionEndedParams
		if json.Unmarshal(n.Params, &p) == nil {
			f.ended <- p
		}
	}
}

func (f *follower) follow(t testing.TB, c *client.Client, id string, cursor int64) {
	t.Helper()
	f.c = c
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := c.Attach(ctx, &wire.AttachParams{SessionID: id, Cursor: cursor, MaxBytes: 1, Follow: true})
	must(t, err)
	f.mu.Lock()
	f.out = append(append([]byte{}, r.Data...), f.out...)
	f.mu.Unlock()
}

func (f *follower) end(t testing.TB) wire.SessionEndedParams {
	t.Helper()
	select {
	case e := <-f.ended:
		return e
	case <-time.After(60 * time.Second):
		t.Fatal("no end was told")
		return wire.SessionEndedParams{}
	}
}

// TestKillWhileAttached kills gloved while a client follows a session that
// prints: the session goes on, and the client's reattach misses no byte.
func TestKillWhileAttached(t *testing.T) {
	const lines = 300
	s := newSite(t, fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo line $i; i=$((i+1)); sleep 0.005; done; read l; echo last; exit 3", lines))
	first := s.resident()
	c := s.dial(client.Options{})
	s.trust(c)
	s.start(c, "s-1")
	f := newFollower()
	watcher := s.dial(client.Options{OnNote: f.note})
	f.follow(t, watcher, "s-1", 0)
	for n := 0; n < 500; {
		<-f.grown
		f.mu.Lock()
		n = len(f.out)
		f.mu.Unlock()
	}
	must(t, first.Process.Kill())
	<-watcher.Done()
	<-c.Done()
	_ = first.Wait()

	s.resident()
	g := newFollower()
	again := s.dial(client.Options{OnNote: g.note})
	f.mu.Lock()
	seen, at := string(f.out), f.cursor
	f.mu.Unlock()
	g.follow(t, again, "s-1", at)
	_, err := again.WriteStdin(s.ctx(10*time.Second), "s-1", []byte("\n"))
	must(t, err)
	s.trust(again) // its end needs the receipts
	e := g.end(t)
	status, err := again.SessionStatus(s.ctx(10*time.Second), "s-1")
	must(t, err)
	if e.State != "exited" || e.ExitCode == nil || *e.ExitCode != 3 || status.State != "exited" || status.Receipt == nil || status.Receipt.Sequence != 1 {
		t.Errorf("told %+v, on record %+v", e, status)
	}
	var want strings.Builder
	for i := range lines {
		fmt.Fprintf(&want, "line %d\r\n", i)
	}
	got := strings.Replace(seen+string(g.out), "\r\n\r\n", "\r\n", 1) // the echo of the input, wherever it fell
	if got != want.String()+"last\r\n" || g.truncated {
		t.Errorf("read %d bytes, %d expected, truncated %v", len(got), want.Len()+6, g.truncated)
	}
	saved, _ := s.until(again, "s-1", 0, "last\r\n")
	if saved != seen+string(g.out) {
		t.Error("the saved transcript differs from what was followed")
	}
	s.left(again, "s-1")
}

// left cleans a session up and checks that nothing of it is left.
func (s *site) left(c *client.Client, id string) {
	s.t.Helper()
	if _, err := c.CleanupSession(s.ctx(10*time.Second), id, client.WithKey(s.key("clean"))); err != nil {
		s.t.Error(err)
	}
	entries, err := os.ReadDir(s.vars["MATERIALIZATIONS"])
	must(s.t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), monitor.GroundPrefix) { // a spare's, as long as it lives
			if alive, err := monitor.Alive(filepath.Join(s.vars["MATERIALIZATIONS"], e.Name())); err == nil && alive {
				continue
			}
		}
		if !strings.HasPrefix(e.Name(), ".") {
			s.t.Errorf("left behind: %s", e.Name())
		}
	}
}

// TestClientThatNeverReads has a follower that takes nothing while a session
// prints much (trap D9): the session and another follower do not wait for it,
// and when it reads again it is told what it missed.
func TestClientThatNeverReads(t *testing.T) {
	const volume = 64 << 20
	s := newSite(t, fmt.Sprintf("read l; head -c %d /dev/zero; echo end", volume))
	s.resident()
	quick := newFollower()
	c := s.dial(client.Options{OnNote: quick.note})
	s.trust(c)
	s.start(c, "s-1")
	slow := newFollower()
	slow.hold = make(chan struct{})
	lazy := s.dial(client.Options{OnNote: slow.note})
	slow.follow(t, lazy, "s-1", 0)
	quick.follow(t, c, "s-1", 0)
	_, err := c.WriteStdin(s.ctx(10*time.Second), "s-1", []byte("\n"))
	must(t, err)
	if e := quick.end(t); e.State != "exited" || !strings.HasSuffix(string(quick.out), "end\r\n") || e.Cursor < volume {
		t.Errorf("the quick one got %d bytes and %+v", len(quick.out), e)
	}
	close(slow.hold)
	if e := slow.end(t); e.State != "exited" || !strings.HasSuffix(string(slow.out), "end\r\n") || !slow.truncated {
		t.Errorf("the slow one got %d bytes, truncated %v, and %+v", len(slow.out), slow.truncated, e)
	}
	if len(slow.out) > volume/2 {
		t.Errorf("%d bytes were kept for the slow one", len(slow.out))
	}
	s.left(c, "s-1")
}

// TestManyConnections comes and goes a hundred times over standard input and
// output, with a session that runs throughout: nothing piles up.
func TestManyConnections(t *testing.T) {
	count := 100
	if testing.Short() {
		count = 20
	}
	s := newSite(t, "echo up; read l; echo got $l")
	c := s.stdio(client.Options{})
	s.trust(c)
	s.start(c, "s-1")
	s.until(c, "s-1", 0, "up\r\n")
	must(t, c.Close())
	pid := s.monitorPID("s-1")
	before, own := descriptors(t, pid), descriptors(t, os.Getpid())
	for i := range count {
		c := s.stdio(client.Options{})
		if out, _ := s.until(c, "s-1", 0, "up\r\n"); out != "up\r\n" {
			t.Fatalf("connection %d read %q", i, out)
		}
		if i%2 == 0 {
			s.trust(c)
		}
		must(t, c.Close())
	}
	eventually(t, func() error {
		if n := running(t, program); n != 0 {
			return fmt.Errorf("%d gloveds are left", n)
		}
		if now := descriptors(t, pid); now > before {
			return fmt.Errorf("the monitor has %d descriptors, had %d", now, before)
		}
		if now := descriptors(t, os.Getpid()); now > own {
			return fmt.Errorf("we have %d descriptors, had %d", now, own)
		}
		return nil
	})
	c = s.stdio(client.Options{})
	s.trust(c)
	_, err := c.WriteStdin(s.ctx(10*time.Second), "s-1", []byte("x\n"))
	must(t, err)
	s.until(c, "s-1", 4, "got x\r\n")
	if rec := s.exited(c, "s-1"); rec.ExitCode == nil || *rec.ExitCode != 0 {
		t.Errorf("the end is %+v", rec)
	}
	s.left(c, "s-1")
}

// monitorPID finds a session's monitor by the lock it holds.
func (s *site) monitorPID(id string) int {
	s.t.Helper()
	paths, err := filepath.Glob(filepath.Join(s.vars["MATERIALIZATIONS"], "*-"+id, monitor.LockName))
	if err != nil || len(paths) != 1 {
		s.t.Fatalf("locks %v, %v", paths, err)
	}
	st, err := os.Stat(paths[0])
	must(s.t, err)
	locks, err := os.ReadFile("/proc/locks")
	must(s.t, err)
	for line := range strings.Lines(string(locks)) {
		if strings.Contains(line, fmt.Sprintf(":%d 0 EOF", st.Sys().(*syscall.Stat_t).Ino)) {
			pid, err := strconv.Atoi(strings.Fields(line)[4])
			must(s.t, err)
			return pid
		}
	}
	s.t.Fatal("nobody holds the lock")
	return 0
}

func descriptors(t testing.TB, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	return len(list)
}

// running counts the processes that run the file.
func running(t testing.TB, file string) (n int) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/exe")
	must(t, err)
	for _, p := range paths {
		if target, err := os.Readlink(p); err == nil && target == file {
			n++
		}
	}
	return n
}

func eventually(t testing.TB, check func() error) {
	t.Helper()
	deadline := time.After(15 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
