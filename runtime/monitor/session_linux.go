package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/quota"
	"gloved.dev/runtime/sandbox"
	"gloved.dev/runtime/terminal"
)

// A session is the thing a monitor keeps: its resources, its process tree, its
// terminal, and the reason it will end.
//
// Its state moves one way: idle, prepared, launched, running, ended. What moves
// it takes time and is done without mu, one thing at a time (busy), so that
// nobody who asks for the state has to wait for a tree being copied. A start
// that is given up meanwhile is doomed, and undone by whoever is busy.
type session struct {
	spec      Spec
	base      *base
	log       *slog.Logger
	tellEnded func()

	mu     sync.Mutex
	state  string
	owner  *peer // the connection that prepares; its loss before release aborts
	busy   bool
	doomed bool
	cancel context.CancelFunc // of what is busy
	res    *resources
	box    *sandbox.Session
	term   *terminal.Channel
	armed  bool          // all of it is there, and can be ended by force
	forced string        // the first cause that ended the session by force
	over   bool          // the harness is gone: what a watcher finds now came too late
	wall   time.Duration // when the wall clock began, on the boot-time clock
	began  uint64        // the same in Unix milliseconds
	watch  []func()      // stops the watchers
	asked  bool          // stop was called: a kill is no supervisor's error
	result *Outcome

	undoing sync.Once
	begun   chan struct{} // closed when somebody prepares
	ended   chan struct{} // closed with StateEnded
	durable chan struct{} // closed once nothing is left to be written
}

func newSession(spec Spec, base *base, log *slog.Logger) *session {
	return &session{spec: spec, base: base, log: log, state: StateIdle,
		begun: make(chan struct{}), ended: make(chan struct{}), durable: make(chan struct{})}
}

// at marks a crash point of this session.
func (s *session) at(p crashpoint.Point) error {
	return crashpoint.At(filepath.Dir(s.spec.Dir), p)
}

func (s *session) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{State: s.state, Outcome: s.result}
}

// step does one part of the start for its owner: f takes the session from one
// state to the next. If f fails, or the start was given up meanwhile, all of it
// is undone.
func (s *session) step(ctx context.Context, p *peer, from, to string, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	if s.state != from || s.busy || s.doomed || s.owner != p {
		defer s.mu.Unlock()
		return fault(CodeState, "not possible in state %s", s.state)
	}
	s.busy, s.cancel = true, cancel
	s.mu.Unlock()

	err := f(ctx)
	s.mu.Lock()
	s.busy = false
	if err == nil && s.doomed {
		err = fault(CodeGone, "the start was given up")
	}
	if err == nil {
		s.state = to
	}
	s.mu.Unlock()
	if err != nil {
		s.undo()
	}
	return err
}

func (s *session) prepare(ctx context.Context, p *peer, progress func(Progress)) (out Prepared, err error) {
	s.mu.Lock()
	if s.state != StateIdle || isClosed(s.begun) {
		defer s.mu.Unlock()
		return Prepared{}, fault(CodeState, "prepare comes once")
	}
	s.owner = p
	close(s.begun)
	s.mu.Unlock()
	err = s.step(ctx, p, StateIdle, StatePrepared, func(ctx context.Context) error {
		if err := s.at(crashpoint.AcquireReserve); err != nil {
			return atStep("reserve", err)
		}
		res, err := acquire(ctx, &s.spec, s.base, progress, s.log)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.res = res
		s.mu.Unlock()
		if err := s.base.furnish(ctx, res.sandboxConfig(&s.spec)); err != nil {
			return setupFault(err)
		}
		out = res.prepared()
		return nil
	})
	return out, err
}

func (s *session) launch(ctx context.Context, p *peer, profileDigest string) (l Launched, err error) {
	err = s.step(ctx, p, StatePrepared, StateLaunched, func(ctx context.Context) (err error) {
		if err := s.res.reprove(profileDigest, &s.spec); err != nil {
			return err
		}
		if err := s.at(crashpoint.LaunchProven); err != nil {
			return atStep("prove", err)
		}
		l, err = s.start(ctx)
		return err
	})
	return l, err
}

// start builds the process tree up to the blocked child. The wall clock runs
// from before the first process.
func (s *session) start(ctx context.Context) (Launched, error) {
	wall, err := bootTime()
	if err != nil {
		return Launched{}, fault(CodeSetup, "clock: %v", err)
	}
	s.mu.Lock()
	s.wall, s.began = wall, unixMS()
	s.mu.Unlock()
	watched := make(chan error, 1)
	go func() { watched <- s.startWatchers() }()
	box, err := s.base.start(ctx, s.res.sandboxConfig(&s.spec), s.res.group)
	watchErr := <-watched
	if err != nil {
		return Launched{}, setupFault(err)
	}
	s.mu.Lock()
	s.box = box
	s.mu.Unlock()
	if err := s.at(crashpoint.LaunchTree); err != nil {
		box.Terminal().Close()
		return Launched{}, atStep("tree", err)
	}
	id, err := s.base.identity()
	if err != nil {
		box.Terminal().Close()
		return Launched{}, atStep("identify", err)
	}
	if err := s.openTerminal(box.Terminal()); err != nil {
		return Launched{}, atStep("terminal", err)
	}
	if err := s.at(crashpoint.LaunchTerminal); err != nil {
		return Launched{}, atStep("terminal", err)
	}
	if watchErr != nil {
		return Launched{}, atStep("watch", watchErr)
	}
	if err := s.at(crashpoint.LaunchWatched); err != nil {
		return Launched{}, atStep("watch", err)
	}
	s.mu.Lock()
	s.armed = true
	early := s.forced != ""
	s.mu.Unlock()
	if early {
		s.kill()
	}
	return Launched{Process: processID(id)}, nil
}

