package console

import (
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/vt"
)

// A Screen rebuilds what a session's terminal shows from the bytes it has written, so
// that whoever attaches late sees it without the bytes being played to their own
// terminal, where questions in them would be answered into the session once more.
type Screen struct {
	Modes
	emulator   *vt.Emulator
	rows, cols int
	broken     bool
}

// NewScreen returns an empty screen of a size.
func NewScreen(rows, cols int) *Screen {
	s := &Screen{emulator: vt.NewEmulator(cols, rows), rows: rows, cols: cols}
	s.Out = io.Discard
	// What the emulated terminal answers is for nobody: the program had its answer.
	go func() { _, _ = io.Copy(io.Discard, s.emulator) }() // until Close
	return s
}

// Write implements io.Writer. Output that the emulator cannot follow leaves the screen
// blank, which a redraw mends.
func (s *Screen) Write(data []byte) (n int, err error) {
	defer func() {
		if recover() != nil {
			s.broken = true
			n, err = len(data), nil
		}
	}()
	if _, err := s.Modes.Write(data); err != nil {
		return 0, err
	}
	if s.broken {
		return len(data), nil
	}
	return s.emulator.Write(data)
}

// Close ends the emulation.
func (s *Screen) Close() error { return s.emulator.Close() }

// Paint returns what makes a terminal of the screen's size show it, modes and cursor
// included.
func (s *Screen) Paint() string {
	var out strings.Builder
	out.WriteString(s.Reinstate())
	out.WriteString("\x1b[0m\x1b[H\x1b[2J")
	if s.broken {
		return out.String()
	}
	lines := strings.Split(strings.ReplaceAll(s.emulator.Render(), "\r\n", "\n"), "\n")
	for i, line := range lines[:min(len(lines), s.rows)] {
		fmt.Fprintf(&out, "\x1b[%d;1H%s\x1b[0m", i+1, line)
	}
	at := s.emulator.CursorPosition()
	fmt.Fprintf(&out, "\x1b[%d;%dH", min(at.Y, s.rows-1)+1, min(at.X, s.cols-1)+1)
	return out.String()
}
