package gate

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"time"

	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// A Decision is what a person says about a question.
type Decision struct {
	Actor   string // human:NAME
	Key     string
	Note    string
	Channel string
}

// A Decided is what a decision came to. Token is set by a grant of a plain
// action only: it is shown once and kept nowhere.
type Decided struct {
	Record alog.Record
	State  State
	Token  string
}

// Grant lets an action happen once. Refusals: CodeActorNotHuman, the log's,
// CodePolicyNotAttested, CodeActionNotRegistered, CodeNotRequested, CodeExpired
// (after recording it), CodeRequestWithdrawn, CodeAlreadyDecided,
// CodePolicyDrift (after withdrawing the question), CodeClassHumanOnly,
// CodeActorNotApprover, CodeGrantClassless, CodeDeliveryUnsupported,
// CodePayloadStoreFailed, CodeBudgetExceeded.
func (g *Gate) Grant(ctx context.Context, in Decision) (Decided, error) {
	v, d, a, err := g.deciding(ctx, in, true)
	if err != nil {
		return Decided{}, err
	}
	if v.drifted(a, d) {
		if err := g.appendDrift(ctx, v, a); err != nil {
			return Decided{}, err
		}
		return Decided{}, &Error{Code: CodePolicyDrift, State: StateWithdrawn,
			Message: "the question was put under another policy and is withdrawn; ask again"}
	}
	r := d.Resolve(a.Class, a.Reversible)
	if err := g.mayGrant(ctx, v, d, a, r, in.Actor); err != nil {
		return Decided{}, err
	}
	said := a.Requested.Said
	p := grantPayload{Class: said.Class, Cost: said.Cost, PayloadHash: said.PayloadHash, Note: in.Note,
		Execution: said.Execution, PolicySHA256: d.SHA256}
	token := ""
	if said.Execution == "" {
		if token, err = g.mint(); err != nil {
			return Decided{}, err
		}
		p.TokenSHA256 = digest.SHA256Hex([]byte(token))
	}
	rec, err := g.append(ctx, v, g.decision(alog.ApprovalGranted, a, in, p))
	if err != nil {
		return Decided{}, err
	}
	return Decided{Record: rec, State: StateGranted, Token: token}, nil
}

// mayGrant holds a grant to the policy: who may, and for how much.
func (g *Gate) mayGrant(ctx context.Context, v *View, d *policy.Document, a *Action, r policy.Resolution, actor string) error {
	_, name, _ := alog.ActorKind(actor)
	switch {
	case a.Requested.Said.Class == "":
		return refuse(CodeGrantClassless, "the question names no class")
	case r.Autonomy == policy.HumanOnly:
		return humanOnly(a)
	case r.Approvers != nil && !slices.Contains(r.Approvers, name):
		return &Error{Code: CodeActorNotApprover, Message: fmt.Sprintf("the policy names who may grant %s: %v", a.Class, r.Approvers)}
	}
	if a.Requested.Said.Execution == "" && d.Policy != nil && d.Policy.TokenDelivery == policy.DeliverSealed {
		return refuse(CodeDeliveryUnsupported, "the policy wants tokens sealed to who spends them, and this gate can only print one")
	}
	return g.checkBudgets(ctx, v, a, r, d, actor, alog.StageGrant)
}

func (g *Gate) mint() (string, error) {
	var raw [32]byte
	if _, err := io.ReadFull(g.c.Random, raw[:]); err != nil {
		return "", fmt.Errorf("no randomness for a token: %w", err)
	}
	return hex.EncodeToString(raw[:]), nil
}

// Reject turns an open question down. Refusals as Grant's, without those of the
// policy.
func (g *Gate) Reject(ctx context.Context, in Decision) (Decided, error) {
	v, _, a, err := g.deciding(ctx, in, false)
	if err != nil {
		return Decided{}, err
	}
	rec, err := g.append(ctx, v, g.decision(alog.ApprovalRejected, a, in, notePayload{Note: in.Note}))
	return Decided{Record: rec, State: StateRejected}, err
}

// Revoke takes a grant back before it was used. Refusals: CodeActorNotHuman,
// the log's, CodeActionNotRegistered, CodeNotRequested, CodeRequestWithdrawn,
// CodeAlreadyDecided, CodeAlreadyExecuted, CodeNotGranted.
func (g *Gate) Revoke(ctx context.Context, in Decision) (Decided, error) {
	if err := checkActor(in.Actor, alog.Human); err != nil {
		return Decided{}, err
	}
	v, err := g.View()
	if err != nil {
		return Decided{}, err
	}
	a := v.Action(in.Key)
	if a == nil {
		return Decided{}, notRegistered(in.Key)
	}
	d := g.Document()
	if err := g.closeLapsed(ctx, v, d, a); err != nil {
		return Decided{}, err
	}
	switch s := a.State(); {
	case s == StateGranted && a.startedSinceGrant():
		return Decided{}, &Error{Code: CodeAlreadyExecuted, State: s, Message: "the grant was used; there is nothing to take back"}
	case s == StateGranted:
	case s == StateRequested:
		return Decided{}, &Error{Code: CodeNotGranted, State: s, Message: "it was not granted; reject it instead"}
	default:
		return Decided{}, undecidable(a)
	}
	rec, err := g.append(ctx, v, g.decision(alog.ApprovalRevoked, a, in, notePayload{Note: in.Note}))
	return Decided{Record: rec, State: StateRevoked}, err
}

func (a *Action) startedSinceGrant() bool {
	return a.Started != nil && a.Granted != nil && a.Started.Seq > a.Granted.Seq
}

