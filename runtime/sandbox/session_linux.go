package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"gloved.dev/runtime/sandbox/probe"
	"gloved.dev/runtime/sandbox/seccomp"
	"golang.org/x/sys/unix"
)

// Session is one room with its harness, from Start to Close.
type Session struct {
	init, launch Process
	proc         *os.Process
	control      *channel // to init
	gate         *channel // to launch, until it has executed the harness
	terminal     *os.File
	report       Report

	gone    chan struct{} // closed when init has been reaped
	ended   chan struct{} // closed when exit is set, after gone
	exit    Exit
	release sync.Once
	relErr  error
	closing sync.Once
}

// Terminal returns the master side of the session's PTY, in non-blocking mode. The
// caller closes it.
func (s *Session) Terminal() *os.File { return s.terminal }

// Report returns what Start found out.
func (s *Session) Report() Report { return s.report }

// Launch returns the process that is, or will be, the harness.
func (s *Session) Launch() Process { return s.launch }

// Init returns pid 1 of the session.
func (s *Session) Init() Process { return s.init }

// Start makes the room, puts launch into it, has it confine and prove itself, and
// returns with launch blocked just before it executes the harness. Any failure is a
// *StepError, and leaves no process, mount or descriptor behind.
func Start(ctx context.Context, c Config, h Hooks) (*Session, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	r, err := prepare(c.Tenant, c.Exe, c.knobs)
	if err != nil {
		return nil, err
	}
	return r.Start(ctx, c, h)
}

// A Room is a session's processes made ahead of need, since making them is a good
// part of starting a session: init in its namespaces and launch beside it, waiting to
// be told of their session. A Room knows nothing and holds nothing of one; it is used
// once.
type Room struct {
	s      *Session
	tenant Tenant
	knobs  knobs
	up     chan struct{} // closed when launch is held, or failure says why it is not
	// failure is set before up is closed.
	failure   error
	furnished bool
}

// Prepare begins to make a Room and returns without waiting for it. What fails later
// is told by its Start. The Room dies with the calling process.
func Prepare(t Tenant) (*Room, error) { return prepare(t, nil, knobs{}) }

func prepare(t Tenant, exe *os.File, k knobs) (*Room, error) {
	if exe == nil {
		var err error
		if exe, err = SealedExe(); err != nil {
			return nil, err
		}
	}
	s, err := begin(t, k, exe)
	if err != nil {
		return nil, stepError(stepSpawn, err)
	}
	r := &Room{s: s, tenant: t, knobs: k, up: make(chan struct{})}
	s.until(time.Now().Add(DefaultSetupTimeout))
	go func() {
		defer close(r.up)
		r.failure = s.inhabit(context.Background())
	}()
	return r, nil
}

// Gone reports whether the Room's processes have ended, so that it is of no use.
func (r *Room) Gone() bool {
	select {
	case <-r.s.gone:
		return true
	default:
		return false
	}
}

// Launch waits for the process that is going to be the harness.
func (r *Room) Launch() (Process, error) {
	<-r.up
	return r.s.launch, r.failure
}

// Furnish begins to make of the Room what c, which Start must be given too, asks for, and
// does not wait for it: what fails later is told by Start. Without it, Start does it.
func (r *Room) Furnish(ctx context.Context, c Config) error {
	if err := r.admits(&c); err != nil {
		return err
	}
	r.s.until(time.Now().Add(DefaultSetupTimeout))
	<-r.up
	if r.failure != nil {
		return r.failure
	}
	r.furnished = true
	return r.s.describe(ctx, &c)
}

// admits refuses a Config that can have nothing to do with the Room.
func (r *Room) admits(c *Config) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Tenant != r.tenant {
		return &StepError{Step: stepConfig, Errno: syscall.EINVAL, Detail: "the room is another tenant's"}
	}
	return nil
}

// Start makes the Room into a session; see the function Start. The Room is used up,
// whatever comes of it.
func (r *Room) Start(ctx context.Context, c Config, h Hooks) (*Session, error) {
	s, err := r.start(ctx, c, h)
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	go s.watch()
	return s, nil
}

