//go:build linux

package run

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSizeIsRightBeforeTheFirstByte(t *testing.T) {
	usable(t)
	d := sit(t, 33, 101, "run", "--", "stty", "size")
	d.expect("33 101")
	d.ends(0)
}

func TestResizeReachesTheCommand(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "bash", "--norc", "-c",
		`trap 'stty size; exit 3' WINCH; echo ready; while :; do read -t 1 x; done`)
	d.expect("ready")
	d.resize(41, 91)
	d.expect("41 91")
	d.ends(3)
}

func TestCtrlCIsTheCommands(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "bash", "--norc", "-c",
		`trap 'echo caught; exit 4' INT; echo ready; while :; do read -t 1 x; done`)
	d.expect("ready")
	d.raw(true)
	d.types("\x03")
	d.expect("caught")
	d.ends(4)
}

func TestKeysAreExact(t *testing.T) {
	usable(t)
	// Interrupt, suspend, end of file, flow control, quote, escape, a UTF-8 letter.
	keys := "\x03\x1a\x04\x13\x11\x16\x1b\xc3\xa4\x7f\r"
	d := sit(t, 24, 80, "run", "--", "sh", "-c", `stty raw -echo; echo ready; head -c `+strconv.Itoa(len(keys))+` | od -An -v -tx1`)
	d.expect("ready")
	d.types(keys)
	want := ""
	for i := range len(keys) {
		want += fmt.Sprintf(" %02x", keys[i])
	}
	d.expect(want)
	d.ends(0)
}

func TestATerminalIsInside(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "sh", "-c", `test -t 0 && test -t 1 && test -t 2 && tty && echo $TERM`)
	d.expect("/dev/pts/0")
	d.expect("xterm-256color")
	d.ends(0)
}

// TestTerminationIsClean: whoever ends glove from outside finds terminal and machine as
// they were, and the status tells the signal.
func TestTerminationIsClean(t *testing.T) {
	usable(t)
	for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT} {
		t.Run(unix.SignalName(s), func(t *testing.T) {
			t.Parallel()
			d := sit(t, 24, 80, "run", "--", "sh", "-c", "echo ready; exec sleep 600")
			d.expect("ready")
			d.signal(s)
			d.expect("glove: stopped")
			d.ends(128 + int(s))
		})
	}
}

// TestModesAreSwitchedOff: a program that is killed does not leave its mouse, its
// alternate screen and its hidden cursor behind.
func TestModesAreSwitchedOff(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--wall-time", "1500ms", "--", "sh", "-c",
		`printf '\033[?1049h\033[?25l\033[?1000;1006h\033[?2004h\033[?2004lready'; exec sleep 600`)
	d.expect("ready")
	d.expect("\x1b[?1000l\x1b[?1006l\x1b[?1049l\x1b[?25h")
	d.expect("met the wall time limit")
	d.ends(124)
}

// TestStoppedAndContinued: job control from outside leaves a usable terminal while glove
// stands still.
func TestStoppedAndContinued(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "sh", "-c", "echo ready; read line; echo got $line")
	d.expect("ready")
	d.raw(true)
	d.signal(unix.SIGTSTP)
	d.raw(false)
	d.eventually("glove to stand still", func() bool { return strings.Contains(stat(t, d.cmd.Process.Pid), ") T ") })
	d.signal(unix.SIGCONT)
	d.raw(true)
	d.types("hello\r")
	d.expect("got hello")
	d.ends(0)
}

// TestPipesAreExact: whatever bytes there are, in lines of any length, come out as they
// went in, and the end of input comes after the last of them.
func TestPipesAreExact(t *testing.T) {
	usable(t)
	var in bytes.Buffer
	for b := range 256 {
		in.Write(bytes.Repeat([]byte{byte(b)}, 3))
	}
	for _, length := range []int{0, 1, 1023, 1024, 1025, 2048, 4094, 4095, 4096, 5000} {
		in.Write(bytes.Repeat([]byte{'x'}, length))
		in.WriteByte('\n')
	}
	random := make([]byte, 200_000)
	_, _ = rand.Read(random)
	in.Write(random)
	for _, tail := range []string{"", "\x04", "\n", "no newline", strings.Repeat("y", 1024)} {
		data := append(bytes.Clone(in.Bytes()), tail...)
		cmd := exec.CommandContext(t.Context(), glove(), "run", "-q", "--no-workspace", "--", "cat")
		cmd.Stdin = bytes.NewReader(data)
		out, err := cmd.Output()
		if err != nil || !bytes.Equal(out, data) {
			t.Errorf("with the end %.12q: %d bytes came out of %d, %v", tail, len(out), len(data), err)
		}
	}
}

