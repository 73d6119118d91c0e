package transport

import (
	"os"

	"golang.org/x/sys/unix"
)

// duplicate returns a private, close-on-exec copy of fd.
func duplicate(fd int, name string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, &Error{Code: CodeIO, Err: os.NewSyscallError("fcntl", err)}
	}
	return os.NewFile(uintptr(n), name), nil
}
