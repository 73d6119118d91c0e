package journal

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// control runs a system call on f's descriptor, again when a signal cut it off
// before it did anything.
func control(f *os.File, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var cerr error
	err = conn.Control(func(fd uintptr) {
		for cerr = call(int(fd)); errors.Is(cerr, unix.EINTR); cerr = call(int(fd)) {
		}
	})
	return errors.Join(err, cerr)
}

// datasync is fdatasync(2): bytes and length, not times.
func datasync(f *os.File) error { return control(f, unix.Fdatasync) }

// allocate asks the file system for blocks beyond the end of the file without
// moving it. FALLOC_FL_KEEP_SIZE exists since Linux 2.6.23; a file system
// without it leaves reservations to be counted only.
func allocate(f *os.File, size int64) error {
	err := control(f, func(fd int) error { return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// exchange is renameat2(2) with RENAME_EXCHANGE, since Linux 3.15; a file system
// without it (NFS) answers EINVAL, and its journals cannot be rotated.
func exchange(a, b string) error {
	for {
		err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
