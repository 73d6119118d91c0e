package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestOpenAndCall(t *testing.T) {
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("echo", "", MethodOptions{}, echo)}})
	p := dial(t, s, ConnOptions{})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"x"}}`)
	if a := p.recv(); a.code() != "not_initialized" || a.Error.Code != -32002 || a.id() != "1" {
		t.Fatalf("before initialize: %+v", a)
	}
	p.open()
	for _, id := range []string{"1", "-3", "0", `"a"`, "9007199254740991", "-9007199254740991"} {
		p.send(`{"jsonrpc":"2.0","id":` + id + `,"method":"echo","params":{"text":"<x>&"}}`)
		a := p.recv()
		if a.Error != nil || string(a.Result) != `{"text":"<x>&"}` || a.id() != id {
			t.Errorf("id %s: answer id %s result %s error %+v", id, a.id(), a.Result, a.Error)
		}
	}
	for method, code := range map[string]string{"nope": "method_not_found", "initialize": "already_initialized",
		"relay": "method_not_found", "capabilities": "", "health": "", "rpc.discover": ""} {
		line := `{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`
		if method == "initialize" {
			line = hello
		}
		p.send(line)
		if a := p.recv(); a.code() != code {
			t.Errorf("%s: got %q, want %q (%+v)", method, a.code(), code, a.Error)
		}
	}
	if err := p.hangUp(); err != nil {
		t.Errorf("ServeConn: %v", err)
	}
}

func TestInitialize(t *testing.T) {
	secret := strings.Repeat("ab", 32)
	tests := []struct {
		name, secret, params, want string
		ends                       bool
	}{
		{"version 1 among others", "", `{"protocol_versions":[9,1],"client":{"name":"c","version":"1"}}`, "", false},
		{"no common version", "", `{"protocol_versions":[2],"client":{"name":"c","version":"1"}}`, "unsupported_protocol_version", false},
		{"no versions", "", `{"protocol_versions":[],"client":{"name":"c","version":"1"}}`, "invalid_params", false},
		{"17 versions", "", `{"protocol_versions":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],"client":{"name":"c","version":"1"}}`, "invalid_params", false},
		{"no client", "", `{"protocol_versions":[1]}`, "invalid_params", false},
		{"control characters", "", `{"protocol_versions":[1],"client":{"name":"c\u001b[2J","version":"1"}}`, "invalid_params", false},
		{"unknown member", "", `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"x":1}`, "invalid_params", false},
		{"wrong case", "", `{"Protocol_versions":[1],"client":{"name":"c","version":"1"}}`, "invalid_params", false},
		{"a key", "", `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"idempotency_key":"k"}`, "invalid_params", false},
		{"past deadline", "", `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"deadline_ms":1}`, "deadline_exceeded", false},
		{"secret over stdio", "", `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"bootstrap_secret":"` + secret + `"}`, "invalid_params", false},
		{"empty secret over stdio", "", `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"bootstrap_secret":""}`, "invalid_params", false},
		{"secret", secret, `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"bootstrap_secret":"` + secret + `"}`, "", false},
		{"no secret", secret, `{"protocol_versions":[1],"client":{"name":"c","version":"1"}}`, "unauthorized", true},
		{"wrong secret", secret, `{"protocol_versions":[1],"client":{"name":"c","version":"1"},"bootstrap_secret":"` + strings.Repeat("ac", 32) + `"}`, "unauthorized", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := dial(t, newServer(t, Options{}), ConnOptions{Secret: tt.secret})
			p.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":` + tt.params + `}`)
			if a := p.recv(); a.code() != tt.want {
				t.Fatalf("got %q, want %q: %+v", a.code(), tt.want, a.Error)
			}
			if tt.ends {
				if rest, _ := io.ReadAll(p.conn); len(rest) > 0 {
					t.Errorf("after the refusal came %q", rest)
				}
				return
			}
			// The connection lives: what comes next is answered.
			p.send(`{"jsonrpc":"2.0","id":2,"method":"health"}`)
			want := ""
			if tt.want != "" {
				want = "not_initialized"
			}
			if a := p.recv(); a.code() != want {
				t.Errorf("health afterwards: %q, want %q", a.code(), want)
			}
		})
	}
}

