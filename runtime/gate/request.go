package gate

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/strictjson"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// A Question asks the policy, and where it says so a person, about an action.
type Question struct {
	Actor   string
	Key     string
	Channel string
	// Payload is the JSON a person decides on, stored when a person is asked; it
	// must have the declared hash. Nil when it was stored before.
	Payload jsontext.Value
	// Execution is "", ExecHarness or ExecBroker.
	Execution string
	// PolicySHA256, when set, is the digest of the policy the caller decided by;
	// another one in force refuses with CodePolicyDrift.
	PolicySHA256 string
}

// An Answer is what became of a question. With Proceed the policy lets the
// action pass and nothing was written; else Record is the approval.requested.
type Answer struct {
	Proceed    bool
	Record     alog.Record
	Resolution policy.Resolution
}

// Request puts a question. Refusals, in the order they are looked for:
// CodeActorInvalid, the log's, CodePolicyNotAttested, CodePolicyDrift,
// CodeActionNotRegistered, CodeExecutionIndeterminate, CodeClassHumanOnly, and
// off the manual path CodeLoopEscalated; on it CodePayloadHashRequired,
// CodePayloadMismatch, CodeDuplicateRequest, CodeAlreadyExecuted, CodeQueueFull,
// CodeRateLimited, CodeBudgetExceeded, CodePayloadStoreFailed.
func (g *Gate) Request(ctx context.Context, q Question) (Answer, error) {
	if err := checkActor(q.Actor, alog.Human, alog.Agent); err != nil {
		return Answer{}, err
	}
	v, err := g.View()
	if err != nil {
		return Answer{}, err
	}
	d := g.Document()
	if err := v.attestedAs(d, q.PolicySHA256); err != nil {
		return Answer{}, err
	}
	a := v.Action(q.Key)
	if a == nil {
		return Answer{}, notRegistered(q.Key)
	}
	r := d.Resolve(a.Class, a.Reversible)
	switch {
	case a.Indeterminate():
		return Answer{}, indeterminate(a)
	case r.Autonomy == policy.HumanOnly:
		return Answer{}, humanOnly(a)
	case !r.NeedsPerson():
		if v.escalated(a) {
			return Answer{}, loop(a)
		}
		return Answer{Proceed: true, Resolution: r}, nil
	}
	rec, err := g.ask(ctx, v, d, a, r, q)
	return Answer{Record: rec, Resolution: r}, err
}

// ask puts the question to people.
func (g *Gate) ask(ctx context.Context, v *View, d *policy.Document, a *Action, r policy.Resolution, q Question) (alog.Record, error) {
	canonical, err := boundPayload(a, q.Payload)
	if err != nil {
		return alog.Record{}, err
	}
	if err := g.clearOldQuestion(ctx, v, d, a); err != nil {
		return alog.Record{}, err
	}
	if a.Starts > 0 {
		return alog.Record{}, refuse(CodeAlreadyExecuted, "the key was started before; a key is good for one start")
	}
	if q.Execution == ExecBroker && v.BrokerQueueFull(q.Actor, d) {
		return alog.Record{}, &Error{Code: CodeQueueFull, Message: fmt.Sprintf("%d changes wait for a person already", MaxBrokerQuestions)}
	}
	if err := v.checkQueue(r, d); err != nil {
		return alog.Record{}, err
	}
	if err := g.checkBudgets(ctx, v, a, r, d, q.Actor, alog.StageRequest); err != nil {
		return alog.Record{}, err
	}
	if canonical != nil {
		if _, err := g.Payloads().Put(canonical); err != nil {
			return alog.Record{}, &Error{Code: CodePayloadStoreFailed, Err: err}
		}
	} else if _, err := g.Payloads().Get(a.PayloadHash); err != nil {
		// Nobody can decide on bytes that nobody can see.
		return alog.Record{}, &Error{Code: CodePayloadStoreFailed, Err: err}
	}
	return g.append(ctx, v, alog.Draft{Event: alog.ApprovalRequested, Actor: q.Actor, Task: a.Task, ActionKey: a.Key,
		Channel: q.Channel, Payload: requestPayload{Class: a.Class, Cost: a.cost(), PayloadHash: a.PayloadHash,
			Summary: a.Summary, Reversible: a.Reversible, Execution: q.Execution, PolicySHA256: d.SHA256}})
}

