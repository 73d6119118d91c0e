package frame

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/jsonrpc2"
)

// memory is a connection whose input is given and whose output is kept.
type memory struct {
	io.Reader
	mu     sync.Mutex
	out    bytes.Buffer
	closed int
}

func (m *memory) Write(b []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.out.Write(b)
}

func (m *memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed++
	return nil
}

// TestStreamUnderLibrary: whatever the peer sends, the library sees requests
// only, and ids come back exactly as they were.
func TestStreamUnderLibrary(t *testing.T) {
	in := strings.Join([]string{
		`{"jsonrpc":"2.0","id":-3,"method":"a","params":{"n":1}}`,
		`{"jsonrpc":"2.0","id":"x","method":"b"}`,
		`{"jsonrpc":"2.0","id":null,"method":"never"}`,
		`{"jsonrpc":"2.0","id":4,"result":true}`,
		`{"jsonrpc":"2.0","method":"note","params":{"k":2}}`,
		`[]`,
		`{"jsonrpc":"2.0","id":"i7","method":"c"}`,
	}, "\n") + "\n"
	m := &memory{Reader: strings.NewReader(in)}
	var bad []string
	ended := make(chan error, 1)
	s := NewStream(NewReader(m, 0), NewWriter(m, 0), m,
		func(e *Error) error { bad = append(bad, e.Code); return nil }, func(err error) { ended <- err })
	var seen []string
	h := handlerFunc(func(ctx context.Context, c *jsonrpc2.Conn, r *jsonrpc2.Request) {
		req := s.Current()
		seen = append(seen, req.ID.String()+" "+req.Method+" "+string(req.Params))
		if !r.Notif {
			if err := c.Reply(ctx, TagID(req.ID), true); err != nil {
				t.Error(err)
			}
		}
	})
	<-jsonrpc2.NewConn(t.Context(), s, h).DisconnectNotify()
	if err := <-ended; err != io.EOF {
		t.Errorf("end: %v", err)
	}
	if got, want := strings.Join(seen, "; "), `-3 a {"n":1}; "x" b ; null note {"k":2}; "i7" c `; got != want {
		t.Errorf("seen %q, want %q", got, want)
	}
	if got, want := strings.Join(bad, " "), "invalid_request batch_unsupported"; got != want {
		t.Errorf("bad %q, want %q", got, want)
	}
	want := `{"jsonrpc":"2.0","id":-3,"result":true}` + "\n" + `{"jsonrpc":"2.0","id":"x","result":true}` + "\n" +
		`{"jsonrpc":"2.0","id":"i7","result":true}` + "\n"
	if m.out.String() != want {
		t.Errorf("written %q, want %q", m.out.String(), want)
	}
	if err := s.Close(); err != nil || m.closed != 1 {
		t.Errorf("closed %d times, %v", m.closed, err)
	}
}

type handlerFunc func(context.Context, *jsonrpc2.Conn, *jsonrpc2.Request)

func (f handlerFunc) Handle(ctx context.Context, c *jsonrpc2.Conn, r *jsonrpc2.Request) { f(ctx, c, r) }

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := NewWriter(&out, 8)
	for line, want := range map[string]string{"": CodeInvalidRequest, "a\nb": CodeInvalidRequest, "12345678": CodeFrameTooLarge} {
		if err := w.WriteFrame([]byte(line)); !errors.Is(err, &Error{Code: want}) {
			t.Errorf("WriteFrame(%q): %v, want %s", line, err, want)
		}
	}
	if out.Len() != 0 {
		t.Fatalf("refused lines were written: %q", out.String())
	}
	if err := w.WriteFrame([]byte("1234567")); err != nil || out.String() != "1234567\n" || w.Total() != 8 {
		t.Errorf("at the bound: %v, %q, %d", err, out.String(), w.Total())
	}
}

func TestWriterConcurrent(t *testing.T) {
	m := &memory{}
	w := NewWriter(m, 0)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				if err := w.WriteFrame(bytes.Repeat([]byte{'a' + byte(i)}, 100)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for line := range strings.Lines(m.out.String()) {
		if line != strings.Repeat(line[:1], 100)+"\n" {
			t.Fatalf("mixed frames: %q", line)
		}
	}
}

func TestWriterGivesUpOnStuckPeer(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	w := NewWriter(a, 0)
	w.Timeout = time.Millisecond
	first := w.WriteFrame([]byte("nobody reads this"))
	if first == nil {
		t.Fatal("the write of a frame nobody reads succeeded")
	}
	if err := w.WriteFrame([]byte("x")); err != first {
		t.Errorf("after a torn frame: %v, want the same error", err)
	}
}
