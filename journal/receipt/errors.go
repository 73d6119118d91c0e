package receipt

import (
	"context"
	"errors"

	"gloved.dev/journal"
)

// A Code is the stable name of a refusal.
type Code string

// Codes.
const (
	KeyInvalid             Code = "key_invalid"             // the audit key file is not one
	InvalidRequest         Code = "invalid_request"         // an id, digest or limit is ill-formed
	InvalidReceipt         Code = "invalid_receipt"         // the receipt is incomplete or contradicts itself
	ReconciliationFailed   Code = "reconciliation_failed"   // the anchor is not a prefix, or not the head
	ReconciliationRequired Code = "reconciliation_required" // page and acknowledge first
	Capacity               Code = "capacity"                // the journal's bound is reached
	NotReserved            Code = "not_reserved"            // the receipt is not for what was reserved
	Ambiguous              Code = "ambiguous"               // two receipts for one session: never a guess
	Archived               Code = "archived"                // in an archive that is missing or cannot be read
	Storage                Code = "storage"                 // the journal failed

	// Codes of the verifier.
	BadSchema      Code = "bad_schema"
	BadKey         Code = "bad_key"
	BadSession     Code = "bad_session"
	BadSequence    Code = "bad_sequence"
	BadPrevious    Code = "bad_previous"
	BadDigest      Code = "bad_digest"
	BadHMAC        Code = "bad_hmac"
	BadConfinement Code = "bad_confinement"
)

// An Error is a refusal. Reason is short and public; Err is for the operator.
type Error struct {
	Code   Code
	Reason string
	Err    error
}

func (e *Error) Error() string {
	s := "receipt: " + string(e.Code)
	if e.Reason != "" {
		s += ": " + e.Reason
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
	return ok && *t == Error{Code: e.Code}
}

// ErrNotPaged is why nothing can be acknowledged before a first page has opened the journal.
var ErrNotPaged = errors.New("the receipts were not paged yet")

func refuse(code Code, reason string) error { return &Error{Code: code, Reason: reason} }

// CodeOf returns the code of err, or "" when it has none.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// stored gives a journal's error its code. An *Error inside it, such as a replay's
// reason, is its cause and not its code.
func stored(err error) error {
	var j *journal.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.As(err, &j) && j.Code == journal.CodeCapacity:
		return &Error{Code: Capacity, Reason: "the receipt journal is full", Err: err}
	case errors.As(err, &j) && j.Code == journal.CodeTooLarge:
		return &Error{Code: InvalidReceipt, Reason: "the receipt is too large", Err: err}
	}
	return &Error{Code: Storage, Err: err}
}
