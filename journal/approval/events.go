package approval

import (
	"slices"
	"strings"
)

// An Event is a type of record, one of a closed list.
type Event string

// The events this project writes or draws conclusions from.
const (
	TaskRegistered         Event = "task.registered"
	RouteProposed          Event = "route.proposed"
	RouteAccepted          Event = "route.accepted"
	ApprovalRequested      Event = "approval.requested"
	ApprovalGranted        Event = "approval.granted"
	ApprovalRejected       Event = "approval.rejected"
	ApprovalRevoked        Event = "approval.revoked"
	ApprovalExpired        Event = "approval.expired"
	ApprovalWithdrawn      Event = "approval.withdrawn"
	ExecutionStarted       Event = "execution.started"
	ExecutionCompleted     Event = "execution.completed"
	ExecutionFailed        Event = "execution.failed"
	ExecutionIndeterminate Event = "execution.indeterminate"
	ExecutionReconciled    Event = "execution.reconciled"
	BudgetExceeded         Event = "budget.exceeded"
	PolicyUpdated          Event = "policy.updated"
	EnvelopeDrift          Event = "envelope.drift"
	AuditSampled           Event = "audit.sampled"
	AuditReviewed          Event = "audit.reviewed"
	PayloadPruned          Event = "payload.pruned"
)

// foreign are the events that only other programs write. They are read and
// verified, and nothing here follows from them.
var foreign = []Event{
	"policy.proposed", "policy.declined", "audit.dark_session", "audit.decision_refused",
	"audit.gesture_refused", "audit.question_preempted", "audit.lock_reclaimed",
	"reconciliation.required", "reconciliation.satisfied", "gate.opened", "gate.closed",
	"gate.bypassed", "gate.organ.attested", "gate.path.signed_off", "log.checkpoint",
}

// Kinds of actors, the part of an actor before its colon.
const (
	Human  = "human"
	Agent  = "agent"
	System = "system"
)

// SystemGate is the actor of what follows from time or policy alone.
const SystemGate = "system:gate"

// Closed sets of reasons in payloads.
const (
	WithdrawnTimeout     = "timeout"
	WithdrawnCancelled   = "cancelled"
	WithdrawnSuperseded  = "superseded"
	WithdrawnPolicyDrift = "policy-drift" // by system:gate alone

	IndeterminateActThrew      = "act-threw"
	IndeterminateCommitUnknown = "workspace-commit-unknown"

	ReconciledExecuted    = "executed"
	ReconciledNotExecuted = "not-executed"

	StageRequest   = "request"
	StageGrant     = "grant"
	StageExecution = "execution"
)

// A shape is what an event demands of its record beside the base members.
type shape struct {
	task, key, payload bool
	actor              string // the only kind that may; "": any
	check              func(r *Record, p members) string
}

var shapes = map[Event]shape{
	TaskRegistered:     {task: true, check: checkRegistered},
	RouteProposed:      {task: true},
	RouteAccepted:      {task: true},
	ApprovalRequested:  {task: true, key: true},
	ApprovalGranted:    {task: true, key: true, actor: Human, check: checkBatch},
	ApprovalRejected:   {task: true, key: true, actor: Human, check: checkBatch},
	ApprovalRevoked:    {task: true, key: true},
	ApprovalExpired:    {task: true, key: true, check: checkExpired},
	ApprovalWithdrawn:  {task: true, key: true, payload: true, check: checkWithdrawn},
	ExecutionStarted:   {task: true, key: true},
	ExecutionCompleted: {task: true, key: true},
	ExecutionFailed:    {task: true, key: true},
	ExecutionIndeterminate: {task: true, key: true, check: func(_ *Record, p members) string {
		return p.among("reason", true, IndeterminateActThrew, IndeterminateCommitUnknown)
	}},
	ExecutionReconciled: {task: true, key: true, actor: Human, check: func(_ *Record, p members) string {
		return p.among("resolution", true, ReconciledExecuted, ReconciledNotExecuted)
	}},
	BudgetExceeded: {task: true, check: func(_ *Record, p members) string {
		return p.among("stage", false, StageRequest, StageGrant, StageExecution)
	}},
	PolicyUpdated: {},
	EnvelopeDrift: {task: true, check: checkDrift},
	AuditSampled:  {actor: System},
	AuditReviewed: {actor: Human},
	PayloadPruned: {payload: true, actor: System, check: func(_ *Record, p members) string {
		return p.hash("payload_hash", true)
	}},
}

func shapeOf(e Event) (shape, bool) {
	if s, ok := shapes[e]; ok {
		return s, true
	}
	return shape{}, slices.Contains(foreign, e)
}

// Events lists every event a log may hold, sorted.
func Events() []Event {
	all := slices.Clone(foreign)
	for e := range shapes {
		all = append(all, e)
	}
	slices.Sort(all)
	return all
}

// GateTyped reports whether the gate's clock alone gives the event its time:
// such records must not go back in time.
func GateTyped(e Event) bool {
	if e == PolicyUpdated {
		return true
	}
	for _, prefix := range []string{"approval.", "execution.", "budget.", "audit."} {
		if strings.HasPrefix(string(e), prefix) {
			return true
		}
	}
	return false
}

// ActorKind returns the kind of a well-formed actor ("human", "agent" or
// "system") and its id; ok is false for anything else.
func ActorKind(actor string) (kind, id string, ok bool) {
	kind, id, found := strings.Cut(actor, ":")
	if !found || id == "" || strings.HasPrefix(id, "\n") {
		return "", "", false
	}
	switch kind {
	case Human, Agent, System:
		return kind, id, true
	}
	return "", "", false
}

// IsHuman reports whether actor is a well-formed human: actor.
func IsHuman(actor string) bool {
	kind, _, ok := ActorKind(actor)
	return ok && kind == Human
}

func checkRegistered(_ *Record, p members) string {
	if budget, ok := p.object("budget"); ok {
		if why := budget.money("max_cost_usd"); why != "" {
			return "payload.budget." + why
		}
	}
	return ""
}

func checkBatch(_ *Record, p members) string { return p.text("batch_delivery_id", false) }

func checkExpired(_ *Record, p members) string { return p.among("on_expiry", false, "reject") }

func checkWithdrawn(r *Record, p members) string {
	if why := p.text("action_key", true); why != "" {
		return why
	}
	why := p.among("reason", true, WithdrawnTimeout, WithdrawnCancelled, WithdrawnSuperseded, WithdrawnPolicyDrift)
	if why != "" {
		return why
	}
	kind, _, _ := ActorKind(r.Actor)
	if drift := p.string("reason") == WithdrawnPolicyDrift; drift != (kind == System) {
		return "only the system withdraws for policy drift, and for nothing else"
	}
	return ""
}

func checkDrift(_ *Record, p members) string {
	if why := p.among("reason", false, "state-mismatch", "envelope-missing"); why != "" {
		return why
	}
	return p.among("missing", false, "no-approval-key", "no-frontmatter")
}
