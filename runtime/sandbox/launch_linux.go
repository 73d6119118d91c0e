package sandbox

import (
	"errors"
	"slices"
	"syscall"
	"unsafe"

	"gloved.dev/internal/ident"
	"gloved.dev/runtime/sandbox/landlock"
	"gloved.dev/runtime/sandbox/probe"
	"gloved.dev/runtime/sandbox/seccomp"
	"golang.org/x/sys/unix"
)

// Descriptors launch is born with, besides init's standard three.
const (
	launchSocket = 3
	launchDoor   = 4 // from init, by which the spec comes, and the terminal
)

// launchMain confines its own thread and executes the harness from it. Threads of
// a Go process differ in credentials, filters and signal masks; execve keeps those
// of the calling thread and ends all others.
func launchMain(k knobs) {
	in := &inner{sock: launchSocket, knobs: k}
	closeOnExec()
	in.step(stepHold, func() error { return in.send(message{Kind: msgHello}) })
	in.expect(msgHold, 0)
	in.step(stepHold, func() error { return in.send(message{Kind: msgHeld}) })
	seccomp.Compile(seccomp.Policy{}) // while there is time
	in.step(stepSpec, func() error {
		fd, err := throughDoor()
		if err != nil {
			return err
		}
		in.spec, err = readSpec(fd)
		return errors.Join(err, unix.Close(fd))
	})
	filter := seccomp.Compile(seccomp.Policy{Inet: in.spec.Loopback})
	in.step(stepTerminal, takeTerminal)
	in.expect(msgConfine, 0)
	report := in.confine(filter)
	in.step(stepReport, func() error { return in.send(report) })
	in.expect(msgExec, 0)
	in.step(stepExec, func() error {
		// The socket closes on success: the caller reads the end of file.
		return syscall.Exec(in.spec.Argv[0], in.spec.Argv, in.spec.Env)
	})
}

// takeTerminal waits until init has built the room, and makes the terminal it sends
// the controlling one and the standard three descriptors. A silent end means that
// init is gone, and this process with it.
func takeTerminal() error {
	fd, err := throughDoor()
	if err != nil {
		return err
	}
	for std := range 3 {
		if err := unix.Dup3(fd, std, 0); err != nil {
			return err
		}
	}
	if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
		return err
	}
	return errors.Join(unix.Close(fd), unix.Close(launchDoor))
}

// throughDoor waits for the next descriptor from init.
func throughDoor() (int, error) {
	data, fds, err := receiveFrom(launchDoor, 1, 1)
	switch {
	case err != nil:
		return -1, err
	case len(data) == 0:
		return -1, syscall.EPIPE
	case len(fds) != 1:
		return -1, syscall.EPROTO
	}
	return fds[0], nil
}

// confine makes everything the harness inherits what it should be, and proves it.
func (in *inner) confine(filter seccomp.Program) message {
	report := message{Kind: msgReport}
	// In a cgroup namespace of its own the session sees its cgroup as the root.
	in.step(stepCgroupNS, func() error { return unix.Unshare(unix.CLONE_NEWCGROUP) })
	in.step(stepWorkDir, func() error {
		unix.Umask(0o022)
		return at(in.spec.WorkDir, unix.Chdir(in.spec.WorkDir))
	})
	in.step(stepLimits, setLimits)
	in.step(stepSignals, resetSignals)
	in.step(stepCaps, func() error { return dropAll(thisThread) })
	in.step(stepLandlock, func() error {
		abi, where, err := landlock.Restrict(landlockRules(&in.spec), landlock.Options{TCP: in.spec.Loopback})
		report.ABI = abi
		return at(where, err)
	})
	in.step(stepFDs, func() error {
		return unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	})
	in.step(stepFilter, func() error {
		report.Filter = filter.Digest()
		if in.knobs.NoFilter {
			return nil
		}
		return filter.Load()
	})
	in.step(stepProbe, func() error {
		report.Probes = probe.Run()
		if r, bad := probe.Breach(report.Probes); bad {
			return &StepError{Step: stepProbe, Detail: r.Name + ": " + r.Answer}
		}
		return nil
	})
	return report
}

// oomScore makes the session the kernel's first choice when the host runs out of
// memory, before anything of the host's.
const oomScore = "500"

// limit is a resource limit: the values wished for, cut to what may be had.
type limit struct {
	resource  int
	soft, max uint64
}

const unlimited = ^uint64(0)

