package monitor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
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
	"gloved.dev/runtime/cgroup"
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

// A link is the inherited socket to the gloved that started us. Nobody else has the
// other end: what is said over it needs no proof.
type link struct {
	conn *net.UnixConn
	r    *frame.Reader
	w    *frame.Writer
}

func openLink() (*link, error) {
	f := os.NewFile(specFD, "spec")
	defer f.Close() // the connection has a descriptor of its own
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fault(CodeProtocol, "started without a socket")
	}
	return newLink(u), nil
}

func newLink(conn *net.UnixConn) *link {
	return &link{conn: conn, r: frame.NewReader(conn, 0), w: frame.NewWriter(conn, 0)}
}

// send writes one frame.
func (l *link) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return l.w.WriteFrame(line)
}

// answer says how something went. A gloved that is gone needs no answer.
func (l *link) answer(err error) {
	var a started
	if err != nil {
		a.Error = asError(err)
	}
	_ = l.send(a)
}

// run first makes what every session needs, then waits, maybe long, for its session.
func run() int {
	l, err := openLink()
	if err != nil {
		return 1
	}
	var g ground
	if err = l.receive(&g); err == nil {
		err = checkVersion(g.ProtocolVersion)
	}
	if err != nil {
		l.answer(err)
		return 1
	}
	base := lay(g)
	p, err := takePlace(g.Dir)
	at := func(point crashpoint.Point) {
		if err == nil {
			err = crashpoint.At(filepath.Dir(g.Dir), point)
		}
	}
	at(crashpoint.GroundTaken)
	<-base.done // a process that is not dumpable could not map its children's users
	detach()
	at(crashpoint.GroundLaid)
	var spec Spec
	if err == nil {
		l.answer(nil)
		spec, err = l.readSpec(&g, p)
	}
	if err != nil {
		l.answer(err)
		leave(base, p)
		return 1
	}
	s := newServer(spec, newSession(spec, base, p.log), p)
	s.session.tellEnded = func() { s.broadcast(notifyEnded, none{}) }
	if err := s.session.at(crashpoint.MonitorListening); err != nil {
		l.answer(err)
		leave(base, p)
		return 1
	}
	l.answer(nil)
	s.run(l)
	return 0
}

// leave gives up what was made ahead for a session that does not come.
func leave(b *base, p *place) {
	ctx, cancel := context.WithTimeout(context.Background(), cgroup.DestroyBound+time.Second)
	defer cancel()
	_ = b.close(ctx) // what is left the next gloved finds by its name
	b.free()
	if p != nil {
		p.remove()
	}
}

// economise trades speed, of which a monitor at rest needs little, for memory, of
// which there is one share per session.
func economise() {
	debug.SetGCPercent(25)
	debug.SetMemoryLimit(64 << 20)
	debug.FreeOSMemory()
}

// readSpec reads the specification of the session that comes to p.
func (l *link) readSpec(g *ground, p *place) (Spec, error) {
	var spec Spec
	if err := l.receive(&spec); err != nil {
		return spec, err
	}
	if err := checkVersion(spec.ProtocolVersion); err != nil {
		return spec, err
	}
	if !ident.MatID(spec.SessionID) || !ident.Hex64(spec.Key) || !ident.AbsPath(spec.Dir) {
		return spec, fault(CodeProtocol, "the specification names no session, key or directory")
	}
	if !g.fits(&spec) {
		return spec, fault(CodeProtocol, "the specification is not for the ground that was laid")
	}
	return spec, p.moved(spec.Dir)
}

func (l *link) receive(v any) error {
	line, err := l.r.Next()
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

// A place is what a monitor holds of a session's directory from its birth on.
type place struct {
	path string // where it was when it was taken
	dir  *os.File
	// alive is held for life: the kernel drops it with the process, so that a gloved
	// can tell a monitor that is gone from one that does not answer.
	alive    *safefile.Lock
	log      *slog.Logger
	listener *net.UnixListener
}

// takePlace makes in a directory what a session needs there: lock, log, socket, and room
// for the outcome. With an error it returns what it had made by then.
func takePlace(path string) (_ *place, err error) {
	p := &place{path: path}
	if p.dir, _, err = safefile.OpenOwnerDir(path); err != nil {
		return nil, err
	}
	if p.alive, err = safefile.LockFile(filepath.Join(path, LockName)); err != nil {
		return p, err
	}
	if p.log, err = openLog(path); err != nil {
		return p, err
	}
	if err := reserveOutcome(path); err != nil {
		return p, atStep("reserve", err)
	}
	if p.listener, err = listenAt(p.dir, SocketName); err != nil {
		return p, fmt.Errorf("listen: %w", err)
	}
	return p, nil
}

// moved checks that the place has the path given by now.
func (p *place) moved(path string) error {
	now, id, err := safefile.OpenOwnerDir(path)
	if err != nil {
		return err
	}
	defer now.Close()
	mine, err := safefile.Stat(p.dir)
	if err != nil {
		return err
	}
	if id.Dev != mine.Dev || id.Ino != mine.Ino {
		return fault(CodeProtocol, "the session's directory is not the one that was taken")
	}
	return nil
}

// remove takes the place off the disk, lock last: as long as it is there it says that
// somebody is at work.
func (p *place) remove() {
	for _, name := range []string{SocketName, LogName, reserveName, LockName} {
		_ = unix.Unlinkat(int(p.dir.Fd()), name, 0) // what is left the next gloved removes
	}
	_ = unix.Rmdir(p.path) // which is another, or nothing, once it was moved
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

// run serves until the session is over and nobody needs it any more, first of all the
// gloved at the other end of l.
func (s *server) run(l *link) {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, unix.SIGTERM)
	left := make(chan struct{})
	p := &peer{server: s, conn: l.conn, w: l.w, proven: true}
	s.welcome(p, l.r, func() { close(left) })
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
		s.session.end()
		return
	case <-left:
		if !isClosed(s.session.begun) {
			s.session.end()
			return
		}
	case <-time.After(arrivalBound):
		s.log.Warn("nobody came")
		s.session.end()
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
