package cgroup

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// dir is one cgroup directory, held open. Everything inside is reached through the
// descriptor, so that neither a rename nor a replacement of the path can redirect
// a write.
type dir struct {
	e        *env
	f        *os.File
	path     string // as /proc/PID/cgroup shows it
	dev, ino uint64
	uid      uint32
}

// openDir opens the directory name below the parent descriptor.
func openDir(e *env, parent int, name, path string) (*dir, error) {
	fd, err := openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	d := &dir{e: e, f: os.NewFile(uintptr(fd), path), path: path}
	var st unix.Stat_t
	if err := retry(func() error { return unix.Fstat(fd, &st) }); err != nil {
		d.close()
		return nil, err
	}
	d.dev, d.ino, d.uid = st.Dev, st.Ino, st.Uid
	return d, nil
}

func openat(parent int, name string, flags int) (fd int, err error) {
	err = retry(func() (err error) {
		fd, err = unix.Openat(parent, name, flags|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

// openMount opens the root directory of a cgroup mount and checks that it is one.
func openMount(e *env, m mount, magic int64) (*dir, error) {
	d, err := openDir(e, unix.AT_FDCWD, m.point, m.root)
	if err != nil {
		return nil, err
	}
	got, err := e.magic(d.fd())
	if err == nil && got != magic {
		// Something else is mounted over it.
		err = unix.ENODEV
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// walk opens a directory below d, component by component, following no link.
func (d *dir) walk(rel string) (*dir, error) {
	cur, err := openDir(d.e, d.fd(), ".", d.path)
	if err != nil || rel == "." {
		return cur, err
	}
	for part := range strings.SplitSeq(rel, "/") {
		next, err := cur.child(part)
		cur.close()
		if err != nil {
			return nil, err
		}
		cur = next
	}
	return cur, nil
}

// child opens the directory name directly below d.
func (d *dir) child(name string) (*dir, error) {
	return openDir(d.e, d.fd(), name, joinPath(d.path, name))
}

func joinPath(parent, name string) string {
	return strings.TrimSuffix(parent, "/") + "/" + name
}

func (d *dir) fd() int { return int(d.f.Fd()) }

func (d *dir) close() { d.f.Close() }

// has reports whether a control file exists.
func (d *dir) has(file string) bool {
	return unix.Faccessat(d.fd(), file, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) == nil
}

// openFile opens a control file for reading, to be held.
func (d *dir) openFile(file string) (*os.File, error) {
	fd, err := openat(d.fd(), file, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: joinPath(d.path, file), Err: err}
	}
	return os.NewFile(uintptr(fd), joinPath(d.path, file)), nil
}

// read reads a control file once.
func (d *dir) read(file string) (s string, err error) {
	f, err := d.openFile(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	err = pread(f, func(b []byte) error { s = string(b); return nil })
	return s, err
}

// write writes a control file of d.
func (d *dir) write(file, value string) error { return d.e.write(d.fd(), file, value) }

// writeFile writes a control file in exactly one system call, as the kernel takes
// each call for a complete command.
func writeFile(dir int, file, value string) error {
	fd, err := openat(dir, file, unix.O_WRONLY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	n := 0
	err = retry(func() (err error) {
		n, err = unix.Write(fd, []byte(value))
		return err
	})
	if err == nil && n != len(value) {
		err = io.ErrShortWrite
	}
	return err
}

// subdirs lists the groups directly below d.
func (d *dir) subdirs() ([]string, error) {
	// A fresh description: the held one has a read position of its own.
	fd, err := openat(d.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), d.path)
	defer f.Close()
	var out []string
	for {
		batch, err := f.ReadDir(256)
		for _, entry := range batch {
			if entry.IsDir() {
				out = append(out, entry.Name())
			}
		}
		if len(out) > MaxGroups {
			return nil, errTooLarge
		}
		if err == io.EOF || err == nil && len(batch) == 0 {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// nested reports whether any group was made inside d: a directory has one link
// from its parent, one from itself and one from each child.
func (d *dir) nested() (bool, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstat(d.fd(), &st) })
	return st.Nlink > 2, err
}

// each calls f for every group below d, deepest first, and for d last.
func (d *dir) each(f func(*dir) error) error { return d.eachDepth(f, MaxNesting) }

func (d *dir) eachDepth(f func(*dir) error, depth int) error {
	if depth < 0 {
		return errTooLarge
	}
	names, err := d.subdirs()
	if gone(err) {
		return nil // somebody else removes it too
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		c, err := d.child(name)
		if gone(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = c.eachDepth(f, depth-1)
		c.close()
		if err != nil {
			return err
		}
	}
	return f(d)
}

// pids returns the members of d and of every group below it. A list longer than
// MaxControlFile is cut: callers loop until it is empty.
func (d *dir) pids() ([]int, error) {
	var all []int
	err := d.each(func(d *dir) error {
		data, err := d.readCut("cgroup.procs")
		if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		pids, err := parsePIDs(data)
		all = append(all, pids...)
		return err
	})
	return all, err
}

// readCut reads at most MaxControlFile bytes.
func (d *dir) readCut(file string) ([]byte, error) {
	f, err := d.openFile(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, MaxControlFile))
}

// removeTree removes the group name below parent with everything inside, if it is
// still the one d holds. What is gone already is fine.
func (d *dir) removeTree(parent *dir, name string) error {
	now, err := parent.child(name)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer now.close()
	if now.dev != d.dev || now.ino != d.ino {
		return fail(CodeMismatch, "remove", name, nil)
	}
	if err := now.removeChildren(MaxNesting); err != nil {
		return err
	}
	return parent.rmdir(name)
}

func (d *dir) removeChildren(depth int) error {
	if depth < 0 {
		return errTooLarge
	}
	names, err := d.subdirs()
	if err != nil {
		return err
	}
	for _, name := range names {
		c, err := d.child(name)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		err = c.removeChildren(depth - 1)
		c.close()
		if err == nil {
			err = d.rmdir(name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rmdir removes one empty group; errBusy while it still has members or children.
func (d *dir) rmdir(name string) error {
	err := retry(func() error { return d.e.rmdir(d.fd(), name) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.ENOTEMPTY):
		return errBusy
	}
	return err
}
