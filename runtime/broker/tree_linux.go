package broker

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openDirAt opens the directory name in d for reading. The kernel itself refuses a link, a mount
// and anything above d (openat2(2), Linux 5.6).
func openDirAt(d *os.File, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS |
			unix.RESOLVE_NO_XDEV,
	}
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat2(int(d.Fd()), name, &how)
		if errors.Is(err, unix.EAGAIN) { // a rename somewhere raced with the walk
			err = unix.EINTR
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// renameNew moves a file to a name that must not exist (renameat2(2), Linux 3.15).
func renameNew(from *os.File, name string, to *os.File, newName string) error {
	return retry(func() error {
		return unix.Renameat2(int(from.Fd()), name, int(to.Fd()), newName, unix.RENAME_NOREPLACE)
	})
}

// exchange swaps two files in one step.
func exchange(a *os.File, name string, b *os.File, other string) error {
	return retry(func() error {
		return unix.Renameat2(int(a.Fd()), name, int(b.Fd()), other, unix.RENAME_EXCHANGE)
	})
}
