package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/frame"
)

func testID(n int64) frame.ID { return frame.IntID(n) }

func TestIdempotency(t *testing.T) {
	var runs atomic.Int64
	var failing atomic.Bool
	count := func(_ context.Context, c *Call, p *echoParams) (*echoResult, error) {
		n := runs.Add(1)
		if failing.Load() {
			return nil, NewError(SessionNotFound, "")
		}
		return &echoResult{fmt.Sprintf("%s %d %s %s", p.Text, n, c.IdempotencyKey, c.Params)}, nil
	}
	s := newServer(t, Options{}, comp{methods: []Method{
		NewMethod("do", "", MethodOptions{Mutating: true}, count),
		NewMethod("do2", "", MethodOptions{Mutating: true}, count),
		NewMethod("durable", "", MethodOptions{Mutating: true, Durable: true}, count),
		NewMethod("read", "", MethodOptions{}, count)}})
	p := dial(t, s, ConnOptions{}).open()
	call := func(method, params string) answer {
		t.Helper()
		p.send(request(1, method, params))
		return p.recv()
	}
	first := call("do", `{"text":"a","idempotency_key":"k1","deadline_ms":99999999999999}`)
	want := `{"text":"a 1 k1 {\"text\":\"a\"}"}`
	if string(first.Result) != want {
		t.Fatalf("first: %s, want %s (%+v)", first.Result, want, first.Error)
	}
	// Order of members, spaces and the deadline do not make another request; a
	// second connection is the same server.
	p = dial(t, s, ConnOptions{}).open()
	if a := call("do", `{ "idempotency_key":"k1" , "text" : "\u0061" }`); string(a.Result) != want {
		t.Errorf("again: %s, want %s", a.Result, want)
	}
	for _, tt := range []struct{ method, params, want string }{
		{"do", `{"text":"b","idempotency_key":"k1"}`, "idempotency_conflict"},
		{"do2", `{"text":"a","idempotency_key":"k1"}`, "idempotency_conflict"},
		{"do", `{"text":"a"}`, "invalid_params"},
		{"do", `{"text":"a","idempotency_key":""}`, "invalid_params"},
		{"do", `{"text":"a","idempotency_key":"white space"}`, "invalid_params"},
		{"do", `{"text":"a","idempotency_key":7}`, "invalid_params"},
		{"do", `{"text":"a","idempotency_key":null}`, "invalid_params"},
		{"read", `{"text":"a","idempotency_key":"k9"}`, "invalid_params"},
		{"read", `{"text":"a","deadline_ms":0}`, "invalid_params"},
		{"read", `{"text":"a","deadline_ms":1.5}`, "invalid_params"},
		{"read", `{"text":"a","deadline_ms":"1"}`, "invalid_params"},
		{"read", `{"text":"a","deadline_ms":1}`, "deadline_exceeded"},
		{"read", `{"text":"a","deadline\u005fms":1}`, "deadline_exceeded"},
		{"read", `{"text":"a","Deadline_ms":99999999999999}`, "invalid_params"},
		{"read", `{}`, "invalid_params"},
	} {
		if a := call(tt.method, tt.params); a.code() != tt.want {
			t.Errorf("%s %s: got %q, want %q", tt.method, tt.params, a.code(), tt.want)
		}
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs, want 1", n)
	}
	failing.Store(true)
	if a := call("do", `{"text":"c","idempotency_key":"k2"}`); a.code() != "session_not_found" {
		t.Errorf("failing: %+v", a.Error)
	}
	failing.Store(false)
	if a := call("do", `{"text":"c","idempotency_key":"k2"}`); a.Error != nil {
		t.Errorf("a failure was remembered: %+v", a.Error)
	}
	call("durable", `{"text":"d","idempotency_key":"k3"}`)
	if a := call("durable", `{"text":"d","idempotency_key":"k3"}`); string(a.Result) != `{"text":"d 5 k3 {\"text\":\"d\"}"}` {
		t.Errorf("a durable method keeps its own keys: %s", a.Result)
	}
}

