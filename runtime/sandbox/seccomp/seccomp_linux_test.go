package seccomp

import (
	"slices"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	moby "github.com/moby/profiles/seccomp"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// data is struct seccomp_data.
type data struct {
	nr, arch uint32
	args     [6]uint64
}

// decide interprets the program, independently of the kernel. The interpreter loads
// words big-endian; the words are laid out for that.
func decide(t *testing.T, p Program, d data) uint32 {
	t.Helper()
	raw := make([]bpf.RawInstruction, len(p))
	for i, in := range p {
		raw[i] = bpf.RawInstruction{Op: in.Code, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	list, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program does not disassemble")
	}
	vm, err := bpf.NewVM(list)
	if err != nil {
		t.Fatal(err)
	}
	words := []uint32{d.nr, d.arch, 0, 0}
	for _, a := range d.args {
		words = append(words, uint32(a), uint32(a>>32))
	}
	packet := []byte{}
	for _, w := range words {
		packet = append(packet, byte(w>>24), byte(w>>16), byte(w>>8), byte(w))
	}
	verdict, err := vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(verdict)
}

const (
	admitted = uint32(unix.SECCOMP_RET_ALLOW)
	ignored  = uint32(unix.SECCOMP_RET_ERRNO) // the call returns 0 and does nothing
)

func refusedWith(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

func TestArguments(t *testing.T) {
	const high = 1 << 32
	plain, inet := Compile(Policy{}), Compile(Policy{Inet: true})
	for _, row := range []struct {
		name string
		p    Program
		nr   uint32
		args [6]uint64
		want uint32
	}{
		{"read", plain, unix.SYS_READ, [6]uint64{}, admitted},
		{"ptrace", plain, unix.SYS_PTRACE, [6]uint64{}, refusedWith(unix.EPERM)},
		{"mount", plain, unix.SYS_MOUNT, [6]uint64{}, refusedWith(unix.EPERM)},
		{"clone3", plain, unix.SYS_CLONE3, [6]uint64{}, refusedWith(unix.ENOSYS)},
		{"io_uring", plain, unix.SYS_IO_URING_SETUP, [6]uint64{}, refusedWith(unix.ENOSYS)},
		{"newest", plain, newestKnown + 1, [6]uint64{}, refusedWith(unix.ENOSYS)},
		{"highest", plain, 1<<32 - 1, [6]uint64{}, refusedWith(unix.ENOSYS)},
		{"x32", plain, 0x40000000, [6]uint64{}, refusedWith(unix.ENOSYS)},
		{"thread", plain, unix.SYS_CLONE, [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD}, admitted},
		{"fork", plain, unix.SYS_CLONE, [6]uint64{uint64(unix.SIGCHLD)}, admitted},
		{"user namespace", plain, unix.SYS_CLONE, [6]uint64{unix.CLONE_NEWUSER}, refusedWith(unix.EPERM)},
		{"user namespace, high bit", plain, unix.SYS_CLONE, [6]uint64{high | unix.CLONE_NEWUSER}, refusedWith(unix.EPERM)},
		{"cgroup namespace", plain, unix.SYS_CLONE, [6]uint64{unix.CLONE_NEWCGROUP}, refusedWith(unix.EPERM)},
		{"window size", plain, unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSWINSZ}, admitted},
		{"inject", plain, unix.SYS_IOCTL, [6]uint64{0, unix.TIOCSTI}, refusedWith(unix.EPERM)},
		{"inject, high bit", plain, unix.SYS_IOCTL, [6]uint64{0, high | unix.TIOCSTI}, refusedWith(unix.EPERM)},
		{"inject, all high bits", plain, unix.SYS_IOCTL, [6]uint64{0, 0xffffffff<<32 | unix.TIOCSTI}, refusedWith(unix.EPERM)},
		{"paste", plain, unix.SYS_IOCTL, [6]uint64{0, tioclinux}, refusedWith(unix.EPERM)},
		{"personality query", plain, unix.SYS_PERSONALITY, [6]uint64{0xffffffff}, admitted},
		{"personality", plain, unix.SYS_PERSONALITY, [6]uint64{0x0040000}, refusedWith(unix.EPERM)},
		{"unix", plain, unix.SYS_SOCKET, [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, admitted},
		{"unix pair", plain, unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_UNIX, unix.SOCK_DGRAM}, admitted},
		{"other pair", plain, unix.SYS_SOCKETPAIR, [6]uint64{unix.AF_INET}, refusedWith(unix.EAFNOSUPPORT)},
		{"inet", plain, unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM}, refusedWith(unix.EAFNOSUPPORT)},
		{"inet, high bit", plain, unix.SYS_SOCKET, [6]uint64{high | unix.AF_INET, unix.SOCK_STREAM}, refusedWith(unix.EAFNOSUPPORT)},
		{"route netlink", plain, unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, 0}, admitted},
		{"audit netlink", plain, unix.SYS_SOCKET, [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, refusedWith(unix.EAFNOSUPPORT)},
		{"packet", inet, unix.SYS_SOCKET, [6]uint64{unix.AF_PACKET, unix.SOCK_RAW}, refusedWith(unix.EAFNOSUPPORT)},
		{"bridged inet", inet, unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC}, admitted},
		{"bridged inet6", inet, unix.SYS_SOCKET, [6]uint64{unix.AF_INET6, unix.SOCK_DGRAM}, admitted},
		{"bridged raw", inet, unix.SYS_SOCKET, [6]uint64{unix.AF_INET, unix.SOCK_RAW}, refusedWith(unix.EAFNOSUPPORT)},
		{"map", plain, unix.SYS_MMAP, [6]uint64{0, 1 << 21, 3, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS}, admitted},
		{"map huge pages", plain, unix.SYS_MMAP, [6]uint64{0, 1 << 21, 3, unix.MAP_PRIVATE | unix.MAP_HUGETLB}, refusedWith(unix.ENOMEM)},
		{"map huge pages, sized", plain, unix.SYS_MMAP, [6]uint64{3: high | unix.MAP_HUGETLB | unix.MAP_HUGE_1GB}, refusedWith(unix.ENOMEM)},
		{"memory file", plain, unix.SYS_MEMFD_CREATE, [6]uint64{0, unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING}, admitted},
		{"memory file of huge pages", plain, unix.SYS_MEMFD_CREATE, [6]uint64{0, unix.MFD_CLOEXEC | unix.MFD_HUGETLB}, refusedWith(unix.EINVAL)},
		{"segment", plain, unix.SYS_SHMGET, [6]uint64{0, 4096, unix.IPC_CREAT | 0o600}, admitted},
		{"segment of huge pages", plain, unix.SYS_SHMGET, [6]uint64{0, 4096, unix.IPC_CREAT | shmHugetlb}, refusedWith(unix.ENOMEM)},
		{"set another limit", plain, unix.SYS_SETRLIMIT, [6]uint64{unix.RLIMIT_NOFILE, high}, admitted},
		{"set the limit of images", plain, unix.SYS_SETRLIMIT, [6]uint64{high | unix.RLIMIT_CORE, high}, ignored},
		{"change another limit", plain, unix.SYS_PRLIMIT64, [6]uint64{0, unix.RLIMIT_NOFILE, high, high}, admitted},
		{"read the limit of images", plain, unix.SYS_PRLIMIT64, [6]uint64{0, unix.RLIMIT_CORE, 0, high}, admitted},
		{"change the limit of images", plain, unix.SYS_PRLIMIT64, [6]uint64{0, high | unix.RLIMIT_CORE, 4096, 0}, ignored},
		{"change it, high address", plain, unix.SYS_PRLIMIT64, [6]uint64{0, unix.RLIMIT_CORE, high, 0}, ignored},
		{"change it and read it", plain, unix.SYS_PRLIMIT64, [6]uint64{7, unix.RLIMIT_CORE, high, 4096}, refusedWith(unix.EPERM)},
		{"change it and read it, high addresses", plain, unix.SYS_PRLIMIT64, [6]uint64{7, unix.RLIMIT_CORE, 8, high}, refusedWith(unix.EPERM)},
	} {
		if got := decide(t, row.p, data{row.nr, auditArch, row.args}); got != row.want {
			t.Errorf("%s: verdict %#x, want %#x", row.name, got, row.want)
		}
	}
	for _, foreign := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0} {
		if got := decide(t, plain, data{nr: unix.SYS_READ, arch: foreign}); got != refusedWith(unix.ENOSYS) {
			t.Errorf("arch %#x: verdict %#x, want ENOSYS", foreign, got)
		}
	}
}

