package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/sandbox"
)

// spawnTimeout bounds a new monitor's first words.
const spawnTimeout = 10 * time.Second

// Spawn starts a monitor for spec and returns when its socket listens.
func Spawn(ctx context.Context, spec Spec) (*Process, error) {
	b, err := newBlank(spec.UIDRange)
	if err != nil {
		return nil, err
	}
	return b.fill(ctx, spec)
}

// newBlank starts a monitor, which lays the ground for a session and waits for its Spec.
func newBlank(users UIDRange) (*blank, error) {
	exe, err := sandbox.SealedExe()
	if err != nil {
		return nil, fmt.Errorf("sealed executable: %w", err)
	}
	mounts, err := ownMounts()
	if err != nil {
		return nil, err
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, err
	}
	cmd := command(exe, theirs, unprivileged())
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("start monitor: %w", err)
	}
	b := &blank{link: ours, mounts: mounts, ground: ground{ProtocolVersion: ProtocolVersion, UIDRange: users, Unprivileged: unprivileged()}}
	b.Process = &Process{kill: func() { _ = cmd.Process.Kill() }, link: ours, gone: make(chan struct{})} // by its pidfd
	go func() {
		_ = cmd.Wait() // its outcome is in its files, not in its status
		close(b.gone)
	}()
	if err := b.send(b.ground); err != nil {
		b.Kill()
		return nil, err
	}
	return b, nil
}

func (b *blank) send(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return frame.NewWriter(b.link, 0).WriteFrame(line)
}

func unprivileged() bool { return unix.Geteuid() != 0 }

// fill gives the blank its Spec and makes sure that it came up.
func (b *blank) fill(ctx context.Context, spec Spec) (*Process, error) {
	spec.ProtocolVersion = ProtocolVersion
	spec.Unprivileged = unprivileged()
	if err := b.handOver(ctx, spec); err != nil {
		b.Kill()
		return nil, err
	}
	return b.Process, nil
}

func (p *Process) isGone() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

func socketpair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "monitor"), os.NewFile(uintptr(fds[1]), "gloved"), nil
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

func (b *blank) handOver(ctx context.Context, spec Spec) error {
	deadline := time.Now().Add(spawnTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := b.link.SetDeadline(deadline); err != nil {
		return err
	}
	if err := b.send(spec); err != nil {
		return err
	}
	answer, err := frame.NewReader(b.link, 0).Next()
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
