package seccomp

import (
	"encoding/binary"
	"slices"
	"sync"
	"unsafe"

	"gloved.dev/internal/digest"
	"golang.org/x/sys/unix"
)

// Policy is the little that differs between sessions.
type Policy struct {
	// Inet admits stream and datagram sockets of the two Internet families, for a
	// session whose network namespace holds a loopback egress bridge.
	Inet bool
}

// Program is a compiled filter.
type Program []unix.SockFilter

// newestKnown is the highest number the tables know, the same on every
// architecture since the numbers were unified at 424. A call above it is newer
// than this list: its caller must believe that the kernel lacks it.
const newestKnown = unix.SYS_RSEQ_SLICE_YIELD

// namespaceFlags are the clone(2) flags that make a namespace. (CLONE_NEWTIME is
// not among them: in clone's flags its bit belongs to the exit signal.)
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// unknown are calls that answer ENOSYS although the table knows them. clone3 and
// io_uring pass their arguments in memory where no filter can see them; Node, Bun
// and tokio abort on EPERM but fall back on ENOSYS. The others are younger than
// the programs that would miss them.
var unknown = []uint32{
	unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_FILE_GETATTR, unix.SYS_FILE_SETATTR, unix.SYS_LISTNS, unix.SYS_RSEQ_SLICE_YIELD,
}

// refusedIoctls reach past the session's own terminal: TIOCSTI types into it
// (CVE-2017-5226), TIOCLINUX pastes a selection into a console (CVE-2023-1523),
// TIOCSETD loads line disciplines, TIOCCONS takes the system console.
var refusedIoctls = []uint32{unix.TIOCSTI, tioclinux, unix.TIOCSETD, unix.TIOCCONS}

// tioclinux is TIOCLINUX of asm-generic/ioctls.h, which x/sys does not name.
const tioclinux = 0x541c

// personalities are the execution domains that change nothing but what uname(2)
// and the like report (PER_LINUX32 and UNAME26), and the query. Others weaken
// address-space randomisation or map page zero.
var personalities = []uint32{0, 0x0008, 0x20000, 0x20008, 0xffffffff}

// shmHugetlb is SHM_HUGETLB of linux/shm.h, which x/sys does not name. Huge pages are
// taken from a pool of the host's, and no control group that counts memory counts them: a
// session could use them beyond its limit, and keep them from whom they were set aside
// for. Where they are refused the answer is that of a host without any. (Transparent huge
// pages are counted; nothing refuses those.)
const shmHugetlb = 0o4000

// Compile returns the program of a policy, which depends on nothing else. It is made once
// and shared: do not change it.
func Compile(p Policy) Program {
	if p.Inet {
		return withInet()
	}
	return offline()
}

var (
	offline  = sync.OnceValue(func() Program { return compile(Policy{}) })
	withInet = sync.OnceValue(func() Program { return compile(Policy{Inet: true}) })
)

func compile(p Policy) Program {
	body := block{load(offNumber)}
	body = append(body, search(spans(p))...)
	out := block{load(offArch)}
	out = append(out, branch(unix.BPF_JEQ, auditArch, body, refuse(unix.ENOSYS))...)
	return Program(out)
}

// spans lists the outcomes of all numbers from zero up.
func spans(p Policy) []span {
	outcomes := map[uint32]block{}
	for _, list := range [][]uint32{common, native} {
		for _, nr := range list {
			outcomes[nr] = allow()
		}
	}
	for _, nr := range unknown {
		outcomes[nr] = refuse(unix.ENOSYS)
	}
	for nr, b := range conditional(p) {
		outcomes[nr] = b
	}
	var out []span
	var last block
	add := func(nr uint32, b block) {
		if out == nil || !slices.Equal(b, last) {
			out = append(out, span{nr, b})
			last = b
		}
	}
	for nr := uint32(0); nr <= newestKnown; nr++ {
		b, listed := outcomes[nr]
		if !listed {
			b = refuse(unix.EPERM)
		}
		add(nr, b)
	}
	// This also covers the x32 numbers, which start at x32Bit.
	add(newestKnown+1, refuse(unix.ENOSYS))
	return out
}

