package ui

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/term"
)

// Streams are a program's standard streams and what may be done with them.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer

	OutColor bool // Out is a terminal that may be coloured
	ErrColor bool // Err is a terminal that may be coloured
	InTerm   bool // In is a terminal: somebody types
	OutTerm  bool // Out is a terminal: somebody reads
	ErrTerm  bool // Err is a terminal: progress may be shown
	Width    int  // columns of Out; 80 where it is no terminal
}

// System is the process's own streams.
func System() *Streams {
	s := &Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Width: 80}
	s.InTerm = term.IsTerminal(int(os.Stdin.Fd()))
	s.OutTerm = term.IsTerminal(int(os.Stdout.Fd()))
	s.ErrTerm = term.IsTerminal(int(os.Stderr.Fd()))
	colour := ColorAllowed(os.Getenv)
	s.OutColor, s.ErrColor = s.OutTerm && colour, s.ErrTerm && colour
	if width, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && width > 0 {
		s.Width = width
	}
	return s
}

// ColorAllowed reports whether the environment allows colour: NO_COLOR not set (whatever
// its value, see no-color.org) and a terminal that is not dumb.
func ColorAllowed(getenv func(string) string) bool {
	return getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"
}

// Style is an ANSI attribute.
type Style string

// The styles in use. Meaning is never in the colour alone.
const (
	Plain  Style = ""
	Bold   Style = "1"
	Dim    Style = "2"
	Red    Style = "31"
	Green  Style = "32"
	Yellow Style = "33"
	Blue   Style = "34"
	Cyan   Style = "36"
)

// Paint styles text when on is set.
func Paint(on bool, style Style, text string) string {
	if !on || style == Plain || text == "" {
		return text
	}
	return "\x1b[" + string(style) + "m" + text + "\x1b[0m"
}

// Outf prints to standard output.
func (s *Streams) Outf(format string, args ...any) { fmt.Fprintf(s.Out, format, args...) }

// Errf prints to standard error.
func (s *Streams) Errf(format string, args ...any) { fmt.Fprintf(s.Err, format, args...) }

// JSON prints value as one indented document.
func (s *Streams) JSON(value any) error {
	text, err := Indent(value)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.Out, "%s\n", text)
	return err
}

// Indent is value as indented JSON without HTML escaping and without a final newline. An
// empty list is [], never null.
func Indent(value any) ([]byte, error) {
	return json.Marshal(value, jsontext.WithIndent("  "), json.Deterministic(true))
}

// Report prints what a command returned, as a person or a program (asJSON) wants it.
func (s *Streams) Report(program string, err error, asJSON bool) {
	var silent *Silent
	if err == nil || errors.As(err, &silent) {
		return
	}
	failure := asError(err)
	if asJSON {
		_ = s.JSON(map[string]any{"ok": false, "error": jsonError(failure)})
		return
	}
	s.Errf("%s %s %s\n", Paint(s.ErrColor, Bold, program+":"),
		Paint(s.ErrColor, Red, Printable(failure.Code)+":"), Printable(failure.Message))
	for _, line := range failure.Detail {
		s.Errf("  %s\n", Printable(line))
	}
	if failure.Next != "" {
		next := strings.ReplaceAll(Printable(failure.Next), "\n", "\n        ")
		s.Errf("  %s %s\n", Paint(s.ErrColor, Cyan, "next:"), next)
	}
}

func jsonError(failure *Error) map[string]any {
	out := map[string]any{"code": failure.Code, "message": failure.Message}
	if failure.Next != "" {
		out["next"] = failure.Next
	}
	if len(failure.Detail) > 0 {
		out["detail"] = failure.Detail
	}
	return out
}

func asError(err error) *Error {
	var failure *Error
	if errors.As(err, &failure) {
		return failure
	}
	return &Error{Code: "failed", Message: err.Error(), Err: err}
}

// Printable makes text from outside safe for a terminal: control characters, which could
// move the cursor or rename the window, become visible escapes. Newlines and tabs stay.
func Printable(text string) string {
	if strings.IndexFunc(text, isControl) < 0 {
		return text
	}
	var out strings.Builder
	for _, r := range text {
		if isControl(r) {
			fmt.Fprintf(&out, `\u%04x`, r)
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

func isControl(r rune) bool {
	switch {
	case r == '\n' || r == '\t':
		return false
	case r < 0x20, r >= 0x7f && r < 0xa0:
		return true
	// Bidirectional controls reorder what is shown.
	case r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f:
		return true
	}
	return false
}
