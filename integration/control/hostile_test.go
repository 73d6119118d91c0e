package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gloved.dev/internal/require"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/transport"
)

const (
	hello  = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocol_versions":[1],"client":{"name":"raw","version":"1"}}}` + "\n"
	health = `{"jsonrpc":"2.0","id":1,"method":"health"}` + "\n"

	mib = 1 << 20
)

// rawServer is a gloved --stdio that is spoken to byte by byte.
type rawServer struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startRaw(t *testing.T) *rawServer {
	t.Helper()
	s := newState(t)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	command := exec.CommandContext(ctx, gloved(), append([]string{"--stdio"}, s.base()...)...)
	in, inErr := command.StdinPipe()
	out, outErr := command.StdoutPipe()
	if err := errors.Join(inErr, outErr, command.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close() // the test may have closed it
		err := command.Wait()
		cancel()
		if err != nil {
			t.Errorf("gloved ended with %v", err)
		}
	})
	return &rawServer{t: t, command: command, in: in, out: bufio.NewReader(out)}
}

func (r *rawServer) send(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, text); err != nil {
		r.t.Fatalf("gloved no longer reads: %v", err)
	}
}

// answer is the next frame, which must hold every part. The process's context bounds it.
func (r *rawServer) answer(parts ...string) {
	r.t.Helper()
	line, err := r.out.ReadString('\n')
	if err != nil {
		r.t.Fatalf("no answer: %v (%q)", err, line)
	}
	for _, part := range parts {
		if !strings.Contains(line, part) {
			r.t.Errorf("the answer lacks %s: %s", part, line)
		}
	}
}

func (r *rawServer) open() {
	r.t.Helper()
	r.send(hello)
	r.answer(`"protocol_version":1`)
}

// alive shows that the connection survived.
func (r *rawServer) alive() {
	r.t.Helper()
	r.send(health)
	r.answer(`"id":1`, `"status":"ready"`)
}

func TestHostileFramesHaveOneAnswerEach(t *testing.T) {
	tests := []struct {
		name, frame string
		want        []string
	}{
		{"a MiB of [", strings.Repeat("[", mib) + "\n", []string{`"id":null`, `"code":"frame_too_large"`}},
		{"a frame of [ at the bound", strings.Repeat("[", mib-1) + "\n", []string{`"id":null`, `"code":"batch_unsupported"`}},
		{"a frame at the bound", padded(mib) + "\n", []string{`"id":7`, `"status":"ready"`}},
		{"one byte past the bound", padded(mib+1) + "\n", []string{`"id":null`, `"code":"frame_too_large"`}},
		{"deep nesting", `{"jsonrpc":"2.0","id":2,"method":"health","params":` + strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000) + "}\n",
			[]string{`"code":"parse_error"`}},
		{"deep nesting below the parser's notice", `{"jsonrpc":"2.0","id":2,"method":"health","params":{"a":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + "}}\n",
			[]string{`"error"`}},
		{"NUL", "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"he\\u0000alth\"}\n", []string{`"error"`}},
		{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"\xff\"}\n", []string{`"code":"parse_error"`}},
		{"an HTTP request", "POST / HTTP/1.1\n", []string{`"code":"parse_error"`}},
	}
	r := startRaw(t)
	r.open()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r.t = t
			r.send(test.frame)
			r.answer(test.want...)
			r.alive()
		})
	}
	r.t = t
}

// padded is a health request whose frame, LF included, is that long.
func padded(length int) string {
	const head, tail = `{"jsonrpc":"2.0",`, `"id":7,"method":"health"}`
	return head + strings.Repeat(" ", length-1-len(head)-len(tail)) + tail
}

func TestContentLengthFraming(t *testing.T) {
	r := startRaw(t)
	r.send("Content-Length: 42\r\n\r\n")
	r.answer(`"code":"parse_error"`, "Content-Length")
	r.open()
	r.alive()
}

func TestHundredMiBLineIsSkippedInLittleMemory(t *testing.T) {
	require.Linux(t)
	r := startRaw(t)
	r.open()
	chunk := string(bytes.Repeat([]byte("a"), mib))
	for range 100 {
		r.send(chunk)
	}
	r.send("\n")
	r.answer(`"id":null`, `"code":"frame_too_large"`)
	r.alive()
	if peak := peakMemory(t, r.command.Process.Pid); peak > 96*mib {
		t.Errorf("a 100 MiB line took gloved to %d MiB", peak/mib)
	}
}

func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "VmHWM:" {
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmHWM in the status")
	return 0
}

func TestByteAtATime(t *testing.T) {
	r := startRaw(t)
	for _, b := range []byte(hello + health) {
		r.send(string([]byte{b}))
	}
	r.answer(`"protocol_version":1`)
	r.answer(`"status":"ready"`)
}

func TestAFrameCutByTheEnd(t *testing.T) {
	r := startRaw(t)
	r.open()
	r.send(strings.TrimSuffix(health, "}\n"))
	if err := r.in.Close(); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r.out)
	if err != nil || bytes.Contains(rest, []byte(`"result"`)) {
		t.Errorf("half a frame was answered: %q (%v)", rest, err)
	}
}

func TestSlowPeerOnTheSocketHurtsNobody(t *testing.T) {
	s := newState(t)
	dir := s.resident(t)
	ctx := within(t, time.Minute)
	slow, err := transport.Dial(ctx, filepath.Join(dir, transport.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, hello[:20]); err != nil {
		t.Fatal(err)
	}
	garbage, err := transport.Dial(ctx, filepath.Join(dir, transport.SocketName))
	if err != nil {
		t.Fatal(err)
	}
	defer garbage.Close()
	if _, err := io.WriteString(garbage, strings.Repeat("\x00\xff\n", 1000)); err != nil {
		t.Fatal(err)
	}
	c, err := client.DialRuntimeDir(ctx, dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(ctx); err != nil {
		t.Errorf("beside a slow and a senseless peer: %v", err)
	}
	closed(t, c)
}

func TestTerminateAnswersAndEndsWell(t *testing.T) {
	r := startRaw(t)
	r.open()
	r.alive()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(r.out); err != nil || len(rest) > 0 {
		t.Errorf("after SIGTERM came %q (%v), want the end", rest, err)
	}
}
