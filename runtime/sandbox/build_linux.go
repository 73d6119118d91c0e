package sandbox

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// builder is init in its first life: it has the capabilities set-up needs and
// nothing untrusted has run yet.
type builder struct {
	inner
	root    int           // the new root's mount
	system  []systemEntry // what of the host comes along
	devices map[string]int
	slave   *os.File
	launch  int   // launch's pid in the session
	door    int   // where launch waits for its spec, and then its terminal
	mounts  []int // the session's, in the order of the spec
}

// buildMain starts launch, makes the room once there is a session for it, and turns
// into the keeper.
func buildMain(k knobs) {
	b := &builder{inner: inner{sock: fdControl, knobs: k}, root: -1}
	closeOnExec()
	unix.Umask(0o022) // whatever the caller's was at that moment
	_ = unix.Close(fdExe)
	b.step(stepLaunch, b.startLaunch)
	fds := b.expect(msgSpec, MaxMounts+1)
	b.step(stepSpec, func() error { return b.takeSpec(fds) })
	b.step(stepPrivate, makePrivate)
	b.step(stepSystem, b.gatherSystem)
	b.step(stepRoot, b.makeRoot)
	b.step(stepSkeleton, b.attachSystem)
	b.step(stepEtc, b.writeEtc)
	b.step(stepDev, b.makeDev)
	b.step(stepProc, b.makeProc)
	b.step(stepMounts, b.attachMounts)
	b.step(stepPivot, b.pivot)
	b.step(stepSeal, func() error { return setAttrs(b.root, unix.MOUNT_ATTR_RDONLY, 0) })
	b.step(stepHostname, func() error { return unix.Sethostname([]byte(b.spec.Hostname)) })
	b.step(stepLoopback, raiseLoopback)
	b.step(stepTerminal, b.openTerminal)
	b.step(stepInit, b.becomeKeeper)
}

// takeSpec reads what the session is to be and hands it on to launch.
func (b *builder) takeSpec(fds []int) (err error) {
	if len(fds) == 0 {
		return syscall.EPROTO
	}
	if b.spec, err = readSpec(fds[0]); err != nil {
		return err
	}
	if b.mounts = fds[1:]; len(b.mounts) != len(b.spec.Mounts) {
		return syscall.EPROTO
	}
	if err := b.toLaunch(fds[0]); err != nil {
		return err
	}
	return unix.Close(fds[0])
}

// toLaunch hands launch a descriptor.
func (b *builder) toLaunch(fd int) error {
	return at("launch", retry(func() error {
		return unix.Sendmsg(b.door, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
	}))
}

// closeOnExec marks everything but the standard three: what a later exec keeps is
// decided there, by name.
func closeOnExec() {
	_ = unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
}

// makePrivate cuts propagation, so that no mount made here is seen outside and
// none made outside appears here.
func makePrivate() error {
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// pivot makes the new root the only one. Both arguments are the new root: the old
// one ends up stacked on it and is detached from there, so that no directory inside
// is ever needed for it.
func (b *builder) pivot() error {
	if err := unix.Fchdir(b.root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return err
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return at("old root", err)
	}
	return unix.Chdir("/")
}

// raiseLoopback brings lo up; its addresses come by themselves. The namespace has
// no other interface and no route.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == unix.EAFNOSUPPORT {
		return nil // a kernel without the family has no lo address to raise either
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(req)))
	if errno != 0 {
		return errno
	}
	return nil
}

// openTerminal opens the session's PTY in the session's own devpts, so that tty(1)
// names a device that exists inside, sets the size before anything can ask for it,
// and hands both ends out: the slave to launch, which thereby learns that the room
// is ready, and the master to the caller.
func (b *builder) openTerminal() error {
	master, slave, err := pty.Open()
	if err != nil {
		return err
	}
	defer master.Close()
	size := &pty.Winsize{Rows: b.spec.Rows, Cols: b.spec.Cols}
	if err := pty.Setsize(master, size); err != nil {
		return err
	}
	// The harness gets this descriptor as its standard input: programs do not
	// expect O_NONBLOCK there.
	if err := unix.SetNonblock(int(slave.Fd()), false); err != nil {
		return err
	}
	b.slave = slave
	if err := b.toLaunch(int(slave.Fd())); err != nil {
		return err
	}
	if err := unix.Close(b.door); err != nil {
		return err
	}
	return b.send(message{Kind: msgTerminal}, int(master.Fd()))
}

// startLaunch starts launch in a session of its own. It comes first, because a
// process of ours takes a while to be up. launch touches nothing until it is handed
// the terminal; pivot takes its root along.
func (b *builder) startLaunch() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	b.door = pair[0]
	defer unix.Close(pair[1])
	pid, err := syscall.ForkExec("/proc/self/exe", roleArgs(roleLaunch, b.knobs), &syscall.ProcAttr{
		Dir:   "/",
		Env:   RoleEnv(),
		Files: []uintptr{0, 1, 2, launchSocket: fdLaunch, launchDoor: uintptr(pair[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	b.launch = pid
	// The other end must see the end of file when launch executes the harness.
	return unix.Close(fdLaunch)
}

// becomeKeeper gives everything up, on every thread, and goes on as the keeper. In a
// program linked with cgo the Go runtime does not know all threads; there init
// executes the same sealed file once more, so that the kernel ends them.
func (b *builder) becomeKeeper() error {
	if err := standardNull(b.knobs.Stderr); err != nil {
		return at("/dev/null", err)
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_GETUID, 0, 0, 0, 0, 0, 0); errno == 0 {
		if err := dropAll(syscall.AllThreadsSyscall6); err != nil {
			return err
		}
		_ = unix.Close(b.root)
		b.slave.Close()
		keep(b.launch)
	}
	if err := dropAll(thisThread); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(fdControl, unix.F_SETFD, 0); err != nil {
		return err
	}
	// One processor's worth of runtime is plenty for a process that waits.
	return unix.Exec("/proc/self/exe", []string{roleInit, strconv.Itoa(b.launch)}, []string{"GOMAXPROCS=1"})
}

// standardNull replaces the descriptors 0 to 2, which are the host's, by the
// session's /dev/null.
func standardNull(keepStderr bool) error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
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

// parent splits an absolute path into its directories and its last component.
func parent(path string) (dirs []string, last string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return parts[:len(parts)-1], parts[len(parts)-1]
}
