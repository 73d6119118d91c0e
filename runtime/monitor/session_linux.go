package monitor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/quota"
	"gloved.dev/runtime/sandbox"
	"gloved.dev/runtime/terminal"
)

const (
	// drainBound is how long the terminal may go on giving output after its
	// last process is gone; the kernel's buffer needs microseconds.
	drainBound = 2 * time.Second
	// maxRead and maxWrite bound one transcript read and one input write.
	maxRead  = 512 << 10
	maxWrite = 64 << 10
	// maxWait bounds how long one read waits for output.
	maxWait = 30 * time.Second
	// maxGrace bounds how long stop waits between TERM and KILL.
	maxGrace = 60 * time.Second
)

// A session is the thing a monitor keeps: its resources, its process tree, its
// terminal, and the reason it will end.
type session struct {
	spec Spec
	log  *slog.Logger

	mu     sync.Mutex
	state  string
	owner  *peer // the connection that prepares; its loss before release aborts
	res    *resources
	box    *sandbox.Session
	term   *terminal.Channel
	forced string    // the first cause that ended the session by force
	wall   time.Time // when the wall clock began, monotonic
	began  uint64    // the same in Unix milliseconds
	watch  []func()  // stops the watchers
	asked  bool      // stop was called: a kill is no supervisor's error
	begun  chan struct{}
	ended  chan struct{}
	result *Outcome

	tellEnded func()
}

func newSession(spec Spec, log *slog.Logger) *session {
	return &session{spec: spec, log: log, state: StateIdle,
		begun: make(chan struct{}), ended: make(chan struct{})}
}

func (s *session) status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Status{State: s.state, Outcome: s.result}
}

func (s *session) prepare(ctx context.Context, p *peer, progress func(Progress)) (Prepared, error) {
	s.mu.Lock()
	select {
	case <-s.begun:
		defer s.mu.Unlock()
		return Prepared{}, fault(CodeState, "prepare comes once")
	default:
	}
	if s.state != StateIdle {
		defer s.mu.Unlock()
		return Prepared{}, fault(CodeState, "prepare in state %s", s.state)
	}
	s.owner = p
	close(s.begun)
	s.mu.Unlock()

	res, err := acquire(ctx, &s.spec, progress, s.log)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.owner != p { // the connection went away meanwhile
		res.release(s.log)
		err = fault(CodeGone, "the connection was lost while preparing")
	}
	if err != nil {
		return Prepared{}, err
	}
	s.res, s.state = res, StatePrepared
	return res.prepared(), nil
}

func (s *session) launch(ctx context.Context, p *peer, profileDigest string) (Launched, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StatePrepared || s.owner != p {
		return Launched{}, fault(CodeState, "launch in state %s", s.state)
	}
	if err := s.res.reprove(profileDigest, &s.spec); err != nil {
		return Launched{}, err
	}
	s.wall, s.began = time.Now(), unixMS()
	l, err := s.start(ctx)
	if err != nil {
		s.tearDown()
		return Launched{}, err
	}
	s.state = StateLaunched
	return l, nil
}

