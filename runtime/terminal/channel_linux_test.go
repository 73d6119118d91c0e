package terminal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConfigBounds(t *testing.T) {
	ok := Config{OutputLimit: 1}
	with := func(f func(*Config)) Config { c := ok; f(&c); return c }
	for _, c := range []struct {
		name string
		c    Config
		ok   bool
	}{
		{"least", ok, true},
		{"no limit", Config{}, false},
		{"smallest ring", with(func(c *Config) { c.RingBytes = MinRingBytes }), true},
		{"ring too small", with(func(c *Config) { c.RingBytes = MinRingBytes - 1 }), false},
		{"largest ring", with(func(c *Config) { c.RingBytes = MaxRingBytes }), true},
		{"ring too large", with(func(c *Config) { c.RingBytes = MaxRingBytes + 1 }), false},
		{"one by one", with(func(c *Config) { c.Rows, c.Cols = 1, 1 }), true},
		{"no rows", with(func(c *Config) { c.Cols = 80 }), false},
		{"no columns", with(func(c *Config) { c.Rows = 24 }), false},
		{"largest size", with(func(c *Config) { c.Rows, c.Cols = 4096, 4096 }), true},
		{"too many rows", with(func(c *Config) { c.Rows, c.Cols = 4097, 80 }), false},
		{"too many columns", with(func(c *Config) { c.Rows, c.Cols = 24, 4097 }), false},
		{"largest read", with(func(c *Config) { c.MaxRead = MaxFrame }), true},
		{"read too large", with(func(c *Config) { c.MaxRead = MaxFrame + 1 }), false},
		{"read negative", with(func(c *Config) { c.MaxRead = -1 }), false},
		{"largest input", with(func(c *Config) { c.MaxInput = MaxFrame }), true},
		{"input too large", with(func(c *Config) { c.MaxInput = MaxFrame + 1 }), false},
		{"shortest timeout", with(func(c *Config) { c.InputTimeout = MinWait }), true},
		{"timeout too short", with(func(c *Config) { c.InputTimeout = MinWait - 1 }), false},
		{"longest timeout", with(func(c *Config) { c.InputTimeout = MaxWait }), true},
		{"timeout too long", with(func(c *Config) { c.InputTimeout = MaxWait + 1 }), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			master, slave := openPTY(t)
			defer slave.Close()
			ch, err := New(master, c.c)
			if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrConfig) {
				t.Fatalf("New: %v", err)
			}
			if err == nil {
				ch.Close()
			}
			if _, err := master.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
				t.Errorf("the given file is still open: %v", err)
			}
		})
	}
	if _, err := New(nil, ok); !errors.Is(err, ErrConfig) {
		t.Errorf("New(nil): %v", err)
	}
}