// TestEveryNumber compares the decision tree with the tables, number by number.
func TestEveryNumber(t *testing.T) {
	p := Compile(Policy{})
	argued := conditional(Policy{})
	for nr := uint32(0); nr < newestKnown+600; nr++ {
		if _, ok := argued[nr]; ok {
			continue
		}
		want := refusedWith(unix.EPERM)
		switch {
		case slices.Contains(unknown, nr), nr > newestKnown:
			want = refusedWith(unix.ENOSYS)
		case slices.Contains(common, nr), slices.Contains(native, nr):
			want = admitted
		}
		if got := decide(t, p, data{nr: nr, arch: auditArch}); got != want {
			t.Errorf("number %d: verdict %#x, want %#x", nr, got, want)
		}
	}
	if len(p) > 4096 {
		t.Errorf("%d instructions, the kernel takes 4096", len(p))
	}
}

// refusedFromTradition is what the container profile admits and we do not, and why.
var refusedFromTradition = map[string]string{
	"ptrace": "no debugger is needed and it reaches other processes", "process_vm_readv": "as ptrace",
	"process_vm_writev": "as ptrace", "modify_ldt": "16-bit code only", "memfd_secret": "memory no limit sees into",
	"fanotify_mark": "useless without fanotify_init", "epoll_ctl_old": "never implemented",
	"epoll_wait_old": "never implemented", "get_thread_area": "32-bit only", "set_thread_area": "32-bit only",
}

