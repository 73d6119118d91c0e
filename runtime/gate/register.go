package gate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// MaxActions bounds the actions one task may declare.
const MaxActions = 256

// A Registration declares a task and its actions.
type Registration struct {
	Actor    string
	Task     string
	Channel  string
	Envelope Envelope
}

// ParseEnvelope reads an envelope strictly.
func ParseEnvelope(data []byte) (Envelope, error) {
	var e Envelope
	if err := strictjson.Decode(data, &e, strictjson.Limits{}); err != nil {
		return Envelope{}, &Error{Code: CodeEnvelopeInvalid, Err: err}
	}
	return e, e.check()
}

var taskStates = []string{"proposed", "awaiting", "approved", "executed", "rejected", "expired", "revoked"}

func (e Envelope) check() error {
	fail := func(format string, args ...any) error {
		return &Error{Code: CodeEnvelopeInvalid, Message: fmt.Sprintf(format, args...)}
	}
	kind, _, ok := alog.ActorKind(e.Origin.CreatedBy)
	switch {
	case e.Origin.App == "":
		return fail("origin.app is required")
	case !ok || kind == alog.System:
		return fail("origin.created_by must be human:NAME or agent:NAME")
	case !slices.Contains(taskStates, e.State):
		return fail("state must be one of: %s", strings.Join(taskStates, ", "))
	case len(e.Actions) > MaxActions:
		return fail("%d actions, at most %d are accepted", len(e.Actions), MaxActions)
	}
	seen := map[string]bool{}
	for i, a := range e.Actions {
		switch {
		case !policy.Class(a.Class):
			return fail("actions[%d].class is no class", i)
		case a.Key == "":
			return fail("actions[%d].idempotency_key is required", i)
		case seen[a.Key]:
			return fail("actions[%d].idempotency_key is declared twice", i)
		case a.PayloadHash != "" && !ident.Hex64(a.PayloadHash):
			return fail("actions[%d].payload_hash must be 64 lowercase hex digits", i)
		}
		seen[a.Key] = true
	}
	return nil
}

// Register declares a task. A task id is registered once, and a key belongs to
// the task that declared it first: declared again under another task it could
// name a cheaper class. Refusals: CodeActorInvalid, CodeEnvelopeInvalid,
// CodeTaskAlreadyRegistered, the log's.
func (g *Gate) Register(ctx context.Context, r Registration) (alog.Record, error) {
	if err := checkActor(r.Actor, alog.Human, alog.Agent); err != nil {
		return alog.Record{}, err
	}
	if r.Task == "" {
		return alog.Record{}, refuse(CodeEnvelopeInvalid, "a task needs an id")
	}
	if err := r.Envelope.check(); err != nil {
		return alog.Record{}, err
	}
	v, err := g.View()
	if err != nil {
		return alog.Record{}, err
	}
	if v.Tasks[r.Task] != nil {
		return alog.Record{}, refuse(CodeTaskAlreadyRegistered, "the task was registered before, and what it declared stands")
	}
	for _, a := range r.Envelope.Actions {
		if other := v.Actions[a.Key]; other != nil {
			return alog.Record{}, &Error{Code: CodeEnvelopeInvalid, Detail: "action-already-declared",
				Message: fmt.Sprintf("task %s declared the key %s", other.Task, a.Key)}
		}
	}
	return g.append(ctx, v, alog.Draft{Event: alog.TaskRegistered, Actor: r.Actor, Task: r.Task, Channel: r.Channel,
		Payload: registeredPayload{Actions: r.Envelope.Actions, State: r.Envelope.State, Budget: r.Envelope.Budget}})
}
