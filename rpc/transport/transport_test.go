package transport_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// longDir returns a path of a runtime directory that does not exist yet and is
// longer than a socket address can hold.
func longDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for len(dir) < 150 {
		dir = filepath.Join(dir, strings.Repeat("d", 40))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "run")
}

type none struct{}

func (none) Methods() []rpc.Method {
	return []rpc.Method{rpc.NewMethod("owner_only", "", rpc.MethodOptions{OwnerLocal: true},
		func(context.Context, *rpc.Call, *wire.Empty) (*wire.Empty, error) { return nil, nil })}
}

// serve starts an instance in dir and returns it with what stops it.
func serve(t *testing.T, dir string) (*transport.Listener, func()) {
	t.Helper()
	reg, err := rpc.NewRegistry(none{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := rpc.NewServer(rpc.Options{Registry: reg, Server: wire.Implementation{Name: "gloved", Version: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := transport.OpenRuntimeDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	l, err := r.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Serve(ctx, s, nil) }()
	var stopped bool
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := errors.Join(<-done, r.Close()); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	t.Cleanup(stop)
	return l, stop
}

func TestSocket(t *testing.T) {
	dir := longDir(t)
	l, stop := serve(t, dir)
	ctx := t.Context()
	c, err := client.DialRuntimeDir(ctx, dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Call(ctx, "owner_only", nil, nil); err != nil {
		t.Errorf("owner_only on the socket: %v", err)
	}
	for _, name := range []string{transport.SocketName, transport.SecretName, transport.LockName} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v, want mode 0600", name, info, err)
		}
	}
	secret, err := transport.ReadSecret(dir)
	if err != nil || secret != l.Secret() || len(secret) != 64 {
		t.Errorf("ReadSecret: %v", err)
	}
	if _, err := transport.OpenRuntimeDir(dir); !errors.Is(err, transport.ErrLocked) {
		t.Errorf("second instance: %v, want %v", err, transport.ErrLocked)
	}
	stop()
	if _, err := os.Lstat(filepath.Join(dir, transport.SocketName)); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
	<-c.Done()
	l2, _ := serve(t, dir)
	if l2.Secret() == secret {
		t.Error("the secret was not rotated")
	}
}

func TestWrongSecretEndsConnection(t *testing.T) {
	dir := longDir(t)
	l, _ := serve(t, dir)
	for name, secret := range map[string]string{"missing": "", "wrong": strings.Repeat("0", 64), "short": l.Secret()[:63]} {
		t.Run(name, func(t *testing.T) {
			conn, err := transport.Dial(t.Context(), l.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			line := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocol_versions":[1],"client":{"name":"x","version":"1"},"bootstrap_secret":"` + secret + `"}}` + "\n"
			if secret == "" {
				line = strings.Replace(line, `,"bootstrap_secret":""`, "", 1)
			}
			if _, err := io.WriteString(conn, line+line); err != nil {
				t.Fatal(err)
			}
			all, err := io.ReadAll(conn)
			if err != nil && !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
				t.Fatalf("read: %v", err)
			}
			if got := string(all); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"code":"unauthorized"`) {
				t.Errorf("got %q, want one unauthorized and the end", got)
			}
		})
	}
}

func TestStaleSocket(t *testing.T) {
	type prepare func(t *testing.T, path string) io.Closer
	sock := func(mode os.FileMode, keep bool) prepare {
		return func(t *testing.T, path string) io.Closer {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			if !keep {
				l.Close()
			}
			return l
		}
	}
	tests := []struct {
		name    string
		prepare prepare
		want    string
	}{
		{"stale", sock(0o600, false), ""},
		{"in use", sock(0o600, true), transport.CodeSocketInUse},
		{"wrong mode", sock(0o644, false), transport.CodeSocketForeign},
		{"plain file", func(t *testing.T, path string) io.Closer {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return nil
		}, transport.CodeSocketForeign},
		{"link to a socket", func(t *testing.T, path string) io.Closer {
			c := sock(0o600, false)(t, path+"2")
			if err := os.Symlink(path+"2", path); err != nil {
				t.Fatal(err)
			}
			return c
		}, transport.CodeSocketForeign},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "gl")
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(dir)
			if c := tt.prepare(t, filepath.Join(dir, transport.SocketName)); c != nil {
				defer c.Close()
			}
			r, err := transport.OpenRuntimeDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			l, err := r.Listen(t.Context())
			if err == nil {
				defer l.Close()
			}
			var e *transport.Error
			if got := ""; errors.As(err, &e) || err != nil || tt.want != got {
				if e == nil || e.Code != tt.want {
					t.Errorf("Listen: %v, want code %q", err, tt.want)
				}
			}
			if tt.want != "" {
				if _, err := os.Lstat(filepath.Join(dir, transport.SocketName)); err != nil {
					t.Errorf("what was there is gone: %v", err)
				}
			}
		})
	}
}

func TestRuntimeDirIsOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	_, err := transport.OpenRuntimeDir(dir)
	if !errors.Is(err, &safefile.Error{Code: safefile.CodeMode}) {
		t.Errorf("mode 0750: %v, want %s", err, safefile.CodeMode)
	}
}

func TestSecretFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"short\n", strings.Repeat("A", 64), strings.Repeat("a", 65)} {
		if err := safefile.WriteOwner(filepath.Join(dir, transport.SecretName), []byte(content)); err != nil {
			t.Fatal(err)
		}
		if _, err := transport.ReadSecret(dir); !errors.Is(err, &transport.Error{Code: transport.CodeSecret}) {
			t.Errorf("%q: %v, want %s", content, err, transport.CodeSecret)
		}
	}
}

// pipeEnd is one end of a channel such as a controller's ssh gives.
type pipeEnd struct {
	io.Reader
	io.WriteCloser
}

func TestRelay(t *testing.T) {
	dir := longDir(t)
	l, _ := serve(t, dir)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	conn, err := transport.Dial(t.Context(), l.Path())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- transport.Relay(context.Background(), transport.NewStdio(inR, outW), conn, l.Secret()) }()
	c, err := client.New(t.Context(), pipeEnd{outR, inW}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Call(t.Context(), "owner_only", nil, nil)
	if !errors.Is(err, rpc.MethodNotFound) {
		t.Errorf("owner_only through a relay: %v, want %v", err, rpc.MethodNotFound)
	}
	if got := strings.Join(c.Hello().Capabilities.Methods, " "); strings.Contains(got, "owner_only") {
		t.Errorf("capabilities list it: %s", got)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Relay: %v", err)
	}
}

func TestRelayRefusesSecretFromController(t *testing.T) {
	dir := longDir(t)
	l, _ := serve(t, dir)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	conn, err := transport.Dial(t.Context(), l.Path())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- transport.Relay(context.Background(), transport.NewStdio(inR, outW), conn, l.Secret()) }()
	_, err = client.New(t.Context(), pipeEnd{outR, inW}, client.Options{Secret: l.Secret()})
	if !errors.Is(err, rpc.InvalidParams) {
		t.Errorf("a secret through a relay: %v, want %v", err, rpc.InvalidParams)
	}
	if err := <-done; err != nil {
		t.Errorf("Relay: %v", err)
	}
}

func TestRelayWithWrongSecret(t *testing.T) {
	dir := longDir(t)
	l, _ := serve(t, dir)
	conn, err := transport.Dial(t.Context(), l.Path())
	if err != nil {
		t.Fatal(err)
	}
	inR, _ := io.Pipe()
	_, outW := io.Pipe()
	err = transport.Relay(t.Context(), transport.NewStdio(inR, outW), conn, strings.Repeat("0", 64))
	if !errors.Is(err, rpc.Unauthorized) {
		t.Errorf("Relay: %v, want %v", err, rpc.Unauthorized)
	}
}

// An idle or foreign-speaking peer does not keep a good one from being served.
func TestBadNeighbours(t *testing.T) {
	dir := longDir(t)
	l, _ := serve(t, dir)
	for _, say := range []string{"", "{", "GET / HTTP/1.1\r\n\r\n", "Content-Length: 20\r\n\r\n", strings.Repeat("x", 1<<20) + "\n"} {
		conn, err := transport.Dial(t.Context(), l.Path())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := io.WriteString(conn, say); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(say, "\n") {
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil || !strings.Contains(line, `"error"`) {
				t.Errorf("%.20q: answer %q, %v", say, line, err)
			}
		}
	}
	c, err := client.DialRuntimeDir(t.Context(), dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Health(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
