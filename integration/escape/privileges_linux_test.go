package escape

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// privilegeAttempts reach for an identity, a capability, a namespace or the terminal of the person
// at the other end.
func privilegeAttempts() []attempt {
	rows := []attempt{
		{name: "privilege: run a granted program that is setuid root", refused: "no-gain", lacking: "no-gain", user: true,
			act: func(f *facts) error { return runs(f.granted("setuid")) }},
		{name: "privilege: run a granted program that is setgid root", refused: "no-gain", lacking: "no-gain", user: true,
			act: func(f *facts) error { return runs(f.granted("setgid")) }},
		{name: "privilege: run a granted program with capabilities", refused: "no-gain", lacking: "no-gain EPERM", user: true,
			act: func(f *facts) error { return runs(f.granted("capable")) }},
		{name: "privilege: run a copied program that was setuid", refused: "no-gain EACCES EPERM", lacking: "no-gain", user: true,
			act: func(f *facts) error {
				if f.Outside {
					return runs(f.Grant + "/setuid") // the original; the copy's place is private to gloved
				}
				return runs(f.copied("setuid"))
			}},
		{name: "privilege: become root", refused: "EINVAL EPERM", act: func(*facts) error { return call(unix.SYS_SETRESUID, 0, 0, 0) }},
		{name: "privilege: become root's group", refused: "EINVAL EPERM", act: func(*facts) error { return call(unix.SYS_SETRESGID, 0, 0, 0) }},
		{name: "privilege: become another user", refused: "EINVAL EPERM", act: func(*facts) error { return call(unix.SYS_SETRESUID, 65534, 65534, 65534) }},
		{name: "privilege: join groups", refused: denied, act: func(*facts) error {
			groups := [1]uint32{0}
			return call(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&groups)))
		}},
		{name: "privilege: take capabilities", refused: denied, act: takesCapabilities},
		{name: "privilege: keep a bounding set", refused: "nothing", act: func(*facts) error {
			for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
				if have, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && have != 0 {
					return nil
				}
			}
			return said("nothing")
		}},
		{name: "privilege: gain by executing", refused: "nothing", act: func(*facts) error {
			set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
			if err != nil || set == 0 {
				return err
			}
			return said("nothing")
		}},
		{name: "privilege: overrule the filter with another", refused: denied, act: overrules},
		{name: "privilege: a user namespace by clone", refused: denied, act: func(*facts) error { return again(newUser(), roleNothing) }},
		{name: "privilege: a user namespace by clone3", refused: absent, act: clone3(unix.CLONE_NEWUSER)},
		{name: "privilege: a process in another control group", refused: absent, reached: "EBADF EINVAL ENOTSUP EOPNOTSUPP", act: clone3(0x200000000)}, // CLONE_INTO_CGROUP
		{name: "privilege: enter one's own namespace anew", refused: denied, act: func(*facts) error { return joins("/proc/self/ns/uts") }},
		{name: "privilege: enter the network of another", refused: hidden, act: func(f *facts) error { return joins(procOf(f, "ns/net")) }},
		{name: "privilege: enter the namespaces of a child", refused: denied, act: func(f *facts) error {
			return withChild(f, func(pid int) error {
				fd, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					return said("unopened")
				}
				defer unix.Close(fd)
				return unix.Setns(fd, unix.CLONE_NEWUTS)
			})
		}},
		{name: "terminal: type into it", refused: denied, lacking: "EIO", act: terminal(unix.TIOCSTI, "x")},
		{name: "terminal: type into it by a number with high bits", refused: denied, lacking: "EIO", act: terminal(1<<32|unix.TIOCSTI, "x")},
		{name: "terminal: paste from the console", refused: denied, reached: "ENOTTY EINVAL", act: terminal(0x541c, "\x02")},
		{name: "terminal: change its line discipline", refused: denied, act: terminal(unix.TIOCSETD, "\x00\x00\x00\x00")},
		{name: "terminal: hang it up", refused: denied, reached: "success killed-by-SIGHUP", act: func(f *facts) error { return call(unix.SYS_VHANGUP) }},
		{name: "terminal: open the host's terminals", refused: notThere, lacking: "ENOENT EIO ENXIO", act: opens("/dev/tty1", unix.O_RDWR)},
	}
	for _, ns := range []struct {
		name string
		flag uintptr
	}{{"user", unix.CLONE_NEWUSER}, {"mount", unix.CLONE_NEWNS}, {"host name", unix.CLONE_NEWUTS}, {"message", unix.CLONE_NEWIPC},
		{"process", unix.CLONE_NEWPID}, {"network", unix.CLONE_NEWNET}, {"control group", unix.CLONE_NEWCGROUP}, {"time", unix.CLONE_NEWTIME}} {
		rows = append(rows, attempt{name: "privilege: unshare the " + ns.name + " namespace", refused: denied, lacking: "EINVAL", act: func(*facts) error {
			if ns.flag != unix.CLONE_NEWUSER {
				return unix.Unshare(int(ns.flag))
			}
			attr := newUser() // a program with threads may not do this to itself
			attr.Cloneflags, attr.Unshareflags = 0, ns.flag
			return again(attr, roleNothing)
		}})
	}
	return rows
}

// runs executes a program that is this binary in a role that tells what it gained.
func runs(path string) error {
	out, err := exec.Command(path, roleIDs).Output()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return said(strings.TrimSpace(string(out)))
	case err != nil:
		return err
	}
	return nil
}

// gained compares what the process is with what its caller was. Status 0 is a gain.
func gained() int {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		fmt.Println("capget")
		return 1
	}
	if os.Geteuid() != os.Getuid() || os.Getegid() != os.Getgid() || data[0].Effective|data[0].Permitted != 0 {
		return 0
	}
	fmt.Println("no-gain")
	return 1
}

func takesCapabilities(*facts) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	data[0].Effective = 1 << unix.CAP_SYS_ADMIN
	data[0].Permitted = data[0].Effective
	return unix.Capset(&head, &data[0])
}

// overrules installs a filter that allows everything, then does what only root's own rules and the
// older filter decide about.
func overrules(*facts) error {
	allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
	prog := unix.SockFprog{Len: 1, Filter: &allow}
	if err := call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); err != nil {
		return said("not-loaded:" + answer(err))
	}
	return call(unix.SYS_UNSHARE, unix.CLONE_NEWUTS)
}

// clone3 makes a child that ends at once.
func clone3(flags uint64) func(*facts) error {
	return func(*facts) error {
		args := [11]uint64{0: flags, 4: uint64(unix.SIGCHLD), 10: ^uint64(0)}
		pid, _, e := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
		if e != 0 {
			return e
		}
		if pid == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
		_, err := unix.Wait4(int(pid), nil, 0, nil)
		return err
	}
}

func joins(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, 0)
}

// terminal makes a request of standard input, with an argument in memory.
func terminal(request uintptr, argument string) func(*facts) error {
	return func(*facts) error {
		buf := []byte(argument)
		return call(unix.SYS_IOCTL, 0, request, uintptr(unsafe.Pointer(&buf[0])))
	}
}