// start builds the process tree up to the blocked child. Called with mu held.
func (s *session) start(ctx context.Context) (Launched, error) {
	box, err := sandbox.Start(ctx, s.res.sandboxConfig(&s.spec), sandbox.Hooks{
		Placed: func(p sandbox.Process) error { return s.res.group.Add(p.PID) },
	})
	if err != nil {
		return Launched{}, setupFault(err)
	}
	s.box = box
	id, err := cgroup.Identify(box.Launch().PID)
	if err != nil {
		return Launched{}, fault(CodeSetup, "identify: %v", err)
	}
	hold, err := holdPeer(box.Terminal())
	if err != nil {
		return Launched{}, fault(CodeSetup, "terminal peer: %v", err)
	}
	if s.spec.Transparent {
		if err := transparent(hold); err != nil {
			hold.Close()
			return Launched{}, fault(CodeSetup, "terminal mode: %v", err)
		}
	}
	term, err := terminal.New(box.Terminal(), terminal.Config{
		RingBytes: s.spec.RingBytes, OutputLimit: s.spec.Limits.TerminalOutputBytes,
		Rows: s.spec.Rows, Cols: s.spec.Columns, MaxRead: maxRead, MaxInput: maxWrite, Hold: hold,
		OnLimit: func() { s.force(receipt.CauseTerminalOutputLimit) },
		OnError: func(err error) {
			s.log.Error("terminal", "error", err)
			s.force(receipt.CauseSupervisorError)
		},
	})
	if err != nil {
		return Launched{}, fault(CodeSetup, "terminal: %v", err)
	}
	s.term = term
	if err := s.startWatchers(); err != nil {
		return Launched{}, fault(CodeSetup, "watch: %v", err)
	}
	return Launched{Process: processID(id)}, nil
}

// startWatchers arms everything that can end the session. Called with mu held;
// the callbacks take it later, from goroutines of their own.
func (s *session) startWatchers() error {
	stopWall, err := watchWall(time.Duration(s.spec.Limits.WallTimeMS)*time.Millisecond, func() { s.force(receipt.CauseWallTimeLimit) })
	if err != nil {
		return err
	}
	s.watch = append(s.watch, stopWall)
	ctx, cancel := context.WithCancel(context.Background())
	w, err := cgroup.Watch(ctx, s.res.group, cgroup.WatchConfig{
		CPULimit: time.Duration(s.spec.Limits.CPUTimeMS) * time.Millisecond,
	}, func(c cgroup.Cause) { s.force(string(c)) })
	if err != nil {
		cancel()
		return err
	}
	s.watch = append(s.watch, func() { cancel(); w.Stop() })
	d := quota.Watch(s.res.filesystems, func(f quota.Full) {
		s.log.Info("filesystem full", "partition", f.Alias, "of", f.Reason)
		s.force(receipt.CauseDiskLimit)
	}, func(err error) {
		s.log.Error("filesystem", "error", err)
		s.force(receipt.CauseSupervisorError)
	})
	s.watch = append(s.watch, d.Stop)
	return nil
}

// force ends the session for cause; the first cause wins.
func (s *session) force(cause string) {
	s.mu.Lock()
	if s.forced == "" {
		s.forced = cause
		s.log.Info("ending the session", "cause", cause)
	}
	s.mu.Unlock()
	s.kill()
}

// kill ends every process of the session at once: the PID namespace by its
// init, and, should that not be enough, the control group.
func (s *session) kill() {
	err := s.box.Kill()
	if err2 := s.res.group.Kill(); err2 != nil || err != nil {
		s.log.Error("kill", "error", errors.Join(err, err2))
		s.mu.Lock()
		s.forced = receipt.CauseSupervisorError
		s.mu.Unlock()
	}
}

func (s *session) release(p *peer) (Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != StateLaunched || s.owner != p {
		return Status{}, fault(CodeState, "release in state %s", s.state)
	}
	if err := s.box.Release(); err != nil {
		s.tearDown()
		return Status{}, setupFault(err)
	}
	s.state, s.owner = StateRunning, nil
	go s.wait()
	return Status{State: s.state}, nil
}

// wait follows the harness to its end and makes the end durable.
func (s *session) wait() {
	exit, err := s.box.Wait(context.Background())
	finished := time.Now()
	s.kill() // what it left behind ends with it
	ctx, cancel := context.WithTimeout(context.Background(), drainBound)
	defer cancel()
	s.term.FinishDrain(ctx)
	for _, stop := range s.watch {
		stop()
	}
	s.mu.Lock()
	o := s.outcome(exit, err, finished)
	s.mu.Unlock()
	s.conclude(o)
}

