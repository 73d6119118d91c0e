package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/rpc"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// childVar makes the test binary play a server on its standard input and output.
const childVar = "GLOVED_TEST_CHILD"

// TestMain plays the child, or runs the tests and looks for goroutines left.
func TestMain(m *testing.M) {
	switch os.Getenv(childVar) {
	case "":
	case "serve":
		child(false)
	case "print":
		child(true)
	case "banner":
		fmt.Println("Welcome to host!\nlast login: yesterday")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "fail":
		fmt.Fprintln(os.Stderr, "no such policy")
		os.Exit(1)
	}
	code := m.Run()
	if left := leaked(); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "goroutines left behind:\n"+left)
		code = 1
	}
	os.Exit(code)
}

func child(print bool) {
	stdio, err := transport.TakeStdio()
	if err != nil {
		panic(err)
	}
	if print {
		fmt.Println("a stray print")
	}
	if err := server(nil).ServeConn(context.Background(), stdio, rpc.ConnOptions{Controller: true}); err != nil {
		panic(err)
	}
	os.Exit(0)
}

func leaked() string {
	var left []string
	for range 200 {
		buf := make([]byte, 4<<20)
		buf = buf[:runtime.Stack(buf, true)]
		left = nil
		for _, g := range strings.Split(string(buf), "\n\n")[1:] {
			if strings.Contains(g, "gloved.dev/") || strings.Contains(g, "jsonrpc2") {
				left = append(left, g)
			}
		}
		if len(left) == 0 {
			return ""
		}
		<-time.After(10 * time.Millisecond)
	}
	return strings.Join(left, "\n\n")
}

type echoParams struct {
	Text string `json:"text"`
}

type methods struct{ hold chan struct{} }

func (m methods) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.NewMethod("echo", "", rpc.MethodOptions{}, func(_ context.Context, _ *rpc.Call, p *echoParams) (*echoParams, error) { return p, nil }),
		rpc.NewMethod("fail", "", rpc.MethodOptions{}, func(context.Context, *rpc.Call, *echoParams) (*echoParams, error) {
			return nil, rpc.NewError(rpc.InvalidPlan, "too old").With("reason", "expired")
		}),
		rpc.NewMethod("hold", "", rpc.MethodOptions{}, func(ctx context.Context, c *rpc.Call, p *echoParams) (*echoParams, error) {
			select {
			case <-m.hold:
			case <-c.Draining():
			case <-ctx.Done():
			}
			return p, nil
		}),
		rpc.NewMethod("change", "", rpc.MethodOptions{Mutating: true}, func(_ context.Context, c *rpc.Call, p *echoParams) (*echoParams, error) {
			return &echoParams{fmt.Sprint(c.IdempotencyKey, " ", c.Deadline.UnixMilli(), " ", string(c.Params))}, nil
		}),
		rpc.NewMethod("notes", "", rpc.MethodOptions{}, func(_ context.Context, c *rpc.Call, p *echoParams) (*echoParams, error) {
			for i := range 1000 {
				if err := c.Notify("note", map[string]int{"n": i}); err != nil {
					return nil, err
				}
			}
			return p, nil
		}),
	}
}

func server(hold chan struct{}) *rpc.Server {
	reg, err := rpc.NewRegistry(methods{hold})
	if err != nil {
		panic(err)
	}
	s, err := rpc.NewServer(rpc.Options{Registry: reg, Server: wire.Implementation{Name: "gloved", Version: "0"}})
	if err != nil {
		panic(err)
	}
	return s
}

// connect returns a client of a server in this process.
func connect(t *testing.T, o Options) *Client {
	t.Helper()
	return connectHolding(t, o, nil)
}

// connectHolding does so with a method hold that waits for the channel.
func connectHolding(t *testing.T, o Options, hold chan struct{}) *Client {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- server(hold).ServeConn(context.Background(), b, rpc.ConnOptions{}) }()
	c, err := New(t.Context(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		<-done
	})
	return c
}

