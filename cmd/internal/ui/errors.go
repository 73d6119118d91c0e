package ui

import (
	"errors"
	"fmt"
)

// Exit codes.
const (
	ExitOK     = 0 // done
	ExitFailed = 1 // failed or refused
	ExitUsage  = 2 // the command line is wrong
)

// Error is a failure as a person reads it: a stable lowercase code, a sentence, and what
// to do next. Detail lines carry more (a position, a list of reasons).
type Error struct {
	Code    string
	Message string
	Detail  []string
	Next    string // what to do about it; "" when there is nothing to say
	Exit    int    // exit code; 0 means ExitFailed
	Err     error  // the cause, for errors.Is and errors.As; not printed
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// Fail is a failure with exit code 1.
func Fail(code, message, next string) *Error {
	return &Error{Code: code, Message: message, Next: next}
}

// Failf is Fail with a formatted message and no next step.
func Failf(code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Usage is a wrong command line: exit code 2.
func Usage(format string, args ...any) *Error {
	return &Error{Code: "usage", Message: fmt.Sprintf(format, args...), Exit: ExitUsage}
}

// Silent ends the program with an exit code and no message, because everything was said
// already (a verdict, a table of failures, a child's own exit code).
type Silent struct{ Exit int }

func (s *Silent) Error() string { return fmt.Sprintf("exit %d", s.Exit) }

// ExitCode is the exit code for what a command returned.
func ExitCode(err error) int {
	var silent *Silent
	var failure *Error
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &silent):
		return silent.Exit
	case errors.As(err, &failure) && failure.Exit != 0:
		return failure.Exit
	default:
		return ExitFailed
	}
}
