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
	b, err := newBlank()
	if err != nil {
		return nil, err
	}
	return b.fill(ctx, spec)
}

// newBlank starts a monitor, which waits for its Spec.
func newBlank() (*blank, error) {
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
	p := &Process{kill: func() { _ = cmd.Process.Kill() }, link: ours, gone: make(chan struct{})} // by its pidfd
	go func() {
		_ = cmd.Wait() // its outcome is in its files, not in its status
		close(p.gone)
	}()
	return &blank{Process: p, link: ours, mounts: mounts}, nil
}

func unprivileged() bool { return unix.Geteuid() != 0 }

// fill gives the blank its Spec and makes sure that it came up.
func (b *blank) fill(ctx context.Context, spec Spec) (*Process, error) {
	spec.ProtocolVersion = ProtocolVersion
	spec.Unprivileged = unprivileged()
	if err := handOver(ctx, b.link, spec); err != nil {
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

func handOver(ctx context.Context, link *os.File, spec Spec) error {
	deadline := time.Now().Add(spawnTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := link.SetDeadline(deadline); err != nil {
		return err
	}
	line, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := frame.NewWriter(link, 0).WriteFrame(line); err != nil {
		return err
	}
	answer, err := frame.NewReader(link, 0).Next()
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
		return &Error{Code: CodeSetup, Step: step.Step, Errno: uint32(step.Errno), Detail: step.Detail}
	}
	return fault(CodeSetup, "%v", err)
}
