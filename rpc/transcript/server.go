package transcript

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"gloved.dev/internal/tail"
)

// maxFrame bounds one line from the server: the protocol's bound, and room to see that
// a server went past it.
const maxFrame = 2 << 20

// stopAfter is how long a server that was told to end may take before it is killed.
const stopAfter = 10 * time.Second

// Launcher starts servers. Command is the program and its leading arguments, to which
// the arguments of a transcript's "$ gloved …" line are added.
type Launcher struct {
	Command []string
	Env     []string // the whole environment of the server; nil is this process's own
}

// server is one running gloved: its input, and its frames as they come.
type server struct {
	input  io.WriteCloser
	frames chan frame
	stderr *tail.Buffer
	wait   func() error
	kill   context.CancelFunc
}

// frame is a line from the server, or the error that ended the stream (io.EOF at its end).
type frame struct {
	text []byte
	err  error
}

func (l Launcher) start(args []string) (*server, error) {
	if len(l.Command) == 0 {
		return nil, errors.New("no gloved to start")
	}
	ctx, cancel := context.WithCancel(context.Background())
	argv := append(append([]string{}, l.Command[1:]...), args...)
	command := exec.CommandContext(ctx, l.Command[0], argv...)
	command.Env = l.Env
	command.WaitDelay = time.Second
	stderr := &tail.Buffer{}
	command.Stderr = stderr
	input, err := command.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := command.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start gloved: %w", err)
	}
	s := &server{input: input, frames: make(chan frame, 64), stderr: stderr, kill: cancel}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		s.read(output)
	}()
	s.wait = sync.OnceValue(func() error {
		defer cancel()
		<-drained // Wait closes the pipe: everything must be read before it
		return command.Wait()
	})
	return s, nil
}

func (s *server) read(output io.Reader) {
	reader := bufio.NewReaderSize(output, 64<<10)
	for {
		line, err := readLine(reader)
		if err != nil {
			s.frames <- frame{err: err}
			close(s.frames)
			// The process must never block on a pipe that nobody reads.
			_, _ = io.Copy(io.Discard, reader)
			return
		}
		s.frames <- frame{text: line}
	}
}

// readLine reads up to LF, at most maxFrame bytes.
func readLine(reader *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := reader.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxFrame {
			return nil, fmt.Errorf("the server wrote a line of more than %d bytes", maxFrame)
		}
		switch {
		case err == nil:
			return bytes.TrimSuffix(line, []byte("\n")), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, fmt.Errorf("the server's last line has no end: %q", clip(string(line), 120))
		default:
			return nil, err
		}
	}
}

// send writes one line.
func (s *server) send(text string) error {
	_, err := io.WriteString(s.input, text+"\n")
	return err
}

// next is the next frame, or an error after the time or at the end of the stream.
func (s *server) next(patience time.Duration) ([]byte, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case f, ok := <-s.frames:
		if !ok {
			return nil, io.EOF
		}
		return f.text, f.err
	case <-timer.C:
		return nil, errSilent
	}
}

var errSilent = errors.New("the server said nothing in time")

// finish closes the input, takes what is still said, and waits for the end. It reports
// frames nobody expected and any exit but a clean one.
func (s *server) finish() (extra [][]byte, err error) {
	closeErr := s.input.Close()
	if closeErr != nil && !errors.Is(closeErr, os.ErrClosed) {
		err = closeErr
	}
	deadline := time.AfterFunc(stopAfter, s.kill)
	defer deadline.Stop()
	for f := range s.frames {
		if f.err != nil {
			if !errors.Is(f.err, io.EOF) {
				err = f.err
			}
			break
		}
		extra = append(extra, f.text)
	}
	if waitErr := s.wait(); waitErr != nil {
		err = fmt.Errorf("gloved ended with %w", waitErr)
	}
	return extra, err
}

// abort kills the server and waits for it.
func (s *server) abort() {
	s.kill()
	for range s.frames {
		continue // the reader must not block on a full channel
	}
	_ = s.wait() // it was killed: how it ended says nothing
}
