//go:build unix && !linux

package pathwalk

import "golang.org/x/sys/unix"

func openRoot() (int, error) {
	return retry(func() (int, error) {
		return unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
}

// step examines one component without following it, opens it and compares. The first look keeps
// the open away from devices; O_NONBLOCK keeps it from waiting if a FIFO is swapped in between; the
// comparison refuses whatever was swapped.
func step(dir int, name, prefix string, last bool) (int, Identity, error) {
	var before unix.Stat_t
	if err := unix.Fstatat(dir, name, &before, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return -1, Identity{}, classify(prefix, err)
	}
	if err := judge(uint32(before.Mode), prefix, last); err != nil {
		return -1, Identity{}, err
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, Identity{}, classify(prefix, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return -1, Identity{}, classify(prefix, err)
	}
	if !identityOf(&st).SameObject(identityOf(&before)) {
		closeFD(fd)
		return -1, Identity{}, &Error{Code: CodeIO, Path: prefix}
	}
	return fd, identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) Identity {
	return Identity{Dev: uint64(st.Dev), Ino: st.Ino, Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid}
}
