package monitor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/sandbox"
)

// newTestServer serves an idle session in this process.
func newTestServer(t *testing.T) (*server, *os.File) {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	spec := Spec{ProtocolVersion: ProtocolVersion, SessionID: "s-1", Dir: dir, Key: NewKey()}
	p, err := takePlace(dir)
	must(t, err)
	none := &base{done: make(chan struct{}), placed: make(chan struct{})}
	close(none.done)
	close(none.placed)
	s := newServer(spec, newSession(spec, none, p.log), p)
	var wg sync.WaitGroup
	wg.Go(s.serve)
	t.Cleanup(func() {
		s.stop()
		wg.Wait()
		must(t, s.alive.Unlock())
	})
	return s, s.dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestHandshake(t *testing.T) {
	s, dir := newTestServer(t)
	if info, err := os.Stat(filepath.Join(dir.Name(), SocketName)); err != nil || info.Mode() != 0o600|os.ModeSocket {
		t.Errorf("the socket is %v, %v", info.Mode(), err)
	}
	if _, _, err := Dial(t.Context(), dir, "s-1", NewKey()); !errors.Is(err, &Error{Code: CodeUnproven}) {
		t.Errorf("another key: %v", err)
	}
	if _, _, err := Dial(t.Context(), dir, "s-2", s.spec.Key); !errors.Is(err, &Error{Code: CodeUnproven}) {
		t.Errorf("another session: %v", err)
	}
	c, status, err := Dial(t.Context(), dir, "s-1", s.spec.Key)
	if err != nil || status.State != StateIdle {
		t.Fatalf("status %+v, %v", status, err)
	}
	defer c.Close()
	// Nothing but preparing is possible now, and that by its owner only.
	if _, err := c.Launch(t.Context(), "x"); !errors.Is(err, &Error{Code: CodeState}) {
		t.Errorf("launch: %v", err)
	}
	if _, err := c.Release(t.Context()); !errors.Is(err, &Error{Code: CodeState}) {
		t.Errorf("release: %v", err)
	}
	if _, err := c.Stop(t.Context(), time.Second); !errors.Is(err, &Error{Code: CodeState}) {
		t.Errorf("stop: %v", err)
	}
	if _, err := c.Read(t.Context(), 0, 10, 0); !errors.Is(err, &Error{Code: CodeState}) {
		t.Errorf("read: %v", err)
	}
	if n, err := c.Write(t.Context(), []byte("x")); !errors.Is(err, &Error{Code: CodeState}) || n != 0 {
		t.Errorf("write: %d, %v", n, err)
	}
	if err := c.Finish(t.Context()); err != nil {
		t.Errorf("finish: %v", err)
	}
	<-c.Done()
	if _, err := c.Status(t.Context()); !errors.Is(err, &Error{Code: CodeGone}) {
		t.Errorf("status of a monitor that left: %v", err)
	}
}

// raw is a peer that says what it likes.
func raw(t *testing.T, dir *os.File) (*net.UnixConn, func(line string) *frame.Response) {
	t.Helper()
	conn, err := dialAt(t.Context(), dir, SocketName)
	must(t, err)
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	r, w := frame.NewReader(conn, 0), frame.NewWriter(conn, 0)
	return conn, func(line string) *frame.Response {
		if w.WriteFrame([]byte(line)) != nil {
			return nil
		}
		answer, err := r.Next()
		if err != nil {
			return nil
		}
		m, err := frame.Parse(answer)
		must(t, err)
		return m.Response
	}
}

func TestUnprovenPeers(t *testing.T) {
	s, dir := newTestServer(t)
	refused := func(r *frame.Response, code string) bool {
		return r != nil && r.Error != nil && r.Error.Message == code
	}
	nonce := newNonce()
	hello := `{"jsonrpc":"2.0","id":1,"method":"hello","params":{"protocol_version":1,"nonce":"` + nonce + `"}}`

	for _, method := range []string{"prepare", "launch", "release", "status", "read", "write", "resize", "signal", "stop", "finish"} {
		_, say := raw(t, dir)
		if r := say(`{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{}}`); !refused(r, CodeUnproven) {
			t.Errorf("%s without a proof: %+v", method, r)
		}
	}
	_, say := raw(t, dir)
	if r := say(hello); r == nil || r.Error != nil {
		t.Fatalf("hello: %+v", r)
	}
	if r := say(hello); !refused(r, CodeProtocol) {
		t.Errorf("hello again: %+v", r)
	}
	// The monitor's own proof, played back, is none of gloved's.
	_, say = raw(t, dir)
	r := say(hello)
	own := proof(s.spec.Key, roleMonitor, nonce, nonceOf(t, r))
	if r := say(`{"jsonrpc":"2.0","id":2,"method":"prove","params":{"proof":"` + own + `"}}`); !refused(r, CodeUnproven) {
		t.Errorf("the monitor's proof: %+v", r)
	}
	if r := say(`{"jsonrpc":"2.0","id":3,"method":"status","params":{}}`); r != nil {
		t.Errorf("after a false proof: %+v", r)
	}
	for _, line := range []string{"{", `[]`, `{"jsonrpc":"2.0","method":"status","params":{}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`} {
		_, say := raw(t, dir)
		if r := say(line); r != nil {
			t.Errorf("%s: %+v", line, r)
		}
	}
	if s.session.status().State != StateIdle {
		t.Errorf("the session is %s", s.session.status().State)
	}
}

func nonceOf(t *testing.T, r *frame.Response) string {
	t.Helper()
	_, rest, ok := strings.Cut(string(r.Result), `"nonce":"`)
	if !ok || len(rest) < 64 {
		t.Fatalf("no nonce in %s", r.Result)
	}
	return rest[:64]
}

// Connections are bounded, and come back.
func TestConnectionsAreBounded(t *testing.T) {
	s, dir := newTestServer(t)
	var conns []*Client
	for range maxConns {
		c, _, err := Dial(t.Context(), dir, "s-1", s.spec.Key)
		must(t, err)
		conns = append(conns, c)
	}
	if c, _, err := Dial(t.Context(), dir, "s-1", s.spec.Key); err == nil {
		c.Close()
		t.Error("one too many was let in")
	}
	conns[0].Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		c, _, err := Dial(ctx, dir, "s-1", s.spec.Key)
		if err == nil {
			c.Close()
			break
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("a place that was given up is not given out again")
		}
	}
	for _, c := range conns {
		c.Close()
	}
}

