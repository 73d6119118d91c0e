package sandbox

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hostState is what a start could leave behind in the process that made it.
type hostState struct {
	mounts   string
	fds      int
	children string
}

func observe(t testing.TB) hostState {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var children strings.Builder
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		list, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		if err == nil { // a thread may just have ended
			children.Write(list)
		}
	}
	return hostState{string(mounts), len(fds), children.String()}
}

// failing runs a start that must fail at step and checks that nothing is left.
func failing(t *testing.T, c Config, h Hooks, step string) *StepError {
	t.Helper()
	s, err := Start(t.Context(), c, h)
	if err == nil {
		s.Terminal().Close()
		s.Close()
		t.Fatalf("Start succeeded, want a failure at %q", step)
	}
	se, ok := errors.AsType[*StepError](err)
	if !ok || se.Step != step {
		t.Fatalf("Start = %v, want a StepError at %q", err, step)
	}
	return se
}

func TestEveryStepFailsClean(t *testing.T) {
	needRoom(t)
	// Warm what is made once per process, so that it does not count as a leak.
	run(t, shell(t, "exit 0"))
	for _, step := range Steps() {
		if step == stepConfig || step == stepExecutable {
			continue // fail before anything exists; TestConfigRefused, TestSealedExe
		}
		if step == stepExec {
			continue // after Start; TestExecFails
		}
		t.Run(step, func(t *testing.T) {
			c := shell(t, "exit 0")
			c.knobs.FailStep = step
			before := observe(t)
			se := failing(t, c, Hooks{}, step)
			if se.Errno != syscall.EIO || se.Detail != "injected" {
				t.Errorf("error = %+v, want the injected EIO", se)
			}
			if after := observe(t); after != before {
				t.Errorf("left behind:\nbefore %+v\nafter  %+v", before, after)
			}
		})
	}
}

func TestHangingStepTimesOut(t *testing.T) {
	needRoom(t)
	run(t, shell(t, "exit 0"))
	for _, step := range []string{stepSystem, stepLaunch, stepFilter} {
		t.Run(step, func(t *testing.T) {
			c := shell(t, "exit 0")
			c.knobs.HangStep = step
			c.SetupTimeout = 300 * time.Millisecond
			before := observe(t)
			_, err := Start(t.Context(), c, Hooks{})
			if !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("Start = %v, want ETIMEDOUT", err)
			}
			if after := observe(t); after != before {
				t.Errorf("left behind:\nbefore %+v\nafter  %+v", before, after)
			}
		})
	}
}

func TestCancelledStart(t *testing.T) {
	needRoom(t)
	c := shell(t, "exit 0")
	c.knobs.HangStep = stepFilter
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Start(ctx, c, Hooks{Placed: func(Process) error { cancel(); return nil }})
	if !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("Start = %v, want ECANCELED", err)
	}
}

func TestPlacedHook(t *testing.T) {
	needRoom(t)
	var seen Process
	c := shell(t, "exit 0")
	failing(t, c, Hooks{Placed: func(p Process) error { seen = p; return errors.New("no cgroup") }}, stepPlace)
	if seen.PID <= 1 || seen.PidFD == nil || seen.StartTicks == 0 {
		t.Errorf("hook saw %+v", seen)
	}
}

// TestProbeAborts leaves the filter out: the self-probe must notice.
func TestProbeAborts(t *testing.T) {
	needRoom(t)
	c := shell(t, "exit 0")
	c.knobs.NoFilter = true
	se := failing(t, c, Hooks{}, stepProbe)
	if name, _, _ := strings.Cut(se.Detail, ":"); name != "trace_process" {
		t.Errorf("detail = %q, want the first act that only the filter refuses", se.Detail)
	}
}

func TestExecFails(t *testing.T) {
	needRoom(t)
	for _, row := range []struct {
		path string
		want syscall.Errno
	}{
		{"/usr/bin/no-such-program", syscall.ENOENT},
		{"/etc/passwd", syscall.EACCES},
		{"/usr", syscall.EACCES},
	} {
		s := start(t, config(t, row.path))
		err := s.Release()
		se, ok := errors.AsType[*StepError](err)
		if !ok || se.Step != stepExec || se.Errno != row.want {
			t.Errorf("%s: Release = %v, want exec %v", row.path, err, row.want)
		}
		if again := s.Release(); again != err {
			t.Errorf("%s: second Release = %v", row.path, again)
		}
	}
}

