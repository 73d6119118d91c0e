package gate

import (
	"time"

	"gloved.dev/journal"
	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// A State is where the question of a key stands.
type State string

// States of a key.
const (
	StateNone      State = "none"
	StateRequested State = "requested"
	StateGranted   State = "granted"
	StateRejected  State = "rejected"
	StateRevoked   State = "revoked"
	StateExpired   State = "expired"
	StateWithdrawn State = "withdrawn"
)

// Executions that need no token of a person's hand.
const (
	ExecHarness = "harness"
	ExecBroker  = "broker"
)

// BrokerTTL bounds a broker's question and grant where the policy sets no
// shorter bound.
const BrokerTTL = 24 * time.Hour

// MaxBrokerQuestions is how many questions of one broker may wait at once, whatever the policy allows:
// each keeps a payload of up to MaxPayload, and a person has to be able to find the one that matters.
const MaxBrokerQuestions = 64

// LoopLimit is how many failures of a task, without a completion between them,
// send it to a person.
const LoopLimit = 3

// An Action is one declared key and what happened to it.
type Action struct {
	Declaration
	Task     string
	Declared alog.Record // its task.registered

	Requested *Requested // the current cycle's question; nil: never asked
	Settled   *alog.Record
	Granted   *Granted // set when the current cycle was granted, even if revoked since
	state     State

	Started    *alog.Record // the last execution.started
	Starts     int
	Ended      *alog.Record // its outcome; nil: none, or dangling
	Reconciled *alog.Record

	tokens map[string]bool // digests of tokens that starts spent
}

// A Requested is an approval.requested and what its payload said.
type Requested struct {
	alog.Record
	Said requestPayload
}

// A Granted is an approval.granted and what its payload said.
type Granted struct {
	alog.Record
	Said grantPayload
}

// State returns where the key's question stands, not looking at the clock.
func (a *Action) State() State {
	if a.state == "" {
		return StateNone
	}
	return a.state
}

// Dangling reports whether the action was started and has no outcome.
func (a *Action) Dangling() bool { return a.Started != nil && a.Ended == nil }

// Indeterminate reports whether the action's effect is unknown and no person has
// said what it was.
func (a *Action) Indeterminate() bool {
	return a.Ended != nil && a.Ended.Event == alog.ExecutionIndeterminate && a.Reconciled == nil
}

// A Task is one registered task.
type Task struct {
	ID         string
	Registered alog.Record
	Keys       []string
	MaxCost    *Micros // its lifetime cap
	Failures   int     // in a row
}

// A View is the state that follows from one proven log. It is not changed by
// later appends.
type View struct {
	Head    journal.Head
	Now     time.Time // the operation's one reading of the clock
	Records []alog.Record
	Tasks   map[string]*Task
	Actions map[string]*Action
	Order   []string     // keys in the order of their declaration
	Attests *alog.Record // the latest policy.updated that names a digest
}

// Action returns a declared key, or nil.
func (v *View) Action(key string) *Action { return v.Actions[key] }

// Attested is the digest of the policy that people attested last, and the record
// that says so; "" without one.
func (v *View) Attested() (sha256 string, seq uint64) {
	if v.Attests == nil {
		return "", 0
	}
	var p attestPayload
	if v.Attests.Decode(&p) != nil {
		return "", 0
	}
	return p.SHA256, v.Attests.Seq
}

// fold builds a view.
func fold(s *alog.Snapshot, now time.Time) *View {
	v := &View{Head: s.Head, Now: now, Records: s.Records, Tasks: map[string]*Task{}, Actions: map[string]*Action{}}
	for i := range s.Records {
		v.add(&s.Records[i])
	}
	return v
}

func (v *View) add(r *alog.Record) {
	switch r.Event {
	case alog.TaskRegistered:
		v.register(r)
	case alog.PolicyUpdated:
		var p attestPayload
		// A record that no person wrote attests nothing, whoever wrote it.
		if alog.IsHuman(r.Actor) && r.Decode(&p) == nil && p.SHA256 != "" {
			v.Attests = r
		}
	}
	if a := v.Actions[r.ActionKey]; a != nil {
		a.add(r)
	}
	v.countLoop(r)
}

// countLoop follows a task's failures: a failure adds one, a completion clears,
// nothing else counts.
func (v *View) countLoop(r *alog.Record) {
	t := v.Tasks[r.Task]
	if t == nil {
		return
	}
	switch r.Event {
	case alog.ExecutionFailed:
		t.Failures++
	case alog.ExecutionCompleted:
		t.Failures = 0
	}
}

// register takes a task's declarations. A task or a key that another record has
// declared before keeps its first declaration: a later one could name a cheaper
// class.
func (v *View) register(r *alog.Record) {
	if v.Tasks[r.Task] != nil {
		return
	}
	t := &Task{ID: r.Task, Registered: *r}
	v.Tasks[r.Task] = t
	var p registeredPayload
	if r.Decode(&p) != nil {
		return // another program's: it declares nothing that we can read
	}
	if p.Budget != nil {
		t.MaxCost = p.Budget.MaxCostUSD
	}
	for _, d := range p.Actions {
		if !policy.Class(d.Class) || d.Key == "" || v.Actions[d.Key] != nil {
			continue
		}
		v.Actions[d.Key] = &Action{Declaration: d, Task: r.Task, Declared: *r, tokens: map[string]bool{}}
		v.Order = append(v.Order, d.Key)
		t.Keys = append(t.Keys, d.Key)
	}
}

// add follows one record of the key. A question opens a new cycle; the first
// decision after it settles it, and a revocation always does; executions count
// across cycles.
func (a *Action) add(r *alog.Record) {
	switch r.Event {
	case alog.ApprovalRequested:
		q := &Requested{Record: *r}
		_ = r.Decode(&q.Said) // what cannot be read is empty, and empty binds nothing
		a.Requested, a.Settled, a.Granted, a.state = q, nil, nil, StateRequested
	case alog.ApprovalGranted, alog.ApprovalRejected, alog.ApprovalExpired, alog.ApprovalWithdrawn:
		if a.state == StateRequested {
			a.settle(r)
		}
	case alog.ApprovalRevoked:
		a.Settled, a.state = r, StateRevoked
	case alog.ExecutionStarted:
		var p startPayload
		_ = r.Decode(&p)
		if p.TokenSHA256 != "" {
			a.tokens[p.TokenSHA256] = true
		}
		a.Started, a.Ended, a.Starts = r, nil, a.Starts+1
	case alog.ExecutionCompleted, alog.ExecutionFailed, alog.ExecutionIndeterminate:
		if a.Started != nil && a.Ended == nil {
			a.Ended = r
		}
	case alog.ExecutionReconciled:
		if a.Indeterminate() {
			a.Reconciled = r
		}
	}
}

func (a *Action) settle(r *alog.Record) {
	a.Settled = r
	switch r.Event {
	case alog.ApprovalGranted:
		g := &Granted{Record: *r}
		_ = r.Decode(&g.Said)
		a.Granted, a.state = g, StateGranted
	case alog.ApprovalRejected:
		a.state = StateRejected
	case alog.ApprovalExpired:
		a.state = StateExpired
	case alog.ApprovalWithdrawn:
		a.state = StateWithdrawn
	}
}

// ttlOf is how long a question, or a grant, of the given execution lives by the
// policy; 0 is for ever.
func ttlOf(d *policy.Document, execution string) time.Duration {
	var ttl time.Duration
	if d.Policy != nil {
		ttl = d.Policy.TTL
	}
	if execution == ExecBroker && (ttl == 0 || ttl > BrokerTTL) {
		return BrokerTTL
	}
	return ttl
}

// lapsed reports whether something of the time from has outlived ttl. Exactly at
// the bound it is still alive.
func (v *View) lapsed(from time.Time, ttl time.Duration) bool {
	return ttl > 0 && v.Now.Truncate(time.Millisecond).After(from.Add(ttl))
}

// Lapsed reports whether the key's open question is too old to be decided.
func (v *View) Lapsed(a *Action, d *policy.Document) bool {
	return a.State() == StateRequested && v.lapsed(a.Requested.TS, ttlOf(d, a.Requested.Said.Execution))
}

// GrantLapsed reports whether the key's grant is too old to be used.
func (v *View) GrantLapsed(a *Action, d *policy.Document) bool {
	return a.Granted != nil && v.lapsed(a.Granted.TS, ttlOf(d, a.Granted.Said.Execution))
}
