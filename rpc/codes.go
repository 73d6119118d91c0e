package rpc

// A Code is the stable name of an error: the member data.code on the wire. It is
// an error itself, so that errors.Is(err, rpc.SessionNotFound) works on both
// sides of a connection.
type Code string

// Error implements error.
func (c Code) Error() string { return string(c) }

// Codes. Their numbers and sentences are in the table below.
const (
	ParseError         Code = "parse_error"
	InvalidRequest     Code = "invalid_request"
	FrameTooLarge      Code = "frame_too_large"
	BatchUnsupported   Code = "batch_unsupported"
	DuplicateID        Code = "duplicate_id"
	AlreadyInitialized Code = "already_initialized"
	MethodNotFound     Code = "method_not_found"
	InvalidParams      Code = "invalid_params"
	Internal           Code = "internal_error"

	Unauthorized                Code = "unauthorized"
	ServerBusy                  Code = "server_busy"
	NotInitialized              Code = "not_initialized"
	DeadlineExceeded            Code = "deadline_exceeded"
	IdempotencyConflict         Code = "idempotency_conflict"
	IdempotencyCapacity         Code = "idempotency_capacity"
	InvalidPlan                 Code = "invalid_plan"
	InvalidAuthorization        Code = "invalid_authorization"
	InvalidSessionState         Code = "invalid_session_state"
	SessionConflict             Code = "session_conflict"
	SessionNotFound             Code = "session_not_found"
	SessionCapacity             Code = "session_capacity"
	SessionStorageFailed        Code = "session_storage_failed"
	SessionStartFailed          Code = "session_start_failed"
	SessionStopFailed           Code = "session_stop_failed"
	SessionReconciliationFailed Code = "session_reconciliation_failed"
	AuditReconciliationRequired Code = "audit_reconciliation_required"
	AuditReconciliationFailed   Code = "audit_reconciliation_failed"
	PathExposureRejected        Code = "path_exposure_rejected"
	PathExposureUnavailable     Code = "path_exposure_unavailable"
	RetainedChangesUnavailable  Code = "retained_changes_unavailable"
	ApplyRejected               Code = "apply_rejected"
	ApplyAmbiguous              Code = "apply_ambiguous"
	ResponseTooLarge            Code = "response_too_large"
	SessionAttachFailed         Code = "session_attach_failed"
	SessionInputFailed          Code = "session_input_failed"
	SessionResizeFailed         Code = "session_resize_failed"
	SessionSignalFailed         Code = "session_signal_failed"
	SessionDetachFailed         Code = "session_detach_failed"
	SessionCleanupFailed        Code = "session_cleanup_failed"
	SessionControlFailed        Code = "session_control_failed"
	UnsupportedSchema           Code = "unsupported_schema"
	UnsupportedProtocol         Code = "unsupported_protocol_version"
	ShuttingDown                Code = "shutting_down"
	SessionArchived             Code = "session_archived"
)

type tableRow struct {
	number  int
	code    Code
	message string
}

// standard holds the errors that JSON-RPC numbers.
var standard = []tableRow{
	{-32700, ParseError, "the frame is not a JSON-RPC message"},
	{-32600, InvalidRequest, "the request is not valid"},
	{-32600, FrameTooLarge, "the frame is too large"},
	{-32600, BatchUnsupported, "batches are not supported"},
	{-32600, DuplicateID, "a request with this id is in flight"},
	{-32600, AlreadyInitialized, "the connection is initialized"},
	{-32601, MethodNotFound, "there is no such method"},
	{-32602, InvalidParams, "the parameters are not valid"},
	{-32603, Internal, "an internal error; the operator's log says more"},
}

// own holds our errors, numbered down from −32000 by position. The order is
// part of the protocol: new rows go to the end and none is ever removed.
var own = []tableRow{
	{0, Unauthorized, "the peer is not authorized"},
	{0, ServerBusy, "too many connections; try again later"},
	{0, NotInitialized, "initialize comes first"},
	{0, DeadlineExceeded, "the deadline has passed"},
	{0, IdempotencyConflict, "the idempotency key was used for something else"},
	{0, IdempotencyCapacity, "too many idempotency keys are remembered; try again later"},
	{0, InvalidPlan, "the plan is not admitted"},
	{0, InvalidAuthorization, "the authorization is not valid"},
	{0, InvalidSessionState, "the session's state does not allow this"},
	{0, SessionConflict, "the session exists with other content"},
	{0, SessionNotFound, "there is no such session"},
	{0, SessionCapacity, "no more sessions can be held"},
	{0, SessionStorageFailed, "the session store failed"},
	{0, SessionStartFailed, "the session could not be started"},
	{0, SessionStopFailed, "the session could not be stopped"},
	{0, SessionReconciliationFailed, "sessions could not be reconciled"},
	{0, AuditReconciliationRequired, "receipts must be paged and acknowledged first"},
	{0, AuditReconciliationFailed, "the receipt anchor does not match"},
	{0, PathExposureRejected, "the exposure is not admitted"},
	{0, PathExposureUnavailable, "the exposure is not available"},
	{0, RetainedChangesUnavailable, "there are no retained changes to show"},
	{0, ApplyRejected, "the change was not applied"},
	{0, ApplyAmbiguous, "whether the change was applied is not known"},
	{0, ResponseTooLarge, "the answer does not fit one frame"},
	{0, SessionAttachFailed, "the session's output could not be read"},
	{0, SessionInputFailed, "the input could not be written"},
	{0, SessionResizeFailed, "the terminal could not be resized"},
	{0, SessionSignalFailed, "the signal could not be sent"},
	{0, SessionDetachFailed, "the cursor is not valid"},
	{0, SessionCleanupFailed, "the session could not be cleaned up"},
	{0, SessionControlFailed, "the session could not be controlled"},
	{0, UnsupportedSchema, "the schema version is not supported"},
	{0, UnsupportedProtocol, "no common protocol version"},
	{0, ShuttingDown, "the server is shutting down"},
	{0, SessionArchived, "the session has ended and its records were archived"},
}

var table = func() map[Code]tableRow {
	m := make(map[Code]tableRow, len(standard)+len(own))
	for _, row := range standard {
		m[row.code] = row
	}
	for i, row := range own {
		row.number = -32000 - i
		m[row.code] = row
	}
	return m
}()

// Number returns the JSON-RPC number of the code, 0 when the code is not in the
// table.
func (c Code) Number() int { return table[c].number }

// Codes returns every code, those JSON-RPC numbers first, then ours in the
// order of their numbers.
func Codes() []Code {
	out := make([]Code, 0, len(table))
	for _, row := range standard {
		out = append(out, row.code)
	}
	for _, row := range own {
		out = append(out, row.code)
	}
	return out
}
