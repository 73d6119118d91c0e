package rpc

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// TestErrorTable pins numbers and names: a controller in the field relies on
// them. A new error is a new last line here.
func TestErrorTable(t *testing.T) {
	const want = `-32700 parse_error
-32600 invalid_request
-32600 frame_too_large
-32600 batch_unsupported
-32600 duplicate_id
-32600 already_initialized
-32601 method_not_found
-32602 invalid_params
-32603 internal_error
-32000 unauthorized
-32001 server_busy
-32002 not_initialized
-32003 deadline_exceeded
-32004 idempotency_conflict
-32005 idempotency_capacity
-32006 invalid_plan
-32007 invalid_authorization
-32008 invalid_session_state
-32009 session_conflict
-32010 session_not_found
-32011 session_capacity
-32012 session_storage_failed
-32013 session_start_failed
-32014 session_stop_failed
-32015 session_reconciliation_failed
-32016 audit_reconciliation_required
-32017 audit_reconciliation_failed
-32018 path_exposure_rejected
-32019 path_exposure_unavailable
-32020 retained_changes_unavailable
-32021 apply_rejected
-32022 apply_ambiguous
-32023 response_too_large
-32024 session_attach_failed
-32025 session_input_failed
-32026 session_resize_failed
-32027 session_signal_failed
-32028 session_detach_failed
-32029 session_cleanup_failed
-32030 session_control_failed
-32031 unsupported_schema
-32032 unsupported_protocol_version
-32033 shutting_down
-32034 session_archived
`
	var got strings.Builder
	for _, c := range Codes() {
		fmt.Fprintf(&got, "%d %s\n", c.Number(), c)
		if e := NewError(c, ""); e.Message == "" || e.Number != c.Number() {
			t.Errorf("%s has no sentence or another number", c)
		}
	}
	if got.String() != want {
		t.Errorf("the table changed:\n%s", got.String())
	}
	if len(Codes()) != len(table) {
		t.Error("a code is in the table twice")
	}
}

func TestErrorIdentity(t *testing.T) {
	cause := errors.New("cause")
	e := Wrap(SessionNotFound, "gone", cause)
	withReason := e.With("reason", "x")
	for name, ok := range map[string]bool{
		"code":          errors.Is(fmt.Errorf("outer: %w", e), SessionNotFound),
		"another code":  !errors.Is(e, SessionConflict),
		"another error": errors.Is(e, NewError(SessionNotFound, "")),
		"cause":         errors.Is(e, cause),
		"copy":          e.Data == nil && withReason.Data["reason"] == "x" && errors.Is(withReason, SessionNotFound),
		"public only":   e.Error() == "session_not_found: gone",
	} {
		if !ok {
			t.Errorf("%s does not hold", name)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("an unknown code was accepted")
		}
	}()
	_ = NewError("no_such_code", "")
}
