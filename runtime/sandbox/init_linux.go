package sandbox

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// startMain is init in its first life, with the capabilities that making a room takes. It
// starts the two others, whom it hands these, and gives up its own by executing itself
// once more: a Go program has threads, and the kernel keeps the one that executes.
func startMain(k knobs) {
	in := &inner{sock: fdControl, knobs: k}
	closeOnExec()
	unix.Umask(0o022) // whatever the caller's was at that moment
	_ = unix.Close(fdExe)
	var launch, builder int
	in.step(stepLaunch, func() (err error) {
		launch, builder, err = startOthers(k)
		return err
	})
	in.step(stepCaps, func() error {
		if err := dropAll(thisThread); err != nil {
			return err
		}
		if _, err := unix.FcntlInt(fdControl, unix.F_SETFD, 0); err != nil {
			return err
		}
		return unix.Exec("/proc/self/exe", append(roleArgs(roleInit, k), strconv.Itoa(launch), strconv.Itoa(builder)), RoleEnv())
	})
}

// startOthers starts launch and the builder, each in a session of its own, with a socket
// pair between them, the door. launch touches nothing until it is handed the terminal;
// the builder's pivot takes its root along.
func startOthers(k knobs) (launch, builder int, err error) {
	door, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	start := func(role string, descriptors ...int) (int, error) {
		files := []uintptr{0, 1, 2}
		for _, fd := range descriptors {
			files = append(files, uintptr(fd))
		}
		pid, err := syscall.ForkExec("/proc/self/exe", roleArgs(role, k), &syscall.ProcAttr{
			Dir: "/", Env: RoleEnv(), Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
		})
		return pid, at(role, err)
	}
	if builder, err = start(roleBuild, fdControl, door[0]); err != nil {
		return 0, 0, err
	}
	if launch, err = start(roleLaunch, fdLaunch, door[1]); err != nil {
		return 0, 0, err
	}
	// The other ends must see the end of file when launch executes the harness, and when
	// the builder fails.
	for _, fd := range []int{fdLaunch, door[0], door[1]} {
		if err := unix.Close(fd); err != nil {
			return 0, 0, err
		}
	}
	return launch, builder, nil
}

// keepMain is init in its second life: pid 1 with no privilege at all, which the harness
// may not look into. It waits until the room is made, reaps, forwards signals, tells the
// caller how the harness ended, and takes the rest of the session down with it.
func keepMain(args []string) {
	n := max(len(args)-2, 0)
	in := &inner{sock: fdControl, knobs: readKnobs(args[:n])}
	var launch int
	in.step(stepInit, func() error {
		var builder int
		var err error
		if launch, builder, err = twoPIDs(args[n:]); err != nil {
			return err
		}
		if err := guard(); err != nil {
			return err
		}
		if err := in.send(message{Kind: msgGuarded}); err != nil {
			return err
		}
		if !built(builder) {
			os.Exit(1) // it has said why
		}
		// From here on the root is the room's.
		if err := unix.Chdir("/"); err != nil {
			return err
		}
		return at("/dev/null", standardNull(in.knobs.Stderr))
	})
	forward(launch)
	if err := in.send(message{Kind: msgReady}); err != nil {
		os.Exit(1)
	}
	go endWithCaller()
	status := reapUntil(launch)
	// The caller may be gone; then there is nobody to tell.
	_ = in.send(message{Kind: msgExit, Status: uint32(status)})
	killRest()
	os.Exit(0)
}

func twoPIDs(args []string) (a, b int, err error) {
	if len(args) != 2 {
		return 0, 0, syscall.EINVAL
	}
	if a, err = strconv.Atoi(args[0]); err == nil {
		b, err = strconv.Atoi(args[1])
	}
	return a, b, err
}

// guard keeps everybody's hands off pid 1.
func guard() error {
	if err := ignoreHarness(); err != nil {
		return err
	}
	// Not dumpable: without this a process of the same uid could open /proc/1/mem.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	// The parent-death signal belongs to a thread and exec may have changed which; arm
	// it again. Should the caller have died before, the builder has seen the end of file.
	return unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)
}

// built waits until the builder has ended and reports whether it had made the room.
func built(builder int) bool {
	var status syscall.WaitStatus
	err := retry(func() error {
		_, err := syscall.Wait4(builder, &status, syscall.WALL, nil)
		return err
	})
	return err == nil && status.Exited() && status.ExitStatus() == 0
}

// standardNull replaces the descriptors 0 to 2, which are the host's, by the
// session's /dev/null.
func standardNull(keepStderr bool) error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for std := 0; std <= 2; std++ {
		if std == 2 && keepStderr {
			break
		}
		if err := unix.Dup3(fd, std, 0); err != nil {
			return err
		}
	}
	return nil
}