// conditional are the calls admitted for some arguments only.
func conditional(p Policy) map[uint32]block {
	ioctl := append(block{load(argLow(1))}, anyOf(refusedIoctls, refuse(unix.EPERM), allow())...)
	clone := append(block{load(argLow(0))},
		branch(unix.BPF_JSET, namespaceFlags, refuse(unix.EPERM), allow())...)
	personality := append(block{load(argLow(0))},
		anyOf(personalities, allow(), refuse(unix.EPERM))...)
	pair := append(block{load(argLow(0))},
		anyOf([]uint32{unix.AF_UNIX}, allow(), refuse(unix.EAFNOSUPPORT))...)
	return map[uint32]block{
		unix.SYS_MMAP:         unlessSet(3, unix.MAP_HUGETLB, unix.ENOMEM),
		unix.SYS_MEMFD_CREATE: unlessSet(1, unix.MFD_HUGETLB, unix.EINVAL),
		unix.SYS_SHMGET:       unlessSet(2, shmHugetlb, unix.ENOMEM),
		unix.SYS_SETRLIMIT: append(block{load(argLow(0))},
			branch(unix.BPF_JEQ, unix.RLIMIT_CORE, ignore(), allow())...),
		unix.SYS_PRLIMIT64: append(block{load(argLow(1))},
			branch(unix.BPF_JEQ, unix.RLIMIT_CORE, coreLimit(), allow())...),
		unix.SYS_IOCTL:       ioctl,
		unix.SYS_CLONE:       clone,
		unix.SYS_PERSONALITY: personality,
		unix.SYS_SOCKETPAIR:  pair,
		unix.SYS_SOCKET:      socket(p),
	}
}

// unlessSet admits a call unless one of the flags is set in the low half of argument n,
// which answers e.
func unlessSet(n int, flags uint32, e unix.Errno) block {
	return append(block{load(argLow(n))}, branch(unix.BPF_JSET, flags, refuse(e), allow())...)
}

// ignore makes the call return 0 and do nothing.
func ignore() block { return refuse(0) }

// coreLimit judges prlimit64 of RLIMIT_CORE: it may be read, and setting it does nothing.
// It does not fail, because programs that want no memory image of theirs written (gpg)
// give up when they cannot say so. A call that both sets and reads would get no answer to
// read, and fails.
func coreLimit() block {
	set := append(block{load(argLow(3))}, branch(unix.BPF_JEQ, 0,
		append(block{load(argHigh(3))}, branch(unix.BPF_JEQ, 0, ignore(), refuse(unix.EPERM))...),
		refuse(unix.EPERM))...)
	return append(block{load(argLow(2))}, branch(unix.BPF_JEQ, 0,
		append(block{load(argHigh(2))}, branch(unix.BPF_JEQ, 0, allow(), set)...),
		set)...)
}

// socket admits AF_UNIX whole; of netlink only the route protocol, with which
// getifaddrs lists the one loopback interface (Node throws when it cannot); and,
// where the policy says so, Internet sockets that carry TCP or UDP.
func socket(p Policy) block {
	no := refuse(unix.EAFNOSUPPORT)
	netlink := append(block{load(argLow(2))},
		anyOf([]uint32{unix.NETLINK_ROUTE}, allow(), no)...)
	out := branch(unix.BPF_JEQ, unix.AF_NETLINK, netlink, no)
	if p.Inet {
		// The type's low four bits; above them are SOCK_CLOEXEC and SOCK_NONBLOCK.
		inet := append(block{load(argLow(1)), mask(0xf)},
			anyOf([]uint32{unix.SOCK_STREAM, unix.SOCK_DGRAM}, allow(), no)...)
		out = anyOf([]uint32{unix.AF_INET, unix.AF_INET6}, inet, out)
	}
	out = branch(unix.BPF_JEQ, unix.AF_UNIX, allow(), out)
	return append(block{load(argLow(0))}, out...)
}

// Digest is the lowercase hexadecimal SHA-256 of the program's instructions, each
// as code (u16), jt, jf (u8) and k (u32), little-endian: the bytes the kernel gets.
func (p Program) Digest() string {
	raw := make([]byte, 0, 8*len(p))
	for _, i := range p {
		raw = binary.LittleEndian.AppendUint16(raw, i.Code)
		raw = append(raw, i.Jt, i.Jf)
		raw = binary.LittleEndian.AppendUint32(raw, i.K)
	}
	return digest.SHA256Hex(raw)
}

// Load installs the program on the calling thread, which must be locked to its
// goroutine and have no_new_privs set. What the thread executes or creates later
// inherits it; it can never be removed.
func (p Program) Load() error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return errno
	}
	return nil
}