func TestBadFramesAreAnswered(t *testing.T) {
	p := dial(t, newServer(t, Options{}), ConnOptions{}).open()
	tests := []struct{ line, code, id string }{
		{strings.Repeat("[", 1<<20-1), "batch_unsupported", "null"},
		{strings.Repeat("x", 1<<20), "frame_too_large", "null"},
		{"Content-Length: 12\r", "parse_error", "null"},
		{`{"jsonrpc":"2.0","id":1,"id":2,"method":"health"}`, "parse_error", "null"},
		{`{"jsonrpc":"2.0","id":5,"method":"health","params":[]}`, "invalid_params", "5"},
		{`{"jsonrpc":"1.0","id":-5,"method":"health"}`, "invalid_request", "-5"},
		{`{"jsonrpc":"2.0","id":6,"method":"health"}`, "", "6"},
	}
	for _, tt := range tests {
		p.send(tt.line)
		if a := p.recv(); a.code() != tt.code || a.id() != tt.id {
			t.Errorf("%.40q: got %q for id %s, want %q for %s", tt.line, a.code(), a.id(), tt.code, tt.id)
		}
	}
}

// gate is a method that waits until it is told to go on.
type gate struct {
	entered chan string
	release chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan string, 10000), release: make(chan struct{})} }

func (g *gate) handle(ctx context.Context, _ *Call, p *echoParams) (*echoResult, error) {
	g.entered <- p.Text
	select {
	case <-g.release:
		return &echoResult{p.Text}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func request(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
}

func TestDuplicateID(t *testing.T) {
	g := newGate()
	p := dial(t, newServer(t, Options{}, comp{methods: []Method{NewMethod("wait", "", MethodOptions{}, g.handle)}}), ConnOptions{}).open()
	p.send(request(1, "wait", `{"text":"first"}`))
	<-g.entered
	p.send(request(1, "wait", `{"text":"second"}`))
	if a := p.recv(); a.code() != "duplicate_id" || a.id() != "null" || a.Error.Data["id"] != 1.0 {
		t.Fatalf("the second: %+v %+v", a, a.Error)
	}
	close(g.release)
	if a := p.recv(); a.Error != nil || string(a.Result) != `{"text":"first"}` || a.id() != "1" {
		t.Fatalf("the first was disturbed: %+v", a)
	}
	p.send(request(1, "wait", `{"text":"third"}`))
	if a := p.recv(); string(a.Result) != `{"text":"third"}` {
		t.Fatalf("the id is not free again: %+v", a)
	}
}

func TestBackPressure(t *testing.T) {
	g := newGate()
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("wait", "", MethodOptions{}, g.handle), NewMethod("echo", "", MethodOptions{}, echo)}})
	p := dial(t, s, ConnOptions{}).open()
	const all = MaxInFlight + 20
	for i := range all {
		p.send(request(i, "wait", `{"text":"x"}`))
	}
	for range MaxInFlight {
		<-g.entered
	}
	// Another connection is not held up by the full one, and while it is served
	// nothing more of the full one is taken up.
	q := dial(t, s, ConnOptions{}).open()
	q.send(request(1, "echo", `{"text":"other"}`))
	if a := q.recv(); a.Error != nil {
		t.Errorf("the other connection: %+v", a.Error)
	}
	if n := len(g.entered); n != 0 {
		t.Errorf("%d requests beyond the bound were taken up", n)
	}
	close(g.release)
	for range all {
		if a := p.recv(); a.Error != nil {
			t.Fatalf("%+v", a.Error)
		}
	}
}

