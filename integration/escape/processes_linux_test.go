package escape

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// processAttempts reach for other processes: the host's, another session's, init, and beyond what
// a process may do to itself.
func processAttempts() []attempt {
	return []attempt{
		{name: "process: see one of the host's", refused: notThere, act: func(f *facts) error { return seen(f, f.Process) }},
		{name: "process: see the other session's harness", refused: notThere, act: func(f *facts) error { return seen(f, f.Harness) }},
		{name: "process: signal one of the host's", refused: "ESRCH", act: onHost(func(pid int) error { return unix.Kill(pid, 0) })},
		{name: "process: hold one of the host's", refused: "ESRCH", act: onHost(func(pid int) error {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		})},
		{name: "process: queue a signal to one of the host's", refused: "ESRCH", act: onHost(func(pid int) error {
			var info [128]byte
			*(*int32)(unsafe.Pointer(&info[8])) = -1 // SI_QUEUE
			return call(unix.SYS_RT_SIGQUEUEINFO, uintptr(pid), 0, uintptr(unsafe.Pointer(&info)))
		})},
		{name: "process: change the limits of one of the host's", refused: "ESRCH", user: true, act: onHost(func(pid int) error {
			var l unix.Rlimit
			return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &l)
		})},
		{name: "process: change the priority of one of the host's", refused: "ESRCH", act: onHost(func(pid int) error {
			return unix.Setpriority(unix.PRIO_PROCESS, pid, 0)
		})},
		{name: "process: place one of the host's on a processor", refused: "ESRCH", act: onHost(func(pid int) error {
			var set unix.CPUSet
			return unix.SchedGetaffinity(pid, &set)
		})},
		{name: "process: trace one of the host's", refused: denied, act: onHost(func(pid int) error {
			const seize = 0x4206 // PTRACE_SEIZE
			return call(unix.SYS_PTRACE, seize, uintptr(pid), 0, 0)
		})},
		{name: "process: trace one's own child", refused: denied, act: func(f *facts) error {
			return withChild(f, func(pid int) error {
				const seize = 0x4206
				return call(unix.SYS_PTRACE, seize, uintptr(pid), 0, 0)
			})
		}},
		{name: "process: be traced", refused: denied, act: func(*facts) error { return call(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0) }},
		{name: "process: read another's memory", refused: denied, act: func(f *facts) error { return withChild(f, readsMemory) }},
		{name: "process: write another's memory", refused: denied, reached: "EFAULT", act: func(f *facts) error {
			return withChild(f, writesNowhere)
		}},
		{name: "process: take another's descriptor", refused: denied, act: func(f *facts) error { return withChild(f, takesDescriptor) }},
		{name: "process: compare kernel objects", refused: denied, lacking: "ENOSYS", act: func(f *facts) error {
			return withChild(f, func(pid int) error {
				_, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(pid), 1, 0, 0, 0)
				return orNil(e)
			})
		}},
		{name: "process: kill pid 1", refused: "alive EPERM", act: killsInit(unix.SIGKILL)},
		{name: "process: stop pid 1", refused: "alive EPERM", act: killsInit(unix.SIGSTOP)},
		{name: "process: crash pid 1", refused: "alive EPERM", act: killsInit(unix.SIGSEGV)},
		{name: "process: raise one's priority", refused: "EACCES EPERM", act: func(*facts) error { return unix.Setpriority(unix.PRIO_PROCESS, 0, -5) }},
		{name: "process: run in real time", refused: denied, lacking: denied, act: func(*facts) error {
			param := struct{ priority int32 }{1}
			return call(unix.SYS_SCHED_SETSCHEDULER, 0, 1, uintptr(unsafe.Pointer(&param))) // SCHED_FIFO
		}},
		{name: "process: read and write in real time", refused: denied, act: func(*facts) error {
			return call(unix.SYS_IOPRIO_SET, 1, 0, 1<<13) // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_RT
		}},
		{name: "process: raise the limit of descriptors", refused: denied, lacking: denied, act: func(*facts) error {
			var l unix.Rlimit
			if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
				return err
			}
			l.Max++
			return call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_NOFILE, uintptr(unsafe.Pointer(&l)), 0)
		}},
		{name: "process: have memory images written", refused: "ignored", act: setsCoreLimit(1 << 20)},
		// At none, unlike at one byte, the kernel starts the program that core_pattern may name.
		{name: "process: have memory images handed to the host's root", refused: "ignored", act: setsCoreLimit(0)},
		{name: "process: find a descriptor left open", refused: "nothing", act: findsDescriptor},
		{name: "process: find gloved's environment in one's own", refused: "nothing", act: func(f *facts) error {
			if _, ok := os.LookupEnv(f.Canary); !ok {
				return said("nothing")
			}
			return nil
		}},
		{name: "process: find a command line of the host's", refused: "nothing", act: findsCommandLine},
	}
}

