package main

import (
	"errors"
	"fmt"
	"strings"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/gate"
)

// ioFailure is a failure of the system: exit code 4.
func ioFailure(err error) *ui.Error {
	return &ui.Error{Code: "io", Message: err.Error(), Exit: gate.ExitIO, Err: err}
}

// next says what to do about a refusal.
var next = map[string]string{
	gate.CodePolicyNotAttested:      "read the policy, then: approval policy attest --as human:NAME",
	gate.CodeActionNotRegistered:    "approval status lists the keys that exist",
	gate.CodeLogTornTail:            "approval log verify; then, when no program writes the log: glove journal repair",
	gate.CodeLogCorrupt:             "approval log verify names the first bad record; keep the file and compare it with a copy",
	gate.CodeExecutionIndeterminate: "look at what it did, then: approval execution reconcile KEY",
	gate.CodeTokenMismatch:          "the token is the one that approval grant printed for this key, once; lost, it can only be revoked",
	gate.CodeTokenConsumed:          "run it under another key: a key is good for one start",
	gate.CodeAlreadyExecuted:        "run it under another key: a key is good for one start",
	gate.CodePayloadMismatch:        "run exactly what was asked, in the same folder, or ask under another key",
	gate.CodeDeliveryUnsupported:    "set token_delivery: manual in the policy and attest it, or use a gate that seals tokens",
	gate.CodeActorNotApprover:       "one of them decides",
	gate.CodeLogUnreadable:          "decide as the user who owns the log, or name the right one: --log FILE",
	gate.CodeTokenRequired:          "a person grants it (approval grant KEY) and passes on the token: --token TOKEN",
	gate.CodePolicyDrift:            "ask again under the policy that is in force",
	gate.CodeExpired:                "ask again",
}

// failure shows a refusal of the gate as the program's own error.
func failure(err error) error {
	var e *gate.Error
	if !errors.As(err, &e) {
		return err
	}
	out := &ui.Error{Code: e.Code, Message: e.Message, Next: next[e.Code], Exit: gate.ExitCode(err), Err: err}
	if e.Detail == gate.AttestationNoFile {
		out.Next = "go to the folder of the policy, or name it (--dir FOLDER); approval init makes one to begin with"
	}
	if out.Message == "" && e.Err != nil {
		out.Message = strings.TrimPrefix(e.Err.Error(), e.Code+": ") // the code is said once
	} else if e.Err != nil {
		out.Detail = append(out.Detail, e.Err.Error())
	}
	if out.Message == "" {
		out.Message = "refused"
	}
	if e.Detail != "" {
		out.Detail = append(out.Detail, "detail: "+e.Detail)
	}
	if e.State != "" {
		out.Detail = append(out.Detail, "state: "+string(e.State))
	}
	if e.Seq != 0 {
		out.Detail = append(out.Detail, fmt.Sprintf("record: %d", e.Seq))
	}
	for _, v := range e.Verdicts {
		if !v.Pass {
			out.Detail = append(out.Detail, fmt.Sprintf("%s (%s): %s used, %s asked, %s left %s", v.Limit, v.Window, v.Consumed, v.Requested, v.Remaining, v.Note))
		}
	}
	return out
}
