package console

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

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
	spent      time.Duration
	clamp      clamp
}

const (
	// maxEmulation bounds the time one screen may take: what a session writes is not to
	// be trusted, and a hostile one could keep an emulator busy for ever.
	maxEmulation = 2 * time.Second
	// emulationStep is how much is emulated between two looks at the time.
	emulationStep = 512
)

// NewScreen returns an empty screen of a size.
func NewScreen(rows, cols int) *Screen {
	s := &Screen{emulator: vt.NewEmulator(cols, rows), rows: rows, cols: cols, clamp: newClamp(rows, cols)}
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
	began := time.Now()
	for rest := data; len(rest) > 0 && !s.broken; rest = rest[min(emulationStep, len(rest)):] {
		if _, err := s.emulator.Write(s.clamp.filter(rest[:min(emulationStep, len(rest))])); err != nil {
			return 0, err
		}
		s.broken = s.spent+time.Since(began) > maxEmulation
	}
	s.spent += time.Since(began)
	return len(data), nil
}

// clamp bounds the numbers of control sequences, since an emulator does an instruction as
// often as it is told to. A count beyond the screen's size does what the size does, and
// no colour is above 255; the modes of private sequences have numbers of their own, and
// are not counts.
type clamp struct {
	state  int
	most   int // of a number that is no mode
	number int // being read; -1 between numbers
	before byte
	out    []byte
}

const (
	maxColour = 255
	maxMode   = 9999
)

func newClamp(rows, cols int) clamp { return clamp{most: max(rows, cols, maxColour), number: -1} }

func (c *clamp) filter(data []byte) []byte {
	c.out = c.out[:0]
	for _, b := range data {
		digit := b >= '0' && b <= '9'
		switch {
		case b == 0x1b:
			c.settle()
			c.state = escape
		case b == 0x9b && c.before < 0x80 || c.state == escape && b == '[': // CSI, but no part of a letter
			c.settle()
			c.state = bracket
		case (c.state == bracket || c.state == private) && digit:
			c.number = min(max(c.number, 0)*10+int(b-'0'), maxMode)
			c.before = b
			continue
		case (c.state == bracket || c.state == private) && (b < 0x20 && b != 0x18 && b != 0x1a || b == 0x7f):
			// A control character inside a sequence is obeyed at once, and the sequence goes on.
		case c.state == bracket && b >= '<' && b <= '?':
			c.state = private
		case (c.state == bracket || c.state == private) && b >= 0x20 && b <= 0x3f:
			c.settle()
		default:
			c.settle()
			c.state = plain
		}
		c.before = b
		c.out = append(c.out, b)
	}
	return c.out
}

// settle writes the number that has ended.
func (c *clamp) settle() {
	if c.number < 0 {
		return
	}
	if c.state != private {
		c.number = min(c.number, c.most)
	}
	c.out = strconv.AppendInt(c.out, int64(c.number), 10)
	c.number = -1
}

// Close ends the emulation: the emulator's answers end, and with them who reads them.
// Its own Close must not be called beside a Read.
func (s *Screen) Close() error {
	if answers, ok := s.emulator.InputPipe().(io.Closer); ok {
		return answers.Close()
	}
	return nil
}

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
