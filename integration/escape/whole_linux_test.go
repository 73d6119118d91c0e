package escape

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/journal/receipt"
	"gloved.dev/policy"
)

// A whole act uses up something until it has had as much as it was told to, says so, and ends. What
// it holds goes with its process.
type whole struct {
	name  string
	act   func(n int) error
	least int    // what it takes where nothing stops it, more than tight allows
	cause string // what ends its session
}

// tight are limits that every whole act exceeds: see whole.least.
var tight = policy.Limits{CPUTimeMS: 1500, MemoryBytes: 64 << 20, PIDs: 48, WallTimeMS: 600_000,
	DiskBytes: 40 << 20, TerminalOutputBytes: 1 << 20}

func wholes() []whole {
	return []whole{
		{"processes", takeProcesses, 64, receipt.CausePIDLimit},
		{"memory", takeMemory, 96 << 20, receipt.CauseMemoryLimit},
		{"a memory file", takeMemoryFile, 96 << 20, receipt.CauseMemoryLimit},
		{"a segment of shared memory", takeSegment, 96 << 20, receipt.CauseMemoryLimit},
		{"socket buffers", takeSocketBuffers, 96 << 20, receipt.CauseMemoryLimit},
		{"names of files", takeNames, 4096, receipt.CauseDiskLimit},
		{"room in files", takeRoom, 24 << 20, receipt.CauseDiskLimit},
		{"output", takeOutput, 2 << 20, receipt.CauseTerminalOutputLimit},
		{"processor time", takeTime, 2500, receipt.CauseCPUTimeLimit},
	}
}

const enough = "has enough"

// playWhole plays the acts that take a session of their own, and the small parts of others.
func playWhole(act string, args []string) int {
	if act == "orphan" {
		// The child outlives us and ends at once: it is pid 1's to reap.
		cmd := exec.Command("/proc/self/exe", roleNothing)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return 1
		}
		fmt.Println(cmd.Process.Pid)
		return 0
	}
	acts := append(wholes(), whole{name: "spin", act: spin})
	for _, w := range acts {
		if w.name != act {
			continue
		}
		n, err := strconv.Atoi(args[0])
		if err == nil {
			err = w.act(n)
		}
		if err != nil {
			fmt.Println(err)
			// Refused: a limit that was met ends the session, whose terminal says nothing meanwhile.
			_, _ = io.Copy(io.Discard, os.Stdin)
			return 1
		}
		fmt.Println(enough)
		return 0
	}
	fmt.Fprintln(os.Stderr, "no such act:", act)
	return 99
}

func takeProcesses(n int) (err error) {
	for range n {
		cmd := exec.Command("/bin/sleep", "600")
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cmd.Process.Kill()) }()
	}
	return nil
}

// touch writes to every page.
func touch(pages []byte) {
	for i := 0; i < len(pages); i += 4096 {
		pages[i] = 1
	}
}

func takeMemory(n int) error {
	pages, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err == nil {
		touch(pages)
	}
	return err
}

func takeMemoryFile(n int) error {
	fd, err := unix.MemfdCreate("glove-escape", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	return fill(os.NewFile(uintptr(fd), "memfd"), n)
}

// fill writes n bytes. The file stays open.
func fill(f *os.File, n int) error {
	block := make([]byte, 64<<10)
	for ; n > 0; n -= len(block) {
		if _, err := f.Write(block); err != nil {
			return err
		}
	}
	return nil
}

func takeSegment(n int) error {
	id, err := unix.SysvShmGet(unix.IPC_PRIVATE, n, unix.IPC_CREAT|0o600)
	if err != nil {
		return err
	}
	pages, err := unix.SysvShmAttach(id, 0, 0)
	// Marked so, it goes with its last user.
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
		return err
	}
	if err == nil {
		touch(pages)
	}
	return err
}

// takeSocketBuffers sends what nobody receives.
func takeSocketBuffers(n int) error {
	block := make([]byte, 64<<10)
	for n > 0 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		for err == nil {
			var sent int
			if sent, err = unix.Write(pair[0], block); err == nil {
				n -= sent
			}
		}
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return nil
}

func takeNames(n int) error {
	dir, err := os.MkdirTemp("/tmp", "glove-names-")
	if err != nil {
		return err
	}
	for i := range n {
		if err = os.Symlink("x", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			break
		}
	}
	if err == nil {
		err = os.RemoveAll(dir)
	}
	return err // where it ran out the names stay, and hold the limit at its end
}

func takeRoom(n int) error {
	f, err := os.CreateTemp("/tmp", "glove-room-")
	if err == nil {
		err = fill(f, n)
	}
	if err == nil {
		err = os.Remove(f.Name())
	}
	return err
}

func takeOutput(n int) error { return fill(os.Stdout, n) }

// takeTime uses n milliseconds of processor time, as two processes one after the other: a limit of
// one process's time would see neither.
func takeTime(n int) error {
	child := exec.Command("/proc/self/exe", roleWhole, "spin", strconv.Itoa(n/2))
	if err := child.Run(); err != nil {
		return err
	}
	return spin(n - n/2)
}

func spin(ms int) error {
	var used unix.Rusage
	for used.Utime.Nano()+used.Stime.Nano() < int64(ms)*1e6 {
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			return err
		}
	}
	return nil
}

// wholeVariable marks the run of TestWhole as an unprivileged user.
const wholeVariable = "GLOVE_ESCAPE_WHOLE"

// TestWhole has sessions take more than their limits of everything that the host has only so much
// of. Outside, the same acts get what they want.
func TestWhole(t *testing.T) {
	usable(t)
	asIs := os.Getenv(wholeVariable) == ""
	for _, w := range wholes() {
		t.Run(strings.ReplaceAll(w.name, " ", "_"), func(t *testing.T) {
			if asIs {
				w.control(t)
			}
			w.inside(t)
		})
	}
	if asIs && os.Geteuid() == 0 {
		t.Run("user", func(t *testing.T) { t.Log(asUser(t, "TestWhole", wholeVariable+"=1")) })
	}
}

func (w whole) control(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", roleWhole, w.name, strconv.Itoa(w.least))
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	text, err := io.ReadAll(out)
	if err = errors.Join(err, cmd.Wait()); err != nil || !strings.HasSuffix(string(text), enough+"\n") {
		t.Errorf("the control did not get what it wants: %v, ... %q", err, text[max(0, len(text)-200):])
	}
}

func (w whole) inside(t *testing.T) {
	t.Helper()
	exe := copyForUser(t)
	limits := tight
	if w.cause != receipt.CauseCPUTimeLimit {
		limits.CPUTimeMS = 120_000 // an emulated processor of a busy host takes long for anything
	}
	s := newWorld(t, worldDir(t), launched{argv: []string{exe, roleWhole, w.name, strconv.Itoa(w.least)}, limits: limits})
	output, rec := s.run()
	if strings.HasSuffix(output, enough+"\n") || rec.Terminal == nil || rec.Terminal.TerminationCause != w.cause {
		t.Errorf("the session ended as %+v, not by %s: ... %q", rec.Terminal, w.cause, output[max(0, len(output)-200):])
	}
}