func (r *Room) start(ctx context.Context, c Config, h Hooks) (*Session, error) {
	if err := r.admits(&c); err != nil {
		return nil, err
	}
	timeout := c.SetupTimeout
	if timeout <= 0 {
		timeout = DefaultSetupTimeout
	}
	s := r.s
	s.until(time.Now().Add(timeout))
	stop := context.AfterFunc(ctx, func() { s.until(time.Unix(1, 0)) })
	<-r.up
	failure := r.failure
	if failure == nil && !r.furnished {
		failure = s.describe(ctx, &c)
	}
	if failure == nil {
		failure = s.setUp(ctx, &c, h)
	}
	if !stop() && (failure == nil || r.failure != nil) {
		failure = waitError(ctx, stepReport, context.Cause(ctx))
	}
	if failure != nil {
		return nil, failure
	}
	s.until(time.Time{})
	return s, nil
}

// Close ends the Room's processes and waits until they are gone.
func (r *Room) Close() error {
	r.s.until(time.Unix(1, 0)) // ends the holding, should it still go on
	<-r.up
	r.s.terminalClose()
	return r.s.Close()
}

// begin makes the sockets and starts init.
func begin(t Tenant, k knobs, exe *os.File) (*Session, error) {
	control, initEnd, err := newChannel()
	if err != nil {
		return nil, err
	}
	defer initEnd.Close()
	gate, launchEnd, err := newChannel()
	if err != nil {
		control.close()
		return nil, err
	}
	defer launchEnd.Close()
	s := &Session{control: control, gate: gate, gone: make(chan struct{}), ended: make(chan struct{})}
	if k.FailStep == stepSpawn {
		err = at("injected", syscall.EIO)
	} else {
		s.proc, s.init.PidFD, err = spawn(t, k, []*os.File{initEnd, launchEnd, exe})
	}
	if err != nil {
		control.close()
		gate.close()
		return nil, err
	}
	s.init.PID = s.proc.Pid
	// Before it is waited for: a pid is good only as long as nobody has reaped it.
	s.init.StartTicks, err = startTicks(s.init.PID)
	go func() {
		_, _ = s.proc.Wait()
		close(s.gone)
	}()
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// setUp is the caller's side of the handshake after the spec; see proto.go.
func (s *Session) setUp(ctx context.Context, c *Config, h Hooks) error {
	if h.Placed != nil {
		if err := h.Placed(s.launch); err != nil {
			return stepError(stepPlace, err)
		}
	}
	if c.knobs.FailStep == stepPlace {
		return stepError(stepPlace, at("injected", syscall.EIO))
	}
	m, err := s.next(ctx, s.control, stepTerminal, msgTerminal)
	if err != nil {
		return err
	}
	if len(m.files) != 1 {
		m.close()
		return &StepError{Step: stepTerminal, Errno: syscall.EPROTO}
	}
	s.terminal = m.files[0]
	if err := s.tell(ctx, stepReport, msgConfine); err != nil {
		return err
	}
	m, err = s.next(ctx, s.gate, stepReport, msgReport)
	if err != nil {
		return err
	}
	if err := s.accept(c, m); err != nil {
		return err
	}
	// By now the builder, and with it the last capability inside, is gone.
	_, err = s.next(ctx, s.control, stepInit, msgReady)
	return err
}

// describe tells init what the session is to be.
func (s *Session) describe(ctx context.Context, c *Config) error {
	sp := newSpec(c)
	data, err := encodeSpec(&sp)
	if err != nil {
		return stepError(stepSpec, err)
	}
	file, err := memfdOf("gloved spec", data)
	if err != nil {
		return stepError(stepSpec, err)
	}
	defer file.Close()
	files := []*os.File{file}
	for _, m := range c.Mounts {
		files = append(files, m.FD)
	}
	if err := s.control.send(msgSpec, files...); err != nil {
		if why := s.initFailure(); why != nil {
			return why
		}
		return waitError(ctx, stepSpec, err)
	}
	return nil
}

// inhabit waits until init and launch are what they should be.
func (s *Session) inhabit(ctx context.Context) error {
	if err := s.hold(ctx); err != nil {
		return err
	}
	_, err := s.next(ctx, s.control, stepInit, msgGuarded)
	return err
}

// hold learns launch's pid and pins it. The pid arrives with a packet, translated by
// the kernel; between the packet and pidfd_open the process could have ended and the
// number been given to another. The second packet proves that it had not: the same
// process was alive to send it.
func (s *Session) hold(ctx context.Context) error {
	m, err := s.next(ctx, s.gate, stepLaunch, msgHello)
	if err != nil {
		return err
	}
	pid := m.pid
	fd, err := unix.PidfdOpen(pid, 0)
	if err == nil {
		s.launch = Process{PID: pid, PidFD: os.NewFile(uintptr(fd), "launch pidfd")}
		s.launch.StartTicks, err = startTicks(pid)
	}
	if err != nil {
		if why := s.initFailure(); why != nil { // launch went with init
			return why
		}
		return stepError(stepHold, err)
	}
	if err := s.tell(ctx, stepHold, msgHold); err != nil {
		return err
	}
	m, err = s.next(ctx, s.gate, stepHold, msgHeld)
	if err != nil {
		return err
	}
	if m.pid != pid {
		return &StepError{Step: stepHold, Errno: syscall.ESRCH}
	}
	return nil
}

// accept judges the report instead of believing it.
func (s *Session) accept(c *Config, m *received) error {
	want := seccomp.Compile(seccomp.Policy{Inet: c.Loopback}).Digest()
	if m.Filter != want {
		return &StepError{Step: stepReport, Errno: syscall.EPROTO, Detail: "filter digest"}
	}
	if r, bad := probe.Breach(m.Probes); bad || len(m.Probes) == 0 {
		return &StepError{Step: stepProbe, Detail: r.Name + ": " + r.Answer}
	}
	s.report = Report{
		LandlockABI: m.ABI, SeccompDigest: m.Filter, ProbeDigest: probe.Digest(), Probes: m.Probes,
	}
	return nil
}

// next receives a message of the kind wanted, or the reason why there is none.
func (s *Session) next(ctx context.Context, c *channel, step, kind string) (*received, error) {
	m, err := c.receive()
	if errors.Is(err, syscall.ECONNRESET) {
		// Told once, when the other end closed with something unread, and before
		// what it had still said.
		m, err = c.receive()
	}
	if err != nil {
		if c == s.gate && gone(err) {
			if why := s.initFailure(); why != nil {
				return nil, why
			}
		}
		return nil, waitError(ctx, step, err)
	}
	switch {
	case m.Kind == msgFailed && m.Failed != nil:
		err = m.Failed
	case m.Kind != kind:
		err = &StepError{Step: step, Errno: syscall.EPROTO, Detail: "unexpected " + m.Kind}
	default:
		return m, nil
	}
	m.close()
	return nil, err
}

// gone reports whether err means that nobody has the other end of a channel any
// more: closed in order, or with something unread in it.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// initFailure is what init said to be the reason of its end, after whatever it had
// said before. It is asked when all ends of launch's socket are closed: launch
// ends with init, and init soon after launch.
func (s *Session) initFailure() error {
	for {
		m, err := s.control.receive()
		if err != nil {
			return nil
		}
		m.close()
		switch {
		case m.Kind == msgFailed && m.Failed != nil:
			return m.Failed
		case m.Kind == msgExit:
			return nil
		}
	}
}

// tell sends launch a message. When launch has ended, what it said last is the
// reason, not the broken pipe.
func (s *Session) tell(ctx context.Context, step, kind string) error {
	err := s.gate.send(kind)
	if err == nil {
		return nil
	}
	if m, last := s.next(ctx, s.gate, step, msgFailed); last != nil {
		return last
	} else if m != nil {
		m.close()
	}
	return waitError(ctx, step, err)
}

// Release lets launch execute the harness and returns once it has. A failure to
// execute (a missing file, a wrong format) is a *StepError of step "exec", and the
// session is over. Calling it again returns the same.
func (s *Session) Release() error {
	s.release.Do(func() { s.relErr = s.doRelease() })
	return s.relErr
}

func (s *Session) doRelease() error {
	s.gate.until(time.Now().Add(DefaultSetupTimeout))
	defer s.gate.close()
	if err := s.gate.send(msgExec); err != nil {
		return waitError(context.Background(), stepExec, err)
	}
	m, err := s.gate.receive()
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return waitError(context.Background(), stepExec, err)
	}
	m.close()
	if m.Failed != nil {
		return m.Failed
	}
	return &StepError{Step: stepExec, Errno: syscall.EPROTO, Detail: "unexpected " + m.Kind}
}

