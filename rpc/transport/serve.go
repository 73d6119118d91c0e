package transport

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/rpc"
)

const (
	// HandshakeTimeout bounds the time from accept to initialize. Peers that say
	// nothing, or a byte a second, free their place after it.
	HandshakeTimeout = 30 * time.Second
	// WriteTimeout bounds writing one frame to a peer that does not read.
	WriteTimeout = 30 * time.Second
	// ShutdownTimeout bounds how long Serve lets requests in flight go on.
	ShutdownTimeout = 10 * time.Second
	// acceptPause is waited after a failed accept, when descriptors ran out.
	acceptPause = 50 * time.Millisecond
	// refusals bounds peers that are being told they are refused.
	refusals = 32
)

// Serve accepts connections and serves them with s until ctx is done, then
// closes the socket, shuts s down and waits for the connections. Whatever one
// peer does ends at most its own connection.
func (l *Listener) Serve(ctx context.Context, s *rpc.Server, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Close is called and looked at below
	defer stop()
	var conns sync.WaitGroup
	err := l.accept(ctx, &conns, s, log)
	err = errors.Join(err, l.Close())
	graceful, cancel := context.WithTimeout(context.WithoutCancel(ctx), ShutdownTimeout)
	defer cancel()
	err = errors.Join(err, s.Shutdown(graceful))
	conns.Wait()
	return err
}

func (l *Listener) accept(ctx context.Context, conns *sync.WaitGroup, s *rpc.Server, log *slog.Logger) error {
	places := make(chan struct{}, s.MaxConns()+refusals)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.l.AcceptUnix()
		if err != nil {
			<-places
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			log.Warn("accept failed", "cause", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		conns.Add(1)
		go func() {
			defer conns.Done()
			defer func() { <-places }()
			l.serve(conn, s, log)
		}()
	}
}

func (l *Listener) serve(conn *net.UnixConn, s *rpc.Server, log *slog.Logger) {
	uid, pid, err := safefile.CheckPeer(conn)
	if err != nil || uid != uint32(os.Geteuid()) {
		log.Warn("foreign peer", "uid", uid, "pid", pid, "cause", err)
		_ = conn.Close()
		return
	}
	err = s.ServeConn(context.Background(), conn, rpc.ConnOptions{Secret: l.secret, UID: uid, PID: pid,
		Handshake: HandshakeTimeout, WriteTimeout: WriteTimeout})
	if err != nil {
		log.Info("connection ended", "uid", uid, "pid", pid, "cause", err)
	}
}