func TestCall(t *testing.T) {
	c := connect(t, Options{})
	ctx := t.Context()
	var got echoParams
	if err := c.Call(ctx, "echo", &echoParams{"<é>"}, &got); err != nil || got.Text != "<é>" {
		t.Errorf("echo: %q, %v", got.Text, err)
	}
	var raw jsontext.Value
	if err := c.Call(ctx, "echo", []byte(" {\n \"text\": \"raw\" } "), &raw); err != nil || string(raw) != `{"text":"raw"}` {
		t.Errorf("raw: %s, %v", raw, err)
	}
	err := c.Call(ctx, "fail", &echoParams{}, nil)
	var e *rpc.Error
	if !errors.Is(err, rpc.InvalidPlan) || !errors.As(err, &e) || e.Message != "too old" || e.Data["reason"] != "expired" || e.Number != -32006 {
		t.Errorf("fail: %#v", err)
	}
	if err := c.Call(ctx, "change", &echoParams{"x"}, &got, WithKey("k"), WithDeadline(time.UnixMilli(99999999999999))); err != nil || got.Text != `k 99999999999999 {"text":"x"}` {
		t.Errorf("change: %q, %v", got.Text, err)
	}
	for name, params := range map[string]any{"array": []int{1}, "broken": []byte(`{"a":}`), "empty": []byte(``)} {
		if err := c.Call(ctx, "echo", params, nil); !errors.Is(err, rpc.InvalidParams) {
			t.Errorf("%s: %v, want %v", name, err, rpc.InvalidParams)
		}
	}
	if err := c.Call(ctx, "echo", &echoParams{strings.Repeat("x", 1<<20)}, nil); !errors.Is(err, rpc.FrameTooLarge) {
		t.Errorf("too large: %v, want %v", err, rpc.FrameTooLarge)
	}
	caps, err := c.Capabilities(ctx)
	if err != nil || len(caps.Methods) != 9 || len(c.Hello().Capabilities.Methods) != 9 {
		t.Errorf("capabilities: %+v, %v", caps, err)
	}
	if h, err := c.Health(ctx); err != nil || h.Status != wire.StatusReady {
		t.Errorf("health: %+v, %v", h, err)
	}
	if d, err := c.Discover(ctx); err != nil || len(d.Methods) != 9 {
		t.Errorf("discover: %v", err)
	}
	if in, out := c.Traffic(); in < 500 || out < 500 {
		t.Errorf("traffic: %d in, %d out", in, out)
	}
}

func TestConcurrentCalls(t *testing.T) {
	c := connect(t, Options{})
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			var got echoParams
			if err := c.Call(t.Context(), "echo", &echoParams{fmt.Sprint(i)}, &got); err != nil || got.Text != fmt.Sprint(i) {
				t.Errorf("call %d: %q, %v", i, got.Text, err)
			}
		})
	}
	wg.Wait()
}

// A call whose context ends leaves nothing behind, neither here nor in the
// library, and its late answer hits nobody.
func TestAbandonedCalls(t *testing.T) {
	holding := make(chan struct{})
	c := connectHolding(t, Options{}, holding)
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Call(ctx, "hold", &echoParams{"held"}, nil) }()
		if err := c.Call(t.Context(), "echo", &echoParams{}, nil); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	close(holding) // twenty late answers
	for range 20 {
		var got echoParams
		if err := c.Call(t.Context(), "echo", &echoParams{"after"}, &got); err != nil || got.Text != "after" {
			t.Fatalf("%q, %v", got.Text, err)
		}
	}
	c.stream.mu.Lock()
	defer c.stream.mu.Unlock()
	if n := len(c.stream.waiting) + len(c.stream.answers) + len(c.stream.abandoned); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

func TestNotes(t *testing.T) {
	got := make(chan string, 1000)
	var c *Client
	ready := make(chan struct{})
	c = connect(t, Options{OnNote: func(n Note) {
		<-ready
		if n.Method == "note" && string(n.Params) == `{"n":0}` {
			// The handler may call.
			if err := c.Call(context.Background(), "echo", &echoParams{}, nil); err != nil {
				t.Errorf("a call from the handler: %v", err)
			}
		}
		got <- string(n.Params)
	}})
	done := make(chan error, 1)
	go func() { done <- c.Call(t.Context(), "notes", &echoParams{}, nil) }()
	close(ready)
	for i := range 1000 {
		if g := <-got; g != fmt.Sprintf(`{"n":%d}`, i) {
			t.Fatalf("note %d: %s", i, g)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// against runs a client against a peer that says what it likes.
func against(t *testing.T, o Options, say func(r *bufio.Reader, w io.Writer)) (*Client, error) {
	t.Helper()
	a, b := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer b.Close()
		say(bufio.NewReader(b), b)
	}()
	c, err := New(t.Context(), a, o)
	t.Cleanup(func() {
		if c != nil {
			c.Close()
		}
		<-done
	})
	return c, err
}

func TestNoProtocol(t *testing.T) {
	tests := []struct{ name, say, sample string }{
		{"banner", "Welcome to host!\r\n", "Welcome to host!\r\n"},
		{"html", "<html>\n", "<html>\n"},
		{"long line", strings.Repeat("x", 2<<20) + "\n", strings.Repeat("x", 256)},
		{"silence", "", ""},
		{"prompt and end", "password: ", "password: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := against(t, Options{}, func(r *bufio.Reader, w io.Writer) {
				go func() { _, _ = r.ReadString('\n') }()
				_, _ = io.WriteString(w, tt.say) // the client may hang up in the middle
			})
			var np *NonProtocolError
			if !errors.As(err, &np) || string(np.Sample) != tt.sample {
				t.Errorf("got %.300v, want a sample %.40q", err, tt.sample)
			}
		})
	}
}

