package gate

import (
	"slices"
	"time"

	policy "gloved.dev/policy/approval"
)

// A Pending is one question that waits for a person.
type Pending struct {
	ActionKey      string `json:"action_key"`
	Task           string `json:"task"`
	Class          string `json:"class"`
	Cost           Micros `json:"est_cost_usd"`
	RequestedTS    string `json:"requested_ts"`
	Seq            uint64 `json:"seq"`
	TTLRemainingMS *int64 `json:"ttl_remaining_ms"` // null: it does not lapse
	Summary        string `json:"summary,omitzero"`
	Actor          string `json:"actor"`
	Execution      string `json:"execution,omitzero"`
	PolicyDrift    bool   `json:"policy_drift,omitzero"` // put under another policy: a grant will withdraw it
}

// Queue lists the questions that can still be decided, in the order they were
// put. Lapsed ones are left out, whether or not the log says so yet.
func (v *View) Queue(d *policy.Document) []Pending {
	out := []Pending{}
	for _, key := range v.Order {
		a := v.Actions[key]
		if a.State() != StateRequested || v.Lapsed(a, d) {
			continue
		}
		said := a.Requested.Said
		p := Pending{ActionKey: key, Task: a.Task, Class: said.Class, Cost: said.Cost, RequestedTS: stamp(a.Requested.TS),
			Seq: a.Requested.Seq, Summary: said.Summary, Actor: a.Requested.Actor, Execution: said.Execution, PolicyDrift: v.drifted(a, d)}
		if ttl := ttlOf(d, said.Execution); ttl > 0 {
			left := a.Requested.TS.Add(ttl).Sub(v.Now.Truncate(time.Millisecond)).Milliseconds()
			p.TTLRemainingMS = &left
		}
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Pending) int { return int(int64(a.Seq) - int64(b.Seq)) })
	return out
}

// Unsettled lists the keys whose starts have no outcome (dangling), and those
// whose effect is unknown and that no person has reconciled, in the order of
// their declaration.
func (v *View) Unsettled() (dangling, indeterminate []string) {
	for _, key := range v.Order {
		switch a := v.Actions[key]; {
		case a.Dangling():
			dangling = append(dangling, key)
		case a.Indeterminate():
			indeterminate = append(indeterminate, key)
		}
	}
	return dangling, indeterminate
}