func TestInFlightBytesAreBounded(t *testing.T) {
	f := newFlight()
	size := MaxInFlightBytes/2 + 1
	if err := f.begin(testID(1), 2*MaxInFlightBytes); err != nil {
		t.Fatalf("a single large one: %v", err)
	}
	if !f.full(1) {
		t.Error("room was left beside it")
	}
	f.release(testID(1))
	f.end(2 * MaxInFlightBytes)
	if err := f.begin(testID(2), size); err != nil || !f.full(size) || f.full(1) {
		t.Errorf("after a half: %v, full for half %v, for one byte %v", err, f.full(size), f.full(1))
	}
}

func TestPipelinedTenThousand(t *testing.T) {
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("echo", "", MethodOptions{}, echo)}})
	p := dial(t, s, ConnOptions{}).open()
	const n = 10000
	var peak atomic.Uint64
	go func() {
		var b strings.Builder
		for i := range n {
			b.WriteString(request(i, "echo", `{"text":"abcdefghijklmnopqrstuvwxyz"}`) + "\n")
		}
		_, _ = io.WriteString(p.conn, b.String())
	}()
	var base runtime.MemStats
	runtime.ReadMemStats(&base)
	seen := make(map[string]bool, n)
	for i := range n {
		seen[p.recv().id()] = true
		if i%1000 == 0 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			peak.Store(max(peak.Load(), m.HeapInuse))
		}
	}
	if len(seen) != n {
		t.Errorf("%d answers, want %d", len(seen), n)
	}
	if grew := int64(peak.Load()) - int64(base.HeapInuse); grew > 64<<20 {
		t.Errorf("the heap grew by %d bytes", grew)
	}
}

func TestOrderedAcrossConnections(t *testing.T) {
	g := newGate()
	var mu sync.Mutex
	var order []string
	put := func(_ context.Context, _ *Call, p *echoParams) (*echoResult, error) {
		if p.Text == "block" {
			g.entered <- p.Text
			<-g.release
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, p.Text)
		return &echoResult{p.Text}, nil
	}
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("put", "", MethodOptions{Ordered: true}, put)}})
	a, b := dial(t, s, ConnOptions{}).open(), dial(t, s, ConnOptions{}).open()
	a.send(request(0, "put", `{"text":"block","key":"s"}`))
	<-g.entered
	for i := range 20 {
		a.send(request(i+1, "put", fmt.Sprintf(`{"text":"%d","key":"s"}`, i)))
	}
	// Another key does not wait.
	b.send(request(1, "put", `{"text":"free","key":"t"}`))
	if r := b.recv(); r.Error != nil {
		t.Fatal(r.Error)
	}
	close(g.release)
	for range 21 {
		a.recv()
	}
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(order, " "); got != "free block 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19" {
		t.Errorf("order %q", got)
	}
	s.order.mu.Lock()
	defer s.order.mu.Unlock()
	if len(s.order.tails) != 0 {
		t.Errorf("%d queues are left", len(s.order.tails))
	}
}

func TestHandlerErrors(t *testing.T) {
	const path = "/home/secret/place"
	var log logBuffer
	fail := func(_ context.Context, _ *Call, p *echoParams) (*echoResult, error) {
		switch p.Text {
		case "panic":
			panic(path)
		case "plain":
			return nil, errors.New(path)
		case "typed":
			return nil, fmt.Errorf("outer: %w", Wrap(InvalidPlan, "", errors.New(path)).With("reason", "expired"))
		case "large":
			return &echoResult{strings.Repeat("x", 1<<20)}, nil
		case "cancelled":
			return nil, context.Canceled
		case "late":
			return nil, context.DeadlineExceeded
		}
		return nil, nil
	}
	s := newServer(t, Options{Logger: log.logger()}, comp{methods: []Method{NewMethod("fail", "", MethodOptions{}, fail)}})
	p := dial(t, s, ConnOptions{}).open()
	for text, want := range map[string]string{"panic": "internal_error", "plain": "internal_error", "typed": "invalid_plan",
		"large": "response_too_large", "cancelled": "shutting_down", "late": "deadline_exceeded", "nil": ""} {
		p.send(request(1, "fail", `{"text":"`+text+`"}`))
		a := p.recv()
		if a.code() != want {
			t.Errorf("%s: got %q, want %q", text, a.code(), want)
		}
		if a.Error != nil && strings.Contains(a.Error.Message+fmt.Sprint(a.Error.Data), path) {
			t.Errorf("%s: the cause went over the wire: %+v", text, a.Error)
		}
		if text == "typed" && a.Error.Data["reason"] != "expired" {
			t.Errorf("typed: data %v", a.Error.Data)
		}
	}
	if err := p.hangUp(); err != nil {
		t.Error(err)
	}
	if got := log.String(); strings.Count(got, path) < 3 || !strings.Contains(got, "panicked") {
		t.Errorf("the operator's log lacks causes:\n%s", got)
	}
}