// limits decides every limit, so that none is an accident of how the daemon was
// started. Processes, memory and time are the cgroup's; address space is never
// limited, since JavaScript engines reserve many times what they use.
var limits = []limit{
	// One byte, not none. Neither has a memory image written, but where kernel.core_pattern
	// names a program (systemd-coredump, apport) the kernel starts that, as root outside any
	// session, with the image as its input however low the limit is; only for a limit of
	// one it does not (fs/coredump.c, against helpers that crash). The filter keeps a
	// session from setting it.
	{unix.RLIMIT_CORE, 1, 1},
	{unix.RLIMIT_NOFILE, 1024, 1 << 20},
	{unix.RLIMIT_NPROC, unlimited, unlimited},
	{unix.RLIMIT_STACK, 8 << 20, unlimited},
	{unix.RLIMIT_MEMLOCK, 8 << 20, 8 << 20},
	{unix.RLIMIT_MSGQUEUE, 819200, 819200},
	{unix.RLIMIT_AS, unlimited, unlimited},
	{unix.RLIMIT_DATA, unlimited, unlimited},
	{unix.RLIMIT_RSS, unlimited, unlimited},
	{unix.RLIMIT_FSIZE, unlimited, unlimited},
	{unix.RLIMIT_CPU, unlimited, unlimited},
	{unix.RLIMIT_LOCKS, unlimited, unlimited},
	{unix.RLIMIT_NICE, 0, 0},
	{unix.RLIMIT_RTPRIO, 0, 0},
}

func setLimits() error {
	for _, l := range limits {
		var have syscall.Rlimit
		if err := syscall.Getrlimit(l.resource, &have); err != nil {
			return err
		}
		want := syscall.Rlimit{Max: min(l.max, have.Max)}
		want.Cur = min(l.soft, want.Max)
		// syscall, not unix: only this tells the runtime not to restore at exec the
		// descriptor limit it had raised for itself.
		if err := syscall.Setrlimit(l.resource, &want); err != nil {
			return err
		}
	}
	fd, err := unix.Open("/proc/self/oom_score_adj", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return at("oom_score_adj", err)
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(oomScore))
	return at("oom_score_adj", err)
}

// lastSignal is _NSIG of the architectures served.
const lastSignal = 64

// resetSignals gives every signal its default action and empties the mask. What a
// parent ignored (nohup, a daemon's SIGPIPE) would otherwise stay ignored in the
// harness and all its children. From here on this process has no Go signal
// handlers; nothing below needs them.
func resetSignals() error {
	if err := defaultActions(); err != nil {
		return err
	}
	var none uint64
	const setMask = 2 // SIG_SETMASK
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// defaultActions gives every signal but those of except its default action.
func defaultActions(except ...syscall.Signal) error {
	var action [4]uint64 // struct sigaction as the kernel has it; zero is SIG_DFL
	for s := unix.Signal(1); s <= lastSignal; s++ {
		if s == unix.SIGKILL || s == unix.SIGSTOP || slices.Contains(except, s) {
			continue
		}
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
		if errno != 0 {
			return errno
		}
	}
	return nil
}

// landlockRules grants what the mounts were meant to grant, from the spec and not
// from the mounts, so that a slip in one layer is not one in the other.
func landlockRules(s *spec) []landlock.Rule {
	const rx = landlock.Read | landlock.Exec
	rules := []landlock.Rule{
		{Path: "/", Access: landlock.List},
		{Path: "/etc", Access: landlock.Read},
		{Path: "/run", Access: landlock.Read},
		{Path: "/var", Access: landlock.Read},
		{Path: "/home", Access: landlock.Read},
		{Path: "/tmp", Access: landlock.Read},
		// Threads are named, and the OOM score raised, through /proc.
		{Path: "/proc", Access: landlock.Read | landlock.WriteFile},
		{Path: "/dev", Access: landlock.Read},
		{Path: "/dev/pts", Access: landlock.Read | landlock.WriteFile | landlock.Device},
		{Path: shmTarget, Access: landlock.Read | landlock.Change},
	}
	for _, name := range deviceNames {
		rules = append(rules, landlock.Rule{
			Path: "/dev/" + name, Access: landlock.Read | landlock.WriteFile | landlock.Device,
		})
	}
	for _, p := range append(DefaultSystemPaths(), s.SystemPaths...) {
		// What lies in /etc is data, and readable as such already.
		if !ident.Within(p, "/etc") {
			rules = append(rules, landlock.Rule{Path: p, Access: rx, Optional: true})
		}
	}
	for _, m := range s.Mounts {
		access := uint64(landlock.Read)
		if m.Exec {
			access |= landlock.Exec
		}
		if !m.ReadOnly {
			access |= landlock.Change
		}
		rules = append(rules, landlock.Rule{Path: m.Target, Access: access})
	}
	return rules
}
