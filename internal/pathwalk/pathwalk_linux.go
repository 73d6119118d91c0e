package pathwalk

import "golang.org/x/sys/unix"

func openRoot() (int, error) {
	return retry(func() (int, error) {
		return unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
}

// step opens one component. With O_PATH|O_NOFOLLOW a symbolic link is opened, not followed, so it
// is recognised by its mode (open(2), "O_PATH").
func step(dir int, name, prefix string, last bool) (int, Identity, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, Identity{}, classify(prefix, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		closeFD(fd)
		return -1, Identity{}, classify(prefix, err)
	}
	if err := judge(st.Mode, prefix, last); err != nil {
		closeFD(fd)
		return -1, Identity{}, err
	}
	return fd, identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) Identity {
	return Identity{Dev: st.Dev, Ino: st.Ino, Mode: st.Mode, UID: st.Uid, GID: st.Gid}
}
