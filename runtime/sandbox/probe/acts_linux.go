package probe

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The answers that mean "no" for each kind of act. A mount flag answers EROFS,
// Landlock and file modes EACCES, seccomp and missing capabilities EPERM.
var (
	readOnly   = []unix.Errno{unix.EROFS, unix.EACCES, unix.EPERM}
	notThere   = []unix.Errno{unix.EACCES, unix.EPERM, unix.ENOENT}
	denied     = []unix.Errno{unix.EPERM}
	absent     = []unix.Errno{unix.ENOSYS}
	noFamily   = []unix.Errno{unix.EAFNOSUPPORT, unix.EACCES}
	noNetwork  = []unix.Errno{unix.EAFNOSUPPORT, unix.ENETUNREACH, unix.EACCES}
	noIdentity = []unix.Errno{unix.EINVAL, unix.EPERM}
	executing  = []unix.Errno{unix.ETXTBSY, unix.EACCES, unix.EPERM, unix.ENOENT, unix.EROFS}
)

// acts is the list, grouped by what each act would reach.
func acts() []act {
	var list []act
	for _, group := range [][]act{files(), processes(), network(), namespaces(), calls(), privilege(), terminal()} {
		list = append(list, group...)
	}
	return list
}

// files: the room's own read-only parts and the kernel's control files.
func files() []act {
	return []act{
		{"create_in_root", makes("/.gloved-probe", create, unix.Unlink), readOnly},
		{"create_in_usr", makes("/usr/.gloved-probe", mkdir, unix.Rmdir), readOnly},
		{"write_passwd", opens("/etc/passwd", unix.O_WRONLY), readOnly},
		{"create_in_dev", makes("/dev/.gloved-probe", create, unix.Unlink), readOnly},
		{"make_device", makes("/dev/shm/.gloved-probe", makeDevice, unix.Unlink), readOnly},
		{"write_sysctl", opens("/proc/sys/kernel/core_pattern", unix.O_WRONLY), readOnly},
		{"write_sysrq", opens("/proc/sysrq-trigger", unix.O_WRONLY), notThereOrReadOnly()},
		{"read_kernel_memory", readsBytes("/proc/kcore"), append([]unix.Errno{unix.ENODATA}, notThere...)},
		{"see_sysfs", opens("/sys/kernel", unix.O_RDONLY), notThere},
	}
}

// processes: pid 1, anything outside, and the host's copy of our executable.
func processes() []act {
	return []act{
		{"see_other_process", seesOthers, []unix.Errno{unix.ESRCH}},
		{"write_init_memory", opens("/proc/1/mem", unix.O_RDWR), notThere},
		{"enter_init_root", opens("/proc/1/root", unix.O_RDONLY), notThere},
		{"write_init_executable", opens("/proc/1/exe", unix.O_WRONLY), executing},
		{"write_own_executable", opens("/proc/self/exe", unix.O_WRONLY), executing},
		{"inherit_descriptor", inherits, []unix.Errno{unix.EBADF}},
		{"trace_process", func() unix.Errno { return call(unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 1, 0, 0) }, denied},
		{"read_process_memory", func() unix.Errno { return call(unix.SYS_PROCESS_VM_READV, 1, 0, 0, 0, 0, 0) }, denied},
		{"take_descriptor", func() unix.Errno { return call(unix.SYS_PIDFD_GETFD, badFD, 0, 0) }, denied},
	}
}

// network: no route out, no address family but the local one.
func network() []act {
	return []act{
		{"connect_inet", connects(unix.AF_INET, &unix.SockaddrInet4{Port: 443, Addr: [4]byte{192, 0, 2, 1}}), noNetwork},
		{"connect_inet6", connects(unix.AF_INET6, &unix.SockaddrInet6{Port: 443, Addr: [16]byte{0x20, 0x01, 0x0d, 0xb8, 15: 1}}), noNetwork},
		{"open_packet", connects(unix.AF_PACKET, nil), noFamily},
		{"open_vsock", connects(unix.AF_VSOCK, nil), noFamily},
		{"open_kernel_crypto", connects(unix.AF_ALG, nil), noFamily},
		{"open_netlink_event", opensNetlink(unix.NETLINK_KOBJECT_UEVENT), noFamily},
		{"open_netlink_filter", opensNetlink(unix.NETLINK_NETFILTER), noFamily},
	}
}

// namespaces: nothing inside may make one, join one or change a mount. Arguments
// are such that a call let through fails, with an answer that is not a refusal.
func namespaces() []act {
	return []act{
		{"unshare_user", func() unix.Errno { return call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) }, denied},
		// NEWUSER together with FS is invalid, so that no process is ever made.
		{"clone_user", func() unix.Errno { return call(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS, 0) }, denied},
		{"clone3", func() unix.Errno { return call(unix.SYS_CLONE3, 0, 0) }, absent},
		{"join_namespace", func() unix.Errno { return call(unix.SYS_SETNS, badFD, 0) }, denied},
		{"mount", mounts, denied},
		{"open_filesystem", func() unix.Errno { return call(unix.SYS_FSOPEN, 0, 0) }, denied},
		{"clone_mount", func() unix.Errno { return call(unix.SYS_OPEN_TREE, badFD, 0, 0) }, denied},
		{"move_mount", func() unix.Errno { return call(unix.SYS_MOVE_MOUNT, badFD, 0, badFD, 0, 0) }, denied},
		{"change_mount", func() unix.Errno { return call(unix.SYS_MOUNT_SETATTR, badFD, 0, 0, 0, 0) }, denied},
		{"unmount", func() unix.Errno { return call(unix.SYS_UMOUNT2, 0, 0) }, denied},
		{"pivot_root", func() unix.Errno { return call(unix.SYS_PIVOT_ROOT, 0, 0) }, denied},
		{"change_root", func() unix.Errno { return call(unix.SYS_CHROOT, 0) }, denied},
		{"set_hostname", func() unix.Errno { return call(unix.SYS_SETHOSTNAME, 0, 0) }, denied},
	}
}

