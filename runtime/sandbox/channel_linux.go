package sandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// channel is the caller's end of a packet socket pair.
type channel struct{ conn *net.UnixConn }

// newChannel makes a pair and returns the caller's end and the other, which is for
// a child. The kernel stamps what the caller receives with the sender's identity.
func newChannel() (*channel, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "caller"), os.NewFile(uintptr(fds[1]), "child")
	defer ours.Close()
	if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		theirs.Close()
		return nil, nil, syscall.EPROTOTYPE
	}
	return &channel{uc}, theirs, nil
}

// received is one packet with what came beside it.
type received struct {
	message
	pid   int // the sender's, in the caller's PID namespace
	files []*os.File
}

func (r *received) close() {
	for _, f := range r.files {
		f.Close()
	}
	r.files = nil
}

// receive reads one packet. It returns io.EOF when all other ends are closed.
func (c *channel) receive() (*received, error) {
	buf := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, flags, _, err := c.conn.ReadMsgUnix(buf, oob)
	r := &received{}
	// Take over every descriptor that arrived before judging anything.
	if oobErr := r.ancillary(oob[:oobn]); err == nil {
		err = oobErr
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = syscall.EMSGSIZE
	}
	if err == nil {
		r.message, err = decode(buf[:n])
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *received) ancillary(oob []byte) error {
	if len(oob) == 0 {
		return nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return err
	}
	for i := range list {
		switch list[i].Header.Type {
		case unix.SCM_RIGHTS:
			fds, err := unix.ParseUnixRights(&list[i])
			if err != nil {
				return err
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
				// Non-blocking, so that reads can be interrupted and have deadlines.
				_ = unix.SetNonblock(fd, true)
				r.files = append(r.files, os.NewFile(uintptr(fd), "received"))
			}
		case unix.SCM_CREDENTIALS:
			cred, err := unix.ParseUnixCredentials(&list[i])
			if err != nil {
				return err
			}
			r.pid = int(cred.Pid)
		}
	}
	return nil
}

// send sends a message of a kind that needs no members, with the files given.
func (c *channel) send(kind string, files ...*os.File) error {
	data, err := encode(message{Kind: kind})
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	_, _, err = c.conn.WriteMsgUnix(data, oob, nil)
	return err
}

// until bounds all reading and writing by a time and a context.
func (c *channel) until(t time.Time) { _ = c.conn.SetDeadline(t) }

func (c *channel) close() {
	if c != nil {
		c.conn.Close()
	}
}

// waitError says why waiting for a message of the step failed.
func waitError(ctx context.Context, step string, err error) *StepError {
	switch {
	case ctx.Err() != nil:
		return &StepError{Step: step, Errno: syscall.ECANCELED, Detail: ctx.Err().Error()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &StepError{Step: step, Errno: syscall.ETIMEDOUT}
	case errors.Is(err, io.EOF):
		return &StepError{Step: step, Errno: syscall.EPIPE, Detail: "ended without a report"}
	}
	return stepError(step, err)
}
