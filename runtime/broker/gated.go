package broker

import (
	"context"
	"errors"
	"slices"

	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
	"gloved.dev/runtime/gate"
)

// appendTries is how often a step that another writer's record got in the way of is decided again.
// Each try reads the whole log and judges it anew, so that none rests on an old one.
const appendTries = 8

// detailHeadMoved is the gate's detail for such a record.
const detailHeadMoved = alog.CodeHeadMoved

// taskApp is the program that tasks of a broker name as their origin.
const taskApp = "approval-codex"

// A gated is the real Gate of an instance.
type gated struct {
	gate  *gate.Gate
	actor string
}

// NewGate returns the Gate that acts on g as actor, which comes from the instance's manifest.
func NewGate(g *gate.Gate, actor string) Gate { return &gated{gate: g, actor: actor} }

// A reading is one reading of a real gate: the policy document it was opened with decides for the
// whole apply, and the gate refuses once another one is in force.
type reading struct {
	*gated
	doc *policy.Document
}

// Open implements Gate.
func (g *gated) Open(context.Context) (Reading, error) {
	v, err := g.gate.View()
	if err != nil {
		return nil, gateRefusal(CodeLogUnavailable, err)
	}
	doc := g.gate.Document()
	if err := v.CheckAttested(doc); err != nil {
		return nil, gateRefusal(CodePolicyNotAttested, err)
	}
	if doc.Policy == nil {
		r := refuse(CodePolicyUnavailable, "", "the attested policy cannot be understood")
		if doc.Failure != nil {
			r.Detail, r.Err = doc.Failure.Code, doc.Failure
		}
		return nil, r
	}
	return &reading{gated: g, doc: doc}, nil
}

// gateRefusal wraps what the gate says. Its code becomes the detail; where the code is the
// broker's own word for the same thing, its detail does.
func gateRefusal(code string, err error) *Refusal {
	r := refuse(code, gate.Code(err), "the gate refused").because(err)
	if e, ok := errors.AsType[*gate.Error](err); ok {
		if e.Message != "" {
			r.Message = e.Message
		}
		if e.Detail != "" && (e.Code == code || e.Code == gate.CodeAppendFailed) {
			r.Detail = e.Detail
		}
	}
	return r
}

// again repeats a step while other writers' records get in its way.
func again(step func() error) error {
	var err error
	for range appendTries {
		err = step()
		e, ok := errors.AsType[*gate.Error](err)
		if !ok || e.Code != gate.CodeAppendFailed || e.Detail != detailHeadMoved {
			return err
		}
	}
	return err
}

// PolicySHA256 implements Reading.
func (r *reading) PolicySHA256() string { return r.doc.SHA256 }

// irreversible is what every action of a broker declares: bytes that were replaced do not come back
// by themselves.
var irreversible = false

// Classify implements Reading.
func (r *reading) Classify(path string) Class {
	class := r.doc.ClassOf(path).Class
	return Class{Name: class, HumanOnly: r.doc.Resolve(class, &irreversible).Autonomy == policy.HumanOnly}
}

// History implements Reading.
func (r *reading) History(task Task) (Attempts, error) {
	v, err := r.gate.View()
	if err != nil {
		return Attempts{}, gateRefusal(CodeLogUnavailable, err)
	}
	var a Attempts
	for ; ; a.Next++ {
		started := false
		for _, leg := range task.with(a.Next).Legs() {
			act := v.Action(leg.Key)
			if act == nil || act.Started == nil {
				continue
			}
			started = true
			if spent := spentBy(act); spent != "" {
				a.Spent = spent
				return a, nil
			}
		}
		if !started {
			return a, nil
		}
	}
}

func spentBy(a *gate.Action) string {
	switch {
	case a.Ended == nil:
		return SpentDangling
	case a.Ended.Event == alog.ExecutionFailed:
		return ""
	case a.Ended.Event == alog.ExecutionIndeterminate:
		return SpentIndeterminate
	}
	return SpentApplied
}

// Register implements Reading. A task that is there already must be what this one would declare:
// whoever wrote it first must not have chosen a cheaper class or a way back.
func (r *reading) Register(ctx context.Context, task Task, summary string) error {
	legs := task.Legs()
	return again(func() error {
		v, err := r.gate.View()
		if err != nil {
			return gateRefusal(CodeRegisterRefused, err)
		}
		if t := v.Tasks[task.ID()]; t != nil {
			return r.sameDeclaration(v, t, legs)
		}
		// A change that would only find the queue full is not even declared: nothing an agent repeats may
		// make the log grow without a person.
		if r.asks(legs) && v.BrokerQueueFull(r.actor, r.doc) {
			return refuse(CodeRequestRefused, gate.CodeQueueFull, "%d changes wait for a person already", gate.MaxBrokerQuestions)
		}
		e := gate.Envelope{Origin: gate.Origin{App: taskApp, CreatedBy: r.actor}, State: "proposed"}
		for _, leg := range legs {
			e.Actions = append(e.Actions, gate.Declaration{Class: leg.Class, Key: leg.Key, Summary: summary,
				Reversible: &irreversible, PayloadHash: leg.PayloadHash})
		}
		if _, err = r.gate.Register(ctx, gate.Registration{Actor: r.actor, Task: task.ID(), Envelope: e}); err != nil {
			return gateRefusal(CodeRegisterRefused, err)
		}
		return nil
	})
}

