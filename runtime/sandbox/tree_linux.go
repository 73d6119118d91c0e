package sandbox

import (
	"errors"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// OpenTree returns a detached bind mount of the object f refers to, for
// Mount.FD: with nosuid and nodev, and read-only if asked. f may be opened with
// O_PATH. The mount is of that very object, whatever its name refers to by now.
// Mounts below a directory are not taken along. The caller closes the result;
// closing it unattached dissolves the mount.
//
// The caller needs CAP_SYS_ADMIN over its mount namespace.
func OpenTree(f *os.File, readOnly bool) (*os.File, error) {
	fd, err := cloneTree(int(f.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, &StepError{Step: "open_tree", Errno: errnoOf(err), Detail: f.Name()}
	}
	attrs := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if readOnly {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	if err := setAttrs(fd, attrs, 0); err != nil {
		unix.Close(fd)
		return nil, &StepError{Step: "open_tree", Errno: errnoOf(err), Detail: f.Name()}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// cloneTree makes a detached clone of the mount at path below dir.
func cloneTree(dir int, path string, flags uint) (int, error) {
	return unix.OpenTree(dir, path, flags|unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
}

// setAttrs adds mount attributes to the mount fd refers to; flags may hold
// AT_RECURSIVE. It never removes any.
func setAttrs(fd int, attrs uint64, flags uint) error {
	return unix.MountSetattr(fd, "", flags|unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attrs})
}

// attach moves the detached mount fd onto the object that on refers to.
func attach(fd, on int) error {
	return unix.MoveMount(fd, "", on, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// newFS makes a detached mount of a new filesystem. An option without "=" is a flag.
func newFS(kind string, attrs int, options ...[2]string) (int, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	for _, o := range options {
		if o[1] == "" {
			err = unix.FsconfigSetFlag(fs, o[0])
		} else {
			err = unix.FsconfigSetString(fs, o[0], o[1])
		}
		if err != nil {
			return -1, at(o[0], err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attrs)
}

func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// errnoOf finds the kernel's answer in an error.
func errnoOf(err error) syscall.Errno {
	e, _ := errors.AsType[syscall.Errno](err)
	return e
}