// deciding reads what a decision of an open question needs.
func (g *Gate) deciding(ctx context.Context, in Decision, attested bool) (*View, *policy.Document, *Action, error) {
	if err := checkActor(in.Actor, alog.Human); err != nil {
		return nil, nil, nil, err
	}
	v, err := g.View()
	if err != nil {
		return nil, nil, nil, err
	}
	d := g.Document()
	if attested {
		if err := v.CheckAttested(d); err != nil {
			return nil, nil, nil, err
		}
	}
	a := v.Action(in.Key)
	if a == nil {
		return nil, nil, nil, notRegistered(in.Key)
	}
	if err := g.closeLapsed(ctx, v, d, a); err != nil {
		return nil, nil, nil, err
	}
	if a.State() != StateRequested {
		return nil, nil, nil, undecidable(a)
	}
	return v, d, a, nil
}

// closeLapsed records that a question lapsed and refuses.
func (g *Gate) closeLapsed(ctx context.Context, v *View, d *policy.Document, a *Action) error {
	if !v.Lapsed(a, d) {
		return nil
	}
	if err := g.appendExpired(ctx, v, d, a); err != nil {
		return err
	}
	return &Error{Code: CodeExpired, State: StateExpired, Seq: v.Head.Seq,
		Message: "nobody decided in time; the question must be put again"}
}

// undecidable says why a key has no open question.
func undecidable(a *Action) error {
	s := a.State()
	switch s {
	case StateNone:
		return &Error{Code: CodeNotRequested, State: s, Message: "nobody asked"}
	case StateExpired:
		return &Error{Code: CodeExpired, State: s, Message: "nobody decided in time; the question must be put again"}
	case StateWithdrawn:
		return &Error{Code: CodeRequestWithdrawn, State: s, Message: "the question was withdrawn"}
	}
	return &Error{Code: CodeAlreadyDecided, State: s, Message: fmt.Sprintf("it is %s by %s", s, a.Settled.Actor), Seq: a.Settled.Seq}
}

func (g *Gate) decision(e alog.Event, a *Action, in Decision, payload any) alog.Draft {
	return alog.Draft{Event: e, Actor: in.Actor, Task: a.Task, ActionKey: a.Key, Channel: in.Channel, Payload: payload}
}

// Withdraw takes an open question back; only who put it may. reason is one of
// the log's, "" is cancelled.
func (g *Gate) Withdraw(ctx context.Context, actor, key, reason, note string) (alog.Record, error) {
	if err := checkActor(actor, alog.Human, alog.Agent); err != nil {
		return alog.Record{}, err
	}
	switch reason {
	case "":
		reason = alog.WithdrawnCancelled
	case alog.WithdrawnCancelled, alog.WithdrawnSuperseded, alog.WithdrawnTimeout:
	default:
		return alog.Record{}, refuse(CodeReasonInvalid, "a reason is timeout, cancelled or superseded")
	}
	v, err := g.View()
	if err != nil {
		return alog.Record{}, err
	}
	a := v.Action(key)
	switch {
	case a == nil:
		return alog.Record{}, notRegistered(key)
	case a.State() == StateNone:
		return alog.Record{}, undecidable(a)
	case a.Requested == nil || a.Requested.Actor != actor:
		return alog.Record{}, refuse(CodeNotRequester, "only who put the question may withdraw it")
	case a.State() != StateRequested:
		return alog.Record{}, undecidable(a)
	}
	if err := g.closeLapsed(ctx, v, g.Document(), a); err != nil {
		return alog.Record{}, err
	}
	return g.append(ctx, v, alog.Draft{Event: alog.ApprovalWithdrawn, Actor: actor, Task: a.Task, ActionKey: key,
		Payload: withdrawnPayload{ActionKey: key, Reason: reason, Note: note}})
}

// Expire records that an open question lapsed; CodeNotExpired when it has not.
func (g *Gate) Expire(ctx context.Context, key string) (alog.Record, error) {
	v, err := g.View()
	if err != nil {
		return alog.Record{}, err
	}
	a := v.Action(key)
	if a == nil {
		return alog.Record{}, notRegistered(key)
	}
	if a.State() != StateRequested {
		return alog.Record{}, undecidable(a)
	}
	d := g.Document()
	if !v.Lapsed(a, d) {
		return alog.Record{}, &Error{Code: CodeNotExpired, State: StateRequested, Message: "the question can still be decided"}
	}
	before := v.Head.Seq
	if err := g.appendExpired(ctx, v, d, a); err != nil {
		return alog.Record{}, err
	}
	return alog.Record{Seq: before + 1, Event: alog.ApprovalExpired, Actor: alog.SystemGate, Task: a.Task, ActionKey: key, Hash: v.Head.Hash}, nil
}

// Attest records that a person has read the policy file as it is. The policy
// need not be valid: attesting says which bytes, not that they are good. This is
// the one append that follows from nothing in the log.
func (g *Gate) Attest(ctx context.Context, actor string) (alog.Record, *policy.Document, error) {
	if err := checkActor(actor, alog.Human); err != nil {
		return alog.Record{}, nil, err
	}
	d := g.Document()
	if d.SHA256 == "" {
		return alog.Record{}, d, &Error{Code: CodePolicyNotAttested, Detail: AttestationNoFile, Err: d.Failure}
	}
	rec, err := g.log.Append(ctx, nil, alog.Draft{Event: alog.PolicyUpdated, Actor: actor,
		Payload: attestPayload{PolicyPath: basename(d.Path), SHA256: d.SHA256}})
	if err != nil {
		return alog.Record{}, d, appendError(err)
	}
	return rec, d, nil
}

// stamp writes a time as the log does.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }
