package cgroup

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gloved.dev/internal/require"
	"golang.org/x/sys/unix"
)

// helperEnv makes the test binary play a session's process instead of testing.
const helperEnv = "GLOVE_CGROUP_HELPER"

var helpers = map[string]func() int{
	"sleep":      helperSleep,
	"hog":        helperHog,
	"bomb":       helperBomb,
	"spin":       helperSpin,
	"stopped":    helperStopped,
	"doublefork": helperDoubleFork,
	"family":     helperFamily,
	"lazy":       helperLazy,
	"creator":    helperCreator,
	"delegate":   helperDelegate,
}

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		f, ok := helpers[name]
		if !ok {
			fmt.Fprintln(os.Stderr, "no such helper:", name)
			os.Exit(99)
		}
		os.Exit(f())
	}
	os.Exit(m.Run())
}

// await blocks until the parent closes or writes to our input: by then it has put
// us into the group.
func await() { _, _ = os.Stdin.Read(make([]byte, 1)) }

func say(words ...any) { fmt.Println(words...) }

func forever() int {
	for {
		time.Sleep(time.Hour)
	}
}

func helperSleep() int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	await()
	say("ready")
	return forever()
}

// helperHog takes memory in a child of its own, so that the test sees whether the
// rest of the group dies too.
func helperHog() int {
	await()
	if os.Getenv("GLOVE_HOG") == "" {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLOVE_HOG=1")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			return 1
		}
		say("ready")
		return forever()
	}
	var keep [][]byte
	for {
		b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return 2
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
		_ = keep
	}
}

// helperBomb starts copies of itself for ever.
func helperBomb() int {
	if os.Getenv("GLOVE_BOMB") == "" {
		await()
		os.Setenv("GLOVE_BOMB", "1")
	}
	for {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = os.Environ()
		if cmd.Start() != nil {
			<-time.After(time.Millisecond) // the fork was refused; go on, but do not burn the core
		}
	}
}

func helperSpin() int {
	await()
	for range 4 {
		go func() {
			for { //nolint:staticcheck // burning the core is the point
			}
		}()
	}
	for { //nolint:staticcheck // burning the core is the point
	}
}

func helperStopped() int {
	await()
	say("ready")
	_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	return forever()
}

// helperDoubleFork leaves a grandchild in a session of its own and ends.
func helperDoubleFork() int {
	await()
	switch os.Getenv("GLOVE_GENERATION") {
	case "":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLOVE_GENERATION=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stdout = os.Stdout
		if cmd.Run() != nil {
			return 1
		}
		return 0
	case "1":
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), "GLOVE_GENERATION=2")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Stdout = os.Stdout
		if cmd.Start() != nil {
			return 1
		}
		return 0
	}
	say("ready", os.Getpid())
	return forever()
}

// helperFamily keeps a few children and grandchildren around.
func helperFamily() int {
	n, _ := strconv.Atoi(os.Getenv("GLOVE_DEPTH"))
	if n == 0 {
		await()
	}
	if n < 3 {
		for range 2 {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), "GLOVE_DEPTH="+strconv.Itoa(n+1))
			cmd.Stdout = os.Stdout
			if cmd.Start() != nil {
				return 1
			}
		}
	}
	if n == 3 {
		say("leaf")
	}
	return forever()
}

// helperLazy uses far more than the limit, but gives each piece up for reclaim.
func helperLazy() int {
	await()
	for range 32 {
		b, err := unix.Mmap(-1, 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return 1
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		if err := unix.Madvise(b, unix.MADV_FREE); err != nil {
			return 2
		}
	}
	say("done")
	return forever()
}

// spawn starts a blocked helper from within a helper.
func spawn(name string) (*exec.Cmd, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperEnv + "=" + name}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	_ = in // the helper stays blocked until it is killed
	return cmd, cmd.Start()
}

// child is a helper process that the test has started and will reap.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a helper, blocked before its first act.
func start(t *testing.T, name string, env ...string) *child {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append([]string{helperEnv + "=" + name, "GOMAXPROCS=8"}, env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	c := &child{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

func (c *child) release() { c.in.Close() }

// line waits for one line of the helper's output.
func (c *child) line() string {
	c.t.Helper()
	s, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatalf("helper output ended: %v", err)
	}
	return strings.TrimSuffix(s, "\n")
}

// signalled waits for the helper's end and returns the signal that ended it.
func (c *child) signalled() syscall.Signal {
	c.t.Helper()
	_ = c.cmd.Wait()
	ws, ok := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() {
		return 0
	}
	return ws.Signal()
}

// host detects for a test, which needs root, and releases at its end.
func host(t *testing.T) *Host {
	t.Helper()
	require.Root(t)
	h, err := Detect()
	if err != nil {
		t.Fatalf("Detect: %v", err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return h
}

var wide = Limits{MemoryBytes: 512 << 20, PIDs: 200}

var serial int

// group makes a group for a test and sees to its end.
func group(t *testing.T, h *Host, lim Limits) *Group {
	t.Helper()
	serial++
	g, err := h.Create(fmt.Sprintf("glove-test-%d-%d", os.Getpid(), serial), lim)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if _, err := g.Usage(); isClosed(err) {
			return
		}
		if err := g.Destroy(context.Background()); err != nil {
			t.Errorf("Destroy: %v", err)
		}
		g.Close()
	})
	return g
}

func isClosed(err error) bool {
	e, ok := err.(*Error)
	return ok && e.Code == CodeClosed
}

// run starts a helper inside g and lets it go.
func run(t *testing.T, g *Group, name string, env ...string) *child {
	t.Helper()
	c := start(t, name, env...)
	if err := g.Add(c.pid()); err != nil {
		t.Fatalf("Add: %v", err)
	}
	c.release()
	return c
}

// eventually polls a condition about another process until it holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !cond() {
		if !sleep(ctx, time.Millisecond) {
			t.Fatalf("never: %s", what)
		}
	}
}

func mustUsage(t *testing.T, g *Group) Usage {
	t.Helper()
	u, err := g.Usage()
	if err != nil {
		t.Fatalf("Usage: %v", err)
	}
	return u
}