// A prompt without a line end is shown when the time is over.
func TestPromptIsShown(t *testing.T) {
	_, err := against(t, Options{Handshake: 50 * time.Millisecond}, func(r *bufio.Reader, w io.Writer) {
		_, _ = io.WriteString(w, "password: ")
		_, _ = io.Copy(io.Discard, r)
	})
	var np *NonProtocolError
	if !errors.As(err, &np) || string(np.Sample) != "password: " || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestServerThatMisbehaves(t *testing.T) {
	const hello = `{"jsonrpc":"2.0","id":1,"result":{"protocol_version":1,"server":{"name":"x","version":"1"},"capabilities":{"methods":[]}}}` + "\n"
	for name, tt := range map[string]struct {
		after string
		want  func(error) bool
	}{
		"garbage": {"garbage\n", func(err error) bool { return strings.Contains(err.Error(), "bad frame") }},
		"request": {`{"jsonrpc":"2.0","id":1,"method":"x"}` + "\n", func(err error) bool { return strings.Contains(err.Error(), "sent a request") }},
		"refusal": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32033,"message":"m","data":{"code":"shutting_down"}}}` + "\n",
			func(err error) bool { return errors.Is(err, rpc.ShuttingDown) }},
		"end":      {"", func(err error) bool { return errors.Is(err, io.EOF) }},
		"half":     {`{"jsonrpc":"2.0"`, func(err error) bool { return strings.Contains(err.Error(), "bad frame") }},
		"stranger": {`{"jsonrpc":"2.0","id":99,"result":1}` + "\n", func(err error) bool { return errors.Is(err, io.EOF) }},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := against(t, Options{}, func(r *bufio.Reader, w io.Writer) {
				_, _ = r.ReadString('\n')
				_, _ = io.WriteString(w, hello)
				_, _ = r.ReadString('\n')
				_, _ = io.WriteString(w, tt.after)
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Call(t.Context(), "echo", nil, nil); err == nil || !tt.want(err) {
				t.Errorf("Call: %v", err)
			}
			<-c.Done()
			if err := c.Call(t.Context(), "echo", nil, nil); err == nil || !tt.want(err) {
				t.Errorf("a later Call: %v", err)
			}
		})
	}
}

// A server that does not read holds up no caller beyond its context.
func TestServerThatDoesNotRead(t *testing.T) {
	stop := make(chan struct{})
	c, err := against(t, Options{Bare: true}, func(*bufio.Reader, io.Writer) { <-stop })
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		if err := c.Call(ctx, "echo", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want %v", err, context.DeadlineExceeded)
		}
		cancel()
	}
	if n := runtime.NumGoroutine() - before; n > 10 {
		t.Errorf("%d goroutines more", n)
	}
	close(stop)
}

func TestCloseEndsCalls(t *testing.T) {
	c := connect(t, Options{})
	block := make(chan error, 1)
	in := make(chan struct{})
	go func() {
		close(in)
		block <- c.Call(context.Background(), "notes", &echoParams{}, nil)
	}()
	<-in
	if err := c.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-block; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("the call: %v", err)
	}
	if err := c.Call(t.Context(), "echo", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a later call: %v, want %v", err, ErrClosed)
	}
}

func spawnSelf(t *testing.T, role string, o Options) (*Client, error) {
	t.Helper()
	t.Setenv(childVar, role)
	return SpawnStdio(t.Context(), []string{os.Args[0]}, o)
}

func TestSpawn(t *testing.T) {
	for _, role := range []string{"serve", "print"} {
		var stderr bytes.Buffer
		c, err := spawnSelf(t, role, Options{Stderr: &stderr})
		if err != nil {
			t.Fatalf("%s: %v (%s)", role, err, stderr.String())
		}
		var got echoParams
		if err := c.Call(t.Context(), "echo", &echoParams{"over stdio"}, &got); err != nil || got.Text != "over stdio" {
			t.Errorf("%s: %q, %v", role, got.Text, err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("%s: Close: %v", role, err)
		}
		if role == "print" && !strings.Contains(stderr.String(), "a stray print") {
			t.Errorf("the stray print went elsewhere: %q", stderr.String())
		}
	}
}

func TestSpawnFailures(t *testing.T) {
	_, err := spawnSelf(t, "banner", Options{})
	var np *NonProtocolError
	if !errors.As(err, &np) || !strings.HasPrefix(string(np.Sample), "Welcome to host!") {
		t.Errorf("banner: %v", err)
	}
	if _, err := spawnSelf(t, "fail", Options{}); err == nil || !strings.Contains(err.Error(), "no such policy") {
		t.Errorf("a server that fails: %v", err)
	}
	if _, err := SpawnStdio(t.Context(), []string{"/nonexistent/gloved"}, Options{}); err == nil {
		t.Error("a program that does not exist was started")
	}
	if _, err := SpawnStdio(t.Context(), nil, Options{}); err == nil {
		t.Error("nothing was started")
	}
}

// TestTypedMethods checks what each typed method puts on the wire.
func TestTypedMethods(t *testing.T) {
	sent := make(chan string, 1)
	c, err := against(t, Options{Bare: true}, func(r *bufio.Reader, w io.Writer) {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			var req struct {
				ID     *int64
				Method string
				Params json.RawMessage
			}
			if err := json.Unmarshal([]byte(line), &req); err != nil {
				t.Error(err)
			}
			sent <- req.Method + " " + string(req.Params)
			if req.ID != nil {
				_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"result":{}}`+"\n", *req.ID)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	a := wire.Anchor{KeyID: "k", Sequence: 1, HeadHMAC: "h"}
	drop := func(_ any, err error) error { return err }
	for _, tt := range []struct {
		call func() error
		want string
	}{
		{func() error { return drop(c.PageReceipts(ctx, a, 5)) }, `page_receipts {"anchor":{"key_id":"k","sequence":1,"head_hmac":"h"},"limit":5}`},
		{func() error { return drop(c.AcknowledgeReceipts(ctx, "key", a)) }, `acknowledge_receipts {"anchor":{"key_id":"k","sequence":1,"head_hmac":"h"},"idempotency_key":"key"}`},
		{func() error { return drop(c.ValidatePlan(ctx, []byte(`{"p":1}`))) }, `validate_plan {"plan":{"p":1}}`},
		{func() error { return drop(c.SessionStatus(ctx, "s")) }, `session_status {"session_id":"s"}`},
		{func() error { return drop(c.ListSessions(ctx, &wire.ListSessionsParams{})) }, `list_sessions {}`},
		{func() error { return drop(c.WriteStdin(ctx, "s", []byte("hi"))) }, `write_stdin {"session_id":"s","data":"aGk="}`},
		{func() error { return c.Resize(ctx, "s", 24, 80) }, `resize {"session_id":"s","rows":24,"columns":80}`},
		{func() error { return c.Signal(ctx, "s", wire.SignalHangup) }, `signal {"session_id":"s","signal":"hangup"}`},
		{func() error { return drop(c.Detach(ctx, "s", 7)) }, `detach {"session_id":"s","transcript_cursor":7}`},
		{func() error { return drop(c.StopSession(ctx, "key", "s")) }, `stop_session {"session_id":"s","idempotency_key":"key"}`},
		{func() error { return drop(c.CleanupSession(ctx, "s")) }, `cleanup_session {"session_id":"s"}`},
		{func() error { return c.AttachCredit(ctx, "s", 9) }, `attach_credit {"session_id":"s","cursor":9}`},
		{func() error {
			return drop(c.Attach(ctx, &wire.AttachParams{SessionID: "s", MaxBytes: 1, Follow: true}))
		}, `attach {"session_id":"s","cursor":0,"max_bytes":1,"follow":true}`},
	} {
		if err := tt.call(); err != nil {
			t.Errorf("%s: %v", tt.want, err)
		}
		if got := <-sent; got != tt.want {
			t.Errorf("sent %s, want %s", got, tt.want)
		}
	}
}
