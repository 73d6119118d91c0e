package approval

import "errors"

// Codes of Error: those of a read for a decision, then those of an append. They
// are the public names, hence the hyphens.
const (
	CodeLogUnreadable = "log-unreadable" // it cannot be opened, or is no regular file
	CodeLogTornTail   = "log-torn-tail"  // bytes follow the last complete record
	CodeLogCorrupt    = "log-corrupt"    // a line does not verify

	CodeLockTimeout      = "lock-timeout"     // the lock file was there for 2 s
	CodeCorruptTail      = "corrupt-tail"     // the last line is torn or does not verify
	CodeValidation       = "validation"       // the record breaks the schema
	CodeCanonicalization = "canonicalization" // the record has no RFC 8785 form
	CodeIO               = "io"               // the system refused, or the log is full
	CodeHeadMoved        = "head-moved"       // the log is not the one that was read
)

// An Error is a refusal of the log. Detail and Err are for the operator.
type Error struct {
	Code   string
	Detail string
	Err    error
}

func (e *Error) Error() string {
	s := e.Code
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is a bare *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Detail == "" && t.Err == nil
}

// ErrHeadMoved matches, by errors.Is, an append whose expected head is not the
// log's.
var ErrHeadMoved error = &Error{Code: CodeHeadMoved}

// Code returns the log's code for err, or "" when err is not of this package.
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
