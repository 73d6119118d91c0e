package sandbox

import (
	"errors"
	"golang.org/x/sys/unix"
)

// maxTerminals bounds the terminals of one session's devpts.
const maxTerminals = "256"

// makeDev fills /dev: the six harmless nodes, the links programs expect and a devpts.
// There is no console.
func (b *builder) makeDev() error {
	dev, err := b.target("/dev", false)
	if err != nil {
		return err
	}
	defer unix.Close(dev)
	for _, name := range deviceNames {
		if err := b.attachDevice(name); err != nil {
			return at("/dev/"+name, err)
		}
	}
	links := map[string]string{
		"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
		"stderr": "/proc/self/fd/2", "ptmx": "pts/ptmx",
	}
	for name, text := range links {
		if err := unix.Symlinkat(text, dev, name); err != nil {
			return at("/dev/"+name, err)
		}
	}
	// Not nodev: terminals are devices. The kernel admits only this instance's own.
	err = b.mountNew("/dev/pts", "devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"mode", "0620"}, [2]string{"ptmxmode", "0666"}, [2]string{"max", maxTerminals})
	return at("/dev/pts", err)
}

// makeShm mounts a small /dev/shm unless the caller brings one.
func (b *builder) makeShm() error {
	for _, m := range b.spec.Mounts {
		if m.Target == shmTarget {
			return nil
		}
	}
	err := b.mountNew(shmTarget, "tmpfs",
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"size", "64m"}, [2]string{"nr_inodes", "4096"}, [2]string{"mode", "1777"},
		[2]string{"source", "shm"})
	return at(shmTarget, err)
}

func (b *builder) attachDevice(name string) error {
	fd, err := cloneTree(unix.AT_FDCWD, "/dev/"+name, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Read-only does not stop writing to a device; it stops changing the node.
	attrs := uint64(unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NOEXEC)
	if err := setAttrs(fd, attrs, 0); err != nil {
		return err
	}
	on, err := b.target("/dev/"+name, true)
	if err != nil {
		return err
	}
	defer unix.Close(on)
	return attach(fd, on)
}

// mountNew mounts a new filesystem inside the new root.
func (b *builder) mountNew(path, kind string, attrs int, options ...[2]string) error {
	fd, err := newFS(kind, attrs, options...)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	on, err := b.target(path, false)
	if err != nil {
		return err
	}
	defer unix.Close(on)
	return attach(fd, on)
}

// makeProc mounts the session's own /proc and takes from it what tells about the
// host. hidepid makes what may not be looked into, pid 1 above all, not exist.
//
// It comes before the host's tree is let go: the kernel gives a user namespace a
// new /proc only while one is in sight that hides nothing.
func (b *builder) makeProc() error {
	err := b.mountNew("/proc", "proc",
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"hidepid", "invisible"})
	if err != nil {
		return err
	}
	proc, err := b.target("/proc", false)
	if err != nil {
		return err
	}
	defer unix.Close(proc)
	if err := b.maskProc(proc); err != nil {
		return err
	}
	for _, name := range readOnlyProc {
		if err := freeze(proc, name); err != nil {
			return at("/proc/"+name, err)
		}
	}
	return nil
}

// maskProc covers entries with an empty file or directory of the root filesystem,
// whose names are removed again: the mounts keep the objects.
func (b *builder) maskProc(proc int) error {
	const file, dir = ".masked-file", ".masked-dir"
	if err := writeAt(b.root, file, ""); err != nil {
		return err
	}
	if err := unix.Mkdirat(b.root, dir, 0o555); err != nil {
		return err
	}
	for _, name := range maskedProc {
		var st unix.Stat_t
		err := unix.Fstatat(proc, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return at("/proc/"+name, err)
		}
		with := file
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			with = dir
		}
		if err := b.cover(proc, name, with); err != nil {
			return at("/proc/"+name, err)
		}
	}
	if err := unix.Unlinkat(b.root, file, 0); err != nil {
		return err
	}
	return unix.Unlinkat(b.root, dir, unix.AT_REMOVEDIR)
}

// cover binds the root filesystem's object with, read-only, onto name below proc.
func (b *builder) cover(proc int, name, with string) error {
	fd, err := cloneTree(b.root, with, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setAttrs(fd, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", proc, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// freeze binds name below proc onto itself, read-only.
func freeze(proc int, name string) error {
	fd, err := cloneTree(proc, name, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setAttrs(fd, unix.MOUNT_ATTR_RDONLY, 0); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", proc, name, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
