package broker

import (
	"errors"
	"fmt"
	"slices"
)

// Codes of a Refusal, in the order in which an apply can meet them. The list is closed and public:
// callers switch on it (facts §4, "broker").
const (
	CodeToolNotAllowed      = "tool-not-allowed"
	CodeInputInvalid        = "input-invalid"
	CodeInstallationInvalid = "installation-invalid"
	CodeLogUnavailable      = "log-unavailable"
	CodePolicyUnavailable   = "policy-unavailable"
	CodePolicyNotAttested   = "policy-not-attested"
	CodeAttestationDrift    = "attestation-drift"
	CodeReservedPath        = "reserved-path"
	CodeNoOpOperation       = "no-op-operation"
	CodePlanRefused         = "plan-refused"
	CodeReplay              = "replay"
	CodeRegisterRefused     = "register-refused"
	CodeRequestRefused      = "request-refused"
	CodeApprovalRequired    = "approval-required"
	CodeStartRefused        = "start-refused"
	CodeCustodyContended    = "custody-contended"
	CodeCustodyUnavailable  = "custody-unavailable"
	CodeCustodyInsufficient = "custody-insufficient"
	CodeWorkspaceDrift      = "workspace-drift"
	CodeStageFailed         = "stage-failed"
	CodeCommitNotApplied    = "commit-not-applied"
	CodeCommitUnknown       = "commit-unknown"
)

// Codes returns every code a Refusal can have, in the order of the steps that refuse.
func Codes() []string {
	return []string{
		CodeToolNotAllowed, CodeInputInvalid, CodeInstallationInvalid, CodeLogUnavailable,
		CodePolicyUnavailable, CodePolicyNotAttested, CodeAttestationDrift, CodeReservedPath,
		CodeNoOpOperation, CodePlanRefused, CodeReplay, CodeRegisterRefused, CodeRequestRefused,
		CodeApprovalRequired, CodeStartRefused, CodeCustodyContended, CodeCustodyUnavailable,
		CodeCustodyInsufficient, CodeWorkspaceDrift, CodeStageFailed, CodeCommitNotApplied,
		CodeCommitUnknown,
	}
}

// A Refusal is why an apply did not end in ok. Its JSON form is the "error" member of what the
// command line and the tool answer.
type Refusal struct {
	// Code is one of Codes.
	Code string `json:"code"`
	// Message is for a person. It names paths of the proposal and nothing else of the host.
	Message string `json:"message"`
	// Detail is the inner, equally stable reason: the gate's code, or the planner's.
	Detail string `json:"detail,omitempty"`
	// Path is the endpoint concerned, as the proposal wrote it.
	Path string `json:"path,omitempty"`
	// Pending are the action keys that await a person (approval-required only).
	Pending []string `json:"pending,omitempty"`
	// State is what reading the workspace back gave, where that was done.
	State State `json:"state,omitempty"`
	// Custody is what the lock proved, where it was held.
	Custody *Custody `json:"custody,omitempty"`
	// Err is the cause, for the operator's log.
	Err error `json:"-"`
}

// Error gives code, detail and message.
func (r *Refusal) Error() string {
	s := r.Code
	if r.Detail != "" {
		s += " (" + r.Detail + ")"
	}
	s += ": " + r.Message
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// Is reports whether target is a Refusal of the same code and, if it names one, the same detail.
func (r *Refusal) Is(target error) bool {
	t, ok := target.(*Refusal)
	return ok && t.Code == r.Code && (t.Detail == "" || t.Detail == r.Detail)
}

// AsRefusal returns the Refusal in err's chain. An error that is none becomes one with the code
// given: nothing leaves this package without a code of the closed list.
func AsRefusal(err error, code string) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok && slices.Contains(Codes(), r.Code) {
		return r
	}
	return &Refusal{Code: code, Message: "the operation failed", Err: err}
}

func refuse(code, detail, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Detail: detail, Message: fmt.Sprintf(format, args...)}
}

// planRefusal refuses a path of the proposal.
func planRefusal(detail, path, format string, args ...any) *Refusal {
	r := refuse(CodePlanRefused, detail, format, args...)
	r.Path = path
	return r
}

func (r *Refusal) because(err error) *Refusal {
	r.Err = err
	return r
}