// boundPayload proves that the payload is the declared one.
func boundPayload(a *Action, payload jsontext.Value) ([]byte, error) {
	if a.PayloadHash == "" {
		return nil, refuse(CodePayloadHashRequired, "the declaration names no payload_hash: a person decides on exact bytes")
	}
	if payload == nil {
		return nil, nil
	}
	if len(payload) > MaxPayload {
		return nil, refuse(CodePayloadMismatch, fmt.Sprintf("the payload is larger than %d bytes", MaxPayload))
	}
	canonical, err := strictjson.CanonicalBytes(payload)
	if err != nil {
		return nil, &Error{Code: CodePayloadMismatch, Err: err}
	}
	if digest.SHA256Hex(canonical) != a.PayloadHash {
		return nil, refuse(CodePayloadMismatch, "the payload is not the declared one")
	}
	return canonical, nil
}

// clearOldQuestion closes a question that time or a change of the policy has
// voided, and refuses while one is open or its grant can still be used.
func (g *Gate) clearOldQuestion(ctx context.Context, v *View, d *policy.Document, a *Action) error {
	switch a.State() {
	case StateRequested:
		if v.Lapsed(a, d) {
			return g.appendExpired(ctx, v, d, a)
		}
		if v.drifted(a, d) {
			return g.appendDrift(ctx, v, a)
		}
		return &Error{Code: CodeDuplicateRequest, State: StateRequested, Seq: a.Requested.Seq,
			Message: "the question was put and waits for a person"}
	case StateGranted:
		if a.Starts == 0 && !v.GrantLapsed(a, d) && !grantDrifted(a, d) {
			return &Error{Code: CodeDuplicateRequest, State: StateGranted, Seq: a.Granted.Seq,
				Message: "a person granted it, and the grant was not used yet"}
		}
	}
	return nil
}

// drifted reports whether the open question was put under another policy.
func (v *View) drifted(a *Action, d *policy.Document) bool {
	pinned := a.Requested.Said.PolicySHA256
	return pinned != "" && pinned != d.SHA256
}

func grantDrifted(a *Action, d *policy.Document) bool {
	pinned := a.Granted.Said.PolicySHA256
	return pinned != "" && pinned != d.SHA256
}

func (g *Gate) appendDrift(ctx context.Context, v *View, a *Action) error {
	_, err := g.append(ctx, v, alog.Draft{Event: alog.ApprovalWithdrawn, Actor: alog.SystemGate, Task: a.Task, ActionKey: a.Key,
		Payload: withdrawnPayload{ActionKey: a.Key, Reason: alog.WithdrawnPolicyDrift}})
	return err
}

func (g *Gate) appendExpired(ctx context.Context, v *View, d *policy.Document, a *Action) error {
	p := expiredPayload{RequestedTS: stamp(a.Requested.TS), TTLMS: ttlOf(d, a.Requested.Said.Execution).Milliseconds(),
		Class: a.Requested.Said.Class}
	if d.Policy != nil {
		p.OnExpiry = d.Policy.OnExpiry
	}
	_, err := g.append(ctx, v, alog.Draft{Event: alog.ApprovalExpired, Actor: alog.SystemGate, Task: a.Task, ActionKey: a.Key, Payload: p})
	return err
}

// attestedAs checks the attestation, and that the policy is the one the caller
// decided by.
func (v *View) attestedAs(d *policy.Document, sha256 string) error {
	if err := v.CheckAttested(d); err != nil {
		return err
	}
	if sha256 != "" && sha256 != d.SHA256 {
		return refuse(CodePolicyDrift, "the policy changed while the action was being decided")
	}
	return nil
}

// escalated reports whether the task has failed so often that only people let it
// go on.
func (v *View) escalated(a *Action) bool {
	t := v.Tasks[a.Task]
	return t != nil && t.Failures >= LoopLimit
}

func notRegistered(key string) error {
	return &Error{Code: CodeActionNotRegistered, Message: fmt.Sprintf("no task declares the key %q", key)}
}

func indeterminate(a *Action) error {
	return &Error{Code: CodeExecutionIndeterminate, Seq: a.Ended.Seq,
		Message: "what its execution did is unknown; a person must look: approval execution reconcile"}
}

func humanOnly(a *Action) error {
	return &Error{Code: CodeClassHumanOnly, Message: fmt.Sprintf("the policy leaves %s to people alone", a.Class)}
}

func loop(a *Action) error {
	return &Error{Code: CodeLoopEscalated, Message: fmt.Sprintf(
		"task %s failed %d times in a row; only what a person grants goes on", a.Task, LoopLimit)}
}