// conclude writes the outcome, frees the resources and tells everybody.
func (s *session) conclude(o *Outcome) {
	oldest, data, err := s.retained()
	if err == nil {
		err = writeTranscript(s.spec.Dir, oldest, data)
	}
	if err == nil {
		err = writeOutcome(s.spec.Dir, s.spec.Key, o)
	}
	if err != nil {
		s.log.Error("outcome", "error", err)
	}
	if left := s.res.release(s.log); len(left) > 0 {
		o.Quarantined = left
		if err := writeOutcome(s.spec.Dir, s.spec.Key, o); err != nil {
			s.log.Error("outcome", "error", err)
		}
	}
	if err := s.box.Close(); err != nil {
		s.log.Error("close", "error", err)
	}
	s.mu.Lock()
	s.result, s.state = o, StateEnded
	close(s.ended)
	s.mu.Unlock()
	if s.tellEnded != nil {
		s.tellEnded()
	}
}

// retained collects what the ring still holds. The stream has ended, so that
// nothing is evicted meanwhile.
func (s *session) retained() (oldest uint64, data []byte, err error) {
	c, err := s.term.Read(0, maxRead)
	oldest, data = c.Next-uint64(len(c.Data)), c.Data
	for err == nil && len(c.Data) > 0 {
		c, err = s.term.Read(c.Next, maxRead)
		data = append(data, c.Data...)
	}
	return oldest, data, err
}

// tearDown undoes a start that failed. Called with mu held.
func (s *session) tearDown() {
	for _, stop := range s.watch {
		go stop() // a callback may be waiting for mu
	}
	s.watch = nil
	if s.box != nil {
		_ = s.box.Kill() // Close reports what matters
		if s.term != nil {
			_ = s.term.Close()
		}
		if err := s.box.Close(); err != nil {
			s.log.Error("close", "error", err)
		}
	}
	if s.res != nil {
		if left := s.res.release(s.log); len(left) > 0 {
			s.log.Error("left in quarantine", "what", left)
		}
	}
	s.state, s.owner = StateEnded, nil
	close(s.ended)
	if s.tellEnded != nil {
		go s.tellEnded()
	}
}

// lost is called when a connection is gone.
func (s *session) lost(p *peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owner != p {
		return
	}
	s.owner = nil
	switch s.state {
	case StateIdle, StatePrepared, StateLaunched:
		s.log.Warn("gloved was lost before the release; nothing runs", "state", s.state)
		s.tearDown()
	}
}

// abandon makes an end in whatever state the session is: what was not released
// is undone, what runs must be stopped first.
func (s *session) abandon() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state {
	case StateRunning:
		return fault(CodeState, "the session runs; stop it first")
	case StateEnded:
		return nil
	}
	s.tearDown()
	return nil
}

// stop asks the harness to end, and ends it after grace.
func (s *session) stop(ctx context.Context, grace time.Duration) (Status, error) {
	s.mu.Lock()
	state := s.state
	s.asked = s.asked || state == StateRunning
	s.mu.Unlock()
	switch state {
	case StateEnded:
		return s.status(), nil
	case StateRunning:
	default:
		return Status{}, fault(CodeState, "stop in state %s", state)
	}
	if grace = min(grace, maxGrace); grace > 0 {
		if err := s.box.Signal(sigTerm); err != nil {
			s.log.Warn("terminate", "error", err)
		}
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-s.ended:
		case <-timer.C:
		case <-ctx.Done(): // the caller left: what it asked for still happens
		}
	}
	select {
	case <-s.ended:
	default:
		s.kill()
		select {
		case <-s.ended:
		case <-ctx.Done():
			return Status{}, ctx.Err()
		}
	}
	return s.status(), nil
}

// end stops the session for a monitor that must go.
func (s *session) end() {
	if _, err := s.stop(context.Background(), DefaultGrace); err != nil {
		s.log.Info("stop", "error", err)
		_ = s.abandon() // it cannot be running: stop would have waited
	}
}

func (s *session) channel() (*terminal.Channel, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.term == nil {
		return nil, fault(CodeState, "there is no terminal in state %s", s.state)
	}
	return s.term, nil
}

