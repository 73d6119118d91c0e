package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func dup(t testing.TB, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "held")
}

// A process that outlives the program and keeps the terminal cannot keep the
// channel: what was printed is there, but the stream is not called complete.
func TestDrainTimeout(t *testing.T) {
	c, cmd := run(t, Config{}, "leave")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	expect(t, c, 0, "stays")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.FinishDrain(ctx); !errors.Is(err, ErrDrainTimeout) {
		t.Fatalf("FinishDrain: %v", err)
	}
	text, last := readAll(t, c)
	if got := c.Commitment(); got.Complete || got.ByteCount != uint64(len(text)) || last.LimitExceeded {
		t.Errorf("commitment %+v for %q", got, text)
	}
	var pid int
	if _, err := fmt.Sscanf(text, "stays %d", &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// Everything that is in the terminal when the drain gives up is still taken,
// the part that crosses the limit included.
func TestDrainTimeoutTakesTheRest(t *testing.T) {
	for _, limit := range []uint64{1 << 20, 100} {
		master, slave := openPTY(t)
		inside, leave := make(chan struct{}), make(chan struct{})
		first, limits := true, 0
		c := open(t, master, Config{OutputLimit: limit, OnLimit: func() { limits++ }, Observe: func([]byte) {
			if first {
				first = false
				close(inside)
				<-leave
			}
		}})
		slave.WriteString("first ")
		<-inside
		slave.WriteString(strings.Repeat("more", 50))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		done := make(chan error)
		go func() { done <- c.FinishDrain(ctx) }()
		<-c.stop // the drain is to end, and has not seen the rest
		close(leave)
		err := <-done
		if over := limit == 100; over != errors.Is(err, ErrOutputLimit) || over == errors.Is(err, ErrDrainTimeout) || over != (limits == 1) {
			t.Errorf("limit %d: %v, %d callbacks", limit, err, limits)
		}
		if c.Total() != 206 {
			t.Errorf("limit %d: %d bytes", limit, c.Total())
		}
		slave.Close()
	}
}

// With Hold a program may close its terminal and come back to it.
func TestHold(t *testing.T) {
	for _, hold := range []bool{false, true} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()
		master, slave := openPTY(t)
		var c Config
		if hold {
			c.Hold = dup(t, slave)
		}
		ch := open(t, master, c)
		cmd := start(t, slave, "reopen", theirs)
		theirs.Close()
		if _, err := ours.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if !hold {
			<-ch.Done()
		}
		ours.Write([]byte("g"))
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if err := ch.FinishDrain(t.Context()); err != nil {
			t.Fatal(err)
		}
		text, _ := readAll(t, ch)
		if want := map[bool]string{false: "first\r\n", true: "first\r\nsecond\r\n"}[hold]; text != want {
			t.Errorf("hold %v: %q", hold, text)
		}
	}
}

// Close wakes everybody, and what was read stays readable.
func TestClose(t *testing.T) {
	master, slave := openPTY(t)
	defer slave.Close()
	c := open(t, master, Config{OnError: func(err error) { t.Error(err) }})
	slave.WriteString("kept")
	expect(t, c, 0, "kept")
	done := make(chan error)
	go func() {
		ch, err := c.WaitRead(context.Background(), 4, 1, MaxWait)
		if err == nil && !ch.EOF {
			err = errors.New("no end")
		}
		done <- err
	}()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if text, _ := readAll(t, c); text != "kept" {
		t.Errorf("read %q", text)
	}
	if _, err := c.Write(t.Context(), []byte("x")); !errors.Is(err, ErrClosed) {
		t.Errorf("Write: %v", err)
	}
	if err := c.Resize(1, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("Resize: %v", err)
	}
	if c.Commitment().Complete {
		t.Error("called complete")
	}
	if err := c.FinishDrain(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("FinishDrain: %v", err)
	}
}

// A master that fails ends the stream with an error, after what it gave.
func TestMasterFails(t *testing.T) {
	master, slave := openPTY(t)
	defer slave.Close()
	failed := make(chan error, 2)
	c := open(t, master, Config{OnError: func(err error) { failed <- err }})
	slave.WriteString("before")
	expect(t, c, 0, "before")
	c.master.SetReadDeadline(past) // an error the drain did not ask for
	if err := <-failed; !errors.Is(err, ErrIO) || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("OnError: %v", err)
	}
	<-c.Done()
	if ch, err := c.Read(0, 100); err != nil || string(ch.Data) != "before" || ch.EOF {
		t.Errorf("the prefix: %+v, %v", ch, err)
	}
	if _, err := c.WaitRead(t.Context(), 6, 1, MaxWait); !errors.Is(err, ErrIO) {
		t.Errorf("after it: %v", err)
	}
	if c.Commitment().Complete || len(failed) != 0 {
		t.Error("complete, or told twice")
	}
}

// 100 channels come and go without a descriptor left behind.
func TestNoDescriptorLeft(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	before := count()
	for i := range 100 {
		master, slave := openPTY(t)
		c := Config{OutputLimit: 1, Hold: dup(t, slave)}
		if i%2 == 1 {
			c.RingBytes = 1 // refused
		}
		ch, err := New(master, c)
		if err == nil {
			ch.Close()
		}
		slave.Close()
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}