func TestEOFAnswersWhatIsInFlight(t *testing.T) {
	entered := make(chan struct{})
	wait := func(_ context.Context, c *Call, p *echoParams) (*echoResult, error) {
		close(entered)
		<-c.Draining()
		return &echoResult{p.Text}, nil
	}
	p := dial(t, newServer(t, Options{}, comp{methods: []Method{NewMethod("wait", "", MethodOptions{}, wait)}}), ConnOptions{}).open()
	p.send(request(1, "wait", `{"text":"x"}`))
	<-entered
	if err := p.hangUp(); err != nil {
		t.Errorf("ServeConn: %v", err)
	}
	if a := p.recv(); string(a.Result) != `{"text":"x"}` {
		t.Errorf("the answer: %+v", a)
	}
	if rest, err := io.ReadAll(p.r); len(rest) != 0 || err != nil {
		t.Errorf("after it: %q, %v", rest, err)
	}
}

func TestShutdown(t *testing.T) {
	g := newGate()
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("wait", "", MethodOptions{}, g.handle)}})
	p := dial(t, s, ConnOptions{}).open()
	p.send(request(1, "wait", `{"text":"x"}`))
	<-g.entered
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(context.Background()) }()
	<-s.drainingForTest(t)
	p.send(request(2, "wait", `{"text":"y"}`))
	if a := p.recv(); a.code() != "shutting_down" || a.id() != "2" {
		t.Errorf("a new request: %+v", a)
	}
	q := dial(t, s, ConnOptions{})
	if a := q.recv(); a.code() != "shutting_down" {
		t.Errorf("a new connection: %+v", a)
	}
	if err := <-q.done; !errors.Is(err, ErrServerClosed) {
		t.Errorf("a new connection: %v", err)
	}
	close(g.release)
	if a := p.recv(); string(a.Result) != `{"text":"x"}` {
		t.Errorf("what was in flight: %+v", a)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-p.done; err != nil {
		t.Errorf("ServeConn: %v", err)
	}
}

// drainingForTest returns the draining channel of the only connection.
func (s *Server) drainingForTest(t *testing.T) <-chan struct{} {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		return c.draining
	}
	t.Fatal("no connection")
	return nil
}

func TestShutdownCutsOffWhatDoesNotEnd(t *testing.T) {
	g := newGate()
	s := newServer(t, Options{}, comp{methods: []Method{NewMethod("wait", "", MethodOptions{}, g.handle)}})
	p := dial(t, s, ConnOptions{}).open()
	p.send(request(1, "wait", `{"text":"x"}`))
	<-g.entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Shutdown(ctx); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Shutdown: %v", err)
	}
	<-p.done // the method's context ended with the connection
}

func TestTooManyConnections(t *testing.T) {
	s := newServer(t, Options{MaxConns: 2})
	a := dial(t, s, ConnOptions{}).open()
	dial(t, s, ConnOptions{}).open()
	c := dial(t, s, ConnOptions{})
	if r := c.recv(); r.code() != "server_busy" || r.Error.Code != -32001 || r.Error.Data["retryable"] != true || r.id() != "null" {
		t.Errorf("the third: %+v", r.Error)
	}
	if err := <-c.done; !errors.Is(err, ServerBusy) {
		t.Errorf("ServeConn: %v", err)
	}
	if err := a.hangUp(); err != nil {
		t.Error(err)
	}
	dial(t, s, ConnOptions{}).open()
}

