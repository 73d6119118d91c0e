package rpc

import (
	"context"
	"time"

	"gloved.dev/internal/clock"
)

// A Peer is the other end of a connection as a method sees it.
type Peer struct {
	// ID tells connections of one server apart; it is never reused.
	ID uint64
	// Controller is true for a connection that came over stdio, directly or
	// relayed. OwnerLocal is its opposite.
	Controller, OwnerLocal bool
	// UID is the peer's user, as the kernel reported it, or ours over stdio.
	UID uint32
	// Client is what initialize named.
	Client string

	conn *conn
}

// Notify sends a notification. It blocks while the peer does not read, which is
// the back-pressure a sender of output needs, and fails once the connection is
// gone. Notifications and answers go out in the order of the calls.
func (p *Peer) Notify(method string, params any) error { return p.conn.notify(method, params) }

// Done is closed when the connection is gone.
func (p *Peer) Done() <-chan struct{} { return p.conn.done }

// A Call is one request being worked on.
type Call struct {
	Method string
	// Peer is who asked. It outlives the call.
	Peer *Peer
	// IdempotencyKey is set on mutating methods.
	IdempotencyKey string
	// Deadline is the instant after which the request must not take effect; zero
	// without one.
	Deadline time.Time
	// Params is the RFC 8785 form of the parameters without the members common to
	// all methods. It is set on mutating methods only.
	Params []byte

	clock    clock.Clock
	ctx      context.Context
	draining <-chan struct{}
	after    []func()
}

// Admit says whether the request may still take effect. Methods that change
// something call it once more just before they do: a request that waited behind
// others must not act after its deadline.
func (c *Call) Admit() error {
	if !c.Deadline.IsZero() && c.clock.Now().After(c.Deadline) {
		return NewError(DeadlineExceeded, "")
	}
	return c.ctx.Err()
}

// Notify sends a notification to the peer; see Peer.Notify.
func (c *Call) Notify(method string, params any) error { return c.Peer.Notify(method, params) }

// Draining is closed when the peer has sent all it will, or the server shuts
// down. A method that only waits then answers with what it has.
func (c *Call) Draining() <-chan struct{} { return c.draining }

// AfterReply has f run on a goroutine of the call's own after the answer went
// out, unless it is an error. What f sends follows the answer. f belongs to the
// connection: it must return once Peer.Done is closed.
func (c *Call) AfterReply(f func()) { c.after = append(c.after, f) }
