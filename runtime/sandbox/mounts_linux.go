package sandbox

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attachMounts attaches the session's mounts in order and looks at each again
// through the path a program inside will use.
func (b *builder) attachMounts() error {
	for i, m := range b.spec.Mounts {
		if err := b.attachMount(m, b.mounts[i]); err != nil {
			return at(m.Name+" at "+m.Target, err)
		}
	}
	return nil
}

func (b *builder) attachMount(m specMount, fd int) error {
	defer unix.Close(fd)
	var before unix.Stat_t
	if err := unix.Fstat(fd, &before); err != nil {
		return err
	}
	if (before.Mode&unix.S_IFMT == unix.S_IFDIR) == m.File {
		return syscall.ENOTDIR
	}
	if err := setAttrs(fd, m.attrs(), unix.AT_RECURSIVE); err != nil {
		return err
	}
	on, err := b.target(m.Target, m.File)
	if err != nil {
		return err
	}
	defer unix.Close(on)
	if err := attach(fd, on); err != nil {
		return err
	}
	return b.verify(m, before)
}

// attrs are a mount's attributes: never setuid, never devices.
func (m specMount) attrs() uint64 {
	attrs := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if m.ReadOnly {
		attrs |= unix.MOUNT_ATTR_RDONLY
	}
	if !m.Exec {
		attrs |= unix.MOUNT_ATTR_NOEXEC
	}
	return attrs
}

// verify checks that the path now leads to the object that was handed in, with the
// flags asked for.
func (b *builder) verify(m specMount, before unix.Stat_t) error {
	fd, err := b.target(m.Target, m.File)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var now unix.Stat_t
	if err := unix.Fstat(fd, &now); err != nil {
		return err
	}
	if now.Dev != before.Dev || now.Ino != before.Ino {
		return syscall.ESTALE
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	want := int64(unix.ST_NOSUID | unix.ST_NODEV)
	if m.ReadOnly {
		want |= unix.ST_RDONLY
	}
	if !m.Exec {
		want |= unix.ST_NOEXEC
	}
	if fs.Flags&want != want {
		return syscall.EPERM
	}
	return nil
}