func TestHandshakeTimeout(t *testing.T) {
	p := dial(t, newServer(t, Options{}), ConnOptions{Handshake: time.Millisecond})
	if a := p.recv(); a.code() != "not_initialized" || a.id() != "null" {
		t.Errorf("%+v", a.Error)
	}
	if err := <-p.done; err != nil {
		t.Errorf("ServeConn: %v", err)
	}
}

func TestOwnerLocal(t *testing.T) {
	m := NewMethod("local", "", MethodOptions{OwnerLocal: true}, echo)
	for _, controller := range []bool{false, true} {
		s := newServer(t, Options{}, comp{methods: []Method{m}})
		p := dial(t, s, ConnOptions{Controller: controller}).open()
		p.send(request(1, "local", `{"text":"x"}`), request(2, "capabilities", `{}`), request(3, "rpc.discover", `{}`))
		for range 3 {
			a := p.recv()
			var there bool
			if a.id() == "1" {
				there = a.Error == nil
				if controller && a.code() != "method_not_found" {
					t.Errorf("controller: %q", a.code())
				}
			} else {
				there = strings.Contains(string(a.Result), `"local"`)
			}
			if there == controller {
				t.Errorf("controller %v, answer %s: there %v", controller, a.id(), there)
			}
		}
	}
}

func TestNotifications(t *testing.T) {
	credit := make(chan string, 8)
	note := NewMethod("credit", "", MethodOptions{Notification: true},
		func(_ context.Context, _ *Call, p *echoParams) (*struct{}, error) {
			if p.Text == "panic" {
				panic("in a notification")
			}
			credit <- p.Text
			return nil, nil
		})
	ran := make(chan struct{}, 1)
	act := NewMethod("act", "", MethodOptions{}, func(context.Context, *Call, *echoParams) (*echoResult, error) {
		ran <- struct{}{}
		return nil, nil
	})
	follow := NewMethod("follow", "", MethodOptions{}, func(_ context.Context, c *Call, p *echoParams) (*echoResult, error) {
		c.AfterReply(func() {
			for i := range 3 {
				if err := c.Notify("output", map[string]int{"n": i}); err != nil {
					t.Errorf("Notify: %v", err)
				}
			}
			<-c.Peer.Done()
			if err := c.Notify("output", nil); err == nil {
				t.Error("Notify on a connection that is gone succeeded")
			}
		})
		return &echoResult{p.Text}, nil
	})
	p := dial(t, newServer(t, Options{}, comp{methods: []Method{note, act, follow}}), ConnOptions{}).open()
	p.send(`{"jsonrpc":"2.0","method":"credit","params":{"text":"panic"}}`,
		`{"jsonrpc":"2.0","method":"credit","params":{"text":"1"}}`,
		`{"jsonrpc":"2.0","method":"credit","params":{"nonsense":1}}`,
		`{"jsonrpc":"2.0","method":"unknown"}`,
		`{"jsonrpc":"2.0","method":"act","params":{"text":"no id, no effect"}}`,
		request(1, "credit", `{"text":"x"}`),
		request(2, "follow", `{"text":"f"}`))
	if a := p.recv(); a.code() != "invalid_request" || a.id() != "1" {
		t.Errorf("a notification with an id: %+v", a)
	}
	if a := p.recv(); a.id() != "2" || a.Error != nil {
		t.Errorf("the answer comes before what it announces: %+v", a)
	}
	for i := range 3 {
		if a := p.recv(); a.Method != "output" || string(a.Params) != fmt.Sprintf(`{"n":%d}`, i) {
			t.Errorf("notification %d: %+v", i, a)
		}
	}
	if got := <-credit; got != "1" || len(ran) != 0 {
		t.Errorf("credit %q; a request without an id ran %d times", got, len(ran))
	}
	if err := p.hangUp(); err != nil {
		t.Error(err)
	}
}
