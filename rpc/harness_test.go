package rpc

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/rpc/wire"
)

// TestMain fails when goroutines of ours outlive all tests.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := leaked(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines left behind:\n"+left)
			code = 1
		}
	}
	os.Exit(code)
}

// leaked waits for goroutines in our code to end and returns those that do not.
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

// socketPair returns the two ends of a connected Unix socket.
func socketPair(t testing.TB) (a, b net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) net.Conn {
		f := os.NewFile(uintptr(fd), "pair")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return conn(fds[0]), conn(fds[1])
}

// A testPeer speaks raw lines to a server.
type testPeer struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
	done chan error // ServeConn's answer
}

func newServer(t testing.TB, o Options, comps ...Component) *Server {
	t.Helper()
	reg, err := NewRegistry(comps...)
	if err != nil {
		t.Fatal(err)
	}
	o.Registry, o.Server = reg, wire.Implementation{Name: "gloved", Version: "0"}
	s, err := NewServer(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dial(t testing.TB, s *Server, o ConnOptions) *testPeer {
	t.Helper()
	a, b := socketPair(t)
	p := &testPeer{t: t, conn: a, r: bufio.NewReaderSize(a, 2<<20), done: make(chan error, 1)}
	go func() { p.done <- s.ServeConn(context.Background(), b, o) }()
	t.Cleanup(func() { a.Close() })
	_ = a.SetDeadline(time.Now().Add(60 * time.Second)) // no test hangs for ever
	return p
}

func (p *testPeer) send(lines ...string) {
	p.t.Helper()
	if _, err := io.WriteString(p.conn, strings.Join(lines, "\n")+"\n"); err != nil {
		p.t.Fatalf("send: %v", err)
	}
}

// an answer as a test looks at it
type answer struct {
	JSONRPC string           `json:"jsonrpc"`
	ID      *json.RawMessage `json:"id"`
	Method  string           `json:"method"`
	Params  json.RawMessage  `json:"params"`
	Result  json.RawMessage  `json:"result"`
	Error   *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

func (a answer) id() string {
	if a.ID == nil {
		return "null"
	}
	return string(*a.ID)
}

func (a answer) code() string {
	if a.Error == nil {
		return ""
	}
	return fmt.Sprint(a.Error.Data["code"])
}

func (p *testPeer) recv() answer {
	p.t.Helper()
	line, err := p.r.ReadString('\n')
	if err != nil {
		p.t.Fatalf("recv: %v (got %q)", err, line)
	}
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil || a.JSONRPC != "2.0" {
		p.t.Fatalf("recv: %v: %q", err, line)
	}
	return a
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocol_versions":[1],"client":{"name":"test","version":"1"}}}`

func (p *testPeer) open() *testPeer {
	p.t.Helper()
	p.send(hello)
	if a := p.recv(); a.Error != nil || a.id() != `"hello"` {
		p.t.Fatalf("initialize: %+v", a.Error)
	}
	return p
}

// hangUp ends what the peer sends and waits for the server to be through.
func (p *testPeer) hangUp() error {
	p.t.Helper()
	if err := p.conn.(*net.UnixConn).CloseWrite(); err != nil {
		p.t.Fatal(err)
	}
	select {
	case err := <-p.done:
		return err
	case <-time.After(30 * time.Second):
		p.t.Fatal("the server does not let the connection go")
		return nil
	}
}

// comp is a component made of functions.
type comp struct {
	methods []Method
	caps    func(*wire.Capabilities)
}

func (c comp) Methods() []Method { return c.methods }
func (c comp) Capabilities(w *wire.Capabilities) {
	if c.caps != nil {
		c.caps(w)
	}
}

type echoParams struct {
	Text string `json:"text"`
	Key  string `json:"key,omitempty"`
}

func (p *echoParams) OrderKey() string { return p.Key }

type echoResult struct {
	Text string `json:"text"`
}

func echo(_ context.Context, _ *Call, p *echoParams) (*echoResult, error) {
	return &echoResult{p.Text}, nil
}

// logBuffer collects the operator's log.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
