package rpc

import (
	"context"
	"crypto/subtle"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/frame"
	"gloved.dev/rpc/wire"
)

const (
	// DefaultMaxConns bounds the connections of one server when Options does not.
	DefaultMaxConns = 256
	// refuseTimeout bounds telling a refused peer why.
	refuseTimeout = time.Second
)

// ErrServerClosed is returned by ServeConn after Shutdown.
var ErrServerClosed = errors.New("rpc: the server is shut down")

// Options make a Server. Registry is required.
type Options struct {
	Registry *Registry
	// Server is what initialize names.
	Server wire.Implementation
	// Logger gets what peers must not see. nil discards it.
	Logger *slog.Logger
	// Clock decides deadlines. nil means the system's.
	Clock clock.Clock
	// MaxConns bounds concurrent connections; 0 means DefaultMaxConns.
	MaxConns int
}

// A Server serves connections from one registry. Ordering and idempotency hold
// across its connections.
type Server struct {
	registry *Registry
	name     wire.Implementation
	log      *slog.Logger
	clock    clock.Clock
	maxConns int
	keys     *keyTable
	order    *orderer

	mu     sync.Mutex
	closed bool
	nextID uint64
	conns  map[*conn]bool
	active sync.WaitGroup // ServeConn calls that were admitted
}

// NewServer returns a Server.
func NewServer(o Options) (*Server, error) {
	if o.Registry == nil {
		return nil, errors.New("rpc: a server needs a registry")
	}
	s := &Server{registry: o.Registry, name: o.Server, log: o.Logger, clock: o.Clock, maxConns: o.MaxConns,
		order: &orderer{tails: make(map[string]*ticket)}, conns: make(map[*conn]bool)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = clock.System()
	}
	if s.maxConns <= 0 {
		s.maxConns = DefaultMaxConns
	}
	s.keys = &keyTable{clock: s.clock, entries: make(map[string]*keyEntry)}
	return s, nil
}

// ConnOptions describe one connection.
type ConnOptions struct {
	// Controller marks a connection that a controller opened over stdio.
	Controller bool
	// Secret is the bootstrap secret the peer must give. Empty means that the
	// channel was inherited, and the secret must be absent.
	Secret string
	// UID and PID are the peer's where the kernel told them.
	UID uint32
	PID int32
	// Handshake bounds the time until initialize has succeeded; 0 sets no bound.
	Handshake time.Duration
	// WriteTimeout bounds writing one frame where the transport can; 0 sets no
	// bound.
	WriteTimeout time.Duration
}

// ServeConn serves one connection until the peer has sent everything and has its
// answers, or the connection fails, or ctx is done, or the server shuts down.
// It owns rwc and closes it. The error is nil when the peer ended the connection
// in order, ErrServerClosed or a *Error with ServerBusy when it was refused, and
// otherwise the transport's.
func (s *Server) ServeConn(ctx context.Context, rwc io.ReadWriteCloser, o ConnOptions) error {
	c := newConn(s, rwc, o)
	if err := s.admit(c); err != nil {
		c.refuse(err)
		return errors.Join(err, rwc.Close())
	}
	defer s.active.Done()
	defer s.forget(c)
	return c.serve(ctx)
}

// admit counts c in. The flag and the count are looked at under one lock, so
// that Shutdown cannot miss a connection.
func (s *Server) admit(c *conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrServerClosed
	}
	if len(s.conns) >= s.maxConns {
		return NewError(ServerBusy, "").With("retryable", true)
	}
	s.nextID++
	c.peer.ID = s.nextID
	s.conns[c] = true
	s.active.Add(1)
	return nil
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// Shutdown refuses new connections and requests, lets what is in flight end and
// be answered, closes the connections and waits for ServeConn to return. When
// ctx is done first, it closes the connections as they are and returns ctx's
// error; what changes something is still let to its end by its own bound.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	gone := make(chan struct{})
	for _, c := range conns {
		c.drain()
		go func() {
			select {
			case <-c.flight.idle:
			case <-ctx.Done():
			}
			c.close()
		}()
	}
	go func() {
		s.active.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// secretEqual compares in constant time; a wrong length is public.
func secretEqual(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// refuse tells the peer why it is not served, if it can be told at once.
func (c *conn) refuse(err error) {
	if errors.Is(err, ErrServerClosed) {
		err = NewError(ShuttingDown, "")
	}
	c.writer.Timeout = refuseTimeout
	_ = c.stream.WriteResponse(c.failure(frame.ID{}, public(err))) // the peer may be gone
}

// MaxConns returns how many connections are served at once.
func (s *Server) MaxConns() int { return s.maxConns }
