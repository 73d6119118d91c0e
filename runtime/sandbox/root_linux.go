package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
)

// systemEntry is one host path that comes along: a detached clone, or a link.
type systemEntry struct {
	path string
	link string // the link's text, for a symbolic link
	dir  bool
	fd   int
}

// readOnlyRuntime are the attributes of everything bound from the host.
const readOnlyRuntime = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV

// deviceNames are the host's device nodes that come along. The room cannot make
// its own: a user namespace may not create device nodes.
var deviceNames = []string{"null", "zero", "full", "random", "urandom", "tty"}

// AppendSystem appends to b what DefaultSystemPaths refer to now: when it has changed, a
// Room that was prepared before has what is no longer the host's system.
func AppendSystem(b []byte) []byte {
	for _, path := range DefaultSystemPaths() {
		var st unix.Stat_t
		if err := unix.Fstatat(unix.AT_FDCWD, path, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil {
			b = fmt.Appendln(b, path, st.Dev, st.Ino, st.Mode&unix.S_IFMT)
		}
	}
	return b
}

// bringSystem takes along what paths name of the host's system. A path that is absent, or
// there already, is skipped; one that cannot be cloned fails.
func (b *builder) bringSystem(paths []string) error {
	for _, path := range paths {
		if covered(b.system, path) {
			continue
		}
		e, err := b.gather(path)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err == nil && e != nil {
			b.system = append(b.system, *e)
			err = b.attachEntry(*e)
		}
		if err != nil {
			return at(path, err)
		}
	}
	return nil
}

// covered reports whether path is already there, maybe as part of a directory.
func covered(have []systemEntry, path string) bool {
	for _, e := range have {
		if e.path == path || e.dir && strings.HasPrefix(path, e.path+"/") {
			return true
		}
	}
	return false
}

func (b *builder) gather(path string) (*systemEntry, error) {
	dir, from := unix.AT_FDCWD, path
	if ident.Within(path, b.holder) { // the root lies over it
		dir, from = b.held, "."+strings.TrimPrefix(path, b.holder)
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, from, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, err
	}
	e := &systemEntry{path: path, fd: -1}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		link := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, from, link)
		if err != nil {
			return nil, err
		}
		e.link = string(link[:n])
		return e, nil
	case unix.S_IFDIR:
		e.dir = true
	case unix.S_IFREG:
	default:
		return nil, nil // sockets, pipes and devices are not a system's programs
	}
	// Whole subtrees: what a host mounts below /usr belongs to it, and the kernel
	// does not let a user namespace see under a mount.
	fd, err := cloneTree(dir, from, unix.AT_SYMLINK_NOFOLLOW|unix.AT_RECURSIVE)
	if err != nil {
		return nil, err
	}
	if err := setAttrs(fd, readOnlyRuntime, unix.AT_RECURSIVE); err != nil {
		unix.Close(fd)
		return nil, err
	}
	e.fd = fd
	return e, nil
}

// rootHolders are host directories the new root may be stacked on until it takes
// over; which one is used makes no difference to anything.
var rootHolders = []string{"/tmp", "/mnt", "/usr", "/var"}

// makeRoot makes the new root: a small tmpfs that holds mount points, links and the
// few synthesized files, and is made read-only once they are in place.
func (b *builder) makeRoot() error {
	fd, err := newFS("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"size", "1m"}, [2]string{"nr_inodes", "4096"}, [2]string{"mode", "0755"},
		[2]string{"source", "root"})
	if err != nil {
		return err
	}
	b.root = fd
	for _, dir := range rootHolders {
		if b.held, err = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
			continue
		}
		if err = unix.MoveMount(fd, "", b.held, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err == nil {
			b.holder = dir
			return nil
		}
		_ = unix.Close(b.held)
	}
	return err
}

// makeSkeleton makes the directories that every room has.
func (b *builder) makeSkeleton() error {
	for _, dir := range []string{"/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var/tmp", InsideHome} {
		fd, err := b.target(dir, false)
		if err != nil {
			return at(dir, err)
		}
		unix.Close(fd)
	}
	return b.symlink("/run", "/var/run")
}

func (b *builder) attachEntry(e systemEntry) error {
	if e.link != "" {
		return b.symlink(e.link, e.path)
	}
	on, err := b.target(e.path, !e.dir)
	if err != nil {
		return err
	}
	defer unix.Close(on)
	defer unix.Close(e.fd)
	return attach(e.fd, on)
}

// target opens the object at an absolute path inside the new root, as O_PATH,
// creating what is missing: directories, and for a file the file. No component is
// ever followed as a link.
func (b *builder) target(path string, file bool) (int, error) {
	dirs, last := parent(path)
	dir, err := unix.FcntlInt(uintptr(b.root), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for _, name := range dirs {
		next, err := openDir(dir, name)
		unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = next
	}
	defer unix.Close(dir)
	if !file {
		return openDir(dir, last)
	}
	return openFile(dir, last)
}

func openDir(dir int, name string) (int, error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if err != unix.ENOENT {
		return fd, err
	}
	if err := unix.Mkdirat(dir, name, 0o755); err != nil && err != unix.EEXIST {
		return -1, err
	}
	return unix.Openat(dir, name, flags, 0)
}

func openFile(dir int, name string) (int, error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := unix.Openat(dir, name, flags, 0)
	if err == unix.ENOENT {
		made, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o444)
		if err != nil {
			return -1, err
		}
		unix.Close(made)
		fd, err = unix.Openat(dir, name, flags, 0)
		if err != nil {
			return -1, err
		}
	} else if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return -1, syscall.ELOOP
	}
	return fd, nil
}

// symlink makes a link inside the new root, its directories included.
func (b *builder) symlink(text, path string) error {
	dirs, last := parent(path)
	dir := b.root
	if len(dirs) > 0 {
		fd, err := b.target("/"+strings.Join(dirs, "/"), false)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		dir = fd
	}
	return unix.Symlinkat(text, dir, last)
}
