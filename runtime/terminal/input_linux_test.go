package terminal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Every byte value arrives as it was sent.
func TestInputIsExact(t *testing.T) {
	c, _ := run(t, Config{}, "echo 256")
	at := expect(t, c, 0, "ready")
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	if n, err := c.Write(t.Context(), all); n != 256 || err != nil {
		t.Fatalf("Write: %d, %v", n, err)
	}
	expect(t, c, at, fmt.Sprintf("%x <nil>", all))
}

func TestInputBounds(t *testing.T) {
	c, _ := run(t, Config{MaxInput: 100}, "echo 100")
	at := expect(t, c, 0, "ready")
	for _, n := range []int{0, 101} {
		if k, err := c.Write(t.Context(), make([]byte, n)); k != 0 || !errors.Is(err, ErrBounds) {
			t.Errorf("Write of %d: %d, %v", n, k, err)
		}
	}
	if k, err := c.Write(t.Context(), make([]byte, 99)); k != 99 || err != nil {
		t.Errorf("Write: %d, %v", k, err)
	}
	if k, err := c.Write(t.Context(), make([]byte, 1)); k != 1 || err != nil {
		t.Errorf("Write: %d, %v", k, err)
	}
	expect(t, c, at, "00 <nil>")
	readAll(t, c)
	if _, err := c.Write(t.Context(), []byte("x")); !errors.Is(err, ErrEnded) {
		t.Errorf("Write after the end: %v", err)
	}
	if err := c.Resize(10, 10); !errors.Is(err, ErrEnded) {
		t.Errorf("Resize after the end: %v", err)
	}
	if err := c.Signal(Hangup); !errors.Is(err, ErrEnded) {
		t.Errorf("Signal after the end: %v", err)
	}
}

// A program that does not read costs a writer its time limit, no more; the
// limit covers the wait behind another writer; the rest of the channel lives.
func TestInputTimeout(t *testing.T) {
	const limit = 200 * time.Millisecond
	c, _ := run(t, Config{InputTimeout: limit, MaxInput: MaxFrame}, "deaf")
	expect(t, c, 0, "ready")
	var wg sync.WaitGroup
	begin := time.Now()
	for range 4 {
		wg.Go(func() {
			if n, err := c.Write(t.Context(), make([]byte, MaxFrame)); n == MaxFrame || !errors.Is(err, ErrInputTimeout) {
				t.Errorf("Write: %d, %v", n, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(begin); took < limit || took > 10*limit {
		t.Errorf("four writers took %v", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := c.Write(ctx, []byte("x")); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("Write cancelled: %d, %v", n, err)
	}
	if err := c.Resize(5, 6); err != nil {
		t.Error(err)
	}
}

// A program that reads late still gets a frame much larger than what a
// terminal holds, and it is not mixed with another one.
func TestInputLargeAndSlow(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	const frame, writers = 256 << 10, 3
	c, _ := run(t, Config{InputTimeout: MaxWait, MaxInput: MaxFrame}, fmt.Sprint("slow ", frame*writers), r)
	r.Close()
	at := expect(t, c, 0, "ready")
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			if n, err := c.Write(t.Context(), make([]byte, frame)); n != frame || err != nil {
				t.Errorf("Write: %d, %v", n, err)
			}
		})
	}
	w.Write([]byte("g"))
	wg.Wait()
	expect(t, c, at, fmt.Sprintf("%d <nil>", frame*writers))
}

// Trap D4: the size is right before the first byte, by default too.
func TestInitialSize(t *testing.T) {
	for want, c := range map[string]Config{
		"24 80 <nil>":     {},
		"132 43 <nil>":    {Rows: 132, Cols: 43},
		"4096 4096 <nil>": {Rows: 4096, Cols: 4096},
	} {
		ch, _ := run(t, c, "size")
		if text, _ := readAll(t, ch); text != want+"\r\n" {
			t.Errorf("got %q, want %q", text, want)
		}
	}
}

func TestResize(t *testing.T) {
	c, _ := run(t, Config{}, "winch")
	at := expect(t, c, 0, "ready")
	for _, s := range [][2]uint16{{0, 80}, {24, 0}, {4097, 80}, {24, 4097}} {
		if err := c.Resize(s[0], s[1]); !errors.Is(err, ErrBounds) {
			t.Errorf("Resize(%v): %v", s, err)
		}
	}
	if err := c.Resize(4096, 1); err != nil {
		t.Fatal(err)
	}
	expect(t, c, at, "4096 1 <nil>")
}

func TestSignal(t *testing.T) {
	c, _ := run(t, Config{}, "signals 3")
	at := expect(t, c, 0, "ready")
	for _, s := range []struct {
		name string
		want syscall.Signal
	}{{"interrupt", syscall.SIGINT}, {"terminate", syscall.SIGTERM}, {"hangup", syscall.SIGHUP}} {
		sig, ok := ParseSignal(s.name)
		if !ok {
			t.Fatal(s.name)
		}
		if err := c.Signal(sig); err != nil {
			t.Fatal(err)
		}
		at = expect(t, c, at, "got "+s.want.String())
	}
	if _, ok := ParseSignal("kill"); ok {
		t.Error("kill is not a signal of the protocol")
	}
	for _, sig := range []Signal{0, 4, -1} {
		if err := c.Signal(sig); !errors.Is(err, ErrBounds) {
			t.Errorf("Signal(%d): %v", sig, err)
		}
	}
}

// With no session on the terminal there is nobody to signal.
func TestSignalNobody(t *testing.T) {
	master, slave := openPTY(t)
	defer slave.Close()
	c := open(t, master, Config{})
	if err := c.Signal(Interrupt); !errors.Is(err, ErrNoForeground) {
		t.Errorf("never used: %v", err)
	}
}

// When the program has gone but the terminal is held, its group's number is
// stale, and is not used.
func TestSignalStale(t *testing.T) {
	master, slave := openPTY(t)
	held := dup(t, slave)
	c := open(t, master, Config{Hold: held})
	cmd := start(t, slave, "exit 0")
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(Terminate); !errors.Is(err, ErrNoForeground) {
		t.Errorf("stale group: %v", err)
	}
	if err := c.FinishDrain(t.Context()); err != nil {
		t.Error(err)
	}
}
