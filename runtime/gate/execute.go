package gate

import (
	"context"
	"crypto/subtle"
	"fmt"
	"path/filepath"

	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// A Start says that an action begins now.
type Start struct {
	Actor       string
	Key         string
	Token       string // of a plain grant
	PayloadHash string // of what is about to happen
	// Execution is ExecBroker for the broker, which spends a grant without a
	// token; else "".
	Execution string
	// PolicySHA256, when set, is the digest of the policy the caller decided by.
	PolicySHA256 string
}

// Start appends execution.started, once for a key and for ever. Refusals, in the
// order they are looked for: CodeActorInvalid, the log's,
// CodeActionNotRegistered, CodeExecutionIndeterminate, CodePolicyDrift (against
// Start.PolicySHA256), CodeClassHumanOnly; where a person is needed
// CodeTokenRevoked, CodeTokenExpired, CodeNotGranted, CodeHarnessExecuted,
// CodeTokenRequired, CodeTokenConsumed (CodeAlreadyExecuted for a broker),
// CodeTokenMismatch, CodePayloadMismatch, CodePolicyDrift; else
// CodePolicyNotAttested, CodeLoopEscalated, CodeAlreadyExecuted,
// CodePayloadMismatch, CodeBudgetExceeded.
func (g *Gate) Start(ctx context.Context, in Start) (alog.Record, error) {
	if err := checkActor(in.Actor, alog.Human, alog.Agent); err != nil {
		return alog.Record{}, err
	}
	v, err := g.View()
	if err != nil {
		return alog.Record{}, err
	}
	d := g.Document()
	a := v.Action(in.Key)
	switch {
	case a == nil:
		return alog.Record{}, notRegistered(in.Key)
	case a.Indeterminate():
		return alog.Record{}, indeterminate(a)
	}
	if in.PolicySHA256 != "" {
		if err := v.attestedAs(d, in.PolicySHA256); err != nil {
			return alog.Record{}, err
		}
	}
	r := d.Resolve(a.Class, a.Reversible)
	p := startPayload{Class: a.Class, Cost: a.cost(), PolicySHA256: d.SHA256}
	switch {
	case r.Autonomy == policy.HumanOnly:
		return alog.Record{}, humanOnly(a)
	case r.NeedsPerson():
		err = v.spend(d, a, in, &p)
	default:
		err = g.pass(ctx, v, d, a, r, in)
	}
	if err != nil {
		return alog.Record{}, err
	}
	return g.append(ctx, v, alog.Draft{Event: alog.ExecutionStarted, Actor: in.Actor, Task: a.Task, ActionKey: a.Key, Payload: p})
}

// pass holds a start that needs no person to the policy.
func (g *Gate) pass(ctx context.Context, v *View, d *policy.Document, a *Action, r policy.Resolution, in Start) error {
	if err := v.CheckAttested(d); err != nil {
		return err
	}
	switch {
	case v.escalated(a):
		return loop(a)
	case a.Starts > 0:
		return refuse(CodeAlreadyExecuted, "the key was started before; a key is good for one start")
	case a.PayloadHash != "" && in.PayloadHash != a.PayloadHash:
		return refuse(CodePayloadMismatch, "what is about to happen is not what was declared")
	}
	return g.checkBudgets(ctx, v, a, r, d, in.Actor, alog.StageExecution)
}

// spend proves that a grant covers the start, and fills in what the start says
// of it.
func (v *View) spend(d *policy.Document, a *Action, in Start, p *startPayload) error {
	if err := v.liveGrant(d, a); err != nil {
		return err
	}
	said := a.Granted.Said
	if said.Execution != "" || in.Execution != "" {
		return v.spendBroker(d, a, in, p)
	}
	switch presented := digest.SHA256Hex([]byte(in.Token)); {
	case in.Token == "":
		return refuse(CodeTokenRequired, "the action needs the token that its grant printed")
	case said.TokenSHA256 == "":
		return refuse(CodeTokenMismatch, "the grant names no token")
	case a.startedSinceGrant(), a.tokens[said.TokenSHA256]:
		return refuse(CodeTokenConsumed, "the token was used")
	case subtle.ConstantTimeCompare([]byte(presented), []byte(said.TokenSHA256)) != 1:
		return refuse(CodeTokenMismatch, "the token is not this grant's")
	case said.PayloadHash == "" || in.PayloadHash != said.PayloadHash:
		return refuse(CodePayloadMismatch, "what is about to happen is not what was granted; the token stays good")
	case grantDrifted(a, d):
		return refuse(CodePolicyDrift, "the policy is not the one the grant was given under")
	}
	p.TokenSHA256, p.PayloadHash = said.TokenSHA256, said.PayloadHash
	return nil
}

// liveGrant refuses unless the key's current question was granted and the grant
// still stands.
func (v *View) liveGrant(d *policy.Document, a *Action) error {
	switch s := a.State(); {
	case s == StateRevoked:
		return &Error{Code: CodeTokenRevoked, State: s, Message: "the grant was taken back"}
	case s == StateExpired || v.Lapsed(a, d):
		return &Error{Code: CodeTokenExpired, State: StateExpired, Message: "nobody decided in time"}
	case s != StateGranted:
		return &Error{Code: CodeNotGranted, State: s, Message: "no person has granted it"}
	case v.GrantLapsed(a, d):
		return &Error{Code: CodeTokenExpired, State: s, Message: "the grant is older than the policy lets grants be"}
	}
	return nil
}

// spendBroker spends a grant that minted no token. It is bound to payload,
// class and policy, and only to the kind of execution it was asked for.
func (v *View) spendBroker(d *policy.Document, a *Action, in Start, p *startPayload) error {
	said := a.Granted.Said
	switch {
	case in.Token != "" && said.Execution == ExecHarness, said.Execution == ExecHarness && in.Execution == "":
		return refuse(CodeHarnessExecuted, "the grant is for a harness, which runs the action itself")
	case said.Execution != ExecBroker || in.Execution != ExecBroker:
		return refuse(CodeTokenRequired, "the grant is not for this kind of execution")
	case a.startedSinceGrant() || a.Starts > 0:
		return refuse(CodeAlreadyExecuted, "the grant was used")
	case said.PayloadHash == "" || in.PayloadHash != said.PayloadHash || said.PayloadHash != a.PayloadHash || said.Class != a.Class:
		return refuse(CodePayloadMismatch, "what is about to happen is not what was granted")
	case said.PolicySHA256 != d.SHA256:
		return refuse(CodePolicyDrift, "the policy is not the one the grant was given under")
	}
	if err := v.CheckAttested(d); err != nil {
		return err
	}
	p.Execution, p.PayloadHash, p.GrantSeq = ExecBroker, said.PayloadHash, a.Granted.Seq
	return nil
}

// A Finish says how a started action ended.
type Finish struct {
	Actor    string
	Key      string
	ExitCode int // 0 is a completion
	Note     string
}

// Finish appends execution.completed for exit code 0, else execution.failed.
// Refusals: CodeActorInvalid, the log's, CodeActionNotRegistered,
// CodeNotStarted, CodeAlreadyFinished, CodeExecutionDelegated.
func (g *Gate) Finish(ctx context.Context, in Finish) (alog.Record, error) {
	v, a, err := g.dangling(in.Actor, in.Key)
	if err != nil {
		return alog.Record{}, err
	}
	event := alog.ExecutionCompleted
	if in.ExitCode != 0 {
		event = alog.ExecutionFailed
	}
	return g.append(ctx, v, alog.Draft{Event: event, Actor: in.Actor, Task: a.Task, ActionKey: a.Key,
		Payload: endPayload{ExitCode: &in.ExitCode, Note: in.Note}})
}

// Indeterminate appends that the effect of a started action is unknown; reason
// is one of the log's. Only the actor of the start may say so. Refusals as
// Finish's, and CodeReasonInvalid.
func (g *Gate) Indeterminate(ctx context.Context, actor, key, reason string) (alog.Record, error) {
	switch reason {
	case alog.IndeterminateActThrew, alog.IndeterminateCommitUnknown:
	default:
		return alog.Record{}, refuse(CodeReasonInvalid, "a reason is act-threw or workspace-commit-unknown")
	}
	v, a, err := g.dangling(actor, key)
	if err != nil {
		return alog.Record{}, err
	}
	if a.Started.Actor != actor {
		return alog.Record{}, refuse(CodeActorInvalid, "only the actor of the start may say that its effect is unknown")
	}
	return g.append(ctx, v, alog.Draft{Event: alog.ExecutionIndeterminate, Actor: actor, Task: a.Task, ActionKey: a.Key,
		Payload: endPayload{Reason: reason}})
}

// Resolve lets a person close a start that has no outcome: completed or failed,
// with a note. Refusals as Finish's, and CodeActorNotHuman, CodeNoteRequired.
func (g *Gate) Resolve(ctx context.Context, in Decision, completed bool) (alog.Record, error) {
	if err := checkActor(in.Actor, alog.Human); err != nil {
		return alog.Record{}, err
	}
	if in.Note == "" {
		return alog.Record{}, refuse(CodeNoteRequired, "say in a note what you found")
	}
	v, a, err := g.dangling(in.Actor, in.Key)
	if err != nil {
		return alog.Record{}, err
	}
	event := alog.ExecutionFailed
	if completed {
		event = alog.ExecutionCompleted
	}
	return g.append(ctx, v, alog.Draft{Event: event, Actor: in.Actor, Task: a.Task, ActionKey: a.Key, Channel: in.Channel,
		Payload: endPayload{Note: in.Note, AttestedByHuman: true}})
}

// dangling reads the log and finds a start without an outcome.
func (g *Gate) dangling(actor, key string) (*View, *Action, error) {
	if err := checkActor(actor, alog.Human, alog.Agent); err != nil {
		return nil, nil, err
	}
	v, err := g.View()
	if err != nil {
		return nil, nil, err
	}
	a := v.Action(key)
	switch {
	case a == nil:
		return nil, nil, notRegistered(key)
	case a.Started == nil:
		return nil, nil, refuse(CodeNotStarted, "it was never started")
	case a.Ended != nil:
		return nil, nil, &Error{Code: CodeAlreadyFinished, Seq: a.Ended.Seq, Message: fmt.Sprintf("the log has its outcome: %s", a.Ended.Event)}
	}
	var p startPayload
	if a.Started.Decode(&p) == nil && p.Execution == ExecHarness {
		return nil, nil, refuse(CodeExecutionDelegated, "a harness runs it, and nobody here sees how it ends")
	}
	return v, a, nil
}

// Reconcile lets a person say what an execution of unknown effect did: executed
// or not-executed, with a note. The key stays spent either way. Refusals:
// CodeActorNotHuman, CodeReasonInvalid, CodeNoteRequired, the log's,
// CodeActionNotRegistered, CodeAlreadyReconciled, CodeNotIndeterminate.
func (g *Gate) Reconcile(ctx context.Context, in Decision, resolution string) (alog.Record, error) {
	if err := checkActor(in.Actor, alog.Human); err != nil {
		return alog.Record{}, err
	}
	switch {
	case resolution != alog.ReconciledExecuted && resolution != alog.ReconciledNotExecuted:
		return alog.Record{}, refuse(CodeReasonInvalid, "a resolution is executed or not-executed")
	case in.Note == "":
		return alog.Record{}, refuse(CodeNoteRequired, "say in a note what you found")
	}
	v, err := g.View()
	if err != nil {
		return alog.Record{}, err
	}
	a := v.Action(in.Key)
	switch {
	case a == nil:
		return alog.Record{}, notRegistered(in.Key)
	case a.Reconciled != nil:
		return alog.Record{}, &Error{Code: CodeAlreadyReconciled, Seq: a.Reconciled.Seq, Message: "a person has said what it did"}
	case !a.Indeterminate():
		return alog.Record{}, refuse(CodeNotIndeterminate, "the log does not call its effect unknown")
	}
	return g.append(ctx, v, alog.Draft{Event: alog.ExecutionReconciled, Actor: in.Actor, Task: a.Task, ActionKey: a.Key, Channel: in.Channel,
		Payload: reconciledPayload{IndeterminateSeq: a.Ended.Seq, Resolution: resolution, Note: in.Note, AttestedByHuman: true}})
}

func basename(path string) string { return filepath.Base(path) }
