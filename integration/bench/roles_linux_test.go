package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sourcegraph/jsonrpc2"
)

// roleVariable makes a second process of this test binary play a part in a
// contest; pathVariable is where.
const (
	roleVariable = "GLOVE_BENCH_ROLE"
	pathVariable = "GLOVE_BENCH_PATH"
)

// roleEcho answers JSON-RPC requests with the bare library.
const roleEcho = "echo"

func play(role string) int {
	if role != roleEcho {
		fmt.Fprintln(os.Stderr, "unknown role", role)
		return 2
	}
	l, err := net.Listen("unix", os.Getenv(pathVariable))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		jsonrpc2.NewConn(context.Background(), jsonrpc2.NewPlainObjectStream(conn), jsonrpc2.AsyncHandler(jsonrpc2.HandlerWithError(
			func(_ context.Context, _ *jsonrpc2.Conn, r *jsonrpc2.Request) (any, error) {
				var p map[string]any
				if r.Params != nil {
					if err := json.Unmarshal(*r.Params, &p); err != nil {
						return nil, err
					}
				}
				return healthLike, nil
			})))
	}
}

// healthLike is of the size and shape of what gloved answers to health.
var healthLike = map[string]any{"status": "ready", "components": []map[string]string{
	{"name": "receipts", "status": "ready"}, {"name": "sessions", "status": "ready"}, {"name": "runtime", "status": "ready"}}}

// bareEcho starts an echo server in a process of its own, as gloved is one.
func bareEcho(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "echo.sock")
	self, err := os.Executable()
	must(b, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleVariable+"="+roleEcho, pathVariable+"="+path)
	cmd.Stderr = os.Stderr
	must(b, cmd.Start())
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for give := time.Now().Add(10 * time.Second); ; {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return path
		}
		if time.Now().After(give) {
			b.Fatal("the echo server does not answer")
		}
		<-time.After(5 * time.Millisecond)
	}
}
