package workspace

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/pathwalk"
)

// beneath is how every entry of a tree is opened: one name, in a directory
// held by descriptor, no link of any kind, no other mount. The name alone would
// be safe with O_NOFOLLOW; openat2 (Linux 5.6) also refuses magic links and
// mounts, in the same look-up, so nothing can be swapped between check and use.
//
// Mounts are refused because what is mounted inside a project (a device, a
// network share, /proc) was not what the operator granted, and because its
// size has nothing to do with the project's. A btrfs subvolume is not a mount.
const beneath = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

const (
	openDir  = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openFile = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	openLink = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	openNew  = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
)

// openBeneath opens the entry name of dir. EXDEV means that another filesystem
// is mounted there, ESTALE that the entry was moved away in the very moment.
func openBeneath(dir int, name string, flags uint64, mode uint64) (int, error) {
	how := unix.OpenHow{Flags: flags, Mode: mode, Resolve: beneath}
	for {
		fd, err := unix.Openat2(dir, name, &how)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.EXDEV) && !mounted(dir, name):
			// The kernel also says EXDEV when, at the end of the look-up,
			// what it found is no longer beneath dir.
			return -1, unix.ESTALE
		}
		return fd, err
	}
}

// mounted says whether the entry is the root of a mount (statx, Linux 5.8); if
// the kernel cannot tell, it is taken for one.
func mounted(dir int, name string) bool {
	var st unix.Statx_t
	err := unix.Statx(dir, name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, unix.STATX_BASIC_STATS, &st)
	if err != nil {
		return false // gone
	}
	return st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

// sourceCode says what a failure to open an entry of a source means, once the
// directory has listed it as being of the kind that was asked for.
func sourceCode(err error) string {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESTALE), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return CodeChanged
	case errors.Is(err, unix.EXDEV):
		return CodeMount
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return CodeDenied
	case errors.Is(err, unix.ENOSYS):
		return CodeUnsupported
	}
	return CodeIO
}

// reopen opens what p holds, for reading. A directory is opened through its own
// descriptor. A file cannot be, without going through /proc, so it is opened by
// its name in its parent and must prove to be the same.
func (p *Pinned) reopen() (int, error) {
	f := p.File()
	if f == nil {
		return -1, &Error{Code: CodeClosed}
	}
	if p.IsDir() {
		fd, err := unix.Openat(int(f.Fd()), ".", openDir, 0)
		if err != nil {
			return -1, &Error{Code: sourceCode(err), Err: err}
		}
		return fd, nil
	}
	parent, err := openParent(p.path)
	if err != nil {
		return -1, &Error{Code: CodeIdentity, Err: err}
	}
	defer parent.Close()
	fd, err := unix.Openat(int(parent.Fd()), filepath.Base(p.path), openFile, 0)
	if err != nil {
		code := sourceCode(err)
		if code == CodeChanged {
			code = CodeIdentity
		}
		return -1, &Error{Code: code, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Dev != p.id.Dev || st.Ino != p.id.Ino || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, &Error{Code: CodeIdentity, Err: err}
	}
	return fd, nil
}

func openParent(path string) (*os.File, error) {
	dir := filepath.Dir(path)
	if dir == "/" { // which pathwalk, rightly, does not pin
		return os.Open(dir)
	}
	f, _, err := pathwalk.Open(dir)
	return f, err
}

// same says whether an object is still what it was: the same inode, of the
// same size and kind, not written to and not otherwise changed.
func same(a, b *unix.Stat_t) bool {
	return a.Dev == b.Dev && a.Ino == b.Ino && a.Size == b.Size && a.Mode == b.Mode &&
		a.Mtim == b.Mtim && a.Ctim == b.Ctim
}

func kind(st *unix.Stat_t) uint32 { return st.Mode & unix.S_IFMT }
