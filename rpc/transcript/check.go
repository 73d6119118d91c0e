package transcript

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// DefaultPatience is how long a frame may take to come.
const DefaultPatience = 15 * time.Second

// Options say how a transcript is run.
type Options struct {
	Launcher Launcher
	Patience time.Duration // for one frame; 0 is DefaultPatience
	TempDir  string        // parent of the state directory; "" is the system's
}

func (o Options) patience() time.Duration {
	if o.Patience <= 0 {
		return DefaultPatience
	}
	return o.Patience
}

// Failure is where a transcript and the server parted: the line of the transcript, what
// it said, and what came. Stderr holds the end of the server's diagnostics.
type Failure struct {
	Path        string
	Line        int
	Reason      string
	Want        string
	Got         string
	Differences []Difference
	Stderr      string
}

func (f *Failure) Error() string {
	var out strings.Builder
	where := f.Path
	if where == "" {
		where = "transcript"
	}
	fmt.Fprintf(&out, "%s:%d: %s", where, f.Line, f.Reason)
	for _, difference := range f.Differences {
		fmt.Fprintf(&out, "\n  %s", difference)
	}
	if f.Want != "" {
		fmt.Fprintf(&out, "\n  want  %s", clip(f.Want, 2000))
	}
	if f.Got != "" {
		fmt.Fprintf(&out, "\n  got   %s", clip(f.Got, 2000))
	}
	if f.Stderr != "" {
		fmt.Fprintf(&out, "\n  gloved said:\n    %s", strings.ReplaceAll(strings.TrimSpace(f.Stderr), "\n", "\n    "))
	}
	return out.String()
}

// Check runs the transcript in a fresh sandbox and returns a *Failure for the first
// place where the server did something else, or another error when it could not be run.
func Check(file *File, options Options) (err error) {
	sandbox, err := NewSandbox(file, options.TempDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sandbox.Close()) }()
	run := &checker{file: file, options: options, vars: sandbox.Vars}
	defer run.abort()
	for i := 0; i < len(file.Entries); {
		taken, err := run.step(file.Entries[i:])
		if err != nil {
			return err
		}
		i += taken
	}
	return run.finish(file.Entries[len(file.Entries)-1].Line)
}

type checker struct {
	file    *File
	options Options
	vars    Vars
	server  *server
}

// step plays the first entry, or the first few when frames are expected together, and
// returns how many it took.
func (c *checker) step(entries []Entry) (int, error) {
	entry := entries[0]
	switch entry.Kind {
	case Command:
		return 1, c.command(entry)
	case Send:
		text, err := c.vars.Expand(entry.Text, true)
		if err != nil {
			return 0, c.fail(entry.Line, err.Error())
		}
		if err := c.server.send(text); err != nil {
			return 0, c.fail(entry.Line, "the server no longer reads: "+err.Error())
		}
	case SendEOF:
		if err := c.server.input.Close(); err != nil {
			return 0, c.fail(entry.Line, err.Error())
		}
	case Expect:
		group := 1
		for group < len(entries) && entries[group].Kind == Expect {
			group++
		}
		return group, c.expect(entries[:group])
	case ExpectEOF:
		return 1, c.expectEOF(entry)
	case Comment:
	}
	return 1, nil
}

func (c *checker) command(entry Entry) error {
	if c.server != nil {
		if err := c.finish(entry.Line); err != nil {
			return err
		}
	}
	args, err := expandArgs(entry, c.vars)
	if err != nil {
		return c.fail(entry.Line, err.Error())
	}
	c.server, err = c.options.Launcher.start(args)
	return err
}

// expandArgs splits before it expands, so that a directory with a space stays one argument.
func expandArgs(entry Entry, vars Vars) ([]string, error) {
	words := strings.Fields(entry.Text)[1:]
	for i, word := range words {
		expanded, err := vars.Expand(word, false)
		if err != nil {
			return nil, err
		}
		words[i] = expanded
	}
	return words, nil
}

// expect takes as many frames as there are entries and pairs them by id; frames without
// one of the expected ids are paired in order.
func (c *checker) expect(entries []Entry) error {
	waiting := append([]Entry(nil), entries...)
	for len(waiting) > 0 {
		got, err := c.server.next(c.options.patience())
		if err != nil {
			return c.failWith(waiting[0], &Failure{Reason: streamReason(err), Want: waiting[0].Text})
		}
		chosen, err := c.choose(waiting, got)
		if err != nil {
			return err
		}
		entry := waiting[chosen]
		want, err := c.vars.Expand(entry.Text, true)
		if err != nil {
			return c.fail(entry.Line, err.Error())
		}
		differences, err := Match([]byte(want), got, c.vars)
		if err != nil {
			return c.failWith(entry, &Failure{Reason: err.Error(), Want: want, Got: string(got)})
		}
		if len(differences) > 0 {
			return c.failWith(entry, &Failure{Reason: "the answer is not the one expected",
				Differences: differences, Want: want, Got: string(got)})
		}
		waiting = append(waiting[:chosen], waiting[chosen+1:]...)
	}
	return nil
}

// choose finds the entry that expects a frame with the same id and method.
func (c *checker) choose(waiting []Entry, got []byte) (int, error) {
	key := frameKey(got)
	for i, entry := range waiting {
		// Only the id is looked at; a later line may use a value this frame brings.
		want, err := c.vars.Expand(entry.Text, true)
		if err == nil && frameKey([]byte(want)) == key {
			return i, nil
		}
	}
	if len(waiting) == 1 {
		return 0, nil
	}
	return 0, c.failWith(waiting[0], &Failure{Reason: "no expected frame has this one's id", Got: string(got)})
}

func frameKey(text []byte) string {
	var head struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return ""
	}
	return string(head.ID) + " " + head.Method
}

func (c *checker) expectEOF(entry Entry) error {
	got, err := c.server.next(c.options.patience())
	if err == nil {
		return c.failWith(entry, &Failure{Reason: "the server went on where its end was expected", Got: string(got)})
	}
	if !errors.Is(err, io.EOF) {
		return c.fail(entry.Line, streamReason(err))
	}
	return nil
}

func streamReason(err error) string {
	if errors.Is(err, io.EOF) {
		return "the server ended the stream"
	}
	return err.Error()
}

// finish ends the running server: it must exit cleanly and say nothing more.
func (c *checker) finish(line int) error {
	ending := c.server
	c.server = nil
	extra, err := ending.finish()
	if len(extra) > 0 {
		return &Failure{Path: c.file.Path, Line: line, Reason: "the server said more than was expected",
			Got: string(extra[0]), Stderr: ending.stderr.String()}
	}
	if err != nil {
		return &Failure{Path: c.file.Path, Line: line, Reason: err.Error(), Stderr: ending.stderr.String()}
	}
	return nil
}

func (c *checker) abort() {
	if c.server != nil {
		c.server.abort()
	}
}

func (c *checker) fail(line int, reason string) error {
	return c.failWith(Entry{Line: line}, &Failure{Reason: reason})
}

func (c *checker) failWith(entry Entry, failure *Failure) error {
	failure.Path, failure.Line = c.file.Path, entry.Line
	if c.server != nil {
		failure.Stderr = c.server.stderr.String()
	}
	return failure
}
