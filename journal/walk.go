package journal

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"

	"gloved.dev/internal/ident"
)

// A walker proves a log line by line. It can be resumed where it stopped, and
// its memory is one line, whatever the length of the file.
type walker struct {
	head   Head
	offset int64  // of the first byte not yet proven
	lines  uint64 // proven so far
	schema func(Entry) string

	sum hash.Hash
	hex [2 * sha256.Size]byte
}

func newWalker(schema func(Entry) string) *walker {
	return &walker{schema: schema, sum: sha256.New()}
}

// readers hold buffers of one line, which are too large to make for each walk.
var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, MaxRecord+1) }}

// stopped wraps an error of the caller's function, to tell it from ours.
type stopped struct{ err error }

func (s *stopped) Error() string { return s.err.Error() }

// run proves the lines of r, which begins at w.offset, and hands each to fn. It
// ends with nil at the end of r, with *TornError, with *CorruptError, with the
// reader's error, or with *stopped.
func (w *walker) run(r io.Reader, fn func(Entry) error) error {
	br := readers.Get().(*bufio.Reader)
	defer func() {
		br.Reset(nil)
		readers.Put(br)
	}()
	br.Reset(r)
	for {
		line, err := br.ReadSlice('\n')
		switch {
		case err == nil:
			if err := w.step(line[:len(line)-1], fn); err != nil {
				return err
			}
		case errors.Is(err, io.EOF) && len(line) == 0:
			return nil
		case errors.Is(err, io.EOF):
			return &TornError{Offset: w.offset, Bytes: int64(len(line)), Head: w.head}
		case errors.Is(err, bufio.ErrBufferFull):
			return w.overlong(br, int64(len(line)))
		default:
			return err
		}
	}
}

// overlong tells a line that is too long from a torn tail that is.
func (w *walker) overlong(br *bufio.Reader, n int64) error {
	for {
		part, err := br.ReadSlice('\n')
		n += int64(len(part))
		switch {
		case err == nil:
			return w.corrupt(ReasonMalformed, 0, errors.New("the line is longer than a record may be"))
		case errors.Is(err, io.EOF):
			return &TornError{Offset: w.offset, Bytes: n, Head: w.head}
		case errors.Is(err, bufio.ErrBufferFull):
		default:
			return err
		}
	}
}

func (w *walker) corrupt(reason Reason, seq uint64, err error) error {
	return &CorruptError{Line: w.lines + 1, Offset: w.offset, Seq: seq, Reason: reason, Err: err}
}

// step proves one line, advances and hands the entry on.
func (w *walker) step(line []byte, fn func(Entry) error) error {
	e, ok := w.quick(line)
	if !ok {
		var reason Reason
		var err error
		if e, reason, err = w.slow(line); reason != "" {
			return w.corrupt(reason, e.Seq, err)
		}
	}
	e.Offset = w.offset
	switch {
	case w.head.Seq != 0 && e.Seq == w.head.Seq:
		return w.corrupt(ReasonDuplicate, e.Seq, nil)
	case e.Seq != w.head.Seq+1:
		return w.corrupt(ReasonGap, e.Seq, nil)
	case w.head.Seq == 0 && e.Prev != "":
		return w.corrupt(ReasonNotGenesis, e.Seq, nil)
	case e.Prev != w.head.Hash:
		return w.corrupt(ReasonPrev, e.Seq, nil)
	}
	if fn != nil {
		if err := fn(e); err != nil {
			return &stopped{err}
		}
	}
	w.head = e.Head()
	w.offset += int64(len(line)) + 1
	w.lines++
	return nil
}

// quick proves a line that our own writers could have stored. Saying no only
// means that the slow way must judge.
func (w *walker) quick(line []byte) (Entry, bool) {
	lay, ok := scan(line, false)
	if !ok {
		return Entry{}, false
	}
	e := Entry{Line: line, canonical: line, lay: lay}
	if !w.common(&e) || !w.digest(&e) {
		return Entry{}, false
	}
	if w.schema != nil && w.schema(e) != "" {
		return Entry{}, false
	}
	return e, true
}

