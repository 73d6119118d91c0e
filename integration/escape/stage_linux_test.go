package escape

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

// canary is a variable that every gloved of these tests has and no session may have.
const canary = "GLOVE_ESCAPE_CANARY"

// anyUser owns nothing; ordinary users' controls and the unprivileged gloved run as it.
const anyUser = 65534

// hostObjects makes what the host has that a session may not reach, and describes it.
func hostObjects(t *testing.T) *facts {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "glove-host-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	must(t, os.Chmod(dir, 0o755))
	f := &facts{Exe: dir + "/attacker", Secret: dir + "/secret", Text: "the host's secret", Socket: dir + "/engine.sock",
		Name: filepath.Base(dir), Grant: dir + "/granted", Mark: "glove-host-process-" + filepath.Base(dir), Canary: canary}
	copyProgram(t, f.Exe, 0o755)
	must(t, os.WriteFile(f.Secret, []byte(f.Text), 0o644))
	must(t, os.Mkdir(f.Grant, 0o755))
	for _, name := range []string{"data", "spare"} {
		must(t, os.WriteFile(filepath.Join(f.Grant, name), []byte(grantText), 0o644))
	}
	copyProgram(t, f.Grant+"/setuid", 0o755|os.ModeSetuid)
	copyProgram(t, f.Grant+"/setgid", 0o755|os.ModeSetgid)
	copyProgram(t, f.Grant+"/capable", 0o755)
	giveCapabilities(t, f.Grant+"/capable")
	listen(t, unix.AF_UNIX, &unix.SockaddrUnix{Name: f.Socket})
	must(t, os.Chmod(f.Socket, 0o666))
	// A socket or FIFO in the grant is refused before anything is started: see runtime's
	// TestSocketInAReadGrant and runtime/workspace's TestRefuseChannels.
	listen(t, unix.AF_UNIX, &unix.SockaddrUnix{Name: "@" + f.Name})
	f.Port4 = listen(t, unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	f.Port6 = listen(t, unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}})
	f.Shm = segment(t)
	f.Queue = queue(t, "glove-"+strconv.Itoa(os.Getpid()))
	f.Process = hostProcess(t, f)
	return f
}

func copyProgram(t *testing.T, to string, mode os.FileMode) {
	t.Helper()
	from, err := os.Open("/proc/self/exe")
	must(t, err)
	defer from.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	must(t, err)
	_, err = io.Copy(out, from)
	must(t, errors.Join(err, out.Close()))
	must(t, os.Chmod(to, mode))
}

// giveCapabilities makes a program that starts with every capability, if this user may.
func giveCapabilities(t *testing.T, path string) {
	t.Helper()
	// struct vfs_cap_data, revision 2, effective: permitted and inheritable, two words each.
	value := []byte{1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(path, "security.capability", value, 0); err != nil {
		t.Logf("no file capabilities here: %v", err)
	}
}

// listen makes a listening socket and returns its port, 0 for one without or for a family that this
// host does not have.
func listen(t *testing.T, family int, at unix.Sockaddr) int {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, at)
	}
	if err != nil {
		t.Logf("no listener of family %d: %v", family, err)
		return 0
	}
	must(t, unix.Listen(fd, 128))
	where, err := unix.Getsockname(fd)
	must(t, err)
	switch a := where.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

func segment(t *testing.T) int {
	t.Helper()
	key := 0x61000000 | os.Getpid()&0xffffff
	id, err := unix.SysvShmGet(key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Logf("no shared memory segments here: %v", err)
		return key
	}
	t.Cleanup(func() { _, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil) })
	return key
}

func queue(t *testing.T, name string) string {
	t.Helper()
	text := cstring(name)
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, ptr(text), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o666, 0, 0, 0)
	if e != 0 {
		t.Logf("no message queues here: %v", e)
		return name
	}
	unix.Close(int(fd))
	t.Cleanup(func() { _ = call(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(&text[0]))) })
	return name
}

