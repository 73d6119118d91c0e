package bench

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"gloved.dev/rpc/transport"
)

const (
	rpcRounds   = 20
	rpcRequests = 1000
)

// BenchmarkRPC compares requests one after another on one socket connection:
// gloved's health, with every check a request gets, and an echo of the bare
// library with an answer of the same size.
func BenchmarkRPC(b *testing.B) {
	d := serve(b, map[string][]string{"true": {"/bin/true"}})
	secret, err := transport.ReadSecret(d.path("run"))
	must(b, err)
	ours := dialRaw(b, filepath.Join(d.path("run"), transport.SocketName))
	must(b, ours.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocol_versions":[1],`+
		`"client":{"name":"bench","version":"1"},"bootstrap_secret":%q}}`, secret)))
	bare := dialRaw(b, bareEcho(b))
	for b.Loop() {
		report(b, "requests on one connection", compete(b, rpcRounds,
			contestant{"gloved health", func() (time.Duration, error) { return ours.many("health") }},
			contestant{"bare jsonrpc2", func() (time.Duration, error) { return bare.many("health") }},
		), perSecond(rpcRequests), "1/s", goal{against: "bare jsonrpc2", ratio: 0.6, atLeast: true})
	}
}

// raw is a connection without a client library, which both sides would pay for.
type raw struct {
	conn net.Conn
	r    *bufio.Reader
}

func dialRaw(b *testing.B, path string) *raw {
	b.Helper()
	conn, err := net.Dial("unix", path)
	must(b, err)
	b.Cleanup(func() { conn.Close() })
	return &raw{conn, bufio.NewReaderSize(conn, 1<<20)}
}

func (r *raw) ask(line string) error {
	if _, err := r.conn.Write([]byte(line + "\n")); err != nil {
		return err
	}
	_, err := r.r.ReadSlice('\n')
	return err
}

func (r *raw) many(method string) (time.Duration, error) {
	line := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{}}`
	from := time.Now()
	for range rpcRequests {
		if err := r.ask(line); err != nil {
			return 0, err
		}
	}
	return time.Since(from), nil
}