// common reads the journal's members of a canonical record.
func (w *walker) common(e *Entry) bool {
	for _, m := range e.lay {
		if m.end == 0 {
			return false
		}
	}
	at := func(i int) []byte { return e.canonical[e.lay[i].value:e.lay[i].end] }
	if string(at(memberAlg)) != `"`+Alg+`"` {
		return false
	}
	seq, err := strconv.ParseUint(string(at(memberSeq)), 10, 64)
	if err != nil || seq == 0 || seq > ident.MaxInt {
		return false
	}
	e.Seq = seq
	hash := at(memberHash)
	if len(hash) != 66 || !ident.Hex64(string(hash[1:65])) {
		return false
	}
	e.Hash = string(hash[1:65])
	switch prev := at(memberPrev); {
	case string(prev) == "null":
	case len(prev) == 66 && string(prev[1:65]) == w.head.Hash:
		e.Prev = w.head.Hash // the usual case, and no new string
	case len(prev) == 66 && ident.Hex64(string(prev[1:65])):
		e.Prev = string(prev[1:65])
	default:
		return false
	}
	ts := at(memberTS)
	if len(ts) < 2 || ts[0] != '"' {
		return false
	}
	var ok bool
	e.TS, ok = parseTimestamp(string(ts[1 : len(ts)-1]))
	return ok
}

// digest compares the record's hash with that of its canonical bytes without
// the hash member.
func (w *walker) digest(e *Entry) bool {
	m, b := e.lay[memberHash], e.canonical
	from, to := m.name, m.end
	switch {
	case b[to] == ',':
		to++
	case b[from-1] == ',':
		from--
	}
	w.sum.Reset()
	w.sum.Write(b[:from])
	w.sum.Write(b[to:])
	var sum [sha256.Size]byte
	hex.Encode(w.hex[:], w.sum.Sum(sum[:0]))
	return string(w.hex[:]) == e.Hash
}

// slow judges any line, in the order the format prescribes: shape, algorithm,
// schema, digest.
func (w *walker) slow(line []byte) (Entry, Reason, error) {
	var top map[string]jsontext.Value
	if err := json.Unmarshal(line, &top); err != nil || top == nil {
		if err == nil {
			err = errors.New("it is no JSON object")
		}
		return Entry{}, ReasonMalformed, err
	}
	e := Entry{Line: line, Seq: looseSeq(top["seq"])}
	var alg any
	if err := json.Unmarshal(top["alg"], &alg); err != nil || alg != Alg {
		return e, ReasonBadAlg, nil
	}
	if name := looseCommon(top); name != "" {
		return e, ReasonSchema, errors.New("the member " + name + " is missing or ill-formed")
	}
	canonical, err := jcs.Transform(line)
	if err != nil { // a number that has no canonical form, such as 1e400
		return e, ReasonHash, err
	}
	lay, ok := scan(canonical, true)
	e.canonical, e.lay = canonical, lay
	if !ok || !w.common(&e) {
		return e, ReasonSchema, errors.New("a member of the journal is ill-formed")
	}
	if w.schema != nil {
		if why := w.schema(e); why != "" {
			return e, ReasonSchema, errors.New(why)
		}
	}
	if !w.digest(&e) {
		return e, ReasonHash, nil
	}
	return e, "", nil
}

// looseSeq reads a sequence number in any JSON spelling of the integer; 0 means
// it is none.
func looseSeq(raw jsontext.Value) uint64 {
	if raw.Kind() != '0' {
		return 0
	}
	f, err := strconv.ParseFloat(string(bytes.TrimSpace(raw)), 64)
	if err != nil || f < 1 || f > ident.MaxInt || f != float64(uint64(f)) {
		return 0
	}
	return uint64(f)
}

// looseCommon names the first of the journal's members that is not what it must
// be, or "".
func looseCommon(top map[string]jsontext.Value) string {
	if looseSeq(top["seq"]) == 0 {
		return "seq"
	}
	text := func(name string) (s string) {
		if top[name].Kind() == '"' && json.Unmarshal(top[name], &s) != nil {
			s = ""
		}
		return s
	}
	if _, ok := parseTimestamp(text("ts")); !ok {
		return "ts"
	}
	if !ident.Hex64(text("hash")) {
		return "hash"
	}
	if prev := top["prev"]; prev.Kind() != 'n' && !ident.Hex64(text("prev")) {
		return "prev"
	}
	return ""
}
