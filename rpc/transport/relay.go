package transport

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/frame"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

// relayTimeout bounds the exchange before bytes are relayed.
const relayTimeout = 10 * time.Second

// maxRelayAnswer bounds the answer to it.
const maxRelayAnswer = 4 << 10

// Relay joins a controller's stdio to another instance's socket:
//
//	relay --> instance   {"method":"relay","params":{"bootstrap_secret":…}}
//	relay <-- instance   {"result":{}}       from here on a controller's connection
//	controller <--> instance                 bytes, both ways
//
// It returns when the instance has ended the connection, or ctx is done, and
// closes both ends. End of input from the controller is passed on, so that what
// is in flight is still answered. A refusal is an *rpc.Error.
func Relay(ctx context.Context, stdio io.ReadWriteCloser, conn *net.UnixConn, secret string) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends both copies
	defer stop()
	back := bufio.NewReaderSize(conn, maxRelayAnswer)
	if err := announce(conn, back, secret); err != nil {
		return errors.Join(err, conn.Close(), stdio.Close())
	}
	forth := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, struct{ io.Reader }{stdio})
		forth <- errors.Join(err, conn.CloseWrite())
	}()
	_, err := io.Copy(struct{ io.Writer }{stdio}, back)
	// The instance is through. What the controller still wants to say has nobody
	// to hear it, and the error of saying it is no news.
	closeErr := errors.Join(conn.Close(), stdio.Close())
	<-forth //nolint:errcheck // see above
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(err, closeErr)
}

func announce(conn *net.UnixConn, back *bufio.Reader, secret string) error {
	params, err := json.Marshal(wire.RelayParams{BootstrapSecret: secret})
	if err != nil {
		return &Error{Code: CodeIO, Err: err}
	}
	if err := conn.SetDeadline(time.Now().Add(relayTimeout)); err != nil {
		return &Error{Code: CodeIO, Err: err}
	}
	line := frame.AppendRequest(nil, &frame.Request{ID: frame.IntID(1), Method: wire.MethodRelay, Params: params})
	if err := frame.NewWriter(conn, 0).WriteFrame(line); err != nil {
		return &Error{Code: CodeIO, Err: err}
	}
	answer, err := back.ReadSlice('\n')
	if err != nil {
		return &Error{Code: CodeIO, Err: err}
	}
	m, err := frame.Parse(answer)
	if err == nil && m.Response == nil {
		err = errors.New("a request")
	}
	if err != nil {
		return &Error{Code: CodeIO, Err: fmt.Errorf("the instance does not speak the protocol: %w", err)}
	}
	if e := m.Response.Error; e != nil {
		return rpc.RemoteError(e)
	}
	return conn.SetDeadline(time.Time{})
}
