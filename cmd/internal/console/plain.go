package console

import "io"

// Plain passes on text and leaves out everything that would move the cursor, change the
// terminal or talk to it: escape sequences and control characters other than newline and
// tab. A carriage return before a newline is dropped, and elsewhere starts a new line.
type Plain struct {
	Out io.Writer

	state   int
	pending bool // a carriage return, not decided yet
	out     []byte
}

// States of Plain beyond those of Modes' parser.
const (
	sequence = iota + 16 // CSI: up to a final byte
	text                 // OSC, DCS, APC, PM, SOS: up to BEL or ST
	textEnd              // after ESC within text
	single               // one more byte belongs to the escape
)

// Write implements io.Writer.
func (p *Plain) Write(data []byte) (int, error) {
	p.out = p.out[:0]
	for _, b := range data {
		p.next(b)
	}
	if _, err := p.Out.Write(p.out); err != nil {
		return 0, err
	}
	return len(data), nil
}

func (p *Plain) next(b byte) {
	switch p.state {
	case escape:
		p.afterEscape(b)
	case sequence:
		if b >= 0x40 && b <= 0x7e {
			p.state = plain
		}
	case text:
		switch b {
		case 0x07:
			p.state = plain
		case 0x1b:
			p.state = textEnd
		}
	case textEnd:
		p.state = text
		if b == '\\' {
			p.state = plain
		}
	case single:
		p.state = plain
	default:
		p.char(b)
	}
}

func (p *Plain) afterEscape(b byte) {
	switch b {
	case '[':
		p.state = sequence
	case ']', 'P', '_', '^', 'X':
		p.state = text
	case '(', ')', '*', '+', '#', '%', ' ':
		p.state = single
	default:
		p.state = plain
	}
}

func (p *Plain) char(b byte) {
	if p.pending && b != '\r' {
		p.pending = false
		p.out = append(p.out, '\n')
		if b == '\n' {
			return
		}
	}
	switch {
	case b == 0x1b:
		p.state = escape
	case b == '\r':
		p.pending = true
	case b == '\n' || b == '\t' || b >= 0x20 && b != 0x7f:
		p.out = append(p.out, b)
	}
}
