// Package pathwalk opens an operator-named absolute path one component at a time, from "/",
// without ever following a symbolic link, and reports what it found by identity.
//
// An operator's policy names host objects (a project directory, a file to mount). Opening such a
// name in one call would let whoever can write to any directory on the way swap in a symbolic link
// and redirect the mount: the walk opens each component relative to the descriptor of the one
// before, so a link anywhere (first, middle or last component) is refused, and what is returned is
// a descriptor to the object itself, not a promise about a name.
//
// Nouns:
//
//   - a walk is one traversal from "/" to the named object;
//   - an Identity is what tells that object from any other: device, inode, and the mode and owner
//     that a later check compares;
//   - an Error says by Code why the walk stopped. Codes: invalid, not_found, symlink,
//     not_directory, special, denied, io.
//
// On Linux every descriptor is O_PATH, so that nothing is read, no FIFO blocks and no device is
// touched. Other Unix systems have no O_PATH; there each component is first examined without
// following and then opened read-only and compared, so the caller needs read permission.
//
// It is not for paths below an untrusted root that must stay beneath it (that is openat2 with
// RESOLVE_BENEATH), not for reading protected owner files (internal/safefile), and it does not
// judge who owns the directories on the way.
package pathwalk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxPath is the longest path, in bytes, that a walk accepts (PATH_MAX without its NUL).
const MaxPath = 4095

// Codes of Error.
const (
	// CodeInvalid: the path is empty, relative, "/", not lexically normal, too long or has a NUL.
	CodeInvalid = "invalid"
	// CodeNotFound: a component does not exist.
	CodeNotFound = "not_found"
	// CodeSymlink: a component is a symbolic link.
	CodeSymlink = "symlink"
	// CodeNotDirectory: a component before the last is not a directory.
	CodeNotDirectory = "not_directory"
	// CodeSpecial: the last component is a FIFO, socket or device.
	CodeSpecial = "special"
	// CodeDenied: the caller may not search or open a component.
	CodeDenied = "denied"
	// CodeIO: any other failure of the system call.
	CodeIO = "io"
)

// Error is why a walk stopped. Path holds the prefix that failed: it is a host path and belongs in
// the operator's log only.
type Error struct {
	Code string
	Path string
	Err  error
}

// Error gives the code, the failing prefix and the cause.
func (e *Error) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("pathwalk: %s: %s: %v", e.Code, e.Path, e.Err)
	}
	return fmt.Sprintf("pathwalk: %s: %s", e.Code, e.Path)
}

// Unwrap returns the system error, if there was one.
func (e *Error) Unwrap() error { return e.Err }

// Is lets errors.Is(err, fs.ErrNotExist) hold for CodeNotFound.
func (e *Error) Is(target error) bool {
	return target == fs.ErrNotExist && e.Code == CodeNotFound
}

// Code returns the code of a walk error anywhere in err's chain, or "".
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Identity tells one file system object from another. Dev is in the kernel's encoding as stat
// gives it; Mode is the full st_mode, type bits included.
type Identity struct {
	Dev  uint64 `json:"dev"`
	Ino  uint64 `json:"ino"`
	Mode uint32 `json:"mode"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
}

// SameObject reports whether two identities name the same object with the same mode: what a
// launch compares before it mounts (dev, ino, mode).
func (i Identity) SameObject(o Identity) bool {
	return i.Dev == o.Dev && i.Ino == o.Ino && i.Mode == o.Mode
}

// IsDir reports whether the object is a directory.
func (i Identity) IsDir() bool { return i.Mode&unix.S_IFMT == unix.S_IFDIR }

// IsRegular reports whether the object is a regular file.
func (i Identity) IsRegular() bool { return i.Mode&unix.S_IFMT == unix.S_IFREG }

// Open walks path from "/" and returns a descriptor of the final object, which is a directory or a
// regular file, with its identity. The caller owns the file and closes it. On Linux it is O_PATH:
// reopen through /proc/self/fd or use it with the *at calls. Errors are *Error.
func Open(path string) (*os.File, Identity, error) {
	parts, err := split(path)
	if err != nil {
		return nil, Identity{}, err
	}
	dir, err := openRoot()
	if err != nil {
		return nil, Identity{}, classify("/", err)
	}
	for n, name := range parts {
		last := n == len(parts)-1
		prefix := "/" + strings.Join(parts[:n+1], "/")
		next, id, err := step(dir, name, prefix, last)
		closeFD(dir)
		if err != nil {
			return nil, Identity{}, err
		}
		if last {
			return os.NewFile(uintptr(next), path), id, nil
		}
		dir = next
	}
	closeFD(dir) // not reached: split never returns an empty list
	return nil, Identity{}, &Error{Code: CodeInvalid, Path: path}
}

// Identify walks path and returns only the identity of what it found.
func Identify(path string) (Identity, error) {
	f, id, err := Open(path)
	if err != nil {
		return Identity{}, err
	}
	if err := f.Close(); err != nil {
		return Identity{}, &Error{Code: CodeIO, Path: path, Err: err}
	}
	return id, nil
}

// FromFile returns the identity of an open file.
func FromFile(f *os.File) (Identity, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return Identity{}, &Error{Code: CodeIO, Path: f.Name(), Err: err}
	}
	var st unix.Stat_t
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = unix.Fstat(int(fd), &st) }); err != nil {
		serr = err
	}
	if serr != nil {
		return Identity{}, &Error{Code: CodeIO, Path: f.Name(), Err: serr}
	}
	return identityOf(&st), nil
}

// split checks the path's form and returns its components.
func split(path string) ([]string, error) {
	bad := &Error{Code: CodeInvalid, Path: path}
	if len(path) < 2 || len(path) > MaxPath || path[0] != '/' || strings.ContainsRune(path, 0) {
		return nil, bad
	}
	parts := strings.Split(path[1:], "/")
	for _, p := range parts {
		if p == "" || p == "." || p == ".." || len(p) > 255 {
			return nil, bad
		}
	}
	return parts, nil
}

// judge says whether an object of this mode may stand at this place of the path.
func judge(mode uint32, prefix string, last bool) error {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return nil
	case unix.S_IFLNK:
		return &Error{Code: CodeSymlink, Path: prefix}
	case unix.S_IFREG:
		if last {
			return nil
		}
		return &Error{Code: CodeNotDirectory, Path: prefix}
	}
	if last {
		return &Error{Code: CodeSpecial, Path: prefix}
	}
	return &Error{Code: CodeNotDirectory, Path: prefix}
}

func classify(prefix string, err error) error {
	code := CodeIO
	switch {
	case errors.Is(err, unix.ENOENT):
		code = CodeNotFound
	case errors.Is(err, unix.ELOOP):
		code = CodeSymlink
	case errors.Is(err, unix.ENOTDIR):
		code = CodeNotDirectory
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		code = CodeDenied
	}
	return &Error{Code: code, Path: prefix, Err: err}
}

// retry repeats a call that a signal interrupted: Go's preemption signals interrupt slow opens
// (network file systems).
func retry(call func() (int, error)) (int, error) {
	for {
		fd, err := call()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// closeFD closes a descriptor of the walk. Its error is dropped on purpose: nothing was written
// through it, and the number is gone either way.
func closeFD(fd int) { _ = unix.Close(fd) }
