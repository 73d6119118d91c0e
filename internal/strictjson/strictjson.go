// Package strictjson is the one door for JSON that comes from outside, and the
// one place where canonical bytes are made.
//
// Decoding here means: the text is valid UTF-8 and a single JSON value; names
// are matched exactly and occur once; no member is unknown, none that the Go
// type requires is missing, and none is null unless the type says so; integers
// stay within ±(2^53−1) so that every implementation reads the same number;
// strings hold no NUL; size and depth are bounded before anything is built.
// encoding/json accepts all of these, and each has been used to make two
// readers see two different documents.
//
// A struct member is required unless its tag says omitempty or omitzero.
//
// Canonical means RFC 8785 (JCS). It is not for streaming documents larger
// than memory, nor for pretty printing.
package strictjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/gowebpki/jcs"

	"gloved.dev/internal/ident"
)

const (
	// DefaultMaxBytes bounds a document when Limits does not: 1 MiB.
	DefaultMaxBytes = 1 << 20
	// DefaultMaxDepth bounds nesting when Limits does not.
	DefaultMaxDepth = 64
)

// Limits bound one document. Zero members mean the defaults.
type Limits struct {
	MaxBytes int // size of the text in bytes
	MaxDepth int // nested arrays and objects
}

func (l Limits) maxBytes() int {
	if l.MaxBytes > 0 {
		return l.MaxBytes
	}
	return DefaultMaxBytes
}

func (l Limits) maxDepth() int {
	if l.MaxDepth > 0 {
		return l.MaxDepth
	}
	return DefaultMaxDepth
}

// Codes of Error.
const (
	CodeTooLarge      = "too_large"
	CodeTooDeep       = "too_deep"
	CodeSyntax        = "syntax"
	CodeDuplicateName = "duplicate_name"
	CodeUnknownMember = "unknown_member"
	CodeInvalidUTF8   = "invalid_utf8"
	CodeNUL           = "nul"
	CodeNumberRange   = "number_range"
	CodeType          = "type"
	CodeTrailing      = "trailing"
	CodeMissing       = "missing"
	CodeNull          = "null"
)

// An Error says what is wrong with a document and where. Offset is in bytes
// from its start, -1 where only the place in the tree is known; Pointer is an
// RFC 6901 JSON pointer.
type Error struct {
	Code    string
	Offset  int64
	Pointer string
	Detail  string
	Err     error
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("json: " + e.Code)
	if e.Pointer != "" {
		fmt.Fprintf(&b, " at %q", e.Pointer)
	} else if e.Offset >= 0 {
		fmt.Fprintf(&b, " at byte %d", e.Offset)
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Decode reads the single JSON value in data into v under the rules of the
// package. v must be a pointer to a zero value. Errors are of type *Error.
func Decode(data []byte, v any, lim Limits) error {
	if err := Check(data, lim); err != nil {
		return err
	}
	if err := json.Unmarshal(data, v, json.RejectUnknownMembers(true)); err != nil {
		return semantic(err)
	}
	return complete(data, v)
}

// Check applies every rule that needs no Go type: size, UTF-8, syntax, depth,
// duplicate names, NUL and number range.
func Check(data []byte, lim Limits) error {
	if len(data) > lim.maxBytes() {
		return &Error{Code: CodeTooLarge, Offset: int64(lim.maxBytes()),
			Detail: fmt.Sprintf("%d bytes, at most %d are accepted", len(data), lim.maxBytes())}
	}
	if at := firstInvalidUTF8(data); at >= 0 {
		return &Error{Code: CodeInvalidUTF8, Offset: int64(at)}
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return syntactic(err)
		}
		if d.StackDepth() > lim.maxDepth() {
			return &Error{Code: CodeTooDeep, Offset: d.InputOffset(),
				Detail: fmt.Sprintf("more than %d levels", lim.maxDepth())}
		}
		if err := checkToken(tok, d); err != nil {
			return err
		}
		if d.StackDepth() == 0 {
			break
		}
	}
	rest := data[d.InputOffset():]
	if trimmed := bytes.TrimLeft(rest, " \t\r\n"); len(trimmed) > 0 {
		return &Error{Code: CodeTrailing, Offset: int64(len(data) - len(trimmed)),
			Detail: "bytes follow the value"}
	}
	return nil
}

func firstInvalidUTF8(data []byte) int {
	if utf8.Valid(data) {
		return -1
	}
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return -1
}

func checkToken(tok jsontext.Token, d *jsontext.Decoder) error {
	switch tok.Kind() {
	case jsontext.KindString:
		if strings.IndexByte(tok.String(), 0) >= 0 {
			return &Error{Code: CodeNUL, Offset: d.InputOffset(), Pointer: string(d.StackPointer())}
		}
	case jsontext.KindNumber:
		text := tok.String()
		if !numberInRange(text) {
			return &Error{Code: CodeNumberRange, Offset: d.InputOffset(), Pointer: string(d.StackPointer()),
				Detail: "integers must lie within ±(2^53−1) and every number must be finite"}
		}
	}
	return nil
}

// numberInRange tells whether every reader sees the same value in text. An
// integer written with an exponent counts as the integer it denotes.
func numberInRange(text string) bool {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return false
	}
	if !strings.ContainsAny(text, ".eE") {
		n, err := strconv.ParseInt(text, 10, 64)
		return err == nil && n <= ident.MaxInt && n >= -ident.MaxInt
	}
	return f != math.Trunc(f) || math.Abs(f) <= ident.MaxInt
}