func TestKeyTable(t *testing.T) {
	fake := clock.NewFake(time.UnixMilli(1e12))
	kt := &keyTable{clock: fake, entries: make(map[string]*keyEntry)}
	ok := func() ([]byte, error) { return []byte("1"), nil }
	for i := range MaxKeys {
		if _, err := kt.do(t.Context(), fmt.Sprint(i), "d", ok); err != nil {
			t.Fatalf("key %d: %v", i, err)
		}
	}
	if _, err := kt.do(t.Context(), "one more", "d", ok); !errors.Is(err, IdempotencyCapacity) {
		t.Errorf("key %d: %v, want %v", MaxKeys+1, err, IdempotencyCapacity)
	}
	if _, err := kt.do(t.Context(), "0", "d", ok); err != nil {
		t.Errorf("a known key in a full table: %v", err)
	}
	fake.Advance(keyLifetime + time.Second)
	if _, err := kt.do(t.Context(), "one more", "d", ok); err != nil || len(kt.entries) != 1 || kt.bytes != 1 {
		t.Errorf("after an hour: %v, %d entries of %d bytes", err, len(kt.entries), kt.bytes)
	}
}

func TestKeyTableBoundsBytes(t *testing.T) {
	kt := &keyTable{clock: clock.System(), entries: make(map[string]*keyEntry)}
	big := func() ([]byte, error) { return make([]byte, maxKeyBytes), nil }
	if _, err := kt.do(t.Context(), "a", "d", big); err != nil {
		t.Fatal(err)
	}
	if _, err := kt.do(t.Context(), "b", "d", big); !errors.Is(err, IdempotencyCapacity) {
		t.Errorf("got %v, want %v", err, IdempotencyCapacity)
	}
}

// Of concurrent requests with one key one runs; when it fails, the next tries.
func TestKeyTableConcurrent(t *testing.T) {
	kt := &keyTable{clock: clock.System(), entries: make(map[string]*keyEntry)}
	var runs atomic.Int64
	entered, release := make(chan struct{}), make(chan struct{})
	f := func() ([]byte, error) {
		if runs.Add(1) == 1 {
			close(entered)
			<-release
			return nil, errors.New("the first fails")
		}
		return []byte("second"), nil
	}
	var wg sync.WaitGroup
	var failed, good atomic.Int64
	try := func() {
		got, err := kt.do(context.Background(), "k", "d", f)
		if err != nil {
			failed.Add(1)
		} else if string(got) == "second" {
			good.Add(1)
		}
	}
	wg.Go(try)
	<-entered
	for range 10 {
		wg.Go(try)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := kt.do(ctx, "k", "d", f); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended by its context: %v", err)
	}
	close(release)
	wg.Wait()
	if runs.Load() != 2 || failed.Load() != 1 || good.Load() != 10 {
		t.Errorf("%d runs, %d failed, %d good; want 2, 1, 10", runs.Load(), failed.Load(), good.Load())
	}
}

// A request that waits behind others must not act after its deadline.
func TestDeadlineWhileQueued(t *testing.T) {
	fake := clock.NewFake(time.UnixMilli(1e12))
	g := newGate()
	var acted atomic.Int64
	act := func(ctx context.Context, c *Call, p *echoParams) (*echoResult, error) {
		if p.Text == "first" {
			return g.handle(ctx, c, p)
		}
		acted.Add(1)
		return nil, c.Admit()
	}
	s := newServer(t, Options{Clock: fake}, comp{methods: []Method{NewMethod("act", "", MethodOptions{Ordered: true}, act)}})
	p := dial(t, s, ConnOptions{}).open()
	p.send(request(1, "act", `{"text":"first","key":"s"}`), request(2, "act", `{"text":"second","key":"s","deadline_ms":1000000001000}`),
		request(3, "health", `{}`))
	<-g.entered
	if a := p.recv(); a.id() != "3" { // so the second one has taken its place
		t.Fatalf("%+v", a)
	}
	fake.Advance(time.Hour)
	close(g.release)
	for range 2 {
		if a := p.recv(); a.id() == "2" && a.code() != "deadline_exceeded" {
			t.Errorf("the second: %+v", a)
		}
	}
	if acted.Load() != 0 {
		t.Error("it took effect after its deadline")
	}
}

func TestDeadlineIsInclusive(t *testing.T) {
	now := time.UnixMilli(1e12)
	for _, tt := range []struct {
		deadline time.Time
		want     error
	}{{time.Time{}, nil}, {now, nil}, {now.Add(time.Millisecond), nil}, {now.Add(-time.Millisecond), DeadlineExceeded}} {
		c := &Call{Deadline: tt.deadline, clock: clock.NewFake(now), ctx: t.Context()}
		if err := c.Admit(); !errors.Is(err, tt.want) {
			t.Errorf("deadline %v at %v: %v, want %v", tt.deadline, now, err, tt.want)
		}
	}
}
