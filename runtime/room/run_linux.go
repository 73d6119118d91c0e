package room

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"gloved.dev/internal/strictjson"
	"gloved.dev/runtime/sandbox"
)

// roleName is the argv[0] of the process that makes the room: it has a mount namespace of its own,
// and in a user's room a user namespace, and ends with its parent.
const roleName = "approval-room"

// Descriptors of that process besides the standard ones.
const (
	fdSpec   = 3 // reads its spec
	fdResult = 4 // writes its result
)

// maxSpec bounds the spec and the result.
const maxSpec = 8 << 20

// A spec is what the maker of the room is told.
type spec struct {
	Unprivileged bool     `json:"unprivileged"`
	UID          uint32   `json:"uid"` // in the maker's user namespace
	GID          uint32   `json:"gid"`
	Argv         []string `json:"argv"`
	Env          []string `json:"env"`
	Canonical    string   `json:"canonical"`
	Disposable   string   `json:"disposable"`
	Bring        []string `json:"bring"`
	Denied       []string `json:"denied"`
	NoFile       string   `json:"no_file"` // an empty, unreadable file and folder that cover what is denied
	NoFolder     string   `json:"no_folder"`
	Terminal     bool     `json:"terminal"`
	Processes    uint32   `json:"processes"` // the most tasks at once
}

