package workspace

import (
	"crypto/rand"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
)

const (
	// removeDepth is how deep removal descends by recursion, which holds a
	// descriptor a level; what lies deeper is first moved up.
	removeDepth = 32
	// removePasses is how often a directory is emptied again because someone
	// keeps making entries in it.
	removePasses = 64
)

// RemoveTree removes the entry name of dir and everything below it, however
// deep and wide. Links are removed, not followed; nothing is removed that lies
// on another mount (CodeMount). A name that is not there is no error. The
// caller should be the only one to write there: others may make the removal
// fail, but cannot make it remove anything outside.
//
// Very deep directories are first moved to names beginning with ".removing-" in
// dir; a removal that is cut short leaves those behind.
func RemoveTree(dir *os.File, name string) error {
	if !ident.Component(name) {
		return &Error{Code: CodeOptions}
	}
	r := &remover{top: int(dir.Fd())}
	err := r.entry(r.top, name, 0)
	for err == nil && len(r.moved) > 0 {
		last := len(r.moved) - 1
		next := r.moved[last]
		r.moved = r.moved[:last]
		err = r.entry(r.top, next, 0)
	}
	return err
}

type remover struct {
	top   int      // the directory RemoveTree was given
	moved []string // what was moved there and is still to be removed
}

func (r *remover) fail(err error) error {
	code := CodeIO
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EBUSY):
		code = CodeMount
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		code = CodeDenied
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		code = CodeChanged
	case errors.Is(err, unix.ENOSYS):
		code = CodeUnsupported
	}
	return &Error{Code: code, Err: err}
}

func (r *remover) entry(dir int, name string, depth int) error {
	for range removePasses {
		err := unlink(dir, name, 0)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		// EISDIR on Linux; POSIX has EPERM, which is also a real refusal.
		if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
			return r.fail(err)
		}
		refused := err
		if err := r.empty(dir, name, depth); err != nil {
			if errors.Is(err, unix.ESTALE) {
				continue
			}
			if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
				if errors.Is(refused, unix.EPERM) {
					return r.fail(refused)
				}
				continue // swapped for something else; take that
			}
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		}
		err = unlink(dir, name, unix.AT_REMOVEDIR)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTDIR):
			continue
		}
		return r.fail(err)
	}
	return r.fail(unix.ENOTEMPTY)
}

// empty removes everything in the directory name of dir.
func (r *remover) empty(dir int, name string, depth int) error {
	fd, err := openBeneath(dir, name, openDir, 0)
	if errors.Is(err, unix.EACCES) {
		// A directory its owner has locked.
		if unlockAt(dir, name) == nil {
			fd, err = openBeneath(dir, name, openDir, 0)
		}
	}
	if err != nil {
		return r.fail(err)
	}
	defer unix.Close(fd)
	if err := r.unlock(fd); err != nil {
		return r.fail(err)
	}
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Getdents(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return r.fail(err)
		}
		if n == 0 {
			return nil
		}
		if err := r.entries(fd, buf[:n], depth); err != nil {
			return err
		}
	}
}

// entries removes those of one piece of a directory. What moves under the
// reader's feet, entry finds out because the directory is not empty then.
func (r *remover) entries(fd int, p []byte, depth int) error {
	list, err := parse(nil, p, len(p))
	if err != nil {
		return err
	}
	for _, e := range list {
		if depth >= removeDepth {
			err = r.shallow(fd, e)
		} else {
			err = r.entry(fd, e.name, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// unlockAt gives the owner of the directory name of dir all rights to it. It
// never changes the mode of what a link points to: fchmodat2 (Linux 6.6) does
// not follow links, and before it the directory is held by a descriptor that
// was opened without following and changed through that descriptor's own name.
func unlockAt(dir int, name string) error {
	err := unix.Fchmodat(dir, name, 0o700, unix.AT_SYMLINK_NOFOLLOW)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	return unlockHeld(dir, name)
}

func unlockHeld(dir int, name string) error {
	held, err := openBeneath(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(held)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(held), 0o700)
}

// unlock makes sure that entries of a directory can be removed.
func (r *remover) unlock(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&0o700 == 0o700 || int(st.Uid) != unix.Geteuid() {
		return nil
	}
	return unix.Fchmod(fd, 0o700)
}

// shallow removes an entry at the deepest level of recursion. A directory is
// moved up beside the tree, to be removed from there later, so that neither
// descriptors nor stack grow with the depth of what an agent made.
func (r *remover) shallow(dir int, e entry) error {
	if err := e.resolve(dir); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return r.fail(err)
	}
	if e.kind != unix.S_IFDIR {
		return r.entry(dir, e.name, removeDepth)
	}
	up := ".removing-" + rand.Text()
	err := unix.Renameat2(dir, e.name, r.top, up, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EACCES) && // its ".." changes, so it must be writable
		unlockAt(dir, e.name) == nil {
		err = unix.Renameat2(dir, e.name, r.top, up, unix.RENAME_NOREPLACE)
	}
	switch {
	case err == nil:
		r.moved = append(r.moved, up)
		return nil
	case errors.Is(err, unix.ENOENT):
		return nil
	}
	return r.fail(err)
}

func unlink(dir int, name string, flags int) error {
	for {
		if err := unix.Unlinkat(dir, name, flags); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
