package frame

import "fmt"

// The JSON-RPC 2.0 numbers an unreadable message is answered with.
const (
	NumberParseError     = -32700
	NumberInvalidRequest = -32600
	NumberInvalidParams  = -32602
)

// The stable codes of [Error].
const (
	CodeParseError     = "parse_error"
	CodeInvalidRequest = "invalid_request"
	CodeInvalidParams  = "invalid_params"
	CodeFrameTooLarge  = "frame_too_large"
	CodeBatch          = "batch_unsupported"
)

// An Error says why a frame is no message. The connection it came from is as
// good as before: the next frame starts after the next LF.
type Error struct {
	Number  int    // the JSON-RPC number to answer with
	Code    string // the stable code, one of the constants above
	Message string // a short sentence for the peer
	Reason  string // the strictjson code where one applies, else empty
	ID      ID     // the id to answer; the zero ID is null
}

func (e *Error) Error() string {
	if e.Reason != "" {
		return fmt.Sprintf("frame: %s (%s): %s", e.Code, e.Reason, e.Message)
	}
	return fmt.Sprintf("frame: %s: %s", e.Code, e.Message)
}

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

func parseError(reason, message string) *Error {
	return &Error{Number: NumberParseError, Code: CodeParseError, Message: message, Reason: reason}
}

func invalid(id ID, message string) *Error {
	return &Error{Number: NumberInvalidRequest, Code: CodeInvalidRequest, Message: message, ID: id}
}
