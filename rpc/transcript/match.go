package transcript

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// number is a JSON number as it was written: 1 and 1.0 are different answers.
type number string

// maxDepth bounds the nesting of a frame, so that decoding cannot exhaust the stack.
const maxDepth = 256

// Difference is one place where an answer is not what was expected.
type Difference struct {
	Pointer string // JSON pointer (RFC 6901) into the frame; "" is the whole
	Want    string
	Got     string
}

func (d Difference) String() string {
	where := d.Pointer
	if where == "" {
		where = "(whole frame)"
	}
	return fmt.Sprintf("%s: want %s, got %s", where, d.Want, d.Got)
}

var matcherForm = regexp.MustCompile(`^<(?:([A-Za-z_][A-Za-z0-9_]*)=)?(int|hex64|base64|time|string|bool|any)>$`)

// Match compares a frame with what was expected of it. Matchers that carry a name add
// their value to vars, but only when the whole frame matches. It fails when either text
// is not exactly one JSON value without duplicate names.
func Match(want, got []byte, vars Vars) ([]Difference, error) {
	wantValue, err := decode(want)
	if err != nil {
		return nil, fmt.Errorf("the expected frame is not JSON: %w", err)
	}
	gotValue, err := decode(got)
	if err != nil {
		return nil, fmt.Errorf("the server wrote something that is not JSON: %w: %q", err, clip(string(got), 120))
	}
	m := matcher{kept: Vars{}}
	m.compare("", wantValue, gotValue)
	if len(m.differences) == 0 {
		maps.Copy(vars, m.kept)
	}
	return m.differences, nil
}

type matcher struct {
	differences []Difference
	kept        Vars
}

func (m *matcher) compare(pointer string, want, got any) {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			m.differ(pointer, "an object", render(got))
			return
		}
		m.compareObjects(pointer, want, object)
	case []any:
		array, ok := got.([]any)
		if !ok {
			m.differ(pointer, "an array", render(got))
			return
		}
		if len(want) != len(array) {
			m.differ(pointer, fmt.Sprintf("%d elements", len(want)), fmt.Sprintf("%d: %s", len(array), render(got)))
			return
		}
		for i := range want {
			m.compare(pointer+"/"+strconv.Itoa(i), want[i], array[i])
		}
	case string:
		if parts := matcherForm.FindStringSubmatch(want); parts != nil {
			m.compareKind(pointer, parts[1], parts[2], got)
			return
		}
		if want != got {
			m.differ(pointer, render(want), render(got))
		}
	default:
		if want != got {
			m.differ(pointer, render(want), render(got))
		}
	}
}

func (m *matcher) compareObjects(pointer string, want, got map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		value, ok := got[name]
		if !ok {
			m.differ(pointer+"/"+escapePointer(name), render(want[name]), "nothing (the member is missing)")
			continue
		}
		m.compare(pointer+"/"+escapePointer(name), want[name], value)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			m.differ(pointer+"/"+escapePointer(name), "nothing", render(got[name])+" (the member is extra)")
		}
	}
}

func (m *matcher) compareKind(pointer, name, kind string, got any) {
	if !kindHolds(kind, got) {
		m.differ(pointer, "<"+kind+">", render(got))
		return
	}
	if name == "" {
		return
	}
	switch got := got.(type) {
	case string:
		m.kept[name] = got
	default:
		m.kept[name] = render(got)
	}
}

func kindHolds(kind string, got any) bool {
	text, isString := got.(string)
	switch kind {
	case "any":
		return true
	case "string":
		return isString
	case "bool":
		_, isBool := got.(bool)
		return isBool
	case "int":
		return isInteger(got)
	case "hex64":
		return isString && isHex64(text)
	case "base64":
		_, err := base64.StdEncoding.Strict().DecodeString(text)
		return isString && err == nil
	case "time":
		if isString {
			_, err := time.Parse(time.RFC3339, text)
			return err == nil
		}
		return isInteger(got) && plausibleMillis(got)
	}
	return false
}

func isHex64(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

func isInteger(value any) bool {
	n, ok := value.(number)
	if !ok {
		return false
	}
	_, err := strconv.ParseInt(string(n), 10, 64)
	return err == nil
}

// plausibleMillis accepts Unix milliseconds from 2001 to 2286, so that seconds, or
// nanoseconds, given by mistake do not pass for a time.
func plausibleMillis(value any) bool {
	millis, err := strconv.ParseInt(string(value.(number)), 10, 64)
	return err == nil && millis >= 1_000_000_000_000 && millis <= 9_999_999_999_999
}

func (m *matcher) differ(pointer, want, got string) {
	m.differences = append(m.differences, Difference{Pointer: pointer, Want: clip(want, 300), Got: clip(got, 300)})
}

func escapePointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func render(value any) string {
	if n, ok := value.(number); ok {
		return string(n)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(plain(value)); err != nil {
		return fmt.Sprintf("%v", value)
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// plain turns the numbers within value into what encoding/json writes unchanged.
func plain(value any) any {
	switch value := value.(type) {
	case number:
		return json.Number(value)
	case []any:
		out := make([]any, len(value))
		for i := range value {
			out[i] = plain(value[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(value))
		for name := range value {
			out[name] = plain(value[name])
		}
		return out
	}
	return value
}

// decode reads exactly one JSON value, refusing duplicate names and invalid UTF-8.
func decode(data []byte) (any, error) {
	decoder := jsontext.NewDecoder(bytes.NewReader(data))
	value, err := decodeValue(decoder, 0)
	if err != nil {
		return nil, err
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("more than one value")
	}
	return value, nil
}

func decodeValue(decoder *jsontext.Decoder, depth int) (any, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	token, err := decoder.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		return number(token.String()), nil
	case '[':
		array := []any{}
		for decoder.PeekKind() != ']' {
			value, err := decodeValue(decoder, depth+1)
			if err != nil {
				return nil, err
			}
			array = append(array, value)
		}
		_, err := decoder.ReadToken()
		return array, err
	default:
		object := map[string]any{}
		for decoder.PeekKind() != '}' {
			name, err := decoder.ReadToken()
			if err != nil {
				return nil, err
			}
			key := name.String()
			if object[key], err = decodeValue(decoder, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := decoder.ReadToken()
		return object, err
	}
}
