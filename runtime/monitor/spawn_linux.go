package monitor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/sandbox"
)

// spawnTimeout bounds a new monitor's first words.
const spawnTimeout = 10 * time.Second

// A blank is a monitor that has no Spec yet: it has a place on the disk, a control group
// and processes of a session, and waits. It has a copy of the mounts, and of the host's
// system, as they were when it was made.
type blank struct {
	*link
	ground ground
	host   []byte        // the state of the host that it was made by
	kill   func()        // by its pidfd
	gone   chan struct{} // closed when it has been reaped
}

// newBlank starts a monitor, which lays the ground for a session in dir, and returns when
// its socket listens.
func newBlank(ctx context.Context, dir, group string, users UIDRange) (*blank, error) {
	exe, err := sandbox.SealedExe()
	if err != nil {
		return nil, fmt.Errorf("sealed executable: %w", err)
	}
	host, err := hostState()
	if err != nil {
		return nil, err
	}
	d, _, err := safefile.MakeOwnerDir(dir)
	if err != nil {
		return nil, err
	}
	d.Close()
	b, err := start(exe)
	if err != nil {
		_ = os.Remove(dir) // nobody has been there
		return nil, err
	}
	b.host = host
	b.ground = ground{ProtocolVersion: ProtocolVersion, UIDRange: users, Unprivileged: unprivileged(), Dir: dir, Cgroup: group}
	if err := b.ask(ctx, b.ground); err != nil {
		b.discard()
		_ = os.Remove(dir) // what cannot be removed is for the next Reconcile
		return nil, err
	}
	return b, nil
}

// start starts the process of a monitor, which waits for its ground.
func start(exe *os.File) (*blank, error) {
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := command(exe, theirs, unprivileged())
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("start monitor: %w", err)
	}
	b := &blank{link: newLink(ours), kill: func() { _ = cmd.Process.Kill() }, gone: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its outcome is in its files, not in its status
		close(b.gone)
	}()
	return b, nil
}

func unprivileged() bool { return unix.Geteuid() != 0 }

// fill gives the blank its Spec and returns the connection to the monitor that it has
// become.
func (b *blank) fill(ctx context.Context, spec Spec) (*Client, error) {
	spec.ProtocolVersion = ProtocolVersion
	spec.Unprivileged = unprivileged()
	if err := b.ask(ctx, spec); err != nil {
		return nil, err
	}
	if err := b.conn.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return newClient(b.conn, b.r, b.w), nil
}

// discardBound is how long a blank may take to give up what it has made.
const discardBound = 5 * time.Second

// discard has a blank give up what it made, and waits until it is gone. One that does
// not go is killed; then what it made is found by its names.
func (b *blank) discard() {
	b.conn.Close()
	timer := time.NewTimer(discardBound)
	defer timer.Stop()
	select {
	case <-b.gone:
	case <-timer.C:
		b.kill()
		<-b.gone
	}
}

func (b *blank) isGone() bool { return isClosed(b.gone) }

func socketpair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	f := os.NewFile(uintptr(fds[0]), "monitor")
	defer f.Close() // the connection has a descriptor of its own
	theirs = os.NewFile(uintptr(fds[1]), "gloved")
	conn, err := net.FileConn(f)
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn.(*net.UnixConn), theirs, nil
}

func command(exe, link *os.File, unprivileged bool) *exec.Cmd {
	attr := &syscall.SysProcAttr{
		Setsid: true,
		// A mount namespace of its own: nothing a monitor mounts, however it
		// dies, is ever seen on the host.
		Cloneflags: syscall.CLONE_NEWNS,
	}
	if unprivileged {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: unix.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: unix.Getegid(), Size: 1}}
	}
	return &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), Args: []string{roleName}, Dir: "/",
		Env:        append(sandbox.RoleEnv(), "GOMAXPROCS=2", "GOTRACEBACK=single"),
		ExtraFiles: []*os.File{link}, SysProcAttr: attr,
	}
}

// ask tells a blank something and waits for its answer.
func (b *blank) ask(ctx context.Context, v any) error {
	deadline := time.Now().Add(spawnTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := b.conn.SetDeadline(deadline); err != nil {
		return err
	}
	if err := b.send(v); err != nil {
		return err
	}
	answer, err := b.r.Next()
	if err != nil {
		return fmt.Errorf("the monitor did not come up: %w", err)
	}
	var a started
	if err := strictjson.Decode(answer, &a, strictjson.Limits{}); err != nil {
		return err
	}
	if a.Error != nil {
		return a.Error
	}
	return nil
}

// setupFault gives a sandbox's failed step to the other side.
func setupFault(err error) error {
	var step *sandbox.StepError
	if errors.As(err, &step) {
		e := &Error{Code: CodeSetup, Step: step.Step, Errno: uint32(step.Errno), Detail: step.Detail}
		switch {
		case step.Errno == 0:
		case e.Detail == "":
			e.Detail = step.Errno.Error()
		default:
			e.Detail += ": " + step.Errno.Error()
		}
		return e
	}
	return fault(CodeSetup, "%v", err)
}