// setsCoreLimit succeeds if the limit of memory images is then what was asked for.
func setsCoreLimit(bytes uint64) func(*facts) error {
	return func(*facts) error {
		l := unix.Rlimit{Cur: bytes, Max: bytes}
		if err := call(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&l)), 0); err != nil {
			return err
		}
		if err := unix.Prlimit(0, unix.RLIMIT_CORE, nil, &l); err != nil {
			return err
		}
		switch l {
		case unix.Rlimit{Cur: bytes, Max: bytes}:
			return nil
		case unix.Rlimit{Cur: 1, Max: 1}:
			return said("ignored")
		}
		return said(fmt.Sprintf("%d:%d", l.Cur, l.Max))
	}
}

func orNil(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

// seen succeeds if pid's command line can be read and is what it is on the host. Inside there may be
// a process with the same number.
func seen(f *facts, pid int) error {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte(f.Mark)) {
		return unix.ENOENT
	}
	return nil
}

// onHost makes an act on the host's process by number, unless the number is one of ours inside.
func onHost(act func(pid int) error) func(*facts) error {
	return func(f *facts) error {
		if !f.Outside && unix.Access(fmt.Sprintf("/proc/%d", f.Process), unix.F_OK) == nil && seen(f, f.Process) != nil {
			return unix.ESRCH
		}
		return act(f.Process)
	}
}

// withChild acts on a child of the attacker's own, which is no stranger: what may not be done to it
// may not be done to anybody.
func withChild(f *facts, act func(pid int) error) error {
	cmd := exec.Command("/proc/self/exe", roleIdle, f.Mark)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return said("not-started:" + answer(err))
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := out.Read(make([]byte, 64)); err != nil {
		return said("not-started")
	}
	return act(cmd.Process.Pid)
}

func readsMemory(pid int) error {
	at, err := mapping(pid)
	if err != nil {
		return err
	}
	var buf [16]byte
	local := []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}}
	n, err := unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: at, Len: len(buf)}}, 0)
	if err == nil && n == 0 {
		return said("empty")
	}
	return err
}

func mapping(pid int) (uintptr, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(data), "-")
	at, err := strconv.ParseUint(first, 16, 64)
	return uintptr(at), err
}

func writesNowhere(pid int) error {
	var b byte
	_, err := unix.ProcessVMWritev(pid, []unix.Iovec{{Base: &b, Len: 1}}, []unix.RemoteIovec{{Base: 0x10, Len: 1}}, 0)
	return err
}

func takesDescriptor(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return said("unopened:" + answer(err))
	}
	defer unix.Close(fd)
	got, err := unix.PidfdGetfd(fd, 1, 0)
	if err != nil {
		return err
	}
	return unix.Close(got)
}

// killsInit signals pid 1 and looks whether there still is a session. Outside it does the same to a
// child of its own.
func killsInit(sig syscall.Signal) func(*facts) error {
	return func(f *facts) error {
		if f.Outside {
			return withChild(f, func(pid int) error { return ends(pid, sig) })
		}
		if err := unix.Kill(1, sig); err != nil {
			return err
		}
		// Had it worked, the kernel would have killed us before it returned to us, or pid 1 would not
		// reap: an orphan would stay a zombie.
		if err := orphanReaped(); err != nil {
			return err
		}
		return said("alive")
	}
}

// ends succeeds if the signal ends or stops the child.
func ends(pid int, sig syscall.Signal) error {
	if err := unix.Kill(pid, sig); err != nil {
		return err
	}
	var w unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &w, unix.WUNTRACED, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		return nil
	}
}

// orphanReaped leaves an orphan to pid 1 and waits until it is gone.
func orphanReaped() error {
	out, err := exec.Command("/proc/self/exe", roleWhole, "orphan").Output()
	if err != nil {
		return said("no-orphan")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return said("no-orphan")
	}
	for range 2000 {
		if unix.Kill(pid, 0) == unix.ESRCH {
			return nil
		}
		pause()
	}
	return nil // never reaped: pid 1 was stopped or is gone
}

// pause waits for a few milliseconds in the kernel, for what announces itself in no other way.
func pause() { _, _ = unix.Poll(nil, 5) }

// findsDescriptor succeeds if a descriptor came along that nobody decided on: above the standard
// three, and not the runtime's own, which it opens for itself.
func findsDescriptor(*facts) error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		fd, err := strconv.Atoi(n.Name())
		if err != nil || fd <= 2 {
			continue
		}
		to, err := os.Readlink("/proc/self/fd/" + n.Name())
		if err == nil && !strings.HasPrefix(to, "anon_inode:") && !strings.HasSuffix(to, "/fd") {
			return nil
		}
	}
	return said("nothing")
}

// findsCommandLine looks for the host's process on every command line in sight.
func findsCommandLine(f *facts) error {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, d := range dirs {
		data, err := os.ReadFile("/proc/" + d.Name() + "/cmdline")
		if err == nil && bytes.Contains(data, []byte(f.Mark)) && !bytes.Contains(data, []byte("escape:att")) {
			return nil
		}
	}
	return said("nothing")
}