func stat(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestGlovedKilledInTheMiddle: the session goes on under its monitor, the next gloved
// adopts it, and no byte is missed.
func TestGlovedKilledInTheMiddle(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "sh", "-c", "echo ready; read a; for i in 1 2 3 4 5; do echo line $i; done; read b; echo end $a $b")
	d.expect("ready")
	first := childOf(t, d.cmd.Process.Pid)
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.eventually("another gloved", func() bool {
		now := children(t, d.cmd.Process.Pid)
		return len(now) == 1 && now[0] != first
	})
	d.types("one\r")
	for i := range 5 {
		d.expect(fmt.Sprintf("line %d", i+1))
	}
	d.types("two\r")
	d.expect("end one two")
	d.expect("glove: exited 0")
	d.ends(0)
}

// TestTerminationAtAnyTime: a signal that comes while the session is being prepared ends
// glove as surely as one that comes later, and leaves nothing either.
func TestTerminationAtAnyTime(t *testing.T) {
	usable(t)
	for _, wait := range []time.Duration{0, 15 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		d := sit(t, 24, 80, "run", "--quiet", "--", "sleep", "600")
		d.eventually("gloved", func() bool { return len(children(t, d.cmd.Process.Pid)) == 1 })
		timer := time.NewTimer(wait)
		<-timer.C
		d.signal(unix.SIGTERM)
		d.ends(143)
	}
}

// TestKilledRunIsCleanedUp: what a run leaves that was itself killed, a session that
// goes on and a directory with a key, the next run ends and removes.
func TestKilledRunIsCleanedUp(t *testing.T) {
	usable(t)
	d := sit(t, 24, 80, "run", "--", "sh", "-c", "echo ready; exec sleep 600")
	d.expect("ready")
	gloved := childOf(t, d.cmd.Process.Pid)
	must(t, d.cmd.Process.Kill())
	<-d.exited
	d.eventually("gloved to have left", func() bool { return unix.Kill(gloved, 0) != nil })
	states, err := filepath.Glob(filepath.Join(d.run, "glove-run-*"))
	if err != nil || len(states) != 1 {
		t.Fatalf("the killed run left %v, %v", states, err)
	}
	d.sweep(states[0])
}

// childOf is the one process that glove has started: gloved.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	all := children(t, pid)
	if len(all) != 1 {
		t.Fatalf("process %d has the children %v, want one", pid, all)
	}
	return all[0]
}

func children(t *testing.T, pid int) []int {
	t.Helper()
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for _, thread := range threads {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, thread.Name()))
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(data)) {
			child, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(stat(t, child), ") Z ") {
				all = append(all, child)
			}
		}
	}
	return all
}

// TestGlovedCannotComeBack: where gloved cannot be replaced, what would let somebody end
// the session is kept for the next run, and the terminal is given back.
func TestGlovedCannotComeBack(t *testing.T) {
	usable(t)
	program := filepath.Join(t.TempDir(), "gloved")
	must(t, os.Symlink(filepath.Join(bin, "gloved"), program))
	d := sit(t, 24, 80, "run", "--gloved", program, "--", "sh", "-c", "echo ready; exec sleep 600")
	d.expect("ready")
	must(t, os.Remove(program))
	must(t, unix.Kill(childOf(t, d.cmd.Process.Pid), unix.SIGKILL))
	d.expect("the session may still run")
	d.expect("connection_lost")
	<-d.exited
	states, err := filepath.Glob(filepath.Join(d.run, "glove-run-*"))
	if err != nil || len(states) != 1 || d.status != 125 {
		t.Fatalf("exit status %d; left %v, %v", d.status, states, err)
	}
	d.sweep(states[0])
}

// sweep lets the next run find a directory, however young, and looks at what it leaves.
func (d *desk) sweep(state string) {
	d.t.Helper()
	long := time.Now().Add(-time.Hour) // a directory is left alone while it is young
	must(d.t, os.Chtimes(filepath.Join(state, "run.lock"), long, long))
	next := exec.CommandContext(d.t.Context(), glove(), "run", "--no-workspace", "--", "true")
	next.Env = d.cmd.Env
	if out, err := next.CombinedOutput(); err != nil || !strings.Contains(string(out), "an earlier run, begun") || strings.Count(string(out), "receipt 1:") != 2 {
		d.t.Errorf("the next run: %v, %q", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(d.run, "*")); err != nil || len(left) != 0 {
		d.t.Errorf("left: %v, %v", left, err)
	}
}
