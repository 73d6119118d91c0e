package gate

import (
	"errors"

	alog "gloved.dev/journal/approval"
)

// Codes of refusals. They are public names and frozen: Codes lists them all.
const (
	CodePolicyNotAttested     = "policy-not-attested"
	CodePolicyDrift           = "policy-drift"
	CodeEnvelopeInvalid       = "envelope-invalid"
	CodeTaskAlreadyRegistered = "task-already-registered"
	CodeActionNotRegistered   = "action-not-registered"
	CodeDuplicateRequest      = "duplicate-request"
	CodeAlreadyExecuted       = "already-executed"
	CodeBudgetExceeded        = "budget-exceeded"
	CodeQueueFull             = "queue-full"
	CodeRateLimited           = "rate-limited"
	CodePayloadHashRequired   = "payload-hash-required"
	CodePayloadMismatch       = "payload-mismatch"
	CodePayloadStoreFailed    = "payload-store-failed"
	CodeClassHumanOnly        = "class-human-only"
	CodeLoopEscalated         = "loop-escalated"
	CodeNotRequested          = "not-requested"
	CodeAlreadyDecided        = "already-decided"
	CodeNotGranted            = "not-granted"
	CodeGrantClassless        = "grant-classless-request"
	CodeRequestWithdrawn      = "request-withdrawn"
	CodeNotRequester          = "not-requester"
	CodeExpired               = "expired"
	CodeNotExpired            = "not-expired"
	CodeActorInvalid          = "actor-invalid"
	CodeActorNotHuman         = "actor-not-human"
	CodeActorNotApprover      = "actor-not-approver"
	CodeDeliveryUnsupported   = "delivery-unsupported"

	CodeTokenRequired          = "token-required"
	CodeTokenMismatch          = "token-mismatch"
	CodeTokenConsumed          = "token-consumed"
	CodeTokenExpired           = "token-expired"
	CodeTokenRevoked           = "token-revoked"
	CodeHarnessExecuted        = "harness-executed"
	CodeNotStarted             = "not-started"
	CodeAlreadyFinished        = "already-finished"
	CodeExecutionDelegated     = "execution-delegated"
	CodeExecutionIndeterminate = "execution-indeterminate"
	CodeNotIndeterminate       = "not-indeterminate"
	CodeAlreadyReconciled      = "already-reconciled"
	CodeNoteRequired           = "note-required"
	CodeReasonInvalid          = "reason-invalid"

	CodeLogUnreadable = alog.CodeLogUnreadable
	CodeLogTornTail   = alog.CodeLogTornTail
	CodeLogCorrupt    = alog.CodeLogCorrupt
	CodeAppendFailed  = "append-failed"
)

// Codes lists every code an Error may have, in the order above.
func Codes() []string {
	return []string{
		CodePolicyNotAttested, CodePolicyDrift, CodeEnvelopeInvalid, CodeTaskAlreadyRegistered,
		CodeActionNotRegistered, CodeDuplicateRequest, CodeAlreadyExecuted, CodeBudgetExceeded, CodeQueueFull,
		CodeRateLimited, CodePayloadHashRequired, CodePayloadMismatch, CodePayloadStoreFailed, CodeClassHumanOnly,
		CodeLoopEscalated, CodeNotRequested, CodeAlreadyDecided, CodeNotGranted, CodeGrantClassless,
		CodeRequestWithdrawn, CodeNotRequester, CodeExpired, CodeNotExpired, CodeActorInvalid, CodeActorNotHuman,
		CodeActorNotApprover, CodeDeliveryUnsupported, CodeTokenRequired, CodeTokenMismatch, CodeTokenConsumed, CodeTokenExpired,
		CodeTokenRevoked, CodeHarnessExecuted, CodeNotStarted, CodeAlreadyFinished, CodeExecutionDelegated,
		CodeExecutionIndeterminate, CodeNotIndeterminate, CodeAlreadyReconciled, CodeNoteRequired, CodeReasonInvalid,
		CodeLogUnreadable, CodeLogTornTail, CodeLogCorrupt, CodeAppendFailed,
	}
}

// Exit codes of the approval program.
const (
	ExitOK      = 0
	ExitRefused = 1
	ExitUsage   = 2
	ExitTorn    = 3
	ExitIO      = 4
	ExitToken   = 5
)

// An Error is a refusal of the gate. Detail refines the code by another stable
// word (not-attested, lock-timeout); Message is for people.
type Error struct {
	Code     string
	Detail   string
	Message  string
	State    State     // of the key, where it matters
	Verdicts []Verdict // of the budgets
	Seq      uint64    // of the record the refusal wrote (budget.exceeded, approval.expired)
	Err      error
}

func (e *Error) Error() string {
	s := e.Code
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Code returns the code of a refusal, "" when err is none.
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// ExitCode is the exit code of a command that ended with err.
func ExitCode(err error) int {
	var e *Error
	switch {
	case err == nil:
		return ExitOK
	case !errors.As(err, &e):
		return ExitRefused
	}
	switch e.Code {
	case CodeLogUnreadable, CodePayloadStoreFailed:
		return ExitIO
	case CodeLogTornTail:
		return ExitTorn
	case CodeTokenRequired:
		return ExitToken
	case CodeAppendFailed:
		switch e.Detail {
		case alog.CodeCorruptTail:
			return ExitTorn
		case alog.CodeIO, alog.CodeLockTimeout:
			return ExitIO
		}
	}
	return ExitRefused
}

func refuse(code, message string) *Error { return &Error{Code: code, Message: message} }

// readError turns what a read of the log says into a refusal.
func readError(err error) error {
	code := alog.Code(err)
	if code == "" {
		return err
	}
	return &Error{Code: code, Err: err}
}

// appendError turns what an append says into a refusal.
func appendError(err error) error {
	code := alog.Code(err)
	if code == "" {
		return err
	}
	return &Error{Code: CodeAppendFailed, Detail: code, Err: err}
}
