package terminal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// The test binary is also the program inside the terminal: the variable names
// what it does, its arguments follow the name after spaces.
const childEnv = "GLOVE_TEST_TERMINAL_CHILD"

func TestMain(m *testing.M) {
	if role := os.Getenv(childEnv); role != "" {
		child(strings.Fields(role))
		return
	}
	os.Exit(m.Run())
}

// raw turns off all processing of the terminal on fd 0.
func raw() {
	t, err := unix.IoctlGetTermios(0, unix.TCGETS)
	if err != nil {
		panic(err)
	}
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(0, unix.TCSETS, t); err != nil {
		panic(err)
	}
}

func child(args []string) {
	num := func(i int) int {
		n, err := strconv.Atoi(args[i])
		if err != nil {
			panic(err)
		}
		return n
	}
	switch args[0] {
	case "exit": // print a first and a last line and be gone at once
		for i := range num(1) {
			fmt.Printf("line %d of a program that leaves quickly\n", i)
		}
		os.Stdout.WriteString("the last line\n")
		syscall.Exit(0)
	case "bytes": // n bytes, nothing added
		raw()
		pour(num(1))
	case "size":
		ws, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
		fmt.Println(ws.Row, ws.Col, err)
	case "winch":
		ch := make(chan os.Signal, 1)
		signal.Notify(ch, syscall.SIGWINCH)
		fmt.Println("ready")
		<-ch
		ws, err := unix.IoctlGetWinsize(1, unix.TIOCGWINSZ)
		fmt.Println(ws.Row, ws.Col, err)
	case "echo": // n bytes from the terminal, back in hexadecimal
		raw()
		fmt.Println("ready")
		buf := make([]byte, num(1))
		_, err := io.ReadFull(os.Stdin, buf)
		fmt.Printf("%x %v", buf, err)
	case "deaf": // reads nothing
		raw()
		fmt.Println("ready")
		for {
			unix.Pause()
		}
	case "slow": // reads only after a byte arrives on fd 3, then everything
		raw()
		fmt.Println("ready")
		os.NewFile(3, "go").Read(make([]byte, 1))
		buf := make([]byte, num(1))
		_, err := io.ReadFull(bufio.NewReader(os.Stdin), buf)
		fmt.Printf("%d %v", len(buf), err)
	case "signals":
		ch := make(chan os.Signal, 8)
		signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		fmt.Println("ready")
		for range num(1) {
			fmt.Println("got", <-ch)
		}
	case "leave": // leave a process behind that keeps the terminal
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{childEnv + "=stay"}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		fmt.Println("stays", cmd.Process.Pid)
	case "stay":
		signal.Ignore(syscall.SIGHUP)
		for {
			unix.Pause()
		}
	case "reopen": // close the terminal altogether, and come back when told
		go1 := os.NewFile(3, "go")
		fmt.Println("first")
		for fd := range 3 {
			unix.Close(fd)
		}
		go1.Write([]byte("c"))
		go1.Read(make([]byte, 1))
		tty, err := os.OpenFile("/dev/tty", os.O_WRONLY, 0)
		if err != nil {
			panic(err)
		}
		fmt.Fprintln(tty, "second")
	default:
		panic("no such role: " + args[0])
	}
}

// pour writes n bytes of a fixed pattern, as fast as it goes.
func pour(n int) {
	buf := pattern(64 << 10)
	for n > 0 {
		k, err := os.Stdout.Write(buf[:min(n, len(buf))])
		if err != nil {
			return
		}
		n -= k
	}
}

func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte('a' + i%23)
	}
	return p
}

// openPTY gives a fresh pair.
func openPTY(t testing.TB) (master, slave *os.File) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// start runs the test binary in role on the slave side, which is then closed
// here. extra becomes the child's descriptor 3.
func start(t testing.TB, slave *os.File, role string, extra ...*os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{childEnv + "=" + role}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.ExtraFiles = extra
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	slave.Close()
	return cmd
}

// run opens a Channel on a fresh terminal with the test binary in role.
func run(t testing.TB, c Config, role string, extra ...*os.File) (*Channel, *exec.Cmd) {
	t.Helper()
	master, slave := openPTY(t)
	ch := open(t, master, c)
	return ch, start(t, slave, role, extra...)
}

func open(t testing.TB, master *os.File, c Config) *Channel {
	t.Helper()
	if c.OutputLimit == 0 {
		c.OutputLimit = 1 << 40
	}
	ch, err := New(master, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ch.Close() })
	return ch
}

// readAll follows the stream to its end.
func readAll(t testing.TB, c *Channel) (string, Chunk) {
	t.Helper()
	var all strings.Builder
	var at uint64
	for {
		ch, err := c.WaitRead(t.Context(), at, DefaultFrame, MaxWait)
		if err != nil {
			t.Fatalf("WaitRead(%d): %v, after %q", at, err, all.String())
		}
		all.Write(ch.Data)
		at = ch.Next
		if ch.EOF {
			return all.String(), ch
		}
	}
}

// expect follows the stream from cursor at until it contains want.
func expect(t testing.TB, c *Channel, at uint64, want string) uint64 {
	t.Helper()
	var all string
	end := time.Now().Add(20 * time.Second)
	for time.Now().Before(end) {
		ch, err := c.WaitRead(t.Context(), at, DefaultFrame, time.Second)
		if err != nil {
			t.Fatalf("waiting for %q: %v", want, err)
		}
		all += string(ch.Data)
		at = ch.Next
		if strings.Contains(all, want) {
			return at
		}
		if ch.EOF {
			break
		}
	}
	t.Fatalf("no %q in %q", want, all)
	return 0
}
