package client

import (
	"bytes"
	"context"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/sourcegraph/jsonrpc2"

	"gloved.dev/internal/frame"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

// DefaultHandshake bounds opening a connection when Options does not.
const DefaultHandshake = 30 * time.Second

// ErrClosed is returned by calls on a client that was closed here.
var ErrClosed = errors.New("client: the connection is closed")

// Options say how to open a connection. The zero value is one for stdio.
type Options struct {
	// Name is what the server is told about us.
	Name wire.Implementation
	// Secret is the bootstrap secret; on sockets only.
	Secret string
	// OnNote gets the server's notifications, one after another. It may call the
	// client: what arrives meanwhile is kept, up to 32 MiB; then nothing is read.
	OnNote func(Note)
	// Handshake bounds opening; 0 means DefaultHandshake.
	Handshake time.Duration
	// Bare leaves initialize to the caller.
	Bare bool
	// Stderr gets what a spawned server says there. nil keeps the last 4 KiB for
	// the error of a failed start.
	Stderr io.Writer
}

// A Client is one open connection. It is safe for concurrent use.
type Client struct {
	stream *stream
	rpc    *jsonrpc2.Conn
	next   atomic.Int64
	write  chan struct{} // holds a token while a frame is written
	hello  *wire.InitializeResult
}

// New opens the protocol on rwc and owns it from then on. rwc.Close must end a
// Read that waits. The context bounds opening only.
func New(ctx context.Context, rwc io.ReadWriteCloser, o Options) (*Client, error) {
	c := &Client{stream: newStream(rwc), write: make(chan struct{}, 1)}
	c.rpc = jsonrpc2.NewConn(context.Background(), c.stream, ignore{}, jsonrpc2.SetLogger(log.New(io.Discard, "", 0)))
	go c.notes(o.OnNote)
	if o.Bare {
		return c, nil
	}
	if err := c.initialize(ctx, o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// ignore is the handler of requests, which do not reach the library.
type ignore struct{}

func (ignore) Handle(context.Context, *jsonrpc2.Conn, *jsonrpc2.Request) {}

func (c *Client) initialize(ctx context.Context, o Options) error {
	if o.Name.Name == "" {
		o.Name = wire.Implementation{Name: "glove-client", Version: "1"}
	}
	if o.Handshake == 0 {
		o.Handshake = DefaultHandshake
	}
	ctx, cancel := context.WithTimeout(ctx, o.Handshake)
	defer cancel()
	var result wire.InitializeResult
	err := c.Call(ctx, wire.MethodInitialize, &wire.InitializeParams{ProtocolVersions: []int{wire.ProtocolVersion},
		Client: o.Name, BootstrapSecret: o.Secret}, &result)
	if errors.Is(err, context.DeadlineExceeded) && !c.stream.hello.Load() {
		// A prompt has no line end; what is waiting there is the best explanation.
		if sample, total := c.stream.r.Sample(); total > 0 {
			return errors.Join(&NonProtocolError{Sample: sample, Total: total}, err)
		}
	}
	if err != nil {
		return c.explain(ctx, err)
	}
	if result.ProtocolVersion != wire.ProtocolVersion {
		return fmt.Errorf("client: the server chose protocol version %d", result.ProtocolVersion)
	}
	c.hello = &result
	return nil
}

// verdictWait bounds how long a failed write waits for what the reader learns.
const verdictWait = 2 * time.Second

// explain prefers what the peer said to how writing to it failed: one that
// prints a complaint and exits breaks our write before its words are read.
func (c *Client) explain(ctx context.Context, err error) error {
	var answer *rpc.Error
	if errors.As(err, &answer) || ctx.Err() != nil {
		return err
	}
	t := time.NewTimer(verdictWait)
	defer t.Stop()
	select {
	case <-c.Done():
	case <-ctx.Done():
	case <-t.C:
	}
	if said := c.stream.failure(); said != nil {
		return said
	}
	return err
}

// Hello returns what the server answered to initialize, nil on a Bare client.
func (c *Client) Hello() *wire.InitializeResult { return c.hello }

// Traffic returns how many bytes were received and sent.
func (c *Client) Traffic() (received, sent int64) {
	_, received = c.stream.r.Sample()
	return received, c.stream.w.Total()
}

// Done is closed when the connection is gone; Err then says why.
func (c *Client) Done() <-chan struct{} { return c.rpc.DisconnectNotify() }

// Err returns why the connection is gone: nil while it is there, ErrClosed when
// it was closed here.
func (c *Client) Err() error {
	select {
	case <-c.Done():
	default:
		return nil
	}
	if err := c.stream.failure(); err != nil {
		return err
	}
	return ErrClosed
}

// Close closes the connection and waits until nothing reads it any more. Calls
// in flight return ErrClosed. It may be called more than once.
func (c *Client) Close() error {
	err := c.rpc.Close()
	c.stream.pumps.Wait()
	if errors.Is(err, jsonrpc2.ErrClosed) || errors.Is(err, io.ErrClosedPipe) {
		return nil
	}
	return err
}

func (c *Client) notes(f func(Note)) {
	for {
		n, ok := c.stream.notes.get(c.stream.quit)
		if !ok {
			return
		}
		if f != nil {
			f(n)
		}
	}
}

// A CallOption adds a parameter that all methods have in common.
type CallOption func(*common)

type common struct {
	deadline time.Time
	key      string
}

// WithKey sets the idempotency key, which methods that change something need.
func WithKey(key string) CallOption { return func(c *common) { c.key = key } }

// WithDeadline sets the time after which the request must not take effect. It
// is independent of the context, which only says how long we wait.
func WithDeadline(t time.Time) CallOption { return func(c *common) { c.deadline = t } }

// Call sends a request and waits for its answer, which is decoded into result
// unless that is nil; a *jsontext.Value gets it as it came. params is anything
// that encodes to a JSON object, raw JSON included, or nil. Errors of the server
// are *rpc.Error; when ctx ends first its error is returned, and nothing is left
// of the call here (there it may still take effect).
func (c *Client) Call(ctx context.Context, method string, params, result any, opts ...CallOption) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	raw, err := encodeParams(params, opts)
	if err != nil {
		return err
	}
	id := c.next.Add(1)
	c.stream.expect(id)
	defer c.stream.abandon(id) // nothing to give up once it was answered
	waiter, err := c.dispatch(ctx, id, method, raw)
	if err != nil {
		return err
	}
	err = waiter.Wait(ctx, nil)
	if resp := c.stream.answer(id); resp != nil {
		return decode(resp, result)
	}
	if errors.Is(err, jsonrpc2.ErrClosed) {
		return c.lost()
	}
	return err
}

// lost returns why the connection is gone. The library ends its calls a moment
// before it says that it is closed.
func (c *Client) lost() error {
	<-c.Done()
	return c.Err()
}

type dispatched struct {
	waiter jsonrpc2.Waiter
	err    error
}

// dispatch writes the request. The library's write does not know contexts, so
// it has its own goroutine; the token makes it one at most, however many calls
// give up while the server does not read.
func (c *Client) dispatch(ctx context.Context, id int64, method string, params []byte) (jsonrpc2.Waiter, error) {
	sent := make(chan dispatched, 1)
	err := c.send(ctx, func() {
		w, err := c.rpc.DispatchCall(ctx, method, (*stdjson.RawMessage)(&params), jsonrpc2.PickID(jsonrpc2.ID{Num: uint64(id)}))
		sent <- dispatched{w, err}
	})
	if err != nil {
		return jsonrpc2.Waiter{}, err
	}
	select {
	case d := <-sent:
		if errors.Is(d.err, jsonrpc2.ErrClosed) {
			d.err = c.lost()
		}
		return d.waiter, d.err
	case <-ctx.Done():
		return jsonrpc2.Waiter{}, ctx.Err()
	}
}

func (c *Client) send(ctx context.Context, f func()) error {
	select {
	case c.write <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	go func() {
		defer func() { <-c.write }()
		f()
	}()
	return nil
}

// Notify sends a notification and returns when it is written.
func (c *Client) Notify(ctx context.Context, method string, params any) error {
	raw, err := encodeParams(params, nil)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	err = c.send(ctx, func() { sent <- c.rpc.Notify(ctx, method, (*stdjson.RawMessage)(&raw)) })
	if err != nil {
		return err
	}
	select {
	case err = <-sent:
		if errors.Is(err, jsonrpc2.ErrClosed) {
			err = c.lost()
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func encodeParams(params any, opts []CallOption) ([]byte, error) {
	raw := []byte("{}")
	var err error
	switch p := params.(type) {
	case nil:
	case stdjson.RawMessage:
		raw = p
	case []byte:
		raw = p
	default:
		if raw, err = json.Marshal(params); err != nil {
			return nil, fmt.Errorf("client: encode: %w", err)
		}
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[0] != '{' || !jsontext.Value(raw).IsValid() {
		return nil, rpc.NewError(rpc.InvalidParams, "params must be an object")
	}
	var c common
	for _, o := range opts {
		o(&c)
	}
	out := bytes.TrimRight(bytes.Clone(raw[:len(raw)-1]), " \t\r\n")
	add := func(name, value string) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(strconv.AppendQuote(out, name), ':'), value...)
	}
	if !c.deadline.IsZero() {
		add("deadline_ms", strconv.FormatInt(c.deadline.UnixMilli(), 10))
	}
	if c.key != "" {
		key, err := jsontext.AppendQuote(nil, c.key)
		if err != nil {
			return nil, fmt.Errorf("client: encode: %w", err)
		}
		add("idempotency_key", string(key))
	}
	return append(out, '}'), nil
}

// decode reads an answer. Members this client does not know are left aside: a
// newer server may say more.
func decode(resp *frame.Response, result any) error {
	if resp.Error != nil {
		return rpc.RemoteError(resp.Error)
	}
	switch r := result.(type) {
	case nil:
		return nil
	case *jsontext.Value:
		*r = resp.Result
		return nil
	case *stdjson.RawMessage:
		*r = resp.Result
		return nil
	}
	if err := json.Unmarshal(resp.Result, result); err != nil {
		return fmt.Errorf("client: the answer does not fit: %w", err)
	}
	return nil
}
