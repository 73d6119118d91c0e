package quota

import (
	"os"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
)

// Part gives a detached mount of what has that name in the root: a file that
// was copied there, to appear in the sandbox as a file. The caller owns the
// result. It shares the flags of the FS.
func (f *FS) Part(name string) (*os.File, error) {
	fail := func(code, op string, err error) (*os.File, error) {
		return nil, &Error{Code: code, Op: op, Alias: f.part.Alias, Err: err}
	}
	if !ident.Component(name) {
		return fail(CodeName, "part", nil)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fail(CodeClosed, "part", nil)
	}
	entry, err := unix.Openat(int(f.root.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(CodeKernel, "open_part", err)
	}
	defer unix.Close(entry)
	fd, err := cloneMount(int(f.mount.Fd()), entry, name)
	if err != nil {
		return fail(CodeKernel, "open_tree", err)
	}
	return os.NewFile(uintptr(fd), "tmpfs-"+name), nil
}