// watch waits for init's word about the harness and for init's end.
func (s *Session) watch() {
	exit := Exit{Code: -1, InitDied: true}
	m, err := s.control.receive()
	if err == nil {
		m.close()
		if m.Kind == msgExit {
			exit = exitOf(syscall.WaitStatus(m.Status))
		}
	}
	<-s.gone
	s.exit = exit
	close(s.ended)
}

func exitOf(w syscall.WaitStatus) Exit {
	if w.Signaled() {
		return Exit{Code: -1, Signal: w.Signal()}
	}
	return Exit{Code: w.ExitStatus()}
}

// Wait returns how the harness ended, once every process of the session is gone.
// It fails only with the context's error.
func (s *Session) Wait(ctx context.Context) (Exit, error) {
	select {
	case <-s.ended:
		return s.exit, nil
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	}
}

// Signal sends a signal to the harness. It returns os.ErrProcessDone when the
// harness has ended.
func (s *Session) Signal(sig syscall.Signal) error { return signalFD(s.launch.PidFD, sig) }

// Kill ends every process of the session at once: with pid 1 its namespace dies. It
// does not wait. Killing a session that has ended is no error.
func (s *Session) Kill() error {
	err := signalFD(s.init.PidFD, syscall.SIGKILL)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func signalFD(f *os.File, sig syscall.Signal) error {
	// Through the raw connection, so that the descriptor cannot be closed, and its
	// number reused, between looking it up and using it.
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	ctlErr := raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	switch {
	case ctlErr != nil:
		return ctlErr
	case errors.Is(err, unix.ESRCH):
		return os.ErrProcessDone
	}
	return err
}

// closeTimeout bounds how long Close waits for the kernel to end a session: a
// process stuck in the kernel cannot be hurried.
const closeTimeout = 10 * time.Second

// Close kills the session, waits until every process is gone, and closes the
// session's descriptors, not the terminal. The error says that the processes would
// not go; the descriptors are closed regardless. Calling it again does nothing.
func (s *Session) Close() (err error) {
	s.closing.Do(func() { err = s.doClose() })
	return err
}

func (s *Session) doClose() error {
	killErr := s.Kill()
	var err error
	timer := time.NewTimer(closeTimeout)
	defer timer.Stop()
	select {
	case <-s.gone:
	case <-timer.C:
		err = stepError("close", errors.Join(syscall.EBUSY, killErr))
	}
	s.control.close()
	s.gate.close()
	for _, f := range []*os.File{s.init.PidFD, s.launch.PidFD} {
		if f != nil {
			f.Close()
		}
	}
	return err
}

func (s *Session) terminalClose() {
	if s.terminal != nil {
		s.terminal.Close()
	}
}

func (s *Session) until(t time.Time) {
	s.control.until(t)
	s.gate.until(t)
}

// startTicks reads field 22 of /proc/PID/stat: after the command's name, which may
// hold anything, closing parentheses included, the fields are counted from 3.
func startTicks(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	end := bytes.LastIndexByte(data, ')')
	fields := bytes.Fields(data[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, syscall.EPROTO
	}
	return strconv.ParseUint(string(fields[19]), 10, 64)
}