// TestTradition holds our table against the profile container runtimes share.
func TestTradition(t *testing.T) {
	info, err := arch.GetInfo("")
	if err != nil {
		t.Fatal(err)
	}
	p := Compile(Policy{})
	inProfile := map[string]bool{}
	for _, rule := range moby.DefaultProfile().Syscalls {
		if rule.Action != "SCMP_ACT_ALLOW" || rule.Includes != nil && len(rule.Includes.Caps) > 0 {
			continue
		}
		for _, name := range rule.Names {
			inProfile[name] = true
		}
		if len(rule.Args) > 0 {
			continue
		}
		for _, name := range rule.Names {
			nr, known := info.SyscallNames[name]
			if !known || refusedFromTradition[name] != "" {
				continue
			}
			d := data{nr: uint32(nr), arch: auditArch}
			if name == "socketpair" {
				d.args[0] = unix.AF_UNIX
			}
			if got := decide(t, p, d); got != admitted {
				t.Errorf("%s: verdict %#x, the shared profile admits it", name, got)
			}
		}
	}
	for name, nr := range info.SyscallNames {
		ours := slices.Contains(common, uint32(nr)) || slices.Contains(native, uint32(nr))
		if ours && (!inProfile[name] || refusedFromTradition[name] != "") {
			t.Errorf("%s is admitted, the shared profile does not admit it", name)
		}
	}
}

func TestDigestIsStable(t *testing.T) {
	a, b := Compile(Policy{}), Compile(Policy{})
	if a.Digest() != b.Digest() || len(a.Digest()) != 64 {
		t.Errorf("digests %s and %s", a.Digest(), b.Digest())
	}
	if a.Digest() == Compile(Policy{Inet: true}).Digest() {
		t.Error("two policies have one digest")
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		Compile(Policy{})
	}
}
