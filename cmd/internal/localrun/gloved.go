package localrun

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long gloved may take to leave after its input ended.
const stopGrace = 10 * time.Second

// Gloved is a gloved that serves one connection over its standard streams. It is the
// client's connection.
type Gloved struct {
	cmd  *exec.Cmd
	in   *os.File // we write
	out  *os.File // we read
	once sync.Once
	err  error
}

// StartGloved starts argv with its log going to log. The process gets a session of its
// own, so that a terminal's Ctrl-C or hang-up reaches us alone and not, at the same
// time, the one through whom we still want to stop the session.
func StartGloved(argv []string, log *os.File) (*Gloved, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, childIn.Close(), in.Close())
	}
	g := &Gloved{in: in, out: out, cmd: exec.Command(argv[0], argv[1:]...)}
	g.cmd.Stdin, g.cmd.Stdout, g.cmd.Stderr = childIn, childOut, log
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	g.cmd.Dir = "/"
	g.cmd.WaitDelay = time.Second
	err = errors.Join(g.cmd.Start(), childIn.Close(), childOut.Close())
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return g, nil
}

// Read implements io.Reader.
func (g *Gloved) Read(b []byte) (int, error) { return g.out.Read(b) }

// Write implements io.Writer.
func (g *Gloved) Write(b []byte) (int, error) { return g.in.Write(b) }

// SetWriteDeadline lets the frame writer bound writes.
func (g *Gloved) SetWriteDeadline(t time.Time) error { return g.in.SetWriteDeadline(t) }

// Kill ends gloved at once. A session that it was still preparing is undone by its
// monitor; one that runs goes on.
func (g *Gloved) Kill() { _ = g.cmd.Process.Kill() } // gone is as good

// Close ends gloved by ending its input, and waits for it.
func (g *Gloved) Close() error {
	g.once.Do(func() {
		err := g.in.Close()
		t := time.AfterFunc(stopGrace, g.Kill)
		waited := g.cmd.Wait()
		t.Stop()
		var exit *exec.ExitError
		if errors.As(waited, &exit) || errors.Is(waited, exec.ErrWaitDelay) {
			waited = nil // how it ended is told by what it answered
		}
		g.err = errors.Join(err, waited, g.out.Close())
	})
	return g.err
}
