package console

import (
	"io"
	"slices"
	"strconv"
)

// resettable are the private modes (DECSET, as xterm's control sequences name them) that
// a program may leave switched on: application keys, the mouse in its kinds, focus
// events, the alternate screen, bracketed paste. 25, the cursor, is on by itself.
var resettable = []int{1, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004}

const cursorMode = 25

// Modes passes output on and remembers which modes it switched on.
type Modes struct {
	Out io.Writer

	state  int    // of the parser
	params []byte // of the sequence being read
	on     map[int]bool
	hidden bool // the cursor
	keypad bool // application keypad (DECKPAM)
}

// States of the parser. Only ESC [ ? digits;… h|l, ESC = and ESC > matter.
const (
	plain = iota
	escape
	bracket
	private
)

// Write implements io.Writer.
func (m *Modes) Write(data []byte) (int, error) {
	for _, b := range data {
		m.next(b)
	}
	return m.Out.Write(data)
}

func (m *Modes) next(b byte) {
	switch {
	case b == 0x1b:
		m.state = escape
	case m.state == escape:
		m.state = plain
		switch b {
		case '[':
			m.state = bracket
		case '=', '>':
			m.keypad = b == '='
		case 'c': // full reset
			m.on, m.hidden, m.keypad = nil, false, false
		}
	case m.state == bracket:
		m.state, m.params = plain, m.params[:0]
		if b == '?' {
			m.state = private
		}
	case m.state == private && (b >= '0' && b <= '9' || b == ';') && len(m.params) < 64:
		m.params = append(m.params, b)
	case m.state == private:
		m.state = plain
		if b == 'h' || b == 'l' {
			m.set(b == 'h')
		}
	}
}

func (m *Modes) set(on bool) {
	mode := 0
	apply := func() {
		switch {
		case mode == cursorMode:
			m.hidden = !on
		case slices.Contains(resettable, mode):
			if m.on == nil {
				m.on = map[int]bool{}
			}
			m.on[mode] = on
		}
		mode = 0
	}
	for _, b := range m.params {
		if b == ';' {
			apply()
			continue
		}
		mode = min(mode*10+int(b-'0'), 1<<16)
	}
	apply()
}

// Reinstate returns what switches on again, on another terminal, all that is on.
func (m *Modes) Reinstate() string {
	text := ""
	for _, mode := range resettable {
		if m.on[mode] {
			text += "\x1b[?" + strconv.Itoa(mode) + "h"
		}
	}
	if m.hidden {
		text += "\x1b[?" + strconv.Itoa(cursorMode) + "l"
	}
	if m.keypad {
		text += "\x1b="
	}
	return text
}

// Reset returns what switches off again all that is still on.
func (m *Modes) Reset() string {
	text := ""
	for _, mode := range resettable {
		if m.on[mode] {
			text += "\x1b[?" + strconv.Itoa(mode) + "l"
		}
	}
	if m.hidden {
		text += "\x1b[?" + strconv.Itoa(cursorMode) + "h"
	}
	if m.keypad {
		text += "\x1b>"
	}
	if text != "" {
		text += "\x1b[0m"
	}
	m.on, m.hidden, m.keypad = nil, false, false
	return text
}
