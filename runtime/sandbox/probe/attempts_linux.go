package probe

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// readsBytes succeeds when path has any content; a masked file is empty.
func readsBytes(path string) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return errnoOf(err)
		}
		defer unix.Close(fd)
		var b [1]byte
		switch n, err := unix.Read(fd, b[:]); {
		case err != nil:
			return errnoOf(err)
		case n == 0:
			return unix.ENODATA
		}
		return 0
	}
}

// seesOthers succeeds when /proc shows a process besides this one and pid 1.
func seesOthers() unix.Errno {
	dir, err := os.Open("/proc")
	if err != nil {
		return unix.EIO
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return unix.EIO
	}
	own := os.Getpid()
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid != 1 && pid != own {
			return 0
		}
	}
	return unix.ESRCH
}

// inherits succeeds when a descriptor above 2 would survive execve.
func inherits() unix.Errno {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return unix.EIO
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return unix.EIO
	}
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			return 0
		}
	}
	return unix.EBADF
}

// connects opens a socket of the family and, given an address, starts connecting;
// a connection under way counts as success.
func connects(family int, to unix.Sockaddr) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return errnoOf(err)
		}
		defer unix.Close(fd)
		if to == nil {
			return 0
		}
		err = unix.Connect(fd, to)
		if err == unix.EINPROGRESS {
			return 0
		}
		return errnoOf(err)
	}
}

func opensNetlink(protocol int) func() unix.Errno {
	return func() unix.Errno {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return errnoOf(err)
		}
		unix.Close(fd)
		return 0
	}
}

func gainsCapability() unix.Errno {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	data[0].Effective = 1 << unix.CAP_SYS_ADMIN
	data[0].Permitted = 1 << unix.CAP_SYS_ADMIN
	return errnoOf(unix.Capset(&head, &data[0]))
}

func raisesAmbient() unix.Errno {
	return errnoOf(unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0))
}

// keepsBounding succeeds when any capability is left in the bounding set.
func keepsBounding() unix.Errno {
	for c := uintptr(0); c < 64; c++ {
		have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err == unix.EINVAL {
			break
		}
		if err != nil {
			return errnoOf(err)
		}
		if have != 0 {
			return 0
		}
	}
	return unix.EPERM
}

// allowsNewPrivileges succeeds when no_new_privs is not set on this thread.
func allowsNewPrivileges() unix.Errno {
	set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return errnoOf(err)
	}
	if set != 1 {
		return 0
	}
	return unix.EPERM
}

// raisesLimit tries to raise the hard limit on descriptors by one.
func raisesLimit() unix.Errno {
	var l unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &l); err != nil {
		return errnoOf(err)
	}
	l.Max++
	return errnoOf(unix.Prlimit(0, unix.RLIMIT_NOFILE, &l, nil))
}

// escapesOOM tries to exempt the process from the kernel's choice of a victim.
func escapesOOM() unix.Errno {
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return errnoOf(err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte("-1000"))
	return errnoOf(err)
}
