package broker

import (
	"os"

	"golang.org/x/sys/unix"
)

// openDirAt opens the directory name in d for reading, without following a link. That it is on the
// same filesystem is checked by the caller.
func openDirAt(d *os.File, name string) (*os.File, error) {
	return openAt(d, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// renameNew moves a file to a name that must not exist (renameatx_np(2)).
func renameNew(from *os.File, name string, to *os.File, newName string) error {
	return retry(func() error {
		return unix.RenameatxNp(int(from.Fd()), name, int(to.Fd()), newName, unix.RENAME_EXCL)
	})
}

// exchange swaps two files in one step.
func exchange(a *os.File, name string, b *os.File, other string) error {
	return retry(func() error {
		return unix.RenameatxNp(int(a.Fd()), name, int(b.Fd()), other, unix.RENAME_SWAP)
	})
}
