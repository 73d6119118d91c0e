package sandbox

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"

	"gloved.dev/internal/strictjson"
	"golang.org/x/sys/unix"
)

// Main runs the role this process was started for and never returns, or returns at
// once when it was not started as one of ours. Every program that calls Start, and
// the TestMain of every test that does, calls it before anything else.
func Main() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case roleStart:
		runtime.LockOSThread()
		startMain(readKnobs(os.Args[1:]))
	case roleBuild:
		runtime.LockOSThread()
		buildMain(readKnobs(os.Args[1:]))
	case roleInit:
		runtime.LockOSThread() // the parent-death signal is this thread's
		keepMain(os.Args[1:])
	case roleLaunch:
		runtime.LockOSThread()
		launchMain(readKnobs(os.Args[1:]))
	default:
		return
	}
	os.Exit(1)
}

// inner is what init, the builder and launch share: their socket, the spec and the steps.
type inner struct {
	sock  int
	spec  spec
	knobs knobs
}

// roleArgs is the argument vector of a role. Only this package's tests have knobs.
func roleArgs(role string, k knobs) []string {
	if k == (knobs{}) {
		return []string{role}
	}
	text, _ := json.Marshal(k) // strings and booleans
	return []string{role, string(text)}
}

func readKnobs(args []string) (k knobs) {
	if len(args) > 0 && strictjson.Decode([]byte(args[0]), &k, strictjson.Limits{}) != nil {
		os.Exit(1)
	}
	return k
}

// step runs one named set-up step. A failure is reported and ends the process.
func (in *inner) step(name string, f func() error) {
	if in.knobs.HangStep == name {
		for {
			_ = unix.Pause() // select{} would be taken for a deadlock
		}
	}
	early := in.knobs.FailStep == name && (name == stepInit || name == stepReport)
	var err error
	// After the step, so that what it made must be cleaned up; but before one that
	// does not come back or tells the caller that all is well.
	if !early {
		err = f()
	}
	if err == nil && in.knobs.FailStep == name {
		err = at("injected", syscall.EIO)
	}
	if err == nil {
		return
	}
	_ = in.send(message{Kind: msgFailed, Failed: stepError(name, err)})
	os.Exit(1)
}

// send sends one message with the descriptors given.
func (in *inner) send(m message, fds ...int) error {
	data, err := encode(m)
	if err != nil {
		return err
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	return retry(func() error { return unix.Sendmsg(in.sock, data, oob, nil, unix.MSG_NOSIGNAL) })
}

// expect receives one message, with at most most descriptors, and insists on its kind.
// Anything else, the end of file included, means that the caller is gone or broken: the
// process ends.
func (in *inner) expect(kind string, most int) []int {
	data, fds, err := receiveFrom(in.sock, maxMessage, most)
	if err != nil || len(data) == 0 {
		os.Exit(1)
	}
	if m, err := decode(data); err != nil || m.Kind != kind {
		os.Exit(1)
	}
	return fds
}

// receiveFrom receives one packet of at most size bytes with at most most descriptors,
// which are closed on exec. The end of file is a packet without bytes.
func receiveFrom(sock, size, most int) (data []byte, fds []int, err error) {
	data = make([]byte, size)
	oob := make([]byte, unix.CmsgSpace(4*most))
	var n, oobn, flags int
	err = retry(func() (err error) {
		n, oobn, flags, _, err = unix.Recvmsg(sock, data, oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	switch {
	case err != nil:
		return nil, nil, err
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return nil, nil, syscall.EMSGSIZE
	case oobn == 0:
		return data[:n], nil, nil
	}
	list, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(list) != 1 {
		return nil, nil, syscall.EPROTO
	}
	fds, err = unix.ParseUnixRights(&list[0])
	return data[:n], fds, err
}

// readSpec reads the spec from the sealed memory file at fd.
func readSpec(fd int) (spec, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return spec{}, err
	}
	if st.Size > maxSpec {
		return spec{}, syscall.EFBIG
	}
	data := make([]byte, st.Size)
	// init and launch share the file and its offset: read by position.
	for got := 0; got < len(data); {
		n, err := unix.Pread(fd, data[got:], int64(got))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return spec{}, err
		case n == 0:
			return spec{}, io.ErrUnexpectedEOF
		}
		got += max(n, 0)
	}
	var s spec
	err := strictjson.Decode(data, &s, strictjson.Limits{MaxBytes: maxSpec})
	return s, err
}

// retry repeats a system call that a signal interrupted.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