func TestAlive(t *testing.T) {
	s, _ := newTestServer(t)
	if alive, err := Alive(s.spec.Dir); err != nil || !alive {
		t.Errorf("alive %v, %v", alive, err)
	}
	empty := t.TempDir()
	must(t, os.Chmod(empty, 0o700))
	for _, dir := range []string{empty, filepath.Join(empty, "none")} {
		if alive, err := Alive(dir); err != nil || alive {
			t.Errorf("%s: alive %v, %v", dir, alive, err)
		}
	}
	none, err := os.Open(empty)
	must(t, err)
	defer none.Close()
	if _, _, err := Dial(t.Context(), none, "s-1", NewKey()); !errors.Is(err, &Error{Code: CodeGone}) {
		t.Errorf("dial where nothing is: %v", err)
	}
}

func TestOutcomeFile(t *testing.T) {
	dir, key := t.TempDir(), NewKey()
	must(t, os.Chmod(dir, 0o700))
	if _, err := ReadOutcome(dir, "s-1", key); !errors.Is(err, safefile.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
	must(t, reserveOutcome(dir))
	releaseReserve(dir)
	writeOutcome(t, dir, key, &Outcome{ProtocolVersion: ProtocolVersion, SessionID: "s-1", Cause: "exited"})
	if o, err := ReadOutcome(dir, "s-1", key); err != nil || o.Cause != "exited" {
		t.Errorf("read %+v, %v", o, err)
	}
	if _, err := ReadOutcome(dir, "s-2", key); !errors.Is(err, &Error{Code: CodeUnproven}) {
		t.Errorf("another session: %v", err)
	}
	if _, err := ReadOutcome(dir, "s-1", NewKey()); !errors.Is(err, &Error{Code: CodeUnproven}) {
		t.Errorf("another key: %v", err)
	}
	path := filepath.Join(dir, OutcomeName)
	data, err := os.ReadFile(path)
	must(t, err)
	for i := range data {
		changed := append([]byte{}, data...)
		changed[i] ^= 1
		must(t, os.WriteFile(path, changed, 0o600))
		if _, err := ReadOutcome(dir, "s-1", key); err == nil {
			t.Fatalf("a flipped bit at %d of %q was not seen", i, data)
		}
	}
	writeOutcome(t, dir, key, &Outcome{ProtocolVersion: ProtocolVersion + 1, SessionID: "s-1"})
	if o, err := ReadOutcome(dir, "s-1", key); err != nil || o.ProtocolVersion != ProtocolVersion+1 {
		t.Errorf("another version: %v", err)
	}
}

func TestTranscriptFile(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	must(t, safefile.WriteOwners(dir, newTranscript(100, []byte("hello"))))
	s, err := OpenTranscript(dir)
	must(t, err)
	defer s.Close()
	for _, c := range []struct {
		cursor uint64
		max    int
		want   Chunk
	}{
		{0, 3, Chunk{Oldest: 100, Next: 103, Truncated: true, Data: []byte("hel")}},
		{100, 9, Chunk{Oldest: 100, Next: 105, EOF: true, Data: []byte("hello")}},
		{104, 9, Chunk{Oldest: 100, Next: 105, EOF: true, Data: []byte("o")}},
		{105, 9, Chunk{Oldest: 100, Next: 105, EOF: true, Data: []byte{}}},
	} {
		got, err := s.Read(c.cursor, c.max)
		if err != nil || string(got.Data) != string(c.want.Data) || got.Oldest != c.want.Oldest || got.Next != c.want.Next ||
			got.EOF != c.want.EOF || got.Truncated != c.want.Truncated {
			t.Errorf("Read(%d, %d) = %+v, %v; want %+v", c.cursor, c.max, got, err, c.want)
		}
	}
	if _, err := s.Read(106, 1); !errors.Is(err, &Error{Code: CodeCursor}) {
		t.Errorf("ahead: %v", err)
	}
	for _, bad := range []string{"", "short", strings.Repeat("x", 30)} {
		must(t, os.WriteFile(filepath.Join(dir, TranscriptName), []byte(bad), 0o600))
		if s, err := OpenTranscript(dir); err == nil {
			s.Close()
			t.Errorf("%q was taken for a transcript", bad)
		}
	}
}

// The first forced cause wins over all; then what the kernel counted, by its
// priority; then how the harness ended; an init that just died comes last.
func TestTerminalCause(t *testing.T) {
	code := func(n int) sandbox.Exit { return sandbox.Exit{Code: n} }
	died := sandbox.Exit{Code: -1, InitDied: true}
	const limit = time.Second
	oom, fork, cpu := cgroup.Usage{OOMKills: 1}, cgroup.Usage{PIDLimitHits: 1}, cgroup.Usage{CPUMicros: 1_000_000}
	for i, c := range []struct {
		e    ending
		want string
	}{
		{ending{exit: code(0)}, receipt.CauseExited},
		{ending{exit: code(255)}, receipt.CauseExited},
		{ending{exit: sandbox.Exit{Code: -1, Signal: 9}}, receipt.CauseSignaled},
		{ending{exit: died}, receipt.CauseSupervisorError},
		{ending{exit: died, asked: true}, receipt.CauseSignaled},
		{ending{exit: died, usage: oom}, receipt.CauseMemoryLimit},
		{ending{exit: code(0), usage: oom}, receipt.CauseMemoryLimit},
		{ending{exit: code(0), usage: fork}, receipt.CausePIDLimit},
		{ending{exit: code(0), usage: cpu}, receipt.CauseCPUTimeLimit},
		{ending{exit: code(1), full: true}, receipt.CauseDiskLimit},
		{ending{exit: code(1), full: true, usage: cpu}, receipt.CauseCPUTimeLimit},
		{ending{exit: died, forced: receipt.CauseWallTimeLimit, usage: oom}, receipt.CauseWallTimeLimit},
	} {
		c.e.cpuLimit = limit
		got, exit := terminalCause(c.e)
		if got != c.want || (exit != nil) != (got == receipt.CauseExited) || exit != nil && int(*exit) != c.e.exit.Code {
			t.Errorf("%d: %s, %v; want %s", i, got, exit, c.want)
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	log, err := openLog(dir)
	must(t, err)
	for range 3 * maxLog / 100 {
		log.Info(strings.Repeat("x", 100))
	}
	st, err := os.Stat(filepath.Join(dir, LogName))
	if err != nil || st.Size() > maxLog+100 {
		t.Errorf("the log has %d bytes, %v", st.Size(), err)
	}
	data, err := os.ReadFile(filepath.Join(dir, LogName))
	if err != nil || !strings.HasSuffix(string(data), "the log is full\"}\n") {
		t.Errorf("the log ends in %q, %v", data[max(0, len(data)-60):], err)
	}
}

func writeOutcome(t *testing.T, dir, key string, o *Outcome) {
	t.Helper()
	sealed, err := sealOutcome(key, o)
	must(t, err)
	must(t, safefile.WriteOwners(dir, sealed))
}
