package sandbox

import (
	"os"
	"strings"
	"syscall"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// builder makes the room: it has the capabilities that takes, and ends when it is made.
// Nothing untrusted has run yet.
type builder struct {
	inner
	root   int           // the new root's mount
	holder string        // the host's directory that the root lies over until it takes over
	held   int           // that directory, below the root
	system []systemEntry // what of the host comes along
	mounts []int         // the session's, in the order of the spec
}

// buildMain makes of the room what is the same for every session, then waits for one
// and makes the rest.
func buildMain(k knobs) {
	b := &builder{inner: inner{sock: fdControl, knobs: k}, root: -1}
	closeOnExec()
	b.step(stepPrivate, makePrivate)
	b.step(stepRoot, b.makeRoot)
	b.step(stepSkeleton, b.makeSkeleton)
	b.step(stepDev, b.makeDev)
	b.step(stepProc, b.makeProc)
	b.step(stepSystem, func() error { return b.bringSystem(DefaultSystemPaths()) })
	b.step(stepLoopback, raiseLoopback)
	fds := b.expect(msgSpec, MaxMounts+1)
	b.step(stepSpec, func() error { return b.takeSpec(fds) })
	b.step(stepMore, func() error { return b.bringSystem(b.spec.SystemPaths) })
	b.step(stepEtc, b.writeEtc)
	b.step(stepShm, b.makeShm)
	b.step(stepMounts, b.attachMounts)
	b.step(stepPivot, b.pivot)
	b.step(stepSeal, func() error { return setAttrs(b.root, unix.MOUNT_ATTR_RDONLY, 0) })
	b.step(stepHostname, func() error { return unix.Sethostname([]byte(b.spec.Hostname)) })
	b.step(stepTerminal, b.openTerminal)
	os.Exit(0) // init takes it for the word that all is well
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
		return unix.Sendmsg(fdDoor, []byte{0}, unix.UnixRights(fd), nil, unix.MSG_NOSIGNAL)
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
	defer slave.Close()
	size := &pty.Winsize{Rows: b.spec.Rows, Cols: b.spec.Cols}
	if err := pty.Setsize(master, size); err != nil {
		return err
	}
	// The harness gets this descriptor as its standard input: programs do not
	// expect O_NONBLOCK there.
	if err := unix.SetNonblock(int(slave.Fd()), false); err != nil {
		return err
	}
	if err := b.toLaunch(int(slave.Fd())); err != nil {
		return err
	}
	return b.send(message{Kind: msgTerminal}, int(master.Fd()))
}

// parent splits an absolute path into its directories and its last component.
func parent(path string) (dirs []string, last string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return parts[:len(parts)-1], parts[len(parts)-1]
}
