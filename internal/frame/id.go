package frame

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
)

// MaxIDBytes bounds a string id.
const MaxIDBytes = 128

// An ID is a JSON-RPC request id: an integer within ±(2^53−1), a string of 1 to
// 128 bytes, or, as the zero value, null. IDs compare with ==; 1 and "1" differ.
type ID struct {
	kind byte // 0 null, 'i' integer, 's' string
	num  int64
	str  string
}

// IntID returns the ID for n.
func IntID(n int64) ID { return ID{kind: 'i', num: n} }

// StringID returns the ID for s.
func StringID(s string) ID { return ID{kind: 's', str: s} }

// IsNull reports whether the ID is null: there was none, or none could be read.
func (id ID) IsNull() bool { return id.kind == 0 }

// Int returns the number of an integer ID.
func (id ID) Int() (n int64, ok bool) { return id.num, id.kind == 'i' }

// String returns the ID as JSON text.
func (id ID) String() string { return string(id.appendJSON(nil)) }

// Value returns the ID as a value that marshals to it: int64, string or nil.
func (id ID) Value() any {
	switch id.kind {
	case 'i':
		return id.num
	case 's':
		return id.str
	}
	return nil
}

func (id ID) appendJSON(b []byte) []byte {
	switch id.kind {
	case 'i':
		return strconv.AppendInt(b, id.num, 10)
	case 's':
		b, _ = jsontext.AppendQuote(b, id.str) // strings in IDs are valid UTF-8
		return b
	}
	return append(b, "null"...)
}

// tag and untag carry an ID through the JSON-RPC library, whose own numeric ids
// are unsigned: −3 would come back as 2^64−3. A tagged ID is always a string.
func (id ID) tag() string {
	if id.kind == 's' {
		return "s" + id.str
	}
	return "i" + strconv.FormatInt(id.num, 10)
}

func untag(s string) (ID, bool) {
	if s == "" {
		return ID{}, false
	}
	if s[0] == 's' {
		return StringID(s[1:]), true
	}
	n, err := strconv.ParseInt(s[1:], 10, 64)
	return IntID(n), err == nil && s[0] == 'i'
}

// parseID reads an id member. Only the plain integer form counts: 1.0 and 1e0
// are refused with the fractions they resemble.
func parseID(v jsontext.Value) (ID, bool) {
	switch v.Kind() {
	case jsontext.KindNumber:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || n > ident.MaxInt || n < -ident.MaxInt || string(v) == "-0" {
			return ID{}, false
		}
		return IntID(n), true
	case jsontext.KindString:
		s, err := jsontext.AppendUnquote(nil, v)
		if err != nil || len(s) < 1 || len(s) > MaxIDBytes {
			return ID{}, false
		}
		return StringID(string(s)), true
	}
	return ID{}, false
}
