package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/frame"
)

// An Error is what a request is answered with instead of a result. Number, Code,
// Message and Data go over the wire (Code as data.code); Cause does not: it is
// for the operator's log. Messages are short sentences for people, without host
// paths and without anything the peer did not already say.
type Error struct {
	Number  int
	Code    Code
	Message string
	Data    map[string]any // more members of data; "code" is added
	Cause   error
}

// NewError returns an error with the code's number and the given sentence, or
// the code's own where message is empty. A code that is not in the table is a
// mistake of the caller and panics.
func NewError(code Code, message string) *Error {
	row, ok := table[code]
	if !ok {
		panic("rpc: internal error: the code " + string(code) + " is not in the table")
	}
	if message == "" {
		message = row.message
	}
	return &Error{Number: row.number, Code: code, Message: message}
}

// Wrap is NewError with a private cause.
func Wrap(code Code, message string, cause error) *Error {
	e := NewError(code, message)
	e.Cause = cause
	return e
}

// With returns a copy of e whose data has the member name.
func (e *Error) With(name string, value any) *Error {
	c := *e
	c.Data = maps.Clone(e.Data)
	if c.Data == nil {
		c.Data = make(map[string]any, 1)
	}
	c.Data[name] = value
	return &c
}

// Error implements error with the public part only.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// Unwrap returns the private cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the same Code, or an *Error with it.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return e.Code == t
	case *Error:
		return e.Code == t.Code
	}
	return false
}

// public turns whatever a handler returned into an *Error. What is not one
// already says nothing to the peer.
func public(err error) *Error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded):
		return Wrap(DeadlineExceeded, "", err)
	case errors.Is(err, context.Canceled):
		return Wrap(ShuttingDown, "the request was cancelled", err)
	}
	return Wrap(Internal, "", err)
}

// RemoteError returns the error a server answered with as the server meant it:
// errors.Is works on it as it does over there. A code that is not in our table
// is kept; without one it is "error_" and the number.
func RemoteError(e *frame.ResponseError) *Error {
	out := &Error{Number: int(e.Number), Message: e.Message}
	var data map[string]any
	if json.Unmarshal(e.Data, &data) == nil {
		code, _ := data["code"].(string)
		out.Code = Code(code)
		delete(data, "code")
		if len(data) > 0 {
			out.Data = data
		}
	}
	if out.Code == "" {
		out.Code = Code("error_" + strconv.FormatInt(e.Number, 10))
	}
	return out
}