// A master in blocking mode, in non-blocking mode, and one whose Fd was taken.
func TestAnyMasterIsPollable(t *testing.T) {
	for name, prepare := range map[string]func(*os.File) *os.File{
		"as opened": func(f *os.File) *os.File { return f },
		"blocking": func(f *os.File) *os.File {
			fd, err := unix.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			unix.SetNonblock(fd, false)
			return os.NewFile(uintptr(fd), "m")
		},
		"fd taken": func(f *os.File) *os.File { f.Fd(); return f },
		"non-blocking": func(f *os.File) *os.File {
			fd, err := unix.Dup(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
			unix.SetNonblock(fd, true)
			return os.NewFile(uintptr(fd), "m")
		},
	} {
		t.Run(name, func(t *testing.T) {
			master, slave := openPTY(t)
			c := open(t, prepare(master), Config{})
			slave.WriteString("hello")
			expect(t, c, 0, "hello")
			// Nothing more comes; the drain must end all the same.
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := c.FinishDrain(ctx); !errors.Is(err, ErrDrainTimeout) {
				t.Errorf("FinishDrain: %v", err)
			}
			slave.Close()
		})
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := New(r, Config{OutputLimit: 1}); !errors.Is(err, ErrIO) || !errors.Is(err, unix.ENOTTY) {
		t.Errorf("New on a pipe: %v", err)
	}
}

func TestCommitmentVectors(t *testing.T) {
	for text, want := range map[string]string{
		"abcdefghijkl": "d682ed4ca4d989c134ec94f1551e1ec580dd6d5a6ecde9f3d35e6e4a717fbde4",
		"12345":        "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5",
	} {
		master, slave := openPTY(t)
		var seen bytes.Buffer
		c := open(t, master, Config{Observe: func(p []byte) { seen.Write(p) }})
		slave.WriteString(text)
		expect(t, c, 0, text)
		if got := c.Commitment(); got.Complete {
			t.Errorf("complete while it runs: %+v", got)
		}
		slave.Close()
		<-c.Done()
		got := c.Commitment()
		if want := (Commitment{Schema, want, uint64(len(text)), true}); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if seen.String() != text {
			t.Errorf("observer saw %q", seen.String())
		}
	}
}

// Cursors at every edge of a known transcript.
func TestReadCursors(t *testing.T) {
	master, slave := openPTY(t)
	c := open(t, master, Config{RingBytes: MinRingBytes, MaxRead: MaxFrame})
	feed(c, MinRingBytes+10)
	slave.WriteString("!")
	expect(t, c, MinRingBytes+10, "!")
	const end = MinRingBytes + 11
	const oldest = end - MinRingBytes
	for _, r := range []struct {
		cursor uint64
		max    int
		want   Chunk // Data left out
		n      int
	}{
		{0, 1, Chunk{Oldest: oldest, Cursor: oldest, Next: oldest + 1, Truncated: true}, 1},
		{oldest - 1, 5, Chunk{Oldest: oldest, Cursor: oldest, Next: oldest + 5, Truncated: true}, 5},
		{oldest, MaxFrame, Chunk{Oldest: oldest, Cursor: oldest, Next: end}, MinRingBytes},
		{oldest, MaxFrame - 1, Chunk{Oldest: oldest, Cursor: oldest, Next: end - 1}, MinRingBytes - 1},
		{end - 1, 9, Chunk{Oldest: oldest, Cursor: end - 1, Next: end}, 1},
		{end, 9, Chunk{Oldest: oldest, Cursor: end, Next: end}, 0},
	} {
		got, err := c.Read(r.cursor, r.max)
		if err != nil || len(got.Data) != r.n {
			t.Fatalf("Read(%d, %d): %d bytes, %v", r.cursor, r.max, len(got.Data), err)
		}
		got.Data = nil
		if fmt.Sprint(got) != fmt.Sprint(r.want) {
			t.Errorf("Read(%d, %d) = %+v, want %+v", r.cursor, r.max, got, r.want)
		}
	}
	for _, r := range []struct {
		cursor uint64
		max    int
		want   error
	}{
		{end + 1, 1, ErrAhead}, {1 << 63, 1, ErrAhead},
		{0, 0, ErrBounds}, {0, -1, ErrBounds}, {0, MaxFrame + 1, ErrBounds},
	} {
		if _, err := c.Read(r.cursor, r.max); !errors.Is(err, r.want) {
			t.Errorf("Read(%d, %d): %v, want %v", r.cursor, r.max, err, r.want)
		}
	}
	slave.Close()
	<-c.Done()
	if got, err := c.Read(end, 1); err != nil || !got.EOF || got.LimitExceeded {
		t.Errorf("at the end: %+v, %v", got, err)
	}
	if got, err := c.Read(end-1, 1); err != nil || !got.EOF || len(got.Data) != 1 {
		t.Errorf("the last byte: %+v, %v", got, err)
	}
	if got, err := c.Read(end-2, 1); err != nil || got.EOF {
		t.Errorf("the byte before: %+v, %v", got, err)
	}
}

// feed gives the channel bytes as the drain would.
func feed(c *Channel, n int) {
	for _, p := range [][]byte{pattern(n)} {
		c.take(p)
	}
}

func TestWaitRead(t *testing.T) {
	master, slave := openPTY(t)
	c := open(t, master, Config{})
	for _, d := range []time.Duration{-1, 0, MinWait - 1, MaxWait + 1} {
		if _, err := c.WaitRead(t.Context(), 0, 1, d); !errors.Is(err, ErrBounds) {
			t.Errorf("timeout %v: %v", d, err)
		}
	}
	if got, err := c.WaitRead(t.Context(), 0, 1, MinWait); err != nil || len(got.Data) != 0 || got.EOF {
		t.Errorf("nothing came: %+v, %v", got, err)
	}
	if _, err := c.WaitRead(t.Context(), 1, 1, MaxWait); !errors.Is(err, ErrAhead) {
		t.Errorf("ahead: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.WaitRead(ctx, 0, 1, MaxWait); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// Many wait for the same byte; all get it, and then the end.
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			got, err := c.WaitRead(t.Context(), 0, 9, MaxWait)
			if err != nil || string(got.Data) != "x" {
				t.Errorf("first: %+v, %v", got, err)
			}
			got, err = c.WaitRead(t.Context(), 1, 9, MaxWait)
			if err != nil || !got.EOF {
				t.Errorf("end: %+v, %v", got, err)
			}
		})
	}
	slave.WriteString("x")
	expect(t, c, 0, "x")
	slave.Close()
	wg.Wait()
}

// The limit: as many bytes are fine, one more is not, and what was kept before
// the chunk that went over can still be read.
func TestOutputLimit(t *testing.T) {
	for _, over := range []int{0, 1} {
		t.Run(fmt.Sprint(over), func(t *testing.T) {
			master, slave := openPTY(t)
			limits := make(chan struct{}, 9)
			c := open(t, master, Config{OutputLimit: 10, OnLimit: func() { limits <- struct{}{} },
				OnError: func(err error) { t.Error(err) }})
			slave.WriteString("12345")
			expect(t, c, 0, "12345")
			slave.WriteString("abcdefghi"[:5+over])
			if over == 0 {
				expect(t, c, 5, "abcde")
				slave.Close()
			}
			<-c.Done()
			text, last := readAll(t, c)
			all, sum := "12345abcdefghi"[:10+over], ""
			digest := sha256.Sum256([]byte(all))
			sum = hex.EncodeToString(digest[:])
			if got, want := c.Commitment(), (Commitment{Schema, sum, uint64(10 + over), over == 0}); got != want {
				t.Errorf("commitment %+v, want %+v", got, want)
			}
			if over == 0 {
				if text != all || last.LimitExceeded || len(limits) != 0 || c.Err() != nil {
					t.Errorf("within the limit: %q %+v %d %v", text, last, len(limits), c.Err())
				}
				return
			}
			defer slave.Close()
			if text != "12345" || !last.LimitExceeded || c.Total() != 11 || len(limits) != 1 {
				t.Errorf("past the limit: %q %+v total %d callbacks %d", text, last, c.Total(), len(limits))
			}
			if got, err := c.WaitRead(t.Context(), 0, 3, MaxWait); err != nil || string(got.Data) != "123" || got.EOF || got.LimitExceeded {
				t.Errorf("prefix: %+v, %v", got, err)
			}
			if _, err := c.Read(6, 1); !errors.Is(err, ErrAhead) {
				t.Errorf("past the kept end: %v", err)
			}
			if _, err := c.Write(t.Context(), []byte("x")); !errors.Is(err, ErrOutputLimit) {
				t.Errorf("Write: %v", err)
			}
			if err := c.Resize(1, 1); !errors.Is(err, ErrOutputLimit) {
				t.Errorf("Resize: %v", err)
			}
			if err := c.Signal(Interrupt); !errors.Is(err, ErrOutputLimit) {
				t.Errorf("Signal: %v", err)
			}
			if err := c.FinishDrain(t.Context()); !errors.Is(err, ErrOutputLimit) {
				t.Errorf("FinishDrain: %v", err)
			}
		})
	}
}

// Trap D1: the last line of a program that leaves at once is never lost.
func TestFastExit(t *testing.T) {
	tries := 1000
	if testing.Short() {
		tries = 50
	}
	for i := range tries {
		lines := []int{0, 1, 300}[i%3]
		c, cmd := run(t, Config{}, fmt.Sprint("exit ", lines))
		err := cmd.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.FinishDrain(t.Context()); err != nil {
			t.Fatalf("try %d: %v", i, err)
		}
		text, _ := readAll(t, c)
		if !strings.HasSuffix(text, "the last line\r\n") || strings.Count(text, "\n") != lines+1 {
			t.Fatalf("try %d: %d lines, tail %q", i, strings.Count(text, "\n"), text[max(0, len(text)-60):])
		}
		if !c.Commitment().Complete {
			t.Fatalf("try %d: incomplete", i)
		}
		c.Close()
	}
}

// Trap D1, the other half: much output, then the exit, through a small ring,
// byte for byte in the digest.
func TestLongOutput(t *testing.T) {
	const n = 20<<20 + 7
	c, cmd := run(t, Config{RingBytes: MinRingBytes}, fmt.Sprint("bytes ", n))
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := c.FinishDrain(t.Context()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	block := pattern(64 << 10)
	var tail []byte
	for left := n; left > 0; left -= min(left, len(block)) {
		tail = block[:min(left, len(block))]
		sum.Write(tail)
	}
	want := Commitment{Schema, hex.EncodeToString(sum.Sum(nil)), n, true}
	if got := c.Commitment(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	got, err := c.Read(n-7, 100)
	if err != nil || !bytes.Equal(got.Data, tail) || !got.EOF {
		t.Errorf("tail %q, %v; want %q", got.Data, err, tail)
	}
	if got, err := c.Read(0, 1); err != nil || !got.Truncated || got.Cursor != n-MinRingBytes {
		t.Errorf("start: %+v, %v", got, err)
	}
}

// Readers that follow see the very same bytes while the ring turns, or are
// told what they missed.
func TestFollowersAgree(t *testing.T) {
	const n = 8 << 20
	c, cmd := run(t, Config{RingBytes: MinRingBytes, MaxRead: MaxFrame}, fmt.Sprint("bytes ", n))
	block := pattern(64 << 10)
	var wg sync.WaitGroup
	for _, max := range []int{100, 4096, 60000, MaxFrame} {
		wg.Go(func() {
			for at := uint64(0); ; {
				ch, err := c.WaitRead(t.Context(), at, max, MaxWait)
				if err != nil {
					t.Error(err)
					return
				}
				if !ch.Truncated && ch.Cursor != at || ch.Next != ch.Cursor+uint64(len(ch.Data)) {
					t.Errorf("asked for %d, got %d to %d", at, ch.Cursor, ch.Next)
				}
				for i, b := range ch.Data {
					if off := ch.Cursor + uint64(i); b != block[off%uint64(len(block))] {
						t.Errorf("wrong byte at %d", off)
						return
					}
				}
				if at = ch.Next; ch.EOF {
					return
				}
			}
		})
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if err := c.FinishDrain(t.Context()); err != nil {
		t.Error(err)
	}
	wg.Wait()
}
