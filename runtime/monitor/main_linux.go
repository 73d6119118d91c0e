package monitor

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/frame"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

// roleName is the monitor's argv[0]. It decides which role an executable of
// ours plays; nothing is trusted because of it.
const roleName = RoleName

// specFD is the inherited socket on which the Spec arrives and the answer goes.
const specFD = 3

const (
	// arrivalBound is how long a monitor waits for its gloved to prepare something.
	arrivalBound = 10 * time.Second
	// lingerBound is how long it waits, after the end, for a connected gloved that
	// has nothing to say: outcome and transcript are in files.
	lingerBound = 30 * time.Second
)

// leaveCheck is how often an ended monitor looks whether anybody is connected:
// with nobody there, what is in its files is all that is needed of it.
const leaveCheck = 100 * time.Millisecond

// Main runs the monitor and never returns if this process was started as one.
// It is called first in main, before flags are looked at.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case roleName:
		os.Exit(run())
	case holderName:
		holdNamespace()
		os.Exit(0)
	}
}

// started is the answer to the Spec.
type started struct {
	Error *Error `json:"error,omitempty"`
}

func run() int {
	economise()
	link := os.NewFile(specFD, "spec")
	spec, base, err := readSpec(link)
	if err != nil {
		answerStart(link, err)
		return 1
	}
	lock := lockDir(spec.Dir) // both wait for the disk; let them do so together
	log, err := openLog(spec.Dir)
	if err != nil {
		answerStart(link, err)
		return 1
	}
	s, err := listen(spec, base, log, lock)
	if err != nil {
		log.Error("start", "error", err)
		answerStart(link, err)
		return 1
	}
	detach()
	if err := s.session.at(crashpoint.MonitorListening); err != nil {
		answerStart(link, err)
		return 1
	}
	answerStart(link, nil)
	s.run(spawner(link))
	return 0
}

// spawner returns a channel that is closed when the gloved that started us has
// let go of link, be it by dying.
func spawner(link *os.File) <-chan struct{} {
	left := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, link)
		link.Close()
		close(left)
	}()
	return left
}

// economise trades speed, of which a monitor needs little, for memory, of
// which there is one share per session.
func economise() {
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(64 << 20)
}

// readSpec reads the ground, which it begins to lay, and then, maybe much later, the
// specification.
func readSpec(link *os.File) (Spec, *base, error) {
	var spec Spec
	var g ground
	r := frame.NewReader(link, 0)
	if err := readFrame(r, &g); err != nil {
		return spec, nil, err
	}
	if err := checkVersion(g.ProtocolVersion); err != nil {
		return spec, nil, err
	}
	b := lay(g)
	if err := readFrame(r, &spec); err != nil {
		return spec, nil, err
	}
	if err := checkVersion(spec.ProtocolVersion); err != nil {
		return spec, nil, err
	}
	if !ident.MatID(spec.SessionID) || !ident.Hex64(spec.Key) || !ident.AbsPath(spec.Dir) {
		return spec, nil, fault(CodeProtocol, "the specification names no session, key or directory")
	}
	if groundOf(&spec) != g {
		return spec, nil, fault(CodeProtocol, "the specification is not for the ground that was laid")
	}
	return spec, b, nil
}

func readFrame(r *frame.Reader, v any) error {
	line, err := r.Next()
	if err != nil {
		return fault(CodeProtocol, "no specification: %v", err)
	}
	if err := strictjson.Decode(line, v, strictjson.Limits{}); err != nil {
		return fault(CodeProtocol, "%v", err)
	}
	return nil
}

func checkVersion(v int) error {
	if v != ProtocolVersion {
		return fault(CodeProtocol, "version %d, this monitor speaks %d", v, ProtocolVersion)
	}
	return nil
}

func answerStart(link *os.File, err error) {
	var a started
	if err != nil {
		a.Error = asError(err)
	}
	line, _ := json.Marshal(a)
	_, _ = link.Write(append(line, '\n')) // a gloved that is gone needs no answer
}