// hostProcess is a process to reach for. It runs as an ordinary user if it may choose, so that it is
// not its owner that protects it.
func hostProcess(t *testing.T, f *facts) int {
	t.Helper()
	cmd := exec.Command(f.Exe, roleIdle, f.Mark)
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: anyUser, Gid: anyUser}}
	}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	_, err = out.Read(make([]byte, 64))
	must(t, err)
	return cmd.Process.Pid
}

// A stage is a gloved with a victim, and the attacker's gloved beside it, both of one user.
type stage struct {
	t        *testing.T
	f        *facts
	attacker *world
	text     string // f, as the attacker is told it
}

// newStage starts the victim and gets everything ready for the attacker.
func newStage(t *testing.T, objects *facts) *stage {
	t.Helper()
	usable(t)
	t.Setenv(canary, "gloved's own")
	f := *objects
	victimDir, dir := worldDir(t), worldDir(t)
	victim := newWorld(t, victimDir, launched{argv: []string{f.Exe, roleIdle, f.Mark}, limits: roomy})
	rec := victim.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := victim.Stop(ctx, "stop", rec.SessionID); err != nil {
			t.Error(err)
		}
	})
	f.Harness = int(rec.Process.PID)
	f.Other, f.Own = sessionDir(victimDir, rec.SessionID), sessionDir(dir, "s1")
	f.Key, f.Journal, f.Store = filepath.Join(dir, keyFile), filepath.Join(dir, journalFile), filepath.Join(dir, storeFile)
	f.Work = filepath.Join(dir, "work")
	must(t, os.WriteFile(f.Work+"/data", []byte(grantText), 0o644))
	must(t, os.Symlink(f.Secret, f.Work+"/out"))
	must(t, os.Symlink("../../"+strings.TrimPrefix(f.Secret, "/tmp/"), f.Work+"/up"))
	copyProgram(t, f.Work+"/setuid", 0o755|os.ModeSetuid)
	raw, err := json.Marshal(&f)
	must(t, err)
	s := &stage{t: t, f: &f, text: string(raw)}
	s.attacker = newWorld(t, dir, launched{argv: []string{f.Exe, roleAttack, s.text}, limits: roomy, read: f.Grant})
	return s
}

// controls runs every act outside and returns the answers by name.
func (s *stage) controls() map[string]string {
	s.t.Helper()
	f := *s.f
	f.Outside = true
	raw, err := json.Marshal(&f)
	must(s.t, err)
	out := map[string]string{}
	for _, a := range attempts() {
		out[a.name] = s.control(a, string(raw))
	}
	return out
}

// control runs one act on the host, on a terminal and, as root, in a mount and a host-name namespace
// of its own, so that what it changes there ends with it.
func (s *stage) control(a attempt, text string) string {
	s.t.Helper()
	master, slave, err := pty.Open()
	must(s.t, err)
	defer master.Close()
	defer slave.Close()
	leak, err := os.Open("/")
	must(s.t, err)
	defer leak.Close()
	cmd := exec.Command(s.f.Exe, roleAttempt, text, a.name)
	cmd.Stdin, cmd.ExtraFiles = slave, []*os.File{leak}
	attr := &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if os.Geteuid() == 0 {
		attr.Unshareflags = unix.CLONE_NEWNS | unix.CLONE_NEWUTS
		if a.user {
			attr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: anyUser, Gid: anyUser}}
		}
	}
	cmd.SysProcAttr = attr
	return one(cmd)
}

// attack runs the attacker's session and returns its answers by name.
func (s *stage) attack() map[string]string {
	s.t.Helper()
	output, rec := s.attacker.run()
	answers := parseAnswers(output)
	if !strings.HasSuffix(output, "\ndone\n") || rec.State != session.Exited || rec.Terminal.TerminationCause != receipt.CauseExited {
		s.t.Errorf("the attacker ended as %s/%+v after %d answers: %.4000s", rec.State, rec.Terminal, len(answers), output)
	}
	for _, path := range []string{s.f.Work + "/data", s.f.Grant + "/data", s.f.Grant + "/spare"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != grantText {
			s.t.Errorf("%s was changed: %q, %v", path, data, err)
		}
	}
	return answers
}

// parseAnswers reads the lines of attackAll.
func parseAnswers(output string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(output) {
		if name, word, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			out[name] = word
		}
	}
	return out
}
