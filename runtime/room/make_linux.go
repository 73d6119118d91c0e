package room

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/pathwalk"
	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/sandbox"
)

// Main makes a room and never returns if this process was started for that. Every program that calls
// Run calls it first in main, after sandbox.Main.
func Main() {
	if len(os.Args) == 0 || os.Args[0] != roleName {
		return
	}
	out := os.NewFile(fdResult, "result")
	exit, err := makeRoom(os.NewFile(fdSpec, "spec"))
	r := result{Exit: exit}
	if err != nil {
		r.Code, r.Message = CodeUnavailable, err.Error()
		if e, ok := errors.AsType[*Error](err); ok {
			r.Code = e.Code
		}
	}
	text, err := json.Marshal(r)
	if err == nil {
		_, err = out.Write(text)
	}
	if err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func makeRoom(in *os.File) (int, error) {
	unix.CloseOnExec(fdSpec)
	unix.CloseOnExec(fdResult)
	text, err := io.ReadAll(io.LimitReader(in, maxSpec))
	if err != nil {
		return 0, err
	}
	var s spec
	if err := strictjson.Decode(text, &s, strictjson.Limits{MaxBytes: maxSpec}); err != nil {
		return 0, err
	}
	c, err := s.config()
	if err != nil {
		return 0, err
	}
	defer func() {
		for _, m := range c.Mounts {
			m.FD.Close()
		}
	}()
	if err := refuseSockets(); err != nil {
		return 0, fault(CodeUnavailable, err, "the room cannot be kept from the sockets of others")
	}
	box, err := sandbox.Start(context.Background(), *c, sandbox.Hooks{Placed: fewProcesses(s.Processes)})
	if err != nil {
		return 0, startFault(err)
	}
	return s.relay(box)
}

// startFault tells a system that has no such rooms from one whose rooms fail.
func startFault(err error) error {
	step, ok := errors.AsType[*sandbox.StepError](err)
	if ok && (step.Errno == syscall.ENOSYS || step.Step == "spawn" && step.Errno == syscall.EPERM) {
		return fault(CodeUnsupported, err, "this system has no room")
	}
	return fault(CodeUnavailable, err, "the room cannot be made")
}

// config is the sandbox's: the two workspaces at their own paths, then a cover over every denied
// path that would show through.
func (s *spec) config() (*sandbox.Config, error) {
	c := &sandbox.Config{
		Hostname: "room", Tenant: sandbox.Tenant{HostUID: s.UID, HostGID: s.GID, DropGroups: !s.Unprivileged},
		Argv: s.Argv, Env: s.Env, WorkDir: s.Disposable,
	}
	add := func(m sandbox.Mount, path string, readOnly bool) error {
		f, _, err := pathwalk.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if m.FD, err = sandbox.OpenTree(f, readOnly); err != nil {
			return err
		}
		m.ReadOnly = readOnly
		c.Mounts = append(c.Mounts, m)
		return nil
	}
	if err := add(sandbox.Mount{Name: "canonical", Target: s.Canonical, Exec: true}, s.Canonical, true); err != nil {
		return c, fault(CodeWorkspace, err, "the canonical workspace cannot be shown")
	}
	if err := add(sandbox.Mount{Name: "disposable", Target: s.Disposable, Exec: true}, s.Disposable, false); err != nil {
		return c, fault(CodeWorkspace, err, "the disposable workspace cannot be shown")
	}
	for _, b := range s.Bring {
		_, id, err := identify(b)
		if err != nil {
			return c, fault(CodeUnresolvable, err, "the command cannot be brought along")
		}
		if err := add(sandbox.Mount{Name: "command", Target: b, File: !id.IsDir(), Exec: true}, b, true); err != nil {
			return c, fault(CodeUnresolvable, err, "the command cannot be brought along")
		}
	}
	visible := slices.Concat([]string{s.Canonical, s.Disposable}, s.Bring, sandbox.DefaultSystemPaths())
	var covered []string
	for _, d := range s.Denied {
		if !within(d, visible) || within(d, covered) {
			continue
		}
		_, id, err := identify(d)
		if errors.Is(err, os.ErrNotExist) {
			continue // nothing to read; and the room cannot make it
		}
		if err != nil {
			return c, fault(CodeUnavailable, err, "a denied path cannot be covered")
		}
		m := sandbox.Mount{Name: "denied", Target: d, File: !id.IsDir()}
		cover := s.NoFolder
		if m.File {
			cover = s.NoFile
		}
		if err := add(m, cover, true); err != nil {
			return c, fault(CodeUnavailable, err, "a denied path cannot be covered")
		}
		covered = append(covered, d)
	}
	for _, b := range s.Bring {
		if within(b, covered) || ident.Within(s.Canonical, b) {
			return c, fault(CodeUnresolvable, nil, "the command lies where the room must not read")
		}
	}
	return c, nil
}

func identify(path string) (bool, pathwalk.Identity, error) {
	id, err := pathwalk.Identify(path)
	return err == nil, id, err
}

// relay connects the room's terminal with the caller's streams and waits for the command.
func (s *spec) relay(box *sandbox.Session) (int, error) {
	terminal := box.Terminal()
	defer terminal.Close()
	defer box.Close()
	if s.Terminal {
		stop := followSize(terminal)
		defer stop()
	} else if err := plainTerminal(terminal); err != nil {
		return 0, fault(CodeUnavailable, err, "the room's terminal cannot be set up")
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(os.Stdout, terminal) // ends with EIO when the last process is gone
	}()
	if err := box.Release(); err != nil {
		return 0, fault(CodeUnresolvable, err, "the command cannot be executed")
	}
	go s.feed(terminal)
	exit, err := box.Wait(context.Background())
	if err != nil {
		return 0, err
	}
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
	}
	if exit.Signal != 0 {
		return 128 + int(exit.Signal), nil
	}
	if exit.InitDied {
		return 0, fault(CodeUnavailable, nil, "the room ended by itself")
	}
	return exit.Code, nil
}

// feed copies the caller's input. Its end is the end-of-file character, which only a terminal that
// reads lines knows; twice, because the first one may only end a line.
func (s *spec) feed(terminal *os.File) {
	_, err := io.Copy(terminal, os.Stdin)
	if err == nil && !s.Terminal {
		_, _ = terminal.Write([]byte{4, 4})
	}
}

// plainTerminal makes a terminal pass bytes: no echo, no signals by keys, no editing, no newline
// conversion. Lines of input are bounded by the terminal, 4095 bytes each.
func plainTerminal(f *os.File) error {
	return control(f, func(fd int) error {
		t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		t.Iflag &^= unix.ICRNL | unix.INLCR | unix.IGNCR | unix.IXON | unix.ISTRIP
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ISIG | unix.IEXTEN
		for _, c := range []int{unix.VERASE, unix.VKILL, unix.VEOL, unix.VEOL2} {
			t.Cc[c] = 0
		}
		return unix.IoctlSetTermios(fd, unix.TCSETS, t)
	})
}

func control(f *os.File, do func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	return errors.Join(conn.Control(func(fd uintptr) { inner = do(int(fd)) }), inner)
}

// followSize keeps the room's terminal as large as the caller's.
func followSize(terminal *os.File) (stop func()) {
	changes := make(chan os.Signal, 1)
	signal.Notify(changes, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		for {
			if size, err := pty.GetsizeFull(os.Stdin); err == nil {
				_ = pty.Setsize(terminal, size)
			}
			select {
			case <-changes:
			case <-done:
				return
			}
		}
	}()
	return func() { signal.Stop(changes); close(done) }
}
