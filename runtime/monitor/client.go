package monitor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

// Names of what a running monitor has in its session directory.
const (
	SocketName = "monitor.sock"
	LockName   = "monitor.lock" // flocked by the monitor as long as it lives
)

// Alive reports whether the session directory's monitor lives, by the lock that
// the kernel drops with its process. A missing directory has none.
func Alive(dir string) (bool, error) {
	lock, err := safefile.LockFile(filepath.Join(dir, LockName))
	switch {
	case errors.Is(err, safefile.ErrLocked):
		return true, nil
	case errors.Is(err, safefile.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return false, lock.Unlock()
}

// A Client is gloved's side of the protocol. It is safe for concurrent use.
type Client struct {
	conn *net.UnixConn
	w    *frame.Writer

	// OnProgress, if set before Prepare, is called while trees are copied.
	OnProgress func(Progress)

	mu      sync.Mutex
	next    int64
	pending map[frame.ID]chan frame.Response
	err     error
	ended   chan struct{}
	endOnce sync.Once
	done    chan struct{}
}

const (
	// DialTimeout bounds connecting to a monitor and proving it.
	DialTimeout = 10 * time.Second
	// writeTimeout is how long a monitor may take to accept one request: one
	// that is stopped must not hold up everybody who writes to it.
	writeTimeout = 15 * time.Second
)

// Dial connects to the monitor of a session directory, and proves both sides:
// the socket's owner must be this user, and each must know the session's key.
// CodeGone means that nothing listens there; see Alive.
func Dial(ctx context.Context, dir *os.File, sessionID, key string) (*Client, Status, error) {
	ctx, cancel := context.WithTimeout(ctx, DialTimeout)
	defer cancel()
	conn, err := dialAt(ctx, dir, SocketName)
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ENOENT):
		return nil, Status{}, fault(CodeGone, "%v", err)
	case err != nil: // say nothing about a monitor that could not be asked
		return nil, Status{}, err
	}
	c := newClient(conn, frame.NewReader(conn, 0), frame.NewWriter(conn, 0))
	status, err := c.prove(ctx, sessionID, key)
	if err != nil {
		c.Close()
		return nil, Status{}, err
	}
	return c, status, nil
}

// newClient makes a Client of a connection that may have been in use.
func newClient(conn *net.UnixConn, r *frame.Reader, w *frame.Writer) *Client {
	c := &Client{conn: conn, w: w, pending: map[frame.ID]chan frame.Response{}, ended: make(chan struct{}), done: make(chan struct{})}
	w.Timeout = writeTimeout
	go c.read(r)
	return c
}

// dialAt connects to the socket called name in dir by way of the directory's
// descriptor, so that neither a long path (sun_path holds 108 bytes) nor a
// replaced directory matters.
func dialAt(ctx context.Context, dir *os.File, name string) (*net.UnixConn, error) {
	var d net.Dialer
	path := filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), name)
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	unixConn := conn.(*net.UnixConn)
	uid, _, err := safefile.CheckPeer(unixConn)
	if err == nil && uid != uint32(os.Geteuid()) {
		err = errors.New("the socket belongs to another user")
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return unixConn, nil
}

func (c *Client) prove(ctx context.Context, sessionID, key string) (Status, error) {
	mine := newNonce()
	var hello helloResult
	if err := c.call(ctx, methodHello, helloParams{ProtocolVersion: ProtocolVersion, Nonce: mine}, &hello); err != nil {
		return Status{}, err
	}
	switch {
	case hello.ProtocolVersion != ProtocolVersion:
		return Status{}, fault(CodeProtocol, "the monitor speaks version %d, this gloved %d; use the build that started the session, or stop it there",
			hello.ProtocolVersion, ProtocolVersion)
	case hello.SessionID != sessionID:
		return Status{}, fault(CodeUnproven, "the monitor serves another session")
	case !proves(hello.Proof, key, roleMonitor, mine, hello.Nonce):
		return Status{}, fault(CodeUnproven, "the monitor does not know the session's key")
	}
	var status Status
	err := c.call(ctx, methodProve, proveParams{Proof: proof(key, roleGloved, hello.Nonce, mine)}, &status)
	return status, err
}

