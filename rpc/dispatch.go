package rpc

import (
	"context"
	"time"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/strictjson"
)

// prepared is a request that passed every check that needs no waiting.
type prepared struct {
	req    frame.Request
	method *Method
	call   *Call
	params any
	key    string // what orders it, "" for nothing
	ticket *ticket
}

// request works on one request of an open connection.
func (c *conn) request(ctx context.Context, req frame.Request) {
	size := len(req.Params)
	if err := c.flight.begin(req.ID, size); err != nil {
		// The id belongs to the request in flight; an answer with it would be taken
		// for that one's. JSON-RPC has a null id for invalid requests.
		id := req.ID
		if public(err).Code == DuplicateID {
			id = frame.ID{}
		}
		c.answer(id, nil, err)
		return
	}
	p, err := c.prepare(req)
	if err != nil {
		c.finish(req.ID, size, nil, err)
		return
	}
	if p.key != "" {
		p.ticket = c.s.order.take(p.key)
	}
	go c.work(ctx, p, size)
}

func (c *conn) finish(id frame.ID, size int, result []byte, err error) bool {
	defer c.flight.end(size)
	c.flight.release(id)
	return c.answer(id, result, err)
}

// prepare looks up the method and checks and decodes the parameters.
func (c *conn) prepare(req frame.Request) (*prepared, error) {
	m := c.s.registry.lookup(req.Method, c.peer.OwnerLocal)
	if m == nil {
		return nil, NewError(MethodNotFound, "")
	}
	if m.Notification {
		return nil, NewError(InvalidRequest, "the method is a notification and takes no id")
	}
	shared, rest, err := splitParams(req.Params)
	if err != nil {
		return nil, err
	}
	if err := shared.checkKey(m); err != nil {
		return nil, err
	}
	call := &Call{Method: m.Name, Peer: c.peer, IdempotencyKey: shared.key, Deadline: shared.deadline,
		clock: c.s.clock, ctx: context.Background(), draining: c.draining}
	if err := call.Admit(); err != nil {
		return nil, err
	}
	p := &prepared{req: req, method: m, call: call}
	if p.params, err = m.decode(rest); err != nil {
		return nil, err
	}
	if m.Mutating {
		if call.Params, err = strictjson.CanonicalBytes(rest); err != nil {
			return nil, invalidParams(err)
		}
	}
	if m.Ordered {
		p.key = p.params.(orderKeyer).OrderKey()
	}
	return p, nil
}

// work runs the method in its turn and answers.
func (c *conn) work(ctx context.Context, p *prepared, size int) {
	ctx, cancel := c.bound(ctx, p)
	defer cancel()
	p.call.ctx = ctx
	var result []byte
	var err error
	if p.ticket != nil {
		// The turn is awaited even past the deadline: the place in the queue can be
		// given on only when it has come. Admit then refuses.
		<-p.ticket.before
	}
	if err = p.call.Admit(); err == nil {
		result, err = c.run(ctx, p)
	}
	if p.ticket != nil {
		c.s.order.done(p.key, p.ticket)
	}
	after := p.call.after
	if ok := c.finish(p.req.ID, size, result, err); !ok || err != nil {
		return
	}
	for _, f := range after {
		c.pumps.Add(1)
		go c.pump(p.method.Name, f)
	}
}

// bound gives the call its time. What changes something is not cut off halfway
// because its peer went away; it ends by its own bound.
func (c *conn) bound(ctx context.Context, p *prepared) (context.Context, context.CancelFunc) {
	if p.method.Mutating {
		ctx = context.WithoutCancel(ctx)
	}
	limit := p.method.Timeout
	if d := p.call.Deadline; !d.IsZero() {
		limit = min(limit, max(d.Sub(c.s.clock.Now()), time.Millisecond))
	}
	return context.WithTimeout(ctx, limit)
}

// run calls the method, through the table of keys where that is ours to keep.
func (c *conn) run(ctx context.Context, p *prepared) ([]byte, error) {
	if !p.method.Mutating || p.method.Durable {
		return c.invoke(ctx, p)
	}
	sum := paramsDigest(p.method.Name, p.call.Params)
	return c.s.keys.do(ctx, p.call.IdempotencyKey, sum, func() ([]byte, error) { return c.invoke(ctx, p) })
}

func (c *conn) invoke(ctx context.Context, p *prepared) (raw []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			raw, err = nil, c.panicked(p.method.Name, v)
		}
	}()
	result, err := p.method.handle(ctx, p.call, p.params)
	if err != nil {
		return nil, err
	}
	raw, err = json.Marshal(result, json.Deterministic(true))
	if err != nil {
		return nil, Wrap(Internal, "", err)
	}
	return raw, nil
}

func (c *conn) pump(method string, f func()) {
	defer c.pumps.Done()
	defer func() {
		if v := recover(); v != nil {
			_ = c.panicked(method, v) // there is no answer to carry the error
		}
	}()
	f()
}

// notification runs what a client sends without an id. Nothing answers it, so
// what is wrong with it is only logged; methods that answer are not run at all.
func (c *conn) notification(ctx context.Context, req frame.Request) {
	m := c.s.registry.lookup(req.Method, c.peer.OwnerLocal)
	if !c.opened.Load() || m == nil || !m.Notification {
		c.log.Debug("notification ignored", "method", req.Method)
		return
	}
	shared, rest, err := splitParams(req.Params)
	if err == nil {
		err = shared.checkKey(m)
	}
	var params any
	if err == nil {
		params, err = m.decode(rest)
	}
	if err == nil {
		call := &Call{Method: m.Name, Peer: c.peer, Deadline: shared.deadline,
			clock: c.s.clock, ctx: ctx, draining: c.draining}
		if err = call.Admit(); err == nil {
			_, err = c.invoke(ctx, &prepared{req: req, method: m, call: call, params: params})
		}
	}
	if err != nil {
		c.log.Debug("notification failed", "method", req.Method, "cause", err)
	}
}
