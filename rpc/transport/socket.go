package transport

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
)

// A Listener accepts connections of our own user on the socket of a runtime
// directory.
type Listener struct {
	r        *RuntimeDir
	l        *net.UnixListener
	secret   string
	dev, ino uint64
	once     sync.Once
	closed   error
}

// Listen removes what a dead instance left, rotates the secret and listens. The
// lock is held, so no other instance can be between its bind and its listen, and
// a socket that refuses connections is really stale.
func (r *RuntimeDir) Listen(ctx context.Context) (*Listener, error) {
	if err := r.removeStale(ctx); err != nil {
		return nil, err
	}
	secret, err := r.RotateSecret()
	if err != nil {
		return nil, err
	}
	path, err := socketPath(r.dir, r.path, SocketName)
	if err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: narrow}
	nl, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, r.fail(CodeIO, err)
	}
	l := &Listener{r: r, l: nl.(*net.UnixListener), secret: secret}
	l.l.SetUnlinkOnClose(false) // it would unlink by path, whatever is there by then
	if err := l.protect(); err != nil {
		return nil, errors.Join(err, l.l.Close())
	}
	return l, nil
}

// narrow sets the mode of the socket before it has a name. Linux gives the name
// the mode of the descriptor; elsewhere protect does it, inside a directory that
// nobody else can enter.
func narrow(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
		return cerr
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

func (l *Listener) protect() error {
	fd := int(l.r.dir.Fd())
	if err := unix.Fchmodat(fd, SocketName, 0o600, 0); err != nil {
		return l.r.fail(CodeIO, err)
	}
	st, err := l.r.stat()
	if err != nil {
		return err
	}
	if !ours(st) {
		return l.r.fail(CodeSocketForeign, nil)
	}
	l.dev, l.ino = uint64(st.Dev), st.Ino
	return nil
}

// Secret returns the bootstrap secret peers must give.
func (l *Listener) Secret() string { return l.secret }

// Path returns the path of the socket.
func (l *Listener) Path() string { return filepath.Join(l.r.path, SocketName) }

// Close stops listening and removes the socket, provided it is still the one
// that was made. Every call returns when that is done.
func (l *Listener) Close() error {
	l.once.Do(func() { l.closed = l.close() })
	return l.closed
}

func (l *Listener) close() error {
	err := l.l.Close()
	st, serr := l.r.stat()
	switch {
	case errors.Is(serr, fs.ErrNotExist):
	case serr != nil:
		err = errors.Join(err, serr)
	case uint64(st.Dev) == l.dev && st.Ino == l.ino:
		err = errors.Join(err, unix.Unlinkat(int(l.r.dir.Fd()), SocketName, 0))
	}
	return err
}

func (r *RuntimeDir) fail(code string, err error) error {
	return &Error{Code: code, Path: filepath.Join(r.path, SocketName), Err: err}
}

func (r *RuntimeDir) stat() (*unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(r.dir.Fd()), SocketName, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, r.fail(CodeIO, err)
	}
	return &st, nil
}

func ours(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFSOCK && st.Uid == uint32(os.Geteuid()) && st.Mode&0o7777 == 0o600
}

// removeStale removes a socket of ours on which nobody listens, and refuses
// anything else that bears its name.
func (r *RuntimeDir) removeStale(ctx context.Context) error {
	st, err := r.stat()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !ours(st) {
		return r.fail(CodeSocketForeign, nil)
	}
	path, err := socketPath(r.dir, r.path, SocketName)
	if err != nil {
		return err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(r.fail(CodeSocketInUse, nil), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return r.fail(CodeSocketInUse, err)
	}
	again, err := r.stat()
	if err != nil {
		return err
	}
	if again.Dev != st.Dev || again.Ino != st.Ino || !ours(again) {
		return r.fail(CodeSocketForeign, nil)
	}
	if err := unix.Unlinkat(int(r.dir.Fd()), SocketName, 0); err != nil {
		return r.fail(CodeIO, err)
	}
	return nil
}

// Dial connects to the socket at path, however long the path is, and checks that
// the other end runs as us: the secret must not go to anyone else.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, &Error{Code: CodeIO, Path: path, Err: err}
	}
	defer dir.Close()
	short, err := socketPath(dir, filepath.Dir(path), filepath.Base(path))
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", short)
	if err != nil {
		return nil, &Error{Code: CodeIO, Path: path, Err: err}
	}
	conn := c.(*net.UnixConn)
	uid, _, err := safefile.CheckPeer(conn)
	if err != nil || uid != uint32(os.Geteuid()) {
		conn.Close()
		return nil, &Error{Code: CodePeer, Path: path, Err: err}
	}
	return conn, nil
}
