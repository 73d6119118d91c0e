package frame

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/strictjson"
)

// MaxMethodBytes bounds a method name.
const MaxMethodBytes = 128

// A Request is a call, or, when its ID is null, a notification.
type Request struct {
	ID     ID
	Method string
	Params []byte // a JSON object as the peer wrote it, or nil when absent
}

// A Response answers a call. Exactly one of Result and Error is set. Its ID is
// null only when Error is set: the peer could not read a request's id.
type Response struct {
	ID     ID
	Result []byte
	Error  *ResponseError
}

// A ResponseError is the error member of a Response.
type ResponseError struct {
	Number  int64
	Message string
	Data    []byte // a JSON value, or nil when absent
}

// A Message is what one frame holds: exactly one of its members is set.
type Message struct {
	Request  *Request
	Response *Response
}

// Parse checks a frame and returns its message, which shares no memory with
// line. Errors are of type *Error; their ID is the message's own where it could
// be read.
func Parse(line []byte) (Message, error) {
	if err := check(line); err != nil {
		return Message{}, err
	}
	m, err := split(line)
	if err != nil {
		return Message{}, err
	}
	id, hasID := ID{}, false
	if raw, ok := m["id"]; ok {
		if id, hasID = parseID(raw); !hasID && !(raw.Kind() == jsontext.KindNull && m["error"] != nil) {
			return Message{}, invalid(ID{}, "an id is an integer within ±(2^53−1) or a string of 1 to 128 bytes")
		}
	}
	if string(m["jsonrpc"]) != `"2.0"` {
		return Message{}, invalid(id, `the member jsonrpc must be "2.0"`)
	}
	if _, ok := m["method"]; ok {
		req, err := request(id, m)
		return Message{Request: req}, err
	}
	resp, err := response(id, m)
	return Message{Response: resp}, err
}

func check(line []byte) error {
	body := bytes.TrimLeft(line, " \t\r\n")
	if len(body) > 0 && body[0] == '[' {
		return &Error{Number: NumberInvalidRequest, Code: CodeBatch, Message: "batches are not supported; send one object a line"}
	}
	if len(body) == 0 || body[0] != '{' {
		message := "a frame is one JSON object"
		if len(body) >= 15 && bytes.EqualFold(body[:15], []byte("content-length:")) {
			message = "a frame is one JSON object on one line; Content-Length headers are not used"
		}
		return parseError(strictjson.CodeSyntax, message)
	}
	err := strictjson.Check(line, strictjson.Limits{MaxBytes: len(line)})
	var se *strictjson.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &se):
		return parseError(se.Code, "the frame is not strict JSON")
	}
	return parseError("", "the frame is not strict JSON")
}

// decoders are kept because a decoder is larger than most frames.
var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(nothing) }}

var nothing = strings.NewReader("")

// split returns the members of the object in line, each a copy. The names are
// distinct: check has seen to that.
func split(line []byte) (map[string]jsontext.Value, error) {
	d := decoders.Get().(*jsontext.Decoder)
	d.Reset(bytes.NewBuffer(line))
	defer func() {
		d.Reset(nothing) // let go of line
		decoders.Put(d)
	}()
	if _, err := d.ReadToken(); err != nil {
		return nil, parseError(strictjson.CodeSyntax, "the frame is not strict JSON")
	}
	m := make(map[string]jsontext.Value, 4)
	for d.PeekKind() != jsontext.KindEndObject {
		name, err := d.ReadToken()
		if err != nil {
			return nil, parseError(strictjson.CodeSyntax, "the frame is not strict JSON")
		}
		key := name.String()
		value, err := d.ReadValue()
		if err != nil {
			return nil, parseError(strictjson.CodeSyntax, "the frame is not strict JSON")
		}
		m[key] = bytes.Clone(value)
	}
	return m, nil
}

func request(id ID, m map[string]jsontext.Value) (*Request, error) {
	if !only(m, "jsonrpc", "id", "method", "params") {
		return nil, invalid(id, "a request has the members jsonrpc, id, method and params, and no other")
	}
	method, ok := text(m["method"])
	if !ok || len(method) < 1 || len(method) > MaxMethodBytes {
		return nil, invalid(id, "a method is a string of 1 to 128 bytes")
	}
	params, ok := m["params"]
	if ok && params.Kind() != jsontext.KindBeginObject {
		return nil, &Error{Number: NumberInvalidParams, Code: CodeInvalidParams, ID: id,
			Message: "params must be an object"}
	}
	return &Request{ID: id, Method: method, Params: params}, nil
}

func response(id ID, m map[string]jsontext.Value) (*Response, error) {
	if !only(m, "jsonrpc", "id", "result", "error") {
		return nil, invalid(id, "the message is neither a request nor a response")
	}
	if _, ok := m["id"]; !ok {
		return nil, invalid(id, "a response has an id")
	}
	result, isResult := m["result"]
	fault, isError := m["error"]
	if isResult == isError {
		return nil, invalid(id, "a response has either a result or an error")
	}
	if isResult {
		return &Response{ID: id, Result: result}, nil
	}
	e, ok := responseError(fault)
	if !ok {
		return nil, invalid(id, "an error has the members code, message and perhaps data")
	}
	return &Response{ID: id, Error: e}, nil
}

func responseError(raw jsontext.Value) (*ResponseError, bool) {
	if raw.Kind() != jsontext.KindBeginObject {
		return nil, false
	}
	m, err := split(raw)
	if err != nil || !only(m, "code", "message", "data") {
		return nil, false
	}
	number, err := strconv.ParseInt(string(m["code"]), 10, 32)
	if err != nil {
		return nil, false
	}
	message, ok := text(m["message"])
	return &ResponseError{Number: number, Message: message, Data: m["data"]}, ok
}

func text(v jsontext.Value) (string, bool) {
	if v.Kind() != jsontext.KindString {
		return "", false
	}
	s, err := jsontext.AppendUnquote(nil, v)
	return string(s), err == nil
}

// only reports whether every member of m is among names.
func only(m map[string]jsontext.Value, names ...string) bool {
	found := 0
	for _, name := range names {
		if _, ok := m[name]; ok {
			found++
		}
	}
	return found == len(m)
}

// AppendRequest appends the frame (without LF) of a request, or of a
// notification when r.ID is null.
func AppendRequest(b []byte, r *Request) []byte {
	b = append(b, `{"jsonrpc":"2.0",`...)
	if !r.ID.IsNull() {
		b = append(r.ID.appendJSON(append(b, `"id":`...)), ',')
	}
	b, _ = jsontext.AppendQuote(append(b, `"method":`...), r.Method)
	if r.Params != nil {
		b = append(append(b, `,"params":`...), r.Params...)
	}
	return append(b, '}')
}

// AppendResponse appends the frame (without LF) of a response.
func AppendResponse(b []byte, r *Response) []byte {
	b = r.ID.appendJSON(append(b, `{"jsonrpc":"2.0","id":`...))
	if r.Error == nil {
		return append(append(append(b, `,"result":`...), r.Result...), '}')
	}
	b = strconv.AppendInt(append(b, `,"error":{"code":`...), r.Error.Number, 10)
	b, _ = jsontext.AppendQuote(append(b, `,"message":`...), r.Error.Message)
	if r.Error.Data != nil {
		b = append(append(b, `,"data":`...), r.Error.Data...)
	}
	return append(b, "}}"...)
}
