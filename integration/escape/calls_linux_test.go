package escape

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// callAttempts reach for parts of the kernel that a session has no use for.
func callAttempts() []attempt {
	return []attempt{
		{name: "call: see the session keyring", refused: denied, lacking: absent, act: func(*facts) error {
			session := -3 // KEY_SPEC_SESSION_KEYRING
			return call(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, uintptr(session), 1)
		}},
		{name: "call: add a key", refused: denied, lacking: absent, act: addsKey},
		{name: "call: request a key", refused: denied, reached: "ENOKEY", lacking: absent, act: func(*facts) error {
			kind, name := cstring("user"), cstring("glove-escape-none")
			return call(unix.SYS_REQUEST_KEY, ptr(kind), ptr(name), 0, 0)
		}},
		{name: "call: load a BPF map", refused: denied, lacking: absent, act: func(*facts) error {
			attr := struct{ kind, key, value, entries uint32 }{2, 4, 4, 1} // BPF_MAP_TYPE_ARRAY
			fd, _, e := unix.Syscall(unix.SYS_BPF, 0, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
			return closed(fd, e)
		}},
		{name: "call: count events", refused: denied, lacking: "ENOSYS ENOENT", act: func(*facts) error {
			attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}
			fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "call: io_uring", refused: absent, lacking: "ENOSYS EPERM", act: func(*facts) error {
			var params [120]byte
			fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
			return closed(fd, e)
		}},
		{name: "call: handle page faults", refused: denied, lacking: absent, act: func(*facts) error {
			fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
			return closed(fd, e)
		}},
		{name: "call: fixed addresses", refused: denied, act: func(*facts) error {
			return call(unix.SYS_PERSONALITY, 0x0040000) // ADDR_NO_RANDOMIZE
		}},
		{name: "call: executable data", refused: denied, act: func(*facts) error {
			return call(unix.SYS_PERSONALITY, 0x0400000) // READ_IMPLIES_EXEC
		}},
		{name: "call: map page zero", refused: "EPERM EACCES", act: func(*facts) error {
			at, _, e := unix.Syscall6(unix.SYS_MMAP, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED, ^uintptr(0), 0)
			if e != 0 {
				return e
			}
			return call(unix.SYS_MUNMAP, at, 4096)
		}},
		{name: "call: map huge pages, which no limit counts", refused: "ENOMEM", lacking: "EINVAL", act: func(*facts) error {
			const size = 2 << 20 // not reserved: none need be there
			at, _, e := unix.Syscall6(unix.SYS_MMAP, 0, size, unix.PROT_READ,
				unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB|unix.MAP_NORESERVE, ^uintptr(0), 0)
			if e != 0 {
				return e
			}
			return call(unix.SYS_MUNMAP, at, size)
		}},
		{name: "call: make a file of huge pages", refused: "EINVAL", lacking: "EINVAL", act: func(*facts) error {
			name := cstring("glove-escape")
			fd, _, e := unix.Syscall(unix.SYS_MEMFD_CREATE, ptr(name), unix.MFD_CLOEXEC|unix.MFD_HUGETLB, 0)
			return closed(fd, e)
		}},
		{name: "call: make a segment of huge pages", refused: "ENOMEM", lacking: "EINVAL", act: func(*facts) error {
			const huge, noReserve = 0o4000, 0o10000 // SHM_HUGETLB, SHM_NORESERVE
			id, _, e := unix.Syscall(unix.SYS_SHMGET, unix.IPC_PRIVATE, 2<<20, unix.IPC_CREAT|0o600|huge|noReserve)
			if e != 0 {
				return e
			}
			return call(unix.SYS_SHMCTL, id, unix.IPC_RMID, 0)
		}},
		{name: "call: watch the whole filesystem", refused: denied, lacking: absent, act: func(*facts) error {
			fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC, unix.O_RDONLY)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "call: share the host's memory segment", refused: notThere, lacking: "ENOENT ENOSYS", act: func(f *facts) error {
			return call(unix.SYS_SHMGET, uintptr(f.Shm), 0, 0)
		}},
		{name: "call: open the host's message queue", refused: notThere, lacking: absent, act: func(f *facts) error {
			name := cstring(f.Queue)
			fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, ptr(name), unix.O_RDONLY|unix.O_CLOEXEC, 0, 0, 0, 0)
			return closed(fd, e)
		}},
		{name: "call: set the host name", refused: denied, act: func(*facts) error { return unix.Sethostname([]byte("glove-escape")) }},
		{name: "call: set the domain name", refused: denied, act: func(*facts) error { return unix.Setdomainname([]byte("glove-escape")) }},
		{name: "call: steer the clock", refused: denied, act: func(*facts) error {
			var now unix.Timex
			if _, err := unix.Adjtimex(&now); err != nil {
				return said("unreadable:" + answer(err))
			}
			same := unix.Timex{Modes: unix.ADJ_FREQUENCY, Freq: now.Freq}
			_, err := unix.Adjtimex(&same)
			return err
		}},
		// The kernel asks for the privilege only after it has looked at the clock, and this one cannot be set.
		{name: "call: set a clock", refused: denied, reached: "EINVAL", act: func(*facts) error {
			var ts unix.Timespec
			return call(unix.SYS_CLOCK_SETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)))
		}},
		{name: "call: set the time of day", refused: denied, reached: "EINVAL", act: func(*facts) error {
			tv := unix.Timeval{Sec: -1}
			return call(unix.SYS_SETTIMEOFDAY, uintptr(unsafe.Pointer(&tv)), 0)
		}},
		{name: "call: read the kernel's log", refused: denied, act: func(*facts) error { return call(unix.SYS_SYSLOG, 10, 0, 0) }},
		{name: "call: quotas", refused: denied, reached: "ENODEV ENOTBLK ENOENT ENOSYS EINVAL", act: func(*facts) error {
			const getFormat = 0x800004 << 8 // Q_GETFMT
			name := cstring("/glove-escape-none")
			return call(unix.SYS_QUOTACTL, getFormat, ptr(name), 0, 0)
		}},
		// From here on each act is the nearest form that harms no host: a file, module or image that
		// does not exist, or a magic number that is none, where the kernel asks for privilege first.
		{name: "call: account for processes", refused: denied, reached: "ENOENT ENOSYS", act: byName(unix.SYS_ACCT)},
		{name: "call: swap to a file", refused: denied, reached: "ENOENT", lacking: absent, act: byName(unix.SYS_SWAPON)},
		{name: "call: stop swapping", refused: denied, reached: "ENOENT", lacking: absent, act: byName(unix.SYS_SWAPOFF)},
		{name: "call: reboot", refused: denied, reached: "EINVAL", act: func(*facts) error { return call(unix.SYS_REBOOT, 1, 2, 0, 0) }},
		{name: "call: load another kernel", refused: denied, reached: "EINVAL", lacking: "ENOSYS EPERM", act: func(*facts) error {
			return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0xff)
		}},
		{name: "call: load another kernel from a file", refused: denied, reached: "EINVAL EBADF", lacking: "ENOSYS EPERM", act: func(*facts) error {
			return call(unix.SYS_KEXEC_FILE_LOAD, ^uintptr(0), ^uintptr(0), 0, 0, 0xff00)
		}},
		{name: "call: load a module", refused: denied, reached: "ENOEXEC EFAULT EINVAL", lacking: "ENOSYS EPERM", act: func(*facts) error {
			var image [8]byte
			return call(unix.SYS_INIT_MODULE, uintptr(unsafe.Pointer(&image)), unsafe.Sizeof(image), ptr(cstring("")))
		}},
		{name: "call: load a module from a file", refused: denied, reached: "EBADF", lacking: "ENOSYS EPERM", act: func(*facts) error {
			return call(unix.SYS_FINIT_MODULE, ^uintptr(0), ptr(cstring("")), 0)
		}},
		{name: "call: unload a module", refused: denied, reached: "ENOENT", lacking: "ENOSYS EPERM", act: func(*facts) error {
			return call(unix.SYS_DELETE_MODULE, ptr(cstring("glove_escape_none")), unix.O_NONBLOCK)
		}},
		{name: "call: move another's pages", refused: denied, reached: "success ENODEV EINVAL EFAULT", lacking: absent, act: func(f *facts) error {
			return call(unix.SYS_MIGRATE_PAGES, uintptr(f.Process), 0, 0, 0)
		}},
		{name: "call: a number from the future", refused: absent, reached: absent, act: func(*facts) error { return call(5000) }},
		{name: "call: drop caches by way of another's hint", refused: denied, reached: "EBADF EFAULT EINVAL", lacking: absent, act: func(*facts) error {
			return call(unix.SYS_PROCESS_MADVISE, ^uintptr(0), 0, 0, 0, 0)
		}},
	}
}

func closed(fd uintptr, e unix.Errno) error {
	if e != 0 {
		return e
	}
	return unix.Close(int(fd))
}

func cstring(s string) []byte { return append([]byte(s), 0) }

func ptr(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// byName makes a call on a file that does not exist.
func byName(nr uintptr) func(*facts) error {
	return func(*facts) error { return call(nr, ptr(cstring("/glove-escape-none")), 0) }
}

func addsKey(*facts) error {
	kind, name, payload := cstring("user"), cstring("glove-escape"), []byte("x")
	ring := -2 // KEY_SPEC_PROCESS_KEYRING: it ends with the process
	return call(unix.SYS_ADD_KEY, ptr(kind), ptr(name), ptr(payload), 1, uintptr(ring))
}
