package transport

import "fmt"

// Codes of Error.
const (
	CodeLocked        = "instance_running"     // another instance holds the lock
	CodeSocketInUse   = "socket_in_use"        // something listens on the socket
	CodeSocketForeign = "socket_foreign"       // what is there is no socket of ours
	CodePathTooLong   = "socket_path_too_long" // and this system offers no way round
	CodePeer          = "peer_not_owner"       // the other end runs as someone else
	CodeSecret        = "secret_invalid"       // the secret file does not hold one
	CodeIO            = "io"
)

// An Error says what is wrong with a runtime directory or its socket. Path is
// for the operator and never sent to a peer.
type Error struct {
	Code string
	Path string
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	s := "transport: " + e.Code
	if e.Path != "" {
		s += " " + e.Path
	}
	if e.Err != nil {
		s += fmt.Sprintf(" (%v)", e.Err)
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// ErrLocked matches, by errors.Is, a runtime directory of a running instance.
var ErrLocked error = &Error{Code: CodeLocked}
