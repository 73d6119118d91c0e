package runtime

// Codes of Error.
const (
	// CodeUnacknowledged: it has ended, and its end goes on record once the receipts are
	// acknowledged.
	CodeUnacknowledged = "unacknowledged"
	CodeNotReconciled  = "audit_reconciliation_required" // receipts not yet acknowledged here
	CodeReconciliation = "reconciliation_failed"         // what was left could not all be settled
	CodeNotRunning     = "not_running"                   // the session has no terminal now
	CodeUnsupported    = "unsupported"                   // the plan asks for what this runtime cannot do
	CodeSetup          = "setup_failed"                  // a step of the start failed; see Step
	CodeMonitor        = "monitor_lost"                  // the session's monitor does not answer
	CodeVersion        = "monitor_version"               // the session's monitor is of a build that this one does not understand
	CodeClosed         = "closing"                       // this gloved is ending
	CodeStorage        = "storage"                       // files of the session could not be used
)

// An Error is a refusal or failure of the runtime. Its text is the operator's:
// it may hold host paths.
type Error struct {
	Code string
	Step string // the set-up step that failed, if Code is CodeSetup
	Err  error
}

func (e *Error) Error() string {
	s := "runtime: " + e.Code
	if e.Step != "" {
		s += " at step " + e.Step
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}
