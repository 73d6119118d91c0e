package monitor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

const (
	maxConns    = 16               // one gloved, its successor, and a relay or two
	maxInFlight = 512              // requests a connection may have unanswered: every waiting reader of a gloved is one
	sendTimeout = 30 * time.Second // a peer that does not read for so long has lost us
)

// A server answers one session's monitor.sock.
type server struct {
	spec     Spec
	session  *session
	dir      *os.File       // the session's directory
	alive    *safefile.Lock // held as long as this process lives
	log      *slog.Logger
	listener *net.UnixListener
	quit     chan struct{}
	quitOnce sync.Once

	mu    sync.Mutex
	conns map[*peer]bool
	wg    sync.WaitGroup
}

// listenAt makes the socket called name in dir, by way of the directory's
// descriptor: sun_path holds 108 bytes, and a session's directory may be longer.
func listenAt(dir *os.File, name string) (*net.UnixListener, error) {
	if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	path := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name)
	// The kernel gives the name the socket's own mode. A umask would be the whole process's,
	// and others of it make directories meanwhile.
	private := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmodErr error
		err := c.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmodErr)
	}}
	l, err := private.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false) // the name is removed by way of dir
	return u, nil
}

func newServer(spec Spec, s *session, p *place) *server {
	return &server{spec: spec, session: s, log: p.log, listener: p.listener, dir: p.dir, alive: p.alive,
		quit: make(chan struct{}), conns: map[*peer]bool{}}
}

// serve answers connections until quit is called.
func (s *server) serve() {
	go func() {
		<-s.quit
		s.listener.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for p := range s.conns {
			p.conn.Close()
		}
	}()
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			select {
			case <-s.quit:
				s.wg.Wait()
				return
			default:
			}
			s.log.Warn("accept", "error", err)
			time.Sleep(50 * time.Millisecond) // out of descriptors: do not spin
			continue
		}
		s.admit(conn)
	}
}

func (s *server) admit(conn *net.UnixConn) {
	if uid, _, err := safefile.CheckPeer(conn); err != nil || uid != uint32(os.Geteuid()) {
		conn.Close()
		return
	}
	s.welcome(&peer{server: s, conn: conn, w: frame.NewWriter(conn, 0)}, frame.NewReader(conn, 0), func() {})
}

// welcome serves a peer until it has gone, and then calls left.
func (s *server) welcome(p *peer, r *frame.Reader, left func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= maxConns || isClosed(s.quit) {
		p.conn.Close()
		return
	}
	p.slots, p.w.Timeout = make(chan struct{}, maxInFlight), sendTimeout
	s.conns[p] = true
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		p.serve(r)
		s.mu.Lock()
		delete(s.conns, p)
		s.mu.Unlock()
		s.session.lost(p)
		left()
	}()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// connected reports whether any peer is there.
func (s *server) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

func (s *server) stop() { s.quitOnce.Do(func() { close(s.quit) }) }

// broadcast tells every proven peer, none of which has to wait for another.
func (s *server) broadcast(method string, params any) {
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.conns))
	for p := range s.conns {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range peers {
		if p.isProven() {
			wg.Go(func() { p.notify(method, params) })
		}
	}
	wg.Wait()
}

// A peer is one connection.
type peer struct {
	server *server
	conn   *net.UnixConn
	w      *frame.Writer
	slots  chan struct{}

	mu          sync.Mutex
	theirs      string // nonces of the handshake
	ours        string
	proven      bool
	helloCalled bool
}

func (p *peer) isProven() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proven
}

func (p *peer) serve(r *frame.Reader) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer p.conn.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		line, err := r.Next()
		if err != nil {
			return
		}
		m, err := frame.Parse(line)
		if err != nil || m.Request == nil || m.Request.ID.IsNull() {
			return // the peer is our own gloved or nobody we know
		}
		p.slots <- struct{}{}
		req := *m.Request
		handle := func() {
			defer func() { <-p.slots }()
			p.answer(ctx, &req)
		}
		if concurrent[req.Method] {
			wg.Go(handle)
		} else {
			handle() // input keeps its order
		}
	}
}

// concurrent lists the methods that may wait for something, and so must not
// keep the connection's other requests waiting.
var concurrent = map[string]bool{methodRead: true, methodPrepare: true, methodLaunch: true, methodStop: true, methodFinish: true}