// maxLog bounds a monitor's log: a peer whose requests are refused over and
// over must not fill the disk with it.
const maxLog = 256 << 10

// A boundedLog writes until it is full, and then that it is.
type boundedLog struct {
	mu   sync.Mutex
	f    *os.File
	left int
}

func (b *boundedLog) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.left <= 0:
		return len(p), nil
	case len(p) > b.left:
		b.left = 0
		_, err := b.f.WriteString(`{"level":"WARN","msg":"the log is full"}` + "\n")
		return len(p), err
	}
	b.left -= len(p)
	return b.f.Write(p)
}

// openLog opens the session's own log: a monitor outlives the daemon whose
// standard error it could have used.
func openLog(dir string) (*slog.Logger, error) {
	path := filepath.Join(dir, LogName)
	f, err := safefile.CreatePassing(path)
	if err != nil {
		return nil, err
	}
	return slog.New(slog.NewJSONHandler(&boundedLog{f: f, left: maxLog}, nil)), nil
}

// lockDir begins to take the session directory's lock and returns a function
// that waits for it. It is held for life: the kernel drops it with the process,
// so that a gloved can tell a monitor that is gone from one that does not answer.
func lockDir(dir string) func() (*safefile.Lock, error) {
	var lock *safefile.Lock
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		lock, err = safefile.LockFile(filepath.Join(dir, LockName))
	}()
	return func() (*safefile.Lock, error) {
		<-done
		return lock, err
	}
}

func listen(spec Spec, base *base, log *slog.Logger, lock func() (*safefile.Lock, error)) (*server, error) {
	dir, err := dirFile(spec.Dir)
	if err != nil {
		return nil, err
	}
	alive, err := lock()
	if err != nil {
		return nil, err
	}
	l, err := listenAt(dir, SocketName)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	session := newSession(spec, base, log)
	s := newServer(spec, session, l, log)
	s.dir, s.alive = dir, alive
	session.tellEnded = func() { s.broadcast(notifyEnded, none{}) }
	return s, nil
}

// detach cuts the monitor loose from whoever started it: a session of its own,
// no terminal, and none of the signals a terminal or a service manager sends to
// a group.
func detach() {
	_, _ = unix.Setsid() // it fails only for a process that leads already
	signal.Ignore(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2)
	_ = os.Chdir("/")
	unix.Umask(0o077)
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) // the key is in memory
	var core unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &core); err == nil && core.Max == 0 {
		// Sessions need a limit of one byte (sandbox's limits say why). Only root may raise it.
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Max: 1})
	}
}

// run serves until the session is over and nobody needs it any more.
func (s *server) run(left <-chan struct{}) {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	go s.live(terminate, left)
	s.serve()
	_ = unix.Unlinkat(int(s.dir.Fd()), SocketName, 0)
}

// live decides when the monitor's life is over: when nobody came to prepare
// anything; when a start was undone; when the session has ended, its outcome is
// in a file, and nobody is there to read more than files.
func (s *server) live(terminate <-chan os.Signal, left <-chan struct{}) {
	defer s.stop()
	select {
	case <-s.session.begun:
	case <-terminate:
		return
	case <-left:
		if !isClosed(s.session.begun) {
			return
		}
	case <-time.After(arrivalBound):
		s.log.Warn("nobody came")
		return
	}
	select {
	case <-s.session.ended:
	case <-terminate:
		s.log.Warn("terminated by a signal; stopping the session")
		s.session.end()
	}
	select {
	case <-s.session.durable:
	case <-s.quit:
		return
	case <-terminate:
		return
	}
	bound := time.NewTimer(lingerBound)
	defer bound.Stop()
	look := time.NewTicker(leaveCheck)
	defer look.Stop()
	for s.connected() {
		select {
		case <-s.quit:
			return
		case <-terminate:
			return
		case <-bound.C:
			return
		case <-look.C:
		}
	}
}
