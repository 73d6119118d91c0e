package journal

import "unicode/utf8"

// maxDepth bounds the nesting of what the quick scanner walks; deeper records
// take the slow way.
const maxDepth = 64

// The journal's own members, in canonical order. Their names index layout.
const (
	memberAlg = iota
	memberHash
	memberPrev
	memberSeq
	memberTS
	members
)

var memberNames = [members]string{"alg", "hash", "prev", "seq", "ts"}

// A span locates one top-level member: b[name:end] is the whole member and
// b[value:end] its value. A zero span is an absent member.
type span struct{ name, value, end int }

// A layout locates the journal's members in a compact record.
type layout [members]span

// A scanner walks one compact JSON object. It accepts only what is surely in
// RFC 8785 form, and says no to everything it is not sure of: rejection is not
// a verdict, it only sends the record the slow way through JCS. With trusted
// set the text is known to be canonical and only positions are wanted.
type scanner struct {
	b       []byte
	i       int
	trusted bool
	lay     layout
}

// scan returns the layout of b and whether b is surely canonical.
func scan(b []byte, trusted bool) (layout, bool) {
	s := scanner{b: b, trusted: trusted}
	ok := len(b) > 0 && b[0] == '{' && s.object(1) && s.i == len(b)
	return s.lay, ok
}

func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) value(depth int) bool {
	switch c := s.peek(); {
	case c == '"':
		_, ok := s.str()
		return ok
	case c == '{':
		return s.object(depth + 1)
	case c == '[':
		return s.array(depth + 1)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return false
}

func (s *scanner) literal(word string) bool {
	if len(s.b)-s.i < len(word) || string(s.b[s.i:s.i+len(word)]) != word {
		return false
	}
	s.i += len(word)
	return true
}

// number accepts integers of at most 15 digits, whose shortest form is certain.
func (s *scanner) number() bool {
	start := s.i
	if s.trusted {
		for s.i < len(s.b) && isNumberByte(s.b[s.i]) {
			s.i++
		}
		return true
	}
	if s.peek() == '-' {
		s.i++
	}
	digits := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	n := s.i - digits
	if n == 0 || n > 15 || s.b[digits] == '0' && (n > 1 || digits > start) {
		return false
	}
	c := s.peek()
	return c == ',' || c == '}' || c == ']'
}

func isNumberByte(c byte) bool {
	return c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.' || c == 'e'
}

// plain marks the bytes a canonical string holds unescaped and which need no
// further look.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x80; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// str walks a string and reports whether it held nothing but plain ASCII.
func (s *scanner) str() (ascii, ok bool) {
	s.i++
	start, b := s.i, s.b
	ascii = true
	i := s.i
	for i < len(b) {
		c := b[i]
		if plain[c] {
			i++
			continue
		}
		switch {
		case c == '"':
			s.i = i + 1
			return ascii, ascii || s.trusted || utf8.Valid(b[start:i])
		case c >= 0x80:
			ascii = false
			i++
		case c == '\\':
			ascii = false
			n := escapeLen(b[i:])
			if n == 0 {
				return false, false
			}
			i += n
		default:
			return false, false
		}
	}
	return false, false
}

// escapeLen is the length of the canonical escape that b begins with, or 0.
// RFC 8785 3.2.2.2: the two-character forms where they exist, lowercase \u00xx
// for the other control characters, and no other escape at all.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
	default:
		return 0
	}
	if len(b) < 6 || b[2] != '0' || b[3] != '0' || b[4] != '0' && b[4] != '1' {
		return 0
	}
	low := b[5]
	if !(low >= '0' && low <= '9' || low >= 'a' && low <= 'f') {
		return 0
	}
	if b[4] == '0' && (low == '8' || low == '9' || low == 'a' || low == 'c' || low == 'd') {
		return 0
	}
	return 6
}

func (s *scanner) array(depth int) bool {
	if depth > maxDepth && !s.trusted {
		return false
	}
	s.i++
	if s.peek() == ']' {
		s.i++
		return true
	}
	for {
		if !s.value(depth) {
			return false
		}
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return true
		default:
			return false
		}
	}
}

// object walks an object whose names ascend. Names that are not plain ASCII are
// left to the slow way, so that byte order is the UTF-16 order RFC 8785 wants.
func (s *scanner) object(depth int) bool {
	if depth > maxDepth && !s.trusted {
		return false
	}
	s.i++
	if s.peek() == '}' {
		s.i++
		return true
	}
	var last []byte
	for first := true; ; first = false {
		if s.peek() != '"' {
			return false
		}
		start := s.i
		ascii, ok := s.str()
		if !ok || !ascii && !s.trusted {
			return false
		}
		name := s.b[start+1 : s.i-1]
		if !first && !s.trusted && string(last) >= string(name) {
			return false
		}
		last = name
		if s.peek() != ':' {
			return false
		}
		s.i++
		value := s.i
		if !s.value(depth) {
			return false
		}
		if depth == 1 {
			s.note(name, span{start, value, s.i})
		}
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return true
		default:
			return false
		}
	}
}

func (s *scanner) note(name []byte, at span) {
	if len(name) > 4 {
		return
	}
	for i, known := range memberNames {
		if string(name) == known {
			s.lay[i] = at
		}
	}
}
