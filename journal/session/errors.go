package session

import (
	"context"
	"errors"

	"gloved.dev/journal"
)

// A Code is the stable name of a refusal.
type Code string

// Codes.
const (
	InvalidRequest       Code = "invalid_request"       // an identifier, digest or identity is ill-formed
	InvalidPlan          Code = "invalid_plan"          // the plan was not admitted, or resolves no more
	InvalidAuthorization Code = "invalid_authorization" // malformed, outside its window, or not for this session
	InvalidState         Code = "invalid_state"         // the session is not where the operation begins
	IdempotencyConflict  Code = "idempotency_conflict"  // the key was used for something else
	SessionConflict      Code = "session_conflict"      // the session exists
	NotFound             Code = "not_found"             // no such session
	Archived             Code = "archived"              // the session has ended; its records are in an archive
	Capacity             Code = "capacity"              // the store's bounds are reached
	Storage              Code = "storage"               // the journal failed
)

// An Error is a refusal of the store. Reason is short, public, and names nothing
// of the host; Err is for the operator.
type Error struct {
	Code   Code
	Reason string
	Err    error
}

func (e *Error) Error() string {
	s := "session: " + string(e.Code)
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is a bare *Error with the same code, such as
// &Error{Code: NotFound}.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && *t == Error{Code: e.Code}
}

func refuse(code Code, reason string) error { return &Error{Code: code, Reason: reason} }

// CodeOf returns the code of err, or "" when it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// refused gives the error of a caller's callback the code it stands for, unless
// the callback chose one itself.
func refused(code Code, err error) error {
	if CodeOf(err) != "" {
		return err
	}
	return &Error{Code: code, Err: err}
}

// stored gives a journal's error its code. A context's error stays itself: it
// says nothing about the store.
func stored(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, journal.ErrCapacity), hasCode(err, journal.CodeCapacity):
		return &Error{Code: Capacity, Reason: "the session store is full", Err: err}
	case hasCode(err, journal.CodeTooLarge):
		return &Error{Code: InvalidPlan, Reason: "the record would be too large", Err: err}
	}
	return &Error{Code: Storage, Err: err}
}

func hasCode(err error, code string) bool {
	var e *journal.Error
	return errors.As(err, &e) && e.Code == code
}