func (c *Client) read(r *frame.Reader) {
	for {
		line, err := r.Next()
		if err != nil {
			c.fail(fault(CodeGone, "the connection to the monitor ended"))
			return
		}
		m, err := frame.Parse(line)
		if err != nil {
			c.fail(fault(CodeProtocol, "%v", err))
			return
		}
		switch {
		case m.Response != nil:
			c.mu.Lock()
			ch := c.pending[m.Response.ID]
			delete(c.pending, m.Response.ID)
			c.mu.Unlock()
			if ch != nil {
				ch <- *m.Response
			}
		case m.Request.Method == notifyEnded:
			c.endOnce.Do(func() { close(c.ended) })
		case m.Request.Method == notifyProgress && c.OnProgress != nil:
			var p Progress
			if strictjson.Decode(m.Request.Params, &p, strictjson.Limits{}) == nil {
				c.OnProgress(p)
			}
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		close(c.done)
	}
	c.conn.Close()
}

func (c *Client) call(ctx context.Context, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	ch := make(chan frame.Response, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	c.next++
	id := frame.IntID(c.next)
	c.pending[id] = ch
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	if err := c.w.WriteFrame(frame.AppendRequest(nil, &frame.Request{ID: id, Method: method, Params: raw})); err != nil {
		// Half a frame may be out: nothing can follow it on this connection.
		c.fail(fault(CodeGone, "%v", err))
		return fault(CodeGone, "%v", err)
	}
	select {
	case resp := <-ch:
		return decodeResponse(&resp, result)
	case <-c.done:
		select {
		case resp := <-ch: // the answer came before the end
			return decodeResponse(&resp, result)
		default:
			return c.err
		}
	case <-ctx.Done():
		return ctx.Err()
	}
}

func decodeResponse(resp *frame.Response, result any) error {
	if resp.Error != nil {
		e := &Error{}
		if strictjson.Decode(resp.Error.Data, e, strictjson.Limits{}) != nil {
			return fault(CodeProtocol, "%s", resp.Error.Message)
		}
		return e
	}
	if err := strictjson.Decode(resp.Result, result, strictjson.Limits{}); err != nil {
		return fault(CodeProtocol, "%v", err)
	}
	return nil
}

// Close ends the connection; the monitor lives on if the session runs.
func (c *Client) Close() { c.fail(fault(CodeGone, "closed")) }

// Done is closed when the connection has ended.
func (c *Client) Done() <-chan struct{} { return c.done }

// Ended is closed when the monitor has told that its outcome is durable.
func (c *Client) Ended() <-chan struct{} { return c.ended }

// MarkEnded closes Ended for a session that its status already showed to have
// ended.
func (c *Client) MarkEnded() { c.endOnce.Do(func() { close(c.ended) }) }

// Prepare makes the session's resources and binds them.
func (c *Client) Prepare(ctx context.Context) (p Prepared, err error) {
	err = c.call(ctx, methodPrepare, none{}, &p)
	return p, err
}

// Launch starts the process tree up to the blocked child, after comparing the
// profile with the one that was recorded.
func (c *Client) Launch(ctx context.Context, profileDigest string) (l Launched, err error) {
	err = c.call(ctx, methodLaunch, launchParams{ProfileDigest: profileDigest}, &l)
	return l, err
}

// Release lets the harness run.
func (c *Client) Release(ctx context.Context) (s Status, err error) {
	err = c.call(ctx, methodRelease, none{}, &s)
	return s, err
}

// Status asks for the monitor's state.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.call(ctx, methodStatus, none{}, &s)
	return s, err
}

// Read returns transcript from cursor on, waiting up to wait for something.
func (c *Client) Read(ctx context.Context, cursor uint64, maxBytes int, wait time.Duration) (k Chunk, err error) {
	err = c.call(ctx, methodRead, readParams{Cursor: cursor, MaxBytes: maxBytes, WaitMS: int(wait.Milliseconds())}, &k)
	return k, err
}

// Write sends input to the terminal and returns how much of it was taken, on an
// error too: what was taken must not be typed again.
func (c *Client) Write(ctx context.Context, data []byte) (int, error) {
	var r writeResult
	err := c.call(ctx, methodWrite, writeParams{Data: data}, &r)
	var e *Error
	if errors.As(err, &e) {
		return int(e.Written), err
	}
	return r.Written, err
}

// Resize sets the terminal's size.
func (c *Client) Resize(ctx context.Context, rows, columns uint16) error {
	return c.call(ctx, methodResize, resizeParams{Rows: rows, Columns: columns}, &none{})
}

// Signal sends interrupt, terminate or hangup to the foreground process group.
func (c *Client) Signal(ctx context.Context, name string) error {
	return c.call(ctx, methodSignal, signalParams{Signal: name}, &none{})
}

// Stop asks the harness to end, then kills the session after grace. It returns
// when the outcome is durable.
func (c *Client) Stop(ctx context.Context, grace time.Duration) (s Status, err error) {
	err = c.call(ctx, methodStop, stopParams{GraceMS: int(grace.Milliseconds())}, &s)
	return s, err
}

// Finish tells an ended monitor that it is no longer needed; one that has not
// ended undoes everything first.
func (c *Client) Finish(ctx context.Context) error {
	err := c.call(ctx, methodFinish, none{}, &none{})
	if errors.Is(err, &Error{Code: CodeGone}) {
		return nil // it left before its answer did
	}
	return err
}