func syntactic(err error) error {
	e := &Error{Code: CodeSyntax, Offset: -1, Err: err}
	var s *jsontext.SyntacticError
	if errors.As(err, &s) {
		e.Offset, e.Pointer = s.ByteOffset, string(s.JSONPointer)
	}
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		e.Code = CodeDuplicateName
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		e.Detail = "the text ends early"
	case s != nil && s.Err != nil:
		e.Detail = s.Err.Error()
	}
	return e
}

func semantic(err error) error {
	e := &Error{Code: CodeType, Offset: -1, Err: err}
	var s *json.SemanticError
	if errors.As(err, &s) {
		e.Offset, e.Pointer = s.ByteOffset, string(s.JSONPointer)
		switch {
		case errors.Is(err, json.ErrUnknownName):
			e.Code = CodeUnknownMember
		case s.GoType != nil:
			e.Detail = fmt.Sprintf("a JSON %s does not fit here", kindName(s.JSONKind))
		}
	}
	var inner *Error
	if errors.As(err, &inner) {
		return inner
	}
	return e
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindNull:
		return "null"
	case jsontext.KindFalse, jsontext.KindTrue:
		return "boolean"
	case jsontext.KindString:
		return "string"
	case jsontext.KindNumber:
		return "number"
	case jsontext.KindBeginObject:
		return "object"
	case jsontext.KindBeginArray:
		return "array"
	}
	return "value"
}

// complete finds members that v's type requires but data does not have,
// nulls that silently became zero values, and texts that are not the one text of
// their value, by encoding v again: whatever the encoding has, the document must
// have had too.
func complete(data []byte, v any) error {
	again, err := json.Marshal(v)
	if err != nil {
		return &Error{Code: CodeType, Offset: -1, Err: err, Detail: err.Error()}
	}
	if bytes.Equal(again, data) {
		return nil // as for all that our own encoder wrote: there is no difference
	}
	var got, want any
	if err := json.Unmarshal(data, &got); err != nil {
		return syntactic(err)
	}
	if err := json.Unmarshal(again, &want); err != nil {
		return syntactic(err)
	}
	return compare("", got, want)
}

func compare(pointer string, got, want any) error {
	if got == nil && want != nil {
		return &Error{Code: CodeNull, Offset: -1, Pointer: pointer, Detail: "null is no value here; leave the member out"}
	}
	switch want := want.(type) {
	case string:
		// Bytes as base64 with stray bits at the end, for one: two texts for one value.
		if got, ok := got.(string); ok && got != want {
			return &Error{Code: CodeType, Offset: -1, Pointer: pointer, Detail: "the value has another, canonical form"}
		}
	case map[string]any:
		got, ok := got.(map[string]any)
		if !ok {
			return nil
		}
		for name, w := range want {
			g, ok := got[name]
			if !ok {
				return &Error{Code: CodeMissing, Offset: -1, Pointer: pointer + "/" + escape(name),
					Detail: "the member is required"}
			}
			if err := compare(pointer+"/"+escape(name), g, w); err != nil {
				return err
			}
		}
		for name, g := range got {
			if _, ok := want[name]; !ok && g == nil {
				return &Error{Code: CodeNull, Offset: -1, Pointer: pointer + "/" + escape(name),
					Detail: "null is no value here; leave the member out"}
			}
		}
	case []any:
		got, ok := got.([]any)
		if !ok || len(got) != len(want) {
			return nil
		}
		for i := range want {
			if err := compare(pointer+"/"+strconv.Itoa(i), got[i], want[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func escape(name string) string { return pointerEscapes.Replace(name) }

// Canonical returns the RFC 8785 form of v. Values that have none (integers
// beyond ±(2^53−1), invalid UTF-8) are errors.
func Canonical(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, &Error{Code: CodeType, Offset: -1, Err: err, Detail: err.Error()}
	}
	return CanonicalBytes(raw)
}

// CanonicalBytes returns the RFC 8785 form of the JSON text raw after the same
// checks as Check, but without a bound on size: callers bound what they read.
func CanonicalBytes(raw []byte) ([]byte, error) {
	if err := Check(raw, Limits{MaxBytes: math.MaxInt}); err != nil {
		return nil, err
	}
	out, err := jcs.Transform(raw)
	if err != nil {
		return nil, &Error{Code: CodeSyntax, Offset: -1, Err: err, Detail: err.Error()}
	}
	return out, nil
}

// IsCanonical reports whether raw is exactly its own RFC 8785 form.
func IsCanonical(raw []byte) bool {
	out, err := CanonicalBytes(raw)
	return err == nil && bytes.Equal(out, raw)
}
