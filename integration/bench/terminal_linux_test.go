package bench

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

const (
	floodRounds = 7
	floodBytes  = 64 << 20
)

// BenchmarkTerminal compares how fast a program can print into a session, where
// every byte is counted, hashed and kept, with a bare read loop on a PTY. The
// session's time is the receipt's, from its first process to its last; the bare
// one's is from the program's start to the end of its output.
func BenchmarkTerminal(b *testing.B) {
	flood := []string{"/bin/dd", "if=/dev/zero", "bs=65536", fmt.Sprintf("count=%d", floodBytes/65536), "status=none"}
	d := serve(b, map[string][]string{"flood": flood})
	for b.Loop() {
		report(b, "output of a terminal", compete(b, floodRounds,
			contestant{"gloved session", func() (time.Duration, error) { return d.flood() }},
			contestant{"bare read loop", func() (time.Duration, error) { return bareFlood(flood) }},
		), perSecond(float64(floodBytes)/1e6), "MB/s", goal{against: "bare read loop", ratio: 0.8, atLeast: true})
	}
}

func (d *daemon) flood() (time.Duration, error) {
	a, err := d.create("flood")
	if err != nil {
		return 0, err
	}
	if err := d.start(a); err != nil {
		return 0, err
	}
	if err := d.until(a.SessionID); err != nil {
		return 0, err
	}
	r, err := d.SessionStatus(d.b.Context(), a.SessionID)
	if err != nil {
		return 0, err
	}
	if r.ExitCode == nil || *r.ExitCode != 0 {
		return 0, fmt.Errorf("the flood ended as %+v", r)
	}
	return time.Duration(r.FinishedAtMS-r.StartedAtMS) * time.Millisecond, d.forget(a.SessionID)
}

// until waits for the end without reading any output.
func (d *daemon) until(id string) error {
	for give := time.Now().Add(2 * time.Minute); time.Now().Before(give); {
		r, err := d.SessionStatus(d.b.Context(), id)
		if err != nil || r.State == "exited" || r.State == "failed" {
			return err
		}
		<-time.After(20 * time.Millisecond)
	}
	return errors.New("the session does not end")
}

func bareFlood(argv []string) (time.Duration, error) {
	from := time.Now()
	master, err := pty.Start(exec.Command(argv[0], argv[1:]...))
	if err != nil {
		return 0, err
	}
	defer master.Close()
	n, err := io.Copy(io.Discard, struct{ io.Reader }{master})
	took := time.Since(from)
	if perr := (*os.PathError)(nil); errors.As(err, &perr) && perr.Err == syscall.EIO {
		err = nil // how a terminal says that nobody has it open any more
	}
	if err == nil && n != floodBytes {
		err = fmt.Errorf("read %d bytes, want %d", n, floodBytes)
	}
	return took, err
}
