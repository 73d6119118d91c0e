package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"gloved.dev/internal/tail"
	"gloved.dev/rpc/transport"
)

// stopGrace is how long a spawned server may take to end after its input did.
const stopGrace = 10 * time.Second

// DialSocket connects to the socket at path and opens the protocol with
// o.Secret. The other end must run as us.
func DialSocket(ctx context.Context, path string, o Options) (*Client, error) {
	conn, err := transport.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	return New(ctx, conn, o)
}

// DialRuntimeDir connects to the instance whose runtime directory is dir, with
// the secret that lies there.
func DialRuntimeDir(ctx context.Context, dir string, o Options) (*Client, error) {
	secret, err := transport.ReadSecret(dir)
	if err != nil {
		return nil, err
	}
	o.Secret = secret
	return DialSocket(ctx, filepath.Join(dir, transport.SocketName), o)
}

// SpawnStdio starts argv, which must speak the protocol on its standard input
// and output, and opens it: `gloved --stdio …`, or `ssh HOST gloved --stdio …`.
// The context bounds opening only. Close ends the server's input, gives it ten
// seconds to finish what is in flight, and then kills it.
func SpawnStdio(ctx context.Context, argv []string, o Options) (*Client, error) {
	if len(argv) == 0 {
		return nil, errors.New("client: nothing to start")
	}
	p, err := spawn(argv, o.Stderr)
	if err != nil {
		return nil, err
	}
	c, err := New(ctx, p, o)
	if err != nil {
		// The library may still be closing; what the server had to say is complete only
		// when it is gone.
		err = errors.Join(err, p.Close())
		if said := p.tail.String(); said != "" {
			err = &ComplaintError{Err: err, Said: said}
		}
		return nil, err
	}
	return c, nil
}

// A ComplaintError is the failure to open a server that had something to say on its
// standard error. What it said may hold terminal controls.
type ComplaintError struct {
	Err  error
	Said string // the end of it
}

// Error implements error.
func (e *ComplaintError) Error() string { return fmt.Sprintf("%v; standard error: %q", e.Err, e.Said) }

// Unwrap is why the server could not be opened.
func (e *ComplaintError) Unwrap() error { return e.Err }

// process is a spawned server as a connection.
type process struct {
	cmd  *exec.Cmd
	in   *os.File // we write
	out  *os.File // we read
	tail tail.Buffer
	once sync.Once
	err  error
}

func spawn(argv []string, stderr io.Writer) (*process, error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: %w", err), childIn.Close(), in.Close())
	}
	p := &process{in: in, out: out, cmd: exec.Command(argv[0], argv[1:]...)}
	p.cmd.Stdin, p.cmd.Stdout = childIn, childOut
	p.cmd.Stderr = stderr
	if stderr == nil {
		p.cmd.Stderr = &p.tail
	}
	// A grandchild that keeps standard error open must not hold up Wait.
	p.cmd.WaitDelay = time.Second
	err = p.cmd.Start()
	err = errors.Join(err, childIn.Close(), childOut.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: start %s: %w", filepath.Base(argv[0]), err), in.Close(), out.Close())
	}
	return p, nil
}

func (p *process) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// SetWriteDeadline lets the frame writer bound writes.
func (p *process) SetWriteDeadline(t time.Time) error { return p.in.SetWriteDeadline(t) }

// Close ends the process and closes both pipes. Reading goes on until then.
func (p *process) Close() error {
	p.once.Do(func() {
		err := p.in.Close()
		t := time.AfterFunc(stopGrace, func() { _ = p.cmd.Process.Kill() }) // already gone is fine
		werr := p.cmd.Wait()
		t.Stop()
		var exit *exec.ExitError
		if errors.As(werr, &exit) || errors.Is(werr, exec.ErrWaitDelay) {
			// How the server ended is its own affair: a shell that ssh ran, killed
			// by its hang-up, is no failure of closing.
			werr = nil
		}
		p.err = errors.Join(err, werr, p.out.Close())
	})
	return p.err
}
