package rpc

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/sourcegraph/jsonrpc2"
)

// BenchmarkRoundTrip compares one request after another on one socket connection
// with the bare library on the same transport. The goal is at least 0.6 of its
// rate, with every check made.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("gloved", func(b *testing.B) {
		s := newServer(b, Options{}, comp{methods: []Method{NewMethod("echo", "", MethodOptions{}, echo)}})
		p := dial(b, s, ConnOptions{}).open()
		line := []byte(request(1, "echo", `{"text":"hello"}`) + "\n")
		for b.Loop() {
			if _, err := p.conn.Write(line); err != nil {
				b.Fatal(err)
			}
			if _, err := p.r.ReadSlice('\n'); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("bare", func(b *testing.B) {
		a, z := socketPair(b)
		h := jsonrpc2.AsyncHandler(jsonrpc2.HandlerWithError(
			func(_ context.Context, _ *jsonrpc2.Conn, r *jsonrpc2.Request) (any, error) {
				var p echoParams
				err := json.Unmarshal(*r.Params, &p)
				return &echoResult{p.Text}, err
			}))
		c := jsonrpc2.NewConn(context.Background(), jsonrpc2.NewPlainObjectStream(z), h)
		defer c.Close()
		p := &testPeer{t: b, conn: a}
		defer a.Close()
		line := []byte(request(1, "echo", `{"text":"hello"}`) + "\n")
		buf := make([]byte, 4096)
		for b.Loop() {
			if _, err := p.conn.Write(line); err != nil {
				b.Fatal(err)
			}
			for n := 0; n == 0 || buf[n-1] != '\n'; {
				k, err := p.conn.Read(buf[n:])
				if err != nil {
					b.Fatal(err)
				}
				n += k
			}
		}
	})
}