// openTerminal takes over master, which it closes on an error.
func (s *session) openTerminal(master *os.File) error {
	hold, err := holdPeer(master)
	if err != nil {
		master.Close()
		return err
	}
	if s.spec.Transparent {
		if err := transparent(hold); err != nil {
			hold.Close()
			master.Close()
			return fmt.Errorf("mode: %w", err)
		}
	}
	term, err := terminal.New(master, terminal.Config{
		RingBytes: s.spec.RingBytes, OutputLimit: s.spec.Limits.TerminalOutputBytes,
		Rows: s.spec.Rows, Cols: s.spec.Columns, MaxRead: maxRead, MaxInput: maxWrite, Hold: hold,
		OnLimit: func() { s.force(receipt.CauseTerminalOutputLimit) },
		OnError: func(err error) {
			s.log.Error("terminal", "error", err)
			s.force(receipt.CauseSupervisorError)
		},
	})
	if err != nil {
		return err // both files are closed
	}
	s.mu.Lock()
	s.term = term
	s.mu.Unlock()
	return nil
}

// startWatchers arms everything that can end the session. What a watcher finds before the
// session is launched waits for that.
func (s *session) startWatchers() error {
	stopWall, err := watchWall(time.Duration(s.spec.Limits.WallTimeMS)*time.Millisecond, func() { s.force(receipt.CauseWallTimeLimit) })
	if err != nil {
		return err
	}
	s.watching(stopWall)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := cgroup.Watch(ctx, s.res.group, cgroup.WatchConfig{
		CPULimit: time.Duration(s.spec.Limits.CPUTimeMS) * time.Millisecond,
	}, func(c cgroup.Cause) { s.force(string(c)) })
	if err != nil {
		cancel()
		return err
	}
	s.watching(func() { cancel(); w.Stop() })
	d := quota.Watch(s.res.filesystems, func(f quota.Full) {
		s.log.Info("filesystem full", "partition", f.Alias, "of", f.Reason)
		s.force(receipt.CauseDiskLimit)
	}, func(err error) {
		s.log.Error("filesystem", "error", err)
		s.force(receipt.CauseSupervisorError)
	})
	s.watching(d.Stop)
	return nil
}

func (s *session) watching(stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watch = append(s.watch, stop)
}

// stopWatchers ends all watching; no callback comes after it.
func (s *session) stopWatchers() {
	s.mu.Lock()
	watch := s.watch
	s.watch = nil
	s.mu.Unlock()
	for _, stop := range watch {
		stop()
	}
}

// release lets the harness run. A limit that was met before its first
// instruction has ended it already; that is an end like any other, and has an
// outcome.
func (s *session) release(p *peer) (Status, error) {
	err := s.step(context.Background(), p, StateLaunched, StateRunning, func(context.Context) error {
		if err := s.at(crashpoint.ReleaseBegun); err != nil {
			return atStep("release", err)
		}
		if s.cause() != "" {
			return nil
		}
		if err := s.box.Release(); err != nil && s.cause() == "" {
			return setupFault(err)
		}
		return nil
	})
	if err != nil {
		return Status{}, err
	}
	_ = s.at(crashpoint.ReleaseDone) // nothing can fail here but the process
	go s.wait()
	return Status{State: StateRunning}, nil
}

// cause is the cause that has ended the session by force, or "".
func (s *session) cause() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forced
}

// force ends the session for cause; the first cause wins. What is found after
// the harness has gone by itself comes too late, but for what it had printed.
func (s *session) force(cause string) {
	s.mu.Lock()
	if s.over && cause != receipt.CauseTerminalOutputLimit && cause != receipt.CauseSupervisorError {
		s.mu.Unlock()
		return
	}
	if s.forced == "" {
		s.forced = cause
		s.log.Info("ending the session", "cause", cause)
	}
	armed := s.armed
	s.mu.Unlock()
	if armed { // else it ends as soon as that can be an end like any other
		s.kill()
	}
}

// killAgain is how soon a kill that did not reach everything is repeated.
const killAgain = time.Second

