package room

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A read-only mount keeps nobody from connecting to a socket that lies on it: the kernel asks for
// write permission on the socket, and not whether its filesystem may be written (inode_permission,
// fs/namei.c). A watcher's or a server's socket in the canonical workspace (git's file system monitor
// has one in .git) would be a way out of the room, to a process that does what it is told. So the room
// has no Unix sockets but connected pairs, and of those only the kinds that cannot be connected again:
// a pair of datagram sockets sends to any address.
//
// The filter is put on the maker of the room, which has no such socket of its own, and everything
// below inherits it. The sandbox's filter comes on top; of two answers the stricter one counts
// (seccomp(2)).

// Offsets in struct seccomp_data; both systems are little-endian.
const (
	dataNumber = 0
	dataArch   = 4
	dataArg0   = 16
	dataArg1   = 24
)

// socketTypes masks SOCK_CLOEXEC and SOCK_NONBLOCK away.
const socketTypes = 0xf

// machines are the systems whose calls the filter knows.
var machines = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

func withoutSockets() []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	equal := func(k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jt: yes, Jf: no}
	}
	answer := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	return []unix.SockFilter{
		load(dataArch),
		equal(machines[runtime.GOARCH], 0, 9), // the sandbox's filter admits no calls of another machine
		load(dataNumber),
		equal(unix.SYS_SOCKETPAIR, 3, 0),
		equal(unix.SYS_SOCKET, 0, 6),
		load(dataArg0),
		equal(unix.AF_UNIX, 5, 4),
		load(dataArg1),
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: socketTypes},
		equal(unix.SOCK_STREAM, 1, 0),
		equal(unix.SOCK_SEQPACKET, 0, 1),
		answer(unix.SECCOMP_RET_ALLOW),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.EACCES)),
	}
}

// refuseSockets puts the filter on every thread of this process, for good. The caller has
// CAP_SYS_ADMIN in its user namespace.
func refuseSockets() error {
	if machines[runtime.GOARCH] == 0 {
		return unix.ENOSYS
	}
	f := withoutSockets()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
