package wire

import "github.com/go-json-experiment/json/jsontext"

// Names of the policy's, the session store's and the runtime's methods.
const (
	MethodValidatePlan   = "validate_plan"
	MethodCreateSession  = "create_session"
	MethodSessionStatus  = "session_status"
	MethodListSessions   = "list_sessions"
	MethodStartSession   = "start_session"
	MethodAttach         = "attach"
	MethodAttachCredit   = "attach_credit"
	MethodWriteStdin     = "write_stdin"
	MethodResize         = "resize"
	MethodSignal         = "signal"
	MethodDetach         = "detach"
	MethodStopSession    = "stop_session"
	MethodCleanupSession = "cleanup_session"
)

// ValidatePlanParams carries a plan as the controller wrote it.
type ValidatePlanParams struct {
	Plan jsontext.Value `json:"plan" jsonschema:"a session plan of schema version 1 or 2"`
}

// ValidatePlanResult accepts a plan under the policy's revision.
type ValidatePlanResult struct {
	SchemaVersion     int    `json:"schema_version"`
	PolicyRevision    int64  `json:"policy_revision"`
	PlanContentDigest string `json:"plan_content_digest"`
}

// CreateSessionParams asks for a durable session record.
type CreateSessionParams struct {
	SessionID            string         `json:"session_id"`
	ControllerPlanDigest string         `json:"controller_plan_digest"`
	Plan                 jsontext.Value `json:"plan" jsonschema:"a session plan of schema version 1 or 2"`
}

// OrderKey orders requests by session: those with one key take effect in the
// order they arrived.
func (p *CreateSessionParams) OrderKey() string { return p.SessionID }

// ReceiptRef points at the receipt a session ended in.
type ReceiptRef struct {
	Sequence int64  `json:"sequence"`
	Digest   string `json:"digest"`
}

// Session is the session record.
type Session struct {
	SchemaVersion            int         `json:"schema_version"`
	SessionID                string      `json:"session_id"`
	State                    string      `json:"state" jsonschema:"created, preparing, starting, running, stopping, exited or failed"`
	ControllerPlanDigest     string      `json:"controller_plan_digest"`
	ControllerDigestVerified bool        `json:"controller_digest_verified"`
	PlanContentDigest        string      `json:"plan_content_digest"`
	PolicyRevision           int64       `json:"policy_revision"`
	CreatedAtMS              int64       `json:"created_at_ms"`
	ExpiresAtMS              int64       `json:"expires_at_ms"`
	ProfileDigest            string      `json:"profile_digest,omitempty"`
	StartedAtMS              int64       `json:"started_at_ms,omitzero"`
	FinishedAtMS             int64       `json:"finished_at_ms,omitzero"`
	TerminationCause         string      `json:"termination_cause,omitempty"`
	ExitCode                 *int        `json:"exit_code,omitempty"`
	FailureCode              string      `json:"failure_code,omitempty"`
	Receipt                  *ReceiptRef `json:"receipt,omitempty"`
	// Issue says why a session that runs cannot be used here.
	Issue string `json:"issue,omitempty" jsonschema:"monitor_version: a gloved of another build holds it and only that build can use it"`
}

// SessionParams names a session; several methods take nothing else.
type SessionParams struct {
	SessionID string `json:"session_id"`
}

// OrderKey orders requests by session.
func (p *SessionParams) OrderKey() string { return p.SessionID }

const (
	// MaxListLimit bounds ListSessionsParams.Limit and is its default.
	MaxListLimit = 1000
)

// ListSessionsParams asks for session records in the order of their ids, after
// the id After where it is given, at most Limit (1 to MaxListLimit).
type ListSessionsParams struct {
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitzero"`
}

// ListSessionsResult is one page of records. Next is the After of the following
// page and absent on the last one.
type ListSessionsResult struct {
	Sessions []Session `json:"sessions"`
	Next     string    `json:"next,omitempty"`
}

// StartAuthorization lets one session start, once, within a short window.
type StartAuthorization struct {
	SchemaVersion        int    `json:"schema_version"`
	AuthorizationID      string `json:"authorization_id"`
	SessionID            string `json:"session_id"`
	ControllerPlanDigest string `json:"controller_plan_digest"`
	PlanContentDigest    string `json:"plan_content_digest"`
	ApprovedAtMS         int64  `json:"approved_at_ms"`
	ExpiresAtMS          int64  `json:"expires_at_ms"`
}

// StartSessionParams starts a session.
type StartSessionParams struct {
	Authorization StartAuthorization `json:"authorization"`
}

// OrderKey orders requests by session.
func (p *StartSessionParams) OrderKey() string { return p.Authorization.SessionID }
