package escape

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	sessions "gloved.dev/runtime"

	"gloved.dev/internal/require"
)

// An attempt is one forbidden act.
type attempt struct {
	name string
	// act returns nil if it worked, an errno if the kernel refused, a said if it looked and found
	// something else. It undoes what it did.
	act func(*facts) error
	// refused are the answers inside a session that are a refusal, by name.
	refused string
	// reached are the answers outside that show that the act reaches what it is after; empty means
	// success. Others than success stand for acts that no host survives unharmed, or that a kernel
	// judges by their arguments only after it has let them in.
	reached string
	// lacking are the answers outside that say that this machine has no such thing.
	lacking string
	// user runs the control as an ordinary user instead of root.
	user bool
}

// A said is an observation as an answer. It is one word.
type said string

func (s said) Error() string { return string(s) }

const success = "success"

// answer names what an act returned.
func answer(err error) string {
	var errno unix.Errno
	var word said
	switch {
	case err == nil:
		return success
	case errors.As(err, &word):
		return string(word)
	case errors.As(err, &errno):
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return "errno-" + strconv.Itoa(int(errno))
	}
	return "other:" + strings.Join(strings.Fields(err.Error()), "_")
}

func oneOf(answer, list string) bool { return slices.Contains(strings.Fields(list), answer) }

// works tells whether an answer outside shows that the act is possible there.
func (a attempt) works(answer string) bool {
	if a.reached == "" {
		return answer == success
	}
	return oneOf(answer, a.reached)
}

// facts are what an attacker could have learned, or guessed, about the host. They come with the
// command line.
type facts struct {
	Outside bool // this is a control

	Exe     string // the attacker's own program
	Secret  string // a file anyone on the host may read, and what is in it
	Text    string
	Socket  string // a listening socket anyone may connect to, such as a container engine's
	Name    string // an abstract socket
	Port4   int    // listeners on the host's loopback, 0 if there is none
	Port6   int
	Shm     int    // key of a System V segment
	Queue   string // name of a POSIX message queue
	Grant   string // what is granted for reading
	Work    string // what is copied
	Process int    // a process of the host, with Mark on its command line
	Mark    string
	Canary  string // the name of a variable in gloved's environment

	Key, Journal, Store string // gloved's own files
	Own, Other          string // the directories of this session and of another
	Harness             int    // the other session's harness, as the host sees it
}

// granted is a path in the read grant, on whichever side.
func (f *facts) granted(name string) string {
	if f.Outside {
		return f.Grant + "/" + name
	}
	return "/granted/" + name
}

// copied is a path in the copied workspace, on whichever side.
func (f *facts) copied(name string) string {
	if f.Outside {
		return f.Work + "/" + name
	}
	return "/workspace/" + name
}

// own is the directory of the attacker's session or, while it is not there yet, the other's.
func (f *facts) own() string {
	if f.Outside {
		return f.Other
	}
	return f.Own
}

// attempts are all rows. The order is that of the table in the log.
func attempts() []attempt {
	return slices.Concat(fileAttempts(), kernelFileAttempts(), mountAttempts(), processAttempts(), networkAttempts(),
		privilegeAttempts(), callAttempts(), archAttempts())
}

// The roles this binary plays when it is not testing. The first argument after the facts names the
// attempt, where there is one.
const (
	roleAttack  = "escape:attack"  // every attempt, each in a process of its own
	roleAttempt = "escape:attempt" // one attempt
	roleIdle    = "escape:idle"    // a harness, or a host process, that only exists
	roleNothing = "escape:nothing" // ends at once
	roleIDs     = "escape:ids"     // tells whether its identity is more than its caller's
	roleWhole   = "escape:whole"   // an act that takes a session of its own
)

func TestMain(m *testing.M) {
	sessions.Main()
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "escape:") {
		os.Exit(play(os.Args[1], os.Args[2:]))
	}
	if require.Later("it starts itself hundreds of times, which the race detector makes slow") {
		return
	}
	os.Exit(m.Run())
}

func play(role string, args []string) int {
	switch role {
	case roleAttack:
		return attackAll(args[0])
	case roleAttempt:
		return attemptOne(args[0], args[1])
	case roleIdle:
		fmt.Println("idle", os.Getpid())
		for {
			time.Sleep(time.Hour)
		}
	case roleNothing:
		return 0
	case roleIDs:
		return gained()
	case roleUser:
		return becomeUser(args)
	case roleWhole:
		return playWhole(args[0], args[1:])
	}
	return 99
}

func parseFacts(text string) *facts {
	f := new(facts)
	if err := json.Unmarshal([]byte(text), f); err != nil {
		fmt.Println("facts:", err)
		os.Exit(98)
	}
	return f
}

// attackAll is the attacker's harness. Each line of its output is a name, a tab and an answer; the
// last one is the word done.
func attackAll(text string) int {
	parseFacts(text)
	for _, a := range attempts() {
		cmd := exec.Command("/proc/self/exe", roleAttempt, text, a.name)
		cmd.Stdin = os.Stdin // the terminal, for what is tried on it
		fmt.Printf("%s\t%s\n", a.name, one(cmd))
	}
	fmt.Println("done")
	return 0
}

// one runs an attempt's process and returns its answer.
func one(cmd *exec.Cmd) string {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "not-started:" + answer(err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	if !timer.Stop() {
		return "hung"
	}
	if word, ok := strings.CutPrefix(strings.TrimSpace(out.String()), "answer "); ok && err == nil {
		return word
	}
	if w, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return "killed-by-" + unix.SignalName(w.Signal())
	}
	return fmt.Sprintf("died:%v:%q", err, out.String())
}

// attemptOne runs one act on the main thread, so that what an act does to its thread is done to
// the thread that judges it, and so that what it leaves behind ends with the process.
func attemptOne(text, name string) int {
	runtime.LockOSThread()
	f := parseFacts(text)
	for _, a := range attempts() {
		if a.name == name {
			fmt.Println("answer", answer(a.act(f)))
			return 0
		}
	}
	return 97
}

// call makes a raw system call.
func call(nr uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
		return e
	}
	return nil
}

// opens makes an act that opens a path, which has no effect.
func opens(path string, flags int) func(*facts) error {
	return func(*facts) error { return open(path, flags) }
}

func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// reads succeeds if the file has want in its first bytes; anything at all will do if want is empty.
func reads(path, want string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	switch {
	case err != nil:
		return err
	case n == 0:
		return said("empty")
	case !bytes.Contains(buf[:n], []byte(want)):
		return said("other-content")
	}
	return nil
}

// again runs this binary in another role and returns how starting or running it failed.
func again(attr *syscall.SysProcAttr, role string, args ...string) error {
	cmd := exec.Command("/proc/self/exe", append([]string{role}, args...)...)
	cmd.SysProcAttr = attr
	return cmd.Run()
}