// kill ends every process of the session at once: the PID namespace by its
// init, and, should that not be enough, the control group. A kill that fails is
// a supervisor's error, and repeated until the session is gone.
func (s *session) kill() {
	err := s.killOnce()
	if err == nil {
		return
	}
	s.log.Error("kill", "error", err)
	s.mu.Lock()
	if !s.over {
		s.forced = receipt.CauseSupervisorError
	}
	s.mu.Unlock()
	go func() {
		tick := time.NewTicker(killAgain)
		defer tick.Stop()
		for err != nil {
			select {
			case <-tick.C:
				err = s.killOnce()
			case <-s.ended:
				return
			}
		}
	}()
}

func (s *session) killOnce() error {
	s.mu.Lock()
	box, res := s.box, s.res
	s.mu.Unlock()
	var errs []error
	if box != nil {
		errs = append(errs, box.Kill())
	}
	if res != nil && res.group != nil {
		errs = append(errs, res.group.Kill())
	}
	return errors.Join(errs...)
}

// undo gives back whatever a start that failed, or was given up, has made. It
// returns when all of it is gone, however often it is called.
func (s *session) undo() {
	s.undoing.Do(func() {
		_ = s.at(crashpoint.UndoBegun)
		s.stopWatchers()
		s.mu.Lock()
		box, term, res := s.box, s.term, s.res
		s.mu.Unlock()
		if box != nil {
			_ = box.Kill() // Close reports what matters
		}
		if term != nil {
			_ = term.Close()
		}
		if box != nil {
			if err := box.Close(); err != nil {
				s.log.Error("close", "error", err)
			}
		}
		if res == nil { // what was made ahead is all there is
			res = &resources{log: s.log, base: s.base}
		}
		if left := res.release(s.log); len(left) > 0 {
			s.log.Error("left in quarantine", "what", left)
		}
		_ = s.at(crashpoint.UndoDone)
		s.finish(nil)
		close(s.durable)
	})
}

// finish makes the end visible.
func (s *session) finish(o *Outcome) {
	s.mu.Lock()
	s.state, s.owner, s.result = StateEnded, nil, o
	close(s.ended)
	s.mu.Unlock()
	if s.tellEnded != nil {
		s.tellEnded()
	}
}

// lost is called when a connection is gone, after all its requests have ended.
// What it had begun to start is undone: nobody has a durable record of it
// running.
func (s *session) lost(p *peer) {
	s.mu.Lock()
	mine := s.owner == p && s.state != StateRunning && s.state != StateEnded
	s.mu.Unlock()
	if mine {
		s.log.Warn("gloved was lost before the release; nothing runs")
		_ = s.abandon() // it fails for a running session only
	}
}

// abandon makes an end in whatever state the session is: what was not released
// is undone, what runs must be stopped first.
func (s *session) abandon() error {
	s.mu.Lock()
	if s.state == StateRunning {
		s.mu.Unlock()
		return fault(CodeState, "the session runs; stop it first")
	}
	s.doomed = true
	busy := s.busy
	if busy {
		s.cancel()
	}
	s.mu.Unlock()
	if isClosed(s.ended) {
		return nil
	}
	if busy {
		<-s.ended // whoever is busy undoes it
		return nil
	}
	s.undo()
	return nil
}

// stop asks the harness to end, and ends it after grace. It goes on when the
// caller is gone: what was asked for happens.
func (s *session) stop(ctx context.Context, grace time.Duration) (Status, error) {
	s.mu.Lock()
	state := s.state
	first := !s.asked && state == StateRunning
	s.asked = s.asked || first
	s.mu.Unlock()
	switch state {
	case StateEnded:
		return s.status(), nil
	case StateRunning:
	default:
		return Status{}, fault(CodeState, "stop in state %s", state)
	}
	grace = min(max(grace, 0), maxGrace)
	if first && grace > 0 {
		if err := s.box.Signal(sigTerm); err != nil && !errors.Is(err, os.ErrProcessDone) {
			s.log.Warn("terminate", "error", err)
		}
	}
	go func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-s.ended:
		case <-timer.C:
			s.kill()
		}
	}()
	select {
	case <-s.ended:
		return s.status(), nil
	case <-ctx.Done():
		return Status{}, ctx.Err()
	}
}

// end stops the session for a monitor that must go.
func (s *session) end() {
	if _, err := s.stop(context.Background(), DefaultGrace); err != nil {
		_ = s.abandon() // it cannot be running: stop would have waited
	}
}

// holdPeer opens the other side of a PTY by its master (TIOCGPTPEER, Linux
// 4.13), whichever devpts it lives on.
func holdPeer(master *os.File) (*os.File, error) {
	conn, err := master.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd uintptr
	var errno unix.Errno
	if err := conn.Control(func(m uintptr) {
		fd, _, errno = unix.Syscall(unix.SYS_IOCTL, m, unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	}); err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, os.NewSyscallError("TIOCGPTPEER", errno)
	}
	return os.NewFile(fd, "terminal"), nil
}

func unixMS() uint64 { return uint64(time.Now().UnixMilli()) }

// bootTime is the time since boot, suspension included: what the wall limit
// counts in.
func bootTime() (time.Duration, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, os.NewSyscallError("clock_gettime", err)
	}
	return time.Duration(t.Nano()), nil
}
