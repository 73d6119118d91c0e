package service

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/runtime"
	"gloved.dev/runtime/monitor"
)

// TestRuntimeRefusalsOnTheWire: every failure of the runtime has its public name,
// and none shows the peer what the operator's log is for.
func TestRuntimeRefusalsOnTheWire(t *testing.T) {
	inner := errors.New(hostPath)
	const fallback = rpc.SessionStartFailed
	for _, c := range []struct {
		err  error
		want rpc.Code
	}{
		{&runtime.Error{Code: runtime.CodeNotReconciled, Err: inner}, rpc.AuditReconciliationRequired},
		{&runtime.Error{Code: runtime.CodeReconciliation, Err: inner}, rpc.SessionReconciliationFailed},
		{&runtime.Error{Code: runtime.CodeNotRunning, Err: inner}, rpc.InvalidSessionState},
		{&runtime.Error{Code: runtime.CodeUnsupported, Err: inner}, rpc.InvalidPlan},
		{&runtime.Error{Code: runtime.CodeClosed, Err: inner}, rpc.ShuttingDown},
		{&runtime.Error{Code: runtime.CodeSetup, Step: "cgroup", Err: inner}, fallback},
		{&runtime.Error{Code: runtime.CodeMonitor, Err: inner}, fallback},
		{&runtime.Error{Code: runtime.CodeStorage, Err: inner}, fallback},
		{&monitor.Error{Code: monitor.CodeState, Detail: hostPath}, rpc.InvalidSessionState},
		{&monitor.Error{Code: monitor.CodeInput, Detail: hostPath}, fallback},
		{&monitor.Error{Code: monitor.CodeGone, Detail: hostPath}, fallback},
		{&session.Error{Code: session.NotFound, Err: inner}, rpc.SessionNotFound},
		{&session.Error{Code: session.Storage, Reason: hostPath, Err: inner}, rpc.SessionStorageFailed},
		{&receipt.Error{Code: receipt.ReconciliationRequired, Err: inner}, rpc.AuditReconciliationRequired},
		{inner, fallback},
		{rpc.NewError(rpc.ServerBusy, "x"), rpc.ServerBusy},
	} {
		got, text := public(t, runtimeError(fallback, c.err))
		if got == nil || got.Code != c.want {
			t.Errorf("%v became %v, want %s", c.err, got, c.want)
			continue
		}
		if strings.Contains(text, hostPath) {
			t.Errorf("%v shows the peer its cause: %s", c.err, text)
		}
	}
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		if got := runtimeError(fallback, err); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if runtimeError(fallback, nil) != nil {
		t.Error("no failure became one")
	}
	step, _ := public(t, runtimeError(fallback, &runtime.Error{Code: runtime.CodeSetup, Step: "cgroup"}))
	if step.Data["step"] != "cgroup" {
		t.Errorf("the failed step is not told: %v", step.Data)
	}
	taken := withWritten(runtimeError(rpc.SessionInputFailed, &monitor.Error{Code: monitor.CodeInput}), 3)
	if got, _ := public(t, taken); got.Data["written"] != 3 {
		t.Errorf("how much was taken is not told: %v", got.Data)
	}
}
