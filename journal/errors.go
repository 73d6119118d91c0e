package journal

import (
	"errors"
	"fmt"
)

// Stable codes of Error.
const (
	CodeHeadMoved   = "head_moved"   // AppendIf: the head is not what the caller read
	CodeCapacity    = "capacity"     // the byte or record bound is reached, reservations counted
	CodePoisoned    = "poisoned"     // a write, a sync or an identity check failed: reopen
	CodeClosed      = "closed"       // the journal or the reservation was given up
	CodeTooLarge    = "too_large"    // the record would exceed MaxRecord
	CodeInvalidBody = "invalid_body" // the body is no JSON object, or names a member of the journal
	CodeLocked      = "locked"       // another process writes this file
	CodeIO          = "io"           // the system refused the operation
	CodeChanged     = "changed"      // the file is not the one that was opened, or not as we left it
	CodeLockTimeout = "lock_timeout" // Shared: the lock file was there all the time
	CodeCorruptTail = "corrupt_tail" // Shared: the last line is torn or does not verify
	CodeRefused     = "refused"      // Shared: the schema refuses the record
	CodeEmpty       = "empty"        // Rotate: there is no record to put away
	CodeRotated     = "rotated"      // Follow: the journal goes on in a new file
)

// An Error is a refusal of the journal. Detail and Err are for the operator:
// they may name paths.
type Error struct {
	Code   string
	Detail string
	Err    error
}

func (e *Error) Error() string {
	s := "journal: " + e.Code
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is a bare *Error (such as ErrCapacity) with the
// same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Detail == "" && t.Err == nil
}

// Sentinels for errors.Is.
var (
	ErrHeadMoved   error = &Error{Code: CodeHeadMoved}
	ErrCapacity    error = &Error{Code: CodeCapacity}
	ErrPoisoned    error = &Error{Code: CodePoisoned}
	ErrClosed      error = &Error{Code: CodeClosed}
	ErrTooLarge    error = &Error{Code: CodeTooLarge}
	ErrInvalidBody error = &Error{Code: CodeInvalidBody}
	ErrLocked      error = &Error{Code: CodeLocked}
	ErrEmpty       error = &Error{Code: CodeEmpty}
)

// ErrTornTail matches, by errors.Is, a *TornError.
var ErrTornTail = errors.New("journal: torn tail")

// A TornError tells that bytes follow the last LF: a record that was being
// written and was never acknowledged. Offset is where they begin, Bytes how
// many there are, and Head the last complete record before them.
type TornError struct {
	Offset int64
	Bytes  int64
	Head   Head
}

func (e *TornError) Error() string {
	return fmt.Sprintf("journal: torn tail: %d bytes after offset %d were never acknowledged (intact through record %d); "+
		"'glove journal repair' shows and cuts them", e.Bytes, e.Offset, e.Head.Seq)
}

// Is reports whether target is ErrTornTail.
func (e *TornError) Is(target error) bool { return target == ErrTornTail }

// A Reason says why a line was refused. The names are those of the public
// approval.md verifier, plus ReasonRejected.
type Reason string

// Reasons, in the order in which a line is judged.
const (
	ReasonMalformed    Reason = "malformed-line" // blank, no JSON object, duplicate names, or longer than MaxRecord
	ReasonBadAlg       Reason = "bad-alg"        // alg is not exactly "sha256/jcs"
	ReasonSchema       Reason = "schema-invalid" // a member of the journal is missing or ill-formed, or the schema refuses
	ReasonHash         Reason = "hash-mismatch"  // the digest is not that of the record
	ReasonDuplicate    Reason = "seq-duplicate"  // the same seq as the record before
	ReasonGap          Reason = "seq-gap"        // seq does not follow
	ReasonNotGenesis   Reason = "not-genesis"    // the first record has a predecessor
	ReasonPrev         Reason = "prev-mismatch"  // prev is not the hash of the record before
	ReasonHeadMismatch Reason = "head-mismatch"  // the log does not hold the anchor the caller trusts
	ReasonRejected     Reason = "rejected"       // the owner of the log refused the record at replay

	// Of an archive that the first record commits to.
	ReasonArchiveMissing    Reason = "archive-missing"    // no such file
	ReasonArchiveUnnamed    Reason = "archive-unnamed"    // it is there, and the log does not know of it
	ReasonArchiveUnreadable Reason = "archive-unreadable" // it cannot be read
	ReasonArchiveCorrupt    Reason = "archive-corrupt"    // a line of it does not verify, or does not follow
	ReasonArchiveTruncated  Reason = "archive-truncated"  // records are missing off its end
	ReasonArchiveExtended   Reason = "archive-extended"   // it goes on after the record it was sealed at
	ReasonArchiveForeign    Reason = "archive-foreign"    // another log, another archive, or one that was rewritten
)

// A CorruptError names the first line that does not verify. Line counts from 1,
// Offset is the position of its first byte, Seq its sequence number or 0 when
// that could not be read.
type CorruptError struct {
	Line   uint64
	Offset int64
	Seq    uint64
	Reason Reason
	Err    error
}

func (e *CorruptError) Error() string {
	s := fmt.Sprintf("journal: corrupt: line %d at offset %d", e.Line, e.Offset)
	if e.Seq != 0 {
		s += fmt.Sprintf(" (record %d)", e.Seq)
	}
	s += ": " + string(e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *CorruptError) Unwrap() error { return e.Err }
