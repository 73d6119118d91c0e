package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/sourcegraph/jsonrpc2"

	"gloved.dev/internal/frame"
)

// conn is one connection. The reading goroutine (the library's) owns the
// members marked so; everything else is safe for concurrent use.
type conn struct {
	s      *Server
	o      ConnOptions
	peer   *Peer
	stream *frame.Stream
	writer *frame.Writer
	flight *flight
	log    *slog.Logger

	rpc      *jsonrpc2.Conn // set before the first message is handled
	ready    chan struct{}  // closed when rpc is set
	done     chan struct{}  // closed when the connection is gone
	draining chan struct{}  // closed when the peer will send no more
	once     sync.Once      // closes draining
	pumps    sync.WaitGroup // functions given to AfterReply
	opened   atomic.Bool    // initialize succeeded

	relayed bool          // reading goroutine: a relay announced a controller
	unread  chan struct{} // closed when reading has ended

	mu    sync.Mutex
	ended error // why reading ended
}

// errHangUp ends a connection after an answer that says why.
var errHangUp = errors.New("rpc: the connection was refused")

func newConn(s *Server, rwc io.ReadWriteCloser, o ConnOptions) *conn {
	c := &conn{s: s, o: o, flight: newFlight(), log: s.log, ready: make(chan struct{}),
		done: make(chan struct{}), draining: make(chan struct{}), unread: make(chan struct{})}
	c.peer = &Peer{Controller: o.Controller, OwnerLocal: !o.Controller, UID: o.UID, conn: c}
	c.writer = frame.NewWriter(rwc, 0)
	c.writer.Timeout = o.WriteTimeout
	c.stream = frame.NewStream(frame.NewReader(rwc, 0), c.writer, rwc, c.badFrame, c.endOfInput)
	return c
}

func (c *conn) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.log = c.log.With("conn", c.peer.ID)
	if c.o.Handshake > 0 {
		t := time.AfterFunc(c.o.Handshake, c.handshakeExpired)
		defer t.Stop()
	}
	c.rpc = jsonrpc2.NewConn(ctx, c.stream, c, jsonrpc2.SetLogger(libraryLog{c.log}))
	close(c.ready)
	<-c.rpc.DisconnectNotify()
	close(c.done)
	cancel()
	<-c.flight.drain()
	<-c.unread
	c.pumps.Wait()
	return c.why(nil)
}

// why notes why the connection ended, the first reason counting, and returns
// it: nil for an end in order.
func (c *conn) why(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.ended = err
	}
	if errors.Is(c.ended, io.EOF) || errors.Is(c.ended, errHangUp) {
		return nil
	}
	return c.ended
}

// libraryLog sends what the library has to say to the operator's log.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Printf(format string, v ...any) {
	l.log.Debug("library", "message", fmt.Sprintf(format, v...))
}

// close cuts the connection; what follows from that is no news.
func (c *conn) close() {
	<-c.ready
	_ = c.why(errHangUp)
	_ = c.rpc.Close() // ErrClosed when it was closed before
}

// drain tells waiting methods to answer with what they have, and admits no more.
func (c *conn) drain() {
	c.once.Do(func() { close(c.draining) })
	c.flight.drain()
}

func (c *conn) handshakeExpired() {
	if c.opened.Load() {
		return
	}
	c.answer(frame.ID{}, nil, NewError(NotInitialized, "initialize did not come in time"))
	c.close()
}

// endOfInput runs on the reading goroutine when there will be no more requests.
// It holds the library back until everything in flight is answered.
func (c *conn) endOfInput(err error) {
	defer close(c.unread)
	_ = c.why(err)
	if !errors.Is(err, io.EOF) {
		c.flight.drain()
		return
	}
	c.drain()
	<-c.flight.idle
}

// badFrame answers a frame that is no request.
func (c *conn) badFrame(e *frame.Error) error {
	code := Code(e.Code)
	err := NewError(code, e.Message)
	if e.Reason != "" {
		err = err.With("reason", e.Reason)
	}
	c.log.Debug("bad frame", "code", e.Code, "reason", e.Reason)
	return c.stream.WriteResponse(c.failure(e.ID, err))
}

// Handle implements jsonrpc2.Handler. It runs on the reading goroutine: while
// it waits for room, the rest stays unread.
func (c *conn) Handle(ctx context.Context, _ *jsonrpc2.Conn, _ *jsonrpc2.Request) {
	<-c.ready
	req := c.stream.Current()
	switch {
	case req.ID.IsNull():
		c.notification(ctx, req)
	case !c.opened.Load():
		c.opening(ctx, req)
	default:
		c.request(ctx, req)
	}
}

// answer sends a result, or err when that is not nil.
func (c *conn) answer(id frame.ID, result []byte, err error) bool {
	if err != nil {
		e := public(err)
		if e.Cause != nil {
			c.log.Info("request failed", "code", string(e.Code), "cause", e.Cause)
		}
		return c.send(id, c.failure(id, e)) == nil
	}
	err = c.send(id, &frame.Response{ID: id, Result: result})
	if errors.Is(err, errTooLarge) {
		c.log.Warn("response too large", "bytes", len(result))
		_ = c.send(id, c.failure(id, NewError(ResponseTooLarge, ""))) // reported as a failure either way
	}
	return err == nil
}

var errTooLarge = &frame.Error{Code: frame.CodeFrameTooLarge}

// send writes r past the library, which would encode an answer of up to a frame
// three times over and cannot say a null id. The frame writer is what serialises.
func (c *conn) send(id frame.ID, r *frame.Response) error {
	err := c.stream.WriteResponse(r)
	if err != nil && !id.IsNull() && !errors.Is(err, errTooLarge) {
		_ = c.why(err)
		// Part of a frame may be out: nothing can follow it.
		c.close()
	}
	return err
}

func (c *conn) failure(id frame.ID, e *Error) *frame.Response {
	data := make(map[string]any, len(e.Data)+1)
	for name, value := range e.Data {
		data[name] = value
	}
	data["code"] = string(e.Code)
	raw, err := json.Marshal(data, json.Deterministic(true))
	if err != nil {
		c.log.Error("error data cannot be encoded", "code", string(e.Code), "cause", err)
		raw = fmt.Appendf(nil, `{"code":%q}`, string(e.Code))
	}
	return &frame.Response{ID: id, Error: &frame.ResponseError{Number: int64(e.Number), Message: e.Message, Data: raw}}
}

func (c *conn) notify(method string, params any) error {
	select {
	case <-c.done: // the stream may take bytes for an instant longer; nobody reads them
		return fmt.Errorf("rpc: notification %s: %w", method, net.ErrClosed)
	default:
	}
	raw, err := json.Marshal(params)
	if err != nil {
		return fmt.Errorf("rpc: encode notification %s: %w", method, err)
	}
	return c.stream.WriteNotification(method, raw)
}

// panicked turns a panic into the answer for the peer and a log entry for the
// operator.
func (c *conn) panicked(method string, value any) error {
	c.log.Error("method panicked", "method", method, "panic", fmt.Sprint(value), "stack", string(debug.Stack()))
	return NewError(Internal, "")
}