func (s *session) read(ctx context.Context, a readParams) (Chunk, error) {
	t, err := s.channel()
	if err != nil {
		return Chunk{}, err
	}
	wait := min(time.Duration(a.WaitMS)*time.Millisecond, maxWait)
	size := min(max(a.MaxBytes, 1), maxRead)
	var c terminal.Chunk
	if wait > 0 {
		c, err = t.WaitRead(ctx, a.Cursor, size, wait)
	} else {
		c, err = t.Read(a.Cursor, size)
	}
	if err != nil {
		return Chunk{}, fault(CodeCursor, "%v", err)
	}
	return Chunk{Oldest: c.Oldest, Next: c.Next, Truncated: c.Truncated, EOF: c.EOF, Data: c.Data}, nil
}

func (s *session) write(ctx context.Context, data []byte) (int, error) {
	t, err := s.channel()
	if err != nil {
		return 0, err
	}
	if len(data) == 0 || len(data) > maxWrite {
		return 0, fault(CodeInput, "input has 1 to %d bytes", maxWrite)
	}
	n, err := t.Write(ctx, data)
	if err != nil {
		return n, fault(CodeInput, "%v", err)
	}
	return n, nil
}

func (s *session) resize(rows, cols uint16) error {
	t, err := s.channel()
	if err != nil {
		return err
	}
	if err := t.Resize(rows, cols); err != nil {
		return fault(CodeInput, "%v", err)
	}
	return nil
}

func (s *session) signal(name string) error {
	t, err := s.channel()
	if err != nil {
		return err
	}
	sig, ok := terminal.ParseSignal(name)
	if !ok {
		return fault(CodeInput, "the signal is interrupt, terminate or hangup")
	}
	if err := t.Signal(sig); err != nil {
		return fault(CodeInput, "%v", err)
	}
	return nil
}

// outcome puts together what happened. Called with mu held, after the last
// process is gone.
func (s *session) outcome(exit sandbox.Exit, waitErr error, finished time.Time) *Outcome {
	usage, usageErr := s.res.group.Usage()
	disk, diskErr := s.res.diskUse()
	if err := errors.Join(waitErr, usageErr, diskErr); err != nil {
		s.log.Error("observation", "error", err)
		if s.forced == "" {
			s.forced = receipt.CauseSupervisorError
		}
	}
	if exit.InitDied && !s.asked && s.forced == "" {
		s.forced = receipt.CauseSupervisorError // nobody of ours ended it
	}
	commitment := s.term.Commitment()
	o := &Outcome{
		ProtocolVersion: ProtocolVersion, SessionID: s.spec.SessionID, ProfileDigest: s.res.profileDigest,
		StartedAtMS: s.began, FinishedAtMS: s.began + uint64(finished.Sub(s.wall).Milliseconds()),
		Limits: s.spec.Limits,
		Observed: Observed{
			CPUTimeMS: usage.CPUMicros / 1000, PeakMemoryBytes: usage.MemoryPeakBytes, PeakPIDs: uint32(usage.PIDsPeak),
			WallTimeMS: uint64(finished.Sub(s.wall).Milliseconds()), DiskBytes: disk, TerminalOutputBytes: commitment.ByteCount,
		},
		Mechanisms: s.res.mechanisms,
		Transcript: TranscriptID{Schema: commitment.Schema, SHA256: commitment.SHA256,
			ByteCount: commitment.ByteCount, Complete: commitment.Complete},
		Confinement: confinement(s.box.Report(), commitment),
	}
	o.Cause, o.ExitCode = terminalCause(s.forced, usage, s.spec.Limits, disk, exit)
	if o.Cause == receipt.CauseSignaled && exit.Signal > 0 {
		o.Signal = uint32(exit.Signal)
	}
	return o
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

// dirFile opens the session directory.
func dirFile(path string) (*os.File, error) {
	f, _, err := safefile.OpenOwnerDir(path)
	return f, err
}