func TestMissingWorkDir(t *testing.T) {
	needRoom(t)
	c := shell(t, "exit 0")
	c.WorkDir = "/workspace"
	if se := failing(t, c, Hooks{}, stepWorkDir); se.Errno != syscall.ENOENT || se.Detail != "/workspace" {
		t.Errorf("error = %+v", se)
	}
}

// TestSurvivesStartingThread starts a session from a thread that then ends
// (golang/go#27505): the session must live on.
func TestSurvivesStartingThread(t *testing.T) {
	needRoom(t)
	c := shell(t, "read line; exit 5")
	result := make(chan *Session, 1)
	tid := make(chan int, 1)
	release := make(chan struct{})
	defer close(release)
	attempt := func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// The main thread never ends; occupy it and let another start.
			go func() { tid <- 0 }()
			<-release
			return
		}
		tid <- unix.Gettid()
		s, err := Start(t.Context(), c, Hooks{})
		if err != nil {
			t.Errorf("Start: %v", err)
		}
		result <- s
	}
	go attempt()
	thread := <-tid
	if thread == 0 {
		go attempt()
		thread = <-tid
	}
	s := <-result
	if s == nil {
		t.FailNow()
	}
	defer s.Close()
	for unix.Tgkill(os.Getpid(), thread, 0) == nil {
		runtime.Gosched() // until the kernel says that the thread is gone
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Terminal().WriteString("x\n"); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, s); exit != (Exit{Code: 5}) {
		t.Errorf("exit = %+v, want code 5", exit)
	}
	s.Terminal().Close()
}

// TestKilledCaller kills a process that holds a session: nothing may survive.
func TestKilledCaller(t *testing.T) {
	needRoom(t)
	exe, err := SealedExe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(fdPath(int(exe.Fd())))
	cmd.Env = append(os.Environ(), helperEnv+"="+partHolder)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("holder: %v", err)
	}
	var fds []int
	for _, field := range strings.Fields(line) {
		pid := 0
		for _, d := range field {
			pid = pid*10 + int(d-'0')
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			t.Fatalf("holder said %q: %v", line, err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed, which is the point
	for _, fd := range fds {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 10000)
		for err == unix.EINTR {
			n, err = unix.Poll(poll, 10000)
		}
		if err != nil || n != 1 {
			t.Errorf("a process of the session survived its caller (poll %d, %v)", n, err)
		}
	}
}

func TestKillAndSignal(t *testing.T) {
	needRoom(t)
	s := start(t, shell(t, "trap 'exit 9' TERM; echo ready; while :; do sleep 0.01; done"))
	lines := bufio.NewReader(s.Terminal())
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
		t.Fatalf("first line %q, %v", line, err)
	}
	if err := s.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, s); exit != (Exit{Code: 9}) {
		t.Errorf("exit after TERM = %+v, want 9", exit)
	}
	if err := s.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal after the end = %v", err)
	}
	if err := s.Kill(); err != nil {
		t.Errorf("Kill after the end = %v", err)
	}

	s = start(t, shell(t, "trap '' TERM; setsid sleep 1000 & sleep 1000"))
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if exit := wait(t, s); !exit.InitDied || exit.Code != -1 {
		t.Errorf("exit after Kill = %+v, want InitDied", exit)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestNothingLeftAfterMany(t *testing.T) {
	needRoom(t)
	run(t, shell(t, "exit 0"))
	before := observe(t)
	for i := range 12 {
		c := shell(t, "setsid sleep 1000 & exit 0")
		s, err := Start(t.Context(), c, Hooks{})
		if err != nil {
			t.Fatal(err)
		}
		out := drain(s)
		if i%3 != 0 {
			if err := s.Release(); err != nil {
				t.Fatal(err)
			}
		}
		if i%3 == 1 {
			wait(t, s)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		<-out
		s.Terminal().Close()
		for _, m := range c.Mounts {
			m.FD.Close()
		}
	}
	if after := observe(t); after != before {
		t.Errorf("left behind:\nbefore %+v\nafter  %+v", before, after)
	}
}