func (p *peer) answer(ctx context.Context, req *frame.Request) {
	result, err := p.dispatch(ctx, req)
	resp := frame.Response{ID: req.ID}
	if err == nil {
		resp.Result, err = json.Marshal(result)
	}
	if err != nil {
		e := asError(err)
		p.server.log.Info("refused", "method", req.Method, "error", e)
		data, _ := json.Marshal(e)
		resp = frame.Response{ID: req.ID, Error: &frame.ResponseError{Number: -32000, Message: e.Code, Data: data}}
	}
	if err := p.w.WriteFrame(frame.AppendResponse(nil, &resp)); err != nil {
		p.conn.Close()
	}
	if req.Method == methodFinish && resp.Error == nil {
		p.server.stop() // after the answer has gone out
	}
}

func (p *peer) notify(method string, params any) {
	raw, err := json.Marshal(params)
	if err == nil {
		err = p.w.WriteFrame(frame.AppendRequest(nil, &frame.Request{Method: method, Params: raw}))
	}
	if err != nil {
		p.conn.Close()
	}
}

func params[T any](req *frame.Request) (T, error) {
	var v T
	raw := req.Params
	if raw == nil {
		raw = []byte("{}")
	}
	if err := strictjson.Decode(raw, &v, strictjson.Limits{}); err != nil {
		return v, fault(CodeProtocol, "%s: %v", req.Method, err)
	}
	return v, nil
}

func (p *peer) dispatch(ctx context.Context, req *frame.Request) (any, error) {
	switch req.Method {
	case methodHello:
		return p.hello(req)
	case methodProve:
		return p.prove(req)
	}
	if !p.isProven() {
		return nil, fault(CodeUnproven, "%s before hello and prove", req.Method)
	}
	s := p.server.session
	switch req.Method {
	case methodPrepare:
		return s.prepare(ctx, p, func(g Progress) { p.notify(notifyProgress, g) })
	case methodLaunch:
		a, err := params[launchParams](req)
		if err != nil {
			return nil, err
		}
		return s.launch(ctx, p, a.ProfileDigest)
	case methodRelease:
		return s.release(p)
	case methodStatus:
		return s.status(), nil
	case methodRead:
		a, err := params[readParams](req)
		if err != nil {
			return nil, err
		}
		return s.read(ctx, a)
	case methodWrite:
		a, err := params[writeParams](req)
		if err != nil {
			return nil, err
		}
		n, err := s.write(ctx, a.Data)
		return writeResult{Written: n}, err
	case methodResize:
		a, err := params[resizeParams](req)
		if err != nil {
			return nil, err
		}
		return none{}, s.resize(a.Rows, a.Columns)
	case methodSignal:
		a, err := params[signalParams](req)
		if err != nil {
			return nil, err
		}
		return none{}, s.signal(a.Signal)
	case methodStop:
		a, err := params[stopParams](req)
		if err != nil {
			return nil, err
		}
		return s.stop(ctx, time.Duration(a.GraceMS)*time.Millisecond)
	case methodFinish:
		return none{}, s.abandon()
	}
	return nil, fault(CodeProtocol, "there is no method %.40q", req.Method)
}

func (p *peer) hello(req *frame.Request) (any, error) {
	a, err := params[helloParams](req)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.helloCalled || len(a.Nonce) != 64 {
		return nil, fault(CodeProtocol, "hello comes once, with a nonce of 64 hex digits")
	}
	p.helloCalled, p.theirs, p.ours = true, a.Nonce, newNonce()
	return helloResult{ProtocolVersion: ProtocolVersion, SessionID: p.server.spec.SessionID, Nonce: p.ours,
		Proof: proof(p.server.spec.Key, roleMonitor, p.theirs, p.ours)}, nil
}

func (p *peer) prove(req *frame.Request) (any, error) {
	a, err := params[proveParams](req)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.helloCalled || p.proven || !proves(a.Proof, p.server.spec.Key, roleGloved, p.ours, p.theirs) {
		_ = p.conn.CloseRead() // nothing more is heard from this peer
		return nil, fault(CodeUnproven, "the proof does not fit the session's key")
	}
	p.proven = true
	return p.server.session.status(), nil
}