// asks reports whether a leg needs a person.
func (r *reading) asks(legs []Leg) bool {
	return slices.ContainsFunc(legs, func(leg Leg) bool { return r.doc.Resolve(leg.Class, &irreversible).NeedsPerson() })
}

func (r *reading) sameDeclaration(v *gate.View, t *gate.Task, legs []Leg) error {
	ok := t.Registered.Actor == r.actor && len(t.Keys) == len(legs)
	for _, leg := range legs {
		a := v.Action(leg.Key)
		ok = ok && a != nil && a.Task == t.ID && a.Class == leg.Class && a.PayloadHash == leg.PayloadHash &&
			a.Reversible != nil && !*a.Reversible
	}
	if !ok {
		return refuse(CodeRegisterRefused, "declared-otherwise", "the log has this task with other actions than the change has")
	}
	return nil
}

// Authorise implements Reading. A person's no stands: the same change is not asked about again. A
// question that lapsed or was withdrawn is.
func (r *reading) Authorise(ctx context.Context, leg Leg, payload []byte) (Authorisation, error) {
	var answer Authorisation
	err := again(func() error {
		v, err := r.gate.View()
		if err != nil {
			return gateRefusal(CodeRequestRefused, err)
		}
		if a := v.Action(leg.Key); a != nil {
			switch s := a.State(); s {
			case gate.StateRejected, gate.StateRevoked:
				return refuse(CodeRequestRefused, string(s), "a person has decided against this change")
			}
		}
		out, err := r.gate.Request(ctx, gate.Question{Actor: r.actor, Key: leg.Key, Payload: payload,
			Execution: gate.ExecBroker, PolicySHA256: r.doc.SHA256})
		if e, ok := errors.AsType[*gate.Error](err); ok && e.Code == gate.CodeDuplicateRequest {
			answer = Waiting
			if e.State == gate.StateGranted {
				answer = Proceed
			}
			return nil
		}
		if err != nil {
			return gateRefusal(CodeRequestRefused, err)
		}
		answer = Waiting
		if out.Proceed {
			answer = Proceed
		}
		return nil
	})
	return answer, err
}

// Start implements Reading.
func (r *reading) Start(ctx context.Context, leg Leg) error {
	return again(func() error {
		_, err := r.gate.Start(ctx, gate.Start{Actor: r.actor, Key: leg.Key, PayloadHash: leg.PayloadHash,
			Execution: gate.ExecBroker, PolicySHA256: r.doc.SHA256})
		if err != nil {
			return gateRefusal(CodeStartRefused, err)
		}
		return nil
	})
}

// Outcome implements Reading.
func (r *reading) Outcome(ctx context.Context, leg Leg, outcome Outcome) error {
	return again(func() error {
		var err error
		switch outcome {
		case Completed:
			_, err = r.gate.Finish(ctx, gate.Finish{Actor: r.actor, Key: leg.Key})
		case Failed:
			_, err = r.gate.Finish(ctx, gate.Finish{Actor: r.actor, Key: leg.Key, ExitCode: 1})
		case Indeterminate:
			_, err = r.gate.Indeterminate(ctx, r.actor, leg.Key, alog.IndeterminateCommitUnknown)
		default:
			return errors.New("an execution has no such outcome")
		}
		if gate.Code(err) == gate.CodeAlreadyFinished {
			return nil
		}
		return err
	})
}

// Status implements Reading.
func (r *reading) Status(_ context.Context, leg Leg) (LegStatus, error) {
	v, err := r.gate.View()
	if err != nil {
		return LegStatus{}, gateRefusal(CodeLogUnavailable, err)
	}
	a := v.Action(leg.Key)
	if a == nil || a.Started == nil || a.PayloadHash != leg.PayloadHash || a.Started.Actor != r.actor {
		return LegStatus{}, nil
	}
	s := LegStatus{Started: true, Reconciled: a.Reconciled != nil}
	if a.Ended != nil {
		switch a.Ended.Event {
		case alog.ExecutionCompleted:
			s.Outcome = Completed
		case alog.ExecutionIndeterminate:
			s.Outcome = Indeterminate
		default:
			s.Outcome = Failed
		}
	}
	return s, nil
}