// A result is what the maker of the room says at its end.
type result struct {
	Exit    int    `json:"exit"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

// Run makes the room, runs argv in it, and takes it away again. It returns the command's exit code,
// or 128 plus the number of the signal that ended it. Errors are *Error; with one, the command was
// not run, or (CodeTimeout) was ended. If ctx ends, so does the room.
//
// Standard output and error of the command are one stream, its terminal's; it is copied to stdout.
func Run(ctx context.Context, o Options, argv []string, stdin, stdout, stderr *os.File) (int, error) {
	if o.Getenv(forceUnsupported) == "1" {
		return 0, fault(CodeUnsupported, nil, "refused by %s", forceUnsupported)
	}
	if o.Getenv(forceUnavailable) == "1" {
		return 0, fault(CodeUnavailable, nil, "refused by %s", forceUnavailable)
	}
	if err := o.check(); err != nil {
		return 0, err
	}
	if len(argv) == 0 {
		return 0, fault(CodeUnresolvable, nil, "there is no command")
	}
	prog, err := resolve(argv[0], &o)
	if err != nil {
		return 0, err
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	s, remove, err := o.furnish(prog, argv)
	if err != nil {
		return 0, err
	}
	defer remove()
	s.Terminal = term.IsTerminal(int(stdin.Fd()))
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errTimeout)
	defer cancel()
	return o.spawn(ctx, s, stdin, stdout, stderr)
}

var errTimeout = errors.New("the room's time is over")

// furnish makes the disposable workspace and what covers denied paths, in one private folder.
func (o *Options) furnish(prog *program, argv []string) (s *spec, remove func(), err error) {
	tmp, err := filepath.EvalSymlinks(os.TempDir())
	if err != nil {
		return nil, nil, fault(CodeWorkspace, err, "there is no place for the disposable workspace")
	}
	if within(tmp, append(o.denied(), o.Canonical, o.InstallRoot)) {
		return nil, nil, fault(CodeWorkspace, nil, "the disposable workspace would lie where the room must not write; set TMPDIR")
	}
	base, err := os.MkdirTemp(tmp, "approval-room-")
	if err != nil {
		return nil, nil, fault(CodeWorkspace, err, "the disposable workspace cannot be made")
	}
	remove = func() { _ = os.RemoveAll(base) } // private names of ours; what stays is empty or the room's own
	s = &spec{
		Unprivileged: unix.Geteuid() != 0, UID: o.UID, GID: o.GID, Argv: append([]string{prog.path}, argv[1:]...),
		Canonical: o.Canonical, Disposable: filepath.Join(base, "work"), Denied: o.denied(),
		NoFile: filepath.Join(base, "denied"), NoFolder: filepath.Join(base, "denied.d"), Processes: o.processes(),
	}
	s.Env = environment(o.Getenv, s.Disposable)
	if prog.bring != "" {
		s.Bring = []string{prog.bring}
	}
	if err := s.makeFolders(); err != nil {
		remove()
		return nil, nil, fault(CodeWorkspace, err, "the disposable workspace cannot be made")
	}
	return s, remove, nil
}

func (s *spec) makeFolders() error {
	if err := os.Mkdir(s.Disposable, 0o700); err != nil {
		return err
	}
	if !s.Unprivileged {
		if s.UID == 0 {
			return errors.New("a room that root starts needs the user of the manifest's codex principal")
		}
		if err := os.Chown(s.Disposable, int(s.UID), int(s.GID)); err != nil {
			return err
		}
	} else {
		s.UID, s.GID = 0, 0 // the maker's namespace has the caller as its only user
	}
	f, err := os.OpenFile(s.NoFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Mkdir(s.NoFolder, 0))
}

// spawn starts the maker of the room and waits for its end.
func (o *Options) spawn(ctx context.Context, s *spec, stdin, stdout, stderr *os.File) (int, error) {
	exe, err := sandbox.SealedExe()
	if err != nil {
		return 0, fault(CodeUnsupported, err, "the program cannot be sealed")
	}
	specR, specW, err := os.Pipe()
	if err != nil {
		return 0, fault(CodeUnavailable, err, "the room cannot be made")
	}
	defer specW.Close()
	resultR, resultW, err := os.Pipe()
	if err != nil {
		specR.Close()
		return 0, fault(CodeUnavailable, err, "the room cannot be made")
	}
	defer resultR.Close()
	// The maker dies with the thread that made it (prctl(2), PR_SET_PDEATHSIG), so that thread stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := maker(exe, s.Unprivileged)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.ExtraFiles = []*os.File{specR, resultW}
	restore := rawTerminal(s.Terminal, stdin)
	defer restore()
	err = cmd.Start()
	specR.Close()
	resultW.Close()
	if err != nil {
		return 0, fault(CodeUnsupported, err, "this system does not let a room be made")
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	release, err := o.enclose(cmd.Process.Pid) // it waits for its spec
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return 0, fault(CodeUnavailable, err, "the room cannot be bounded")
	}
	defer release()
	text, err := json.Marshal(s)
	if err == nil {
		_, err = specW.Write(text)
	}
	specW.Close()
	answer, readErr := io.ReadAll(io.LimitReader(resultR, maxSpec))
	_ = cmd.Wait() // what it came to is in the answer
	if cause := context.Cause(ctx); cause != nil {
		return 0, fault(CodeTimeout, cause, "the room was ended")
	}
	var r result
	if err := errors.Join(err, readErr, strictjson.Decode(answer, &r, strictjson.Limits{})); err != nil {
		return 0, fault(CodeUnavailable, err, "the room ended without a word")
	}
	if r.Code != "" {
		return 0, &Error{Code: r.Code, Message: strings.TrimPrefix(r.Message, r.Code+": ")}
	}
	return r.Exit, nil
}

func maker(exe *os.File, unprivileged bool) *exec.Cmd {
	attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if unprivileged {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: unix.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: unix.Getegid(), Size: 1}}
	}
	return &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), Args: []string{roleName}, Dir: "/",
		Env: []string{"GOMAXPROCS=2", "GOTRACEBACK=single"}, SysProcAttr: attr,
	}
}

// rawTerminal hands every key to the room. The caller's terminal is restored at the end, whatever
// that is.
func rawTerminal(is bool, stdin *os.File) (restore func()) {
	if !is {
		return func() {}
	}
	old, err := term.MakeRaw(int(stdin.Fd()))
	if err != nil {
		return func() {}
	}
	return func() {
		// What the room made the terminal say last (a report of its cursor, of its colours) is not typed
		// into the shell that comes back.
		_ = unix.IoctlSetInt(int(stdin.Fd()), unix.TCFLSH, unix.TCIFLUSH)
		_ = term.Restore(int(stdin.Fd()), old)
	}
}

// killGrace is how long the relay of a dead room's last output may take.
const killGrace = 2 * time.Second
