//go:build linux

package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// patience bounds every wait of a test; what is waited for takes a fraction of it.
const patience = 30 * time.Second

// A desk is a terminal with a program at it.
type desk struct {
	t      *testing.T
	cmd    *exec.Cmd
	master *os.File
	before unix.Termios
	dir    string // the program's working directory
	run    string // its XDG_RUNTIME_DIR

	mu     sync.Mutex
	seen   bytes.Buffer
	more   chan struct{} // replaced whenever something was seen
	exited chan struct{}
	status int
}

// sit starts glove with args at a terminal of that size.
func sit(t *testing.T, rows, columns uint16, args ...string) *desk {
	t.Helper()
	d := &desk{t: t, dir: t.TempDir(), run: t.TempDir(), more: make(chan struct{}), exited: make(chan struct{})}
	for _, dir := range []string{d.run, d.dir} {
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d.cmd = exec.Command(glove(), args...)
	d.cmd.Dir = d.dir
	d.cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+d.run, "TERM=xterm-256color", "NO_COLOR=1", "HOME="+t.TempDir())
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	d.master = master
	if err := pty.Setsize(master, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		t.Fatal(err)
	}
	d.before = d.termios()
	d.cmd.Stdin, d.cmd.Stdout, d.cmd.Stderr = slave, slave, slave
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go d.watch(slave)
	t.Cleanup(func() {
		_ = d.cmd.Process.Signal(unix.SIGTERM) // gone already, as a rule
		select {
		case <-d.exited:
		case <-time.After(patience):
			_ = d.cmd.Process.Kill()
			t.Error("glove did not end")
		}
		_ = master.Close()
	})
	return d
}

// watch collects what appears, and the program's end. The other side of the terminal
// stays open until then, so that the last words are not lost with it.
func (d *desk) watch(slave *os.File) {
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := d.master.Read(buf)
			d.mu.Lock()
			d.seen.Write(buf[:n])
			close(d.more)
			d.more = make(chan struct{})
			d.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	err := d.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		d.status = exit.ExitCode()
	} else if err != nil {
		d.status = -1
	}
	_ = slave.Close()
	close(d.exited)
}

func (d *desk) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen.String()
}

// expect waits until text has appeared, and forgets everything up to its end.
func (d *desk) expect(text string) {
	d.t.Helper()
	deadline := time.After(patience)
	for {
		d.mu.Lock()
		all, more := d.seen.String(), d.more
		if at := strings.Index(all, text); at >= 0 {
			d.seen.Next(at + len(text))
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		select {
		case <-more:
		case <-deadline:
			d.t.Fatalf("%q did not appear; there is %q", text, all)
		}
	}
}

func (d *desk) types(text string) {
	d.t.Helper()
	if _, err := d.master.WriteString(text); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) resize(rows, columns uint16) {
	d.t.Helper()
	if err := pty.Setsize(d.master, &pty.Winsize{Rows: rows, Cols: columns}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// ends waits for the end and checks the status, that the terminal is as it was, and that
// nothing is left.
func (d *desk) ends(status int) {
	d.t.Helper()
	select {
	case <-d.exited:
	case <-time.After(patience):
		d.t.Fatalf("glove did not end; there is %q", d.text())
	}
	if d.status != status {
		d.t.Errorf("exit status %d, want %d; there is %q", d.status, status, d.text())
	}
	if diff := cmp.Diff(d.before, d.termios()); diff != "" {
		d.t.Errorf("the terminal is not as it was (-before +after):\n%s", diff)
	}
	if left, err := filepath.Glob(filepath.Join(d.run, "*")); err != nil || len(left) > 0 {
		d.t.Errorf("left in the runtime directory: %v, %v", left, err)
	}
}

// termios is the terminal's state, which on Linux the master tells too.
func (d *desk) termios() unix.Termios {
	d.t.Helper()
	t, err := unix.IoctlGetTermios(int(d.master.Fd()), unix.TCGETS)
	if err != nil {
		d.t.Fatal(err)
	}
	return *t
}

// raw waits until the terminal is, or is not, raw.
func (d *desk) raw(want bool) {
	d.t.Helper()
	d.eventually(fmt.Sprintf("the terminal to be raw: %v", want), func() bool {
		t := d.termios()
		return t.Lflag&unix.ICANON == 0 == want
	})
}

// eventually asks until the answer is yes.
func (d *desk) eventually(what string, yes func() bool) {
	d.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !yes() {
		select {
		case <-tick.C:
		case <-deadline:
			d.t.Fatalf("waited in vain for %s", what)
		}
	}
}