// calls: kernel interfaces a session has no use for.
func calls() []act {
	return []act{
		{"bpf", func() unix.Errno { return call(unix.SYS_BPF, 0, 0, 0) }, denied},
		{"keyctl", func() unix.Errno { return call(unix.SYS_KEYCTL, 0, 0, 0) }, denied},
		{"add_key", func() unix.Errno { return call(unix.SYS_ADD_KEY, 0, 0, 0, 0, 0) }, denied},
		{"io_uring", func() unix.Errno { return call(unix.SYS_IO_URING_SETUP, 1, 0) }, absent},
		{"perf_event", func() unix.Errno { return call(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0) }, denied},
		{"userfaultfd", func() unix.Errno { return call(unix.SYS_USERFAULTFD, ^uintptr(0)) }, denied},
		{"open_by_handle", func() unix.Errno { return call(unix.SYS_OPEN_BY_HANDLE_AT, badFD, 0, 0) }, denied},
		{"load_kernel", func() unix.Errno { return call(unix.SYS_KEXEC_LOAD, 0, 0, 0, 0) }, denied},
		{"load_module", func() unix.Errno { return call(unix.SYS_INIT_MODULE, 0, 0, 0) }, denied},
		{"kernel_log", func() unix.Errno { return call(unix.SYS_SYSLOG, 10, 0, 0) }, denied},
		{"fixed_addresses", func() unix.Errno { return call(unix.SYS_PERSONALITY, addrNoRandomize) }, denied},
		// getpid by an x32 number; elsewhere a number no table reaches.
		{"foreign_abi", func() unix.Errno { return call(0x40000000|39, 0) }, absent},
	}
}

// privilege: no way to an identity, a capability or a bound beyond what was given.
func privilege() []act {
	return []act{
		{"become_root", func() unix.Errno { return call(unix.SYS_SETRESUID, 0, 0, 0) }, noIdentity},
		{"become_root_group", func() unix.Errno { return call(unix.SYS_SETRESGID, 0, 0, 0) }, noIdentity},
		{"gain_capability", gainsCapability, denied},
		{"raise_ambient", raisesAmbient, denied},
		{"keep_bounding_set", keepsBounding, denied},
		{"allow_new_privileges", allowsNewPrivileges, denied},
		{"raise_descriptor_limit", raisesLimit, denied},
		{"escape_oom", escapesOOM, readOnly},
	}
}

// terminal: input must come from the person at the other end only. A null argument
// keeps a call that gets through from having an effect; the second form sets a bit
// the kernel ignores and a careless filter does not.
func terminal() []act {
	return []act{
		{"inject_input", func() unix.Errno { return call(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0) }, denied},
		{"inject_input_high_bit", func() unix.Errno { return call(unix.SYS_IOCTL, 0, 1<<32|unix.TIOCSTI, 0) }, denied},
		{"paste_console", func() unix.Errno { return call(unix.SYS_IOCTL, 0, tioclinux, 0) }, denied},
		{"set_line_discipline", func() unix.Errno { return call(unix.SYS_IOCTL, 0, unix.TIOCSETD, 0) }, denied},
	}
}

// badFD is the descriptor −1, which every call that gets as far as looking it up
// answers with EBADF.
const badFD = ^uintptr(0)

const (
	addrNoRandomize = 0x0040000 // ADDR_NO_RANDOMIZE of linux/personality.h
	tioclinux       = 0x541c    // TIOCLINUX of asm-generic/ioctls.h
)

func notThereOrReadOnly() []unix.Errno { return append([]unix.Errno{unix.EROFS}, notThere...) }

func create(path string) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func mkdir(path string) error { return unix.Mkdir(path, 0o700) }

// makeDevice makes a second /dev/null.
func makeDevice(path string) error {
	return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
}

// Arguments of mounts, package-level so that their addresses stay put.
var (
	mountType   = [...]byte{'t', 'm', 'p', 'f', 's', 0}
	mountTarget = [...]byte{'/', 'd', 'e', 'v', 0}
)

func mounts() unix.Errno {
	name, dir := uintptr(unsafe.Pointer(&mountType)), uintptr(unsafe.Pointer(&mountTarget))
	e := call(unix.SYS_MOUNT, name, dir, name, unix.MS_NOSUID|unix.MS_NODEV, 0)
	if e == 0 {
		_ = unix.Unmount("/dev", unix.MNT_DETACH)
	}
	return e
}
