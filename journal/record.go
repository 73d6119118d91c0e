package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/strictjson"
)

// MaxRecord bounds one record in bytes, its LF not counted.
const MaxRecord = 1 << 20

// Alg is the only algorithm a record may name.
const Alg = "sha256/jcs"

// tsLayout is the form in which ts is written: always UTC and milliseconds.
const tsLayout = "2006-01-02T15:04:05.000Z"

// A Head names the last record of a log. The zero Head is an empty log.
type Head struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// An Entry is one proven record. Line and the slices derived from it are valid
// only during the callback that received the entry, unless it came from Append,
// Read or Clone.
type Entry struct {
	Seq    uint64
	Prev   string // "" on the first record
	Hash   string
	TS     time.Time
	Offset int64  // of the line's first byte in the file
	Line   []byte // as stored, without LF

	canonical []byte
	lay       layout
}

// Head returns the head of a log that ends with e.
func (e Entry) Head() Head { return Head{Seq: e.Seq, Hash: e.Hash} }

// Canonical returns the RFC 8785 form of the whole record; for records of our
// own writers that is Line.
func (e Entry) Canonical() []byte { return e.canonical }

// Body returns the canonical record without the members of the journal.
func (e Entry) Body() []byte {
	out := make([]byte, 0, len(e.canonical))
	out = append(out, '{')
	at := 1
	for _, m := range e.lay {
		out = appendMembers(out, bytes.Trim(e.canonical[at:m.name], ","))
		at = m.end
	}
	out = appendMembers(out, bytes.Trim(e.canonical[at:len(e.canonical)-1], ","))
	return append(out, '}')
}

func appendMembers(out, part []byte) []byte {
	if len(part) == 0 {
		return out
	}
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(out, part...)
}

// Decode reads the body into v, which must be a pointer to a zero value. Names
// are case-sensitive, unknown and missing members are errors: the decoded value
// must encode to the very bytes of the body.
func (e Entry) Decode(v any) error {
	body := e.Body()
	if err := json.Unmarshal(body, v, json.RejectUnknownMembers(true)); err != nil {
		return fmt.Errorf("record %d: %w", e.Seq, err)
	}
	again, err := strictjson.Canonical(v)
	if err != nil {
		return fmt.Errorf("record %d: %w", e.Seq, err)
	}
	if !bytes.Equal(again, body) {
		return fmt.Errorf("record %d: the body does not encode to itself", e.Seq)
	}
	return nil
}

// Clone returns a copy of e that stays valid.
func (e Entry) Clone() Entry {
	same := len(e.Line) > 0 && len(e.canonical) > 0 && &e.Line[0] == &e.canonical[0]
	e.Line = bytes.Clone(e.Line)
	if same {
		e.canonical = e.Line
	} else {
		e.canonical = bytes.Clone(e.canonical)
	}
	return e
}

// A draft is a canonical body cut at the places where the journal's members go,
// so that the writer need only join pieces.
type draft struct {
	parts [members + 1][]byte
	size  int
}

// newDraft puts body into canonical form. The body's own members may not be
// named like the journal's.
func newDraft(body any) (draft, error) {
	canonical, err := strictjson.Canonical(body)
	if err != nil {
		return draft{}, &Error{Code: CodeInvalidBody, Err: err}
	}
	if len(canonical) > MaxRecord {
		return draft{}, &Error{Code: CodeTooLarge, Detail: fmt.Sprintf("a body of %d bytes", len(canonical))}
	}
	if canonical[0] != '{' {
		return draft{}, &Error{Code: CodeInvalidBody, Detail: "it is no JSON object"}
	}
	return cut(canonical)
}

// cut divides the members of a canonical object. Raw bytes compare like decoded
// names here: what a name escapes decodes to something below any letter.
func cut(canonical []byte) (draft, error) {
	d := draft{size: len(canonical)}
	s := scanner{b: canonical, i: 1, trusted: true}
	part, start := 0, 1
	for s.peek() == '"' {
		at := s.i
		s.str()
		name := string(canonical[at+1 : s.i-1])
		for part < members && name >= memberNames[part] {
			if name == memberNames[part] {
				return draft{}, &Error{Code: CodeInvalidBody, Detail: "the member " + name + " belongs to the journal"}
			}
			d.parts[part] = bytes.Trim(canonical[start:at], ",")
			part, start = part+1, at
		}
		s.i++
		s.value(1)
		if s.peek() == ',' {
			s.i++
		}
	}
	d.parts[part] = bytes.Trim(canonical[start:len(canonical)-1], ",")
	return d, nil
}

// record joins the draft with the journal's members into a stored line, LF
// included, and returns the entry that line holds.
func (d draft) record(head Head, ts time.Time, offset int64) (Entry, []byte, error) {
	ts = ts.UTC().Truncate(time.Millisecond)
	if ts.Year() < 0 || ts.Year() > 9999 {
		return Entry{}, nil, &Error{Code: CodeInvalidBody, Detail: "the clock is outside RFC 3339"}
	}
	e := Entry{Seq: head.Seq + 1, Prev: head.Hash, TS: ts, Offset: offset}
	prev := `"prev":null`
	if e.Prev != "" {
		prev = `"prev":"` + e.Prev + `"`
	}
	own := [members]string{
		memberAlg:  `"alg":"` + Alg + `"`,
		memberPrev: prev,
		memberSeq:  `"seq":` + strconv.FormatUint(e.Seq, 10),
		memberTS:   `"ts":"` + ts.Format(tsLayout) + `"`,
	}
	unhashed, _ := d.join(own)
	sum := sha256.Sum256(unhashed)
	e.Hash = hex.EncodeToString(sum[:])
	own[memberHash] = `"hash":"` + e.Hash + `"`
	line, lay := d.join(own)
	if len(line) > MaxRecord {
		return Entry{}, nil, &Error{Code: CodeTooLarge, Detail: fmt.Sprintf("a record of %d bytes", len(line))}
	}
	stored := append(line, '\n')
	e.Line, e.lay = stored[:len(line):len(line)], lay
	e.canonical = e.Line
	return e, stored, nil
}

func (d draft) join(own [members]string) ([]byte, layout) {
	var lay layout
	out := make([]byte, 0, d.size+320)
	out = append(out, '{')
	for i, part := range d.parts {
		out = appendMembers(out, part)
		if i == members || own[i] == "" {
			continue
		}
		out = appendMembers(out, []byte(own[i]))
		start := len(out) - len(own[i])
		lay[i] = span{start, start + len(memberNames[i]) + 3, len(out)}
	}
	return append(out, '}'), lay
}
