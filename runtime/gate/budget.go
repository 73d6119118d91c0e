package gate

import (
	"context"
	"time"

	alog "gloved.dev/journal/approval"
	policy "gloved.dev/policy/approval"
)

// A Verdict is one limit's answer. Amounts are USD or numbers of actions.
type Verdict struct {
	Limit     string `json:"limit"`
	Scope     string `json:"scope"`  // class, global or task
	Window    string `json:"window"` // per-action, rolling-24h or task-total
	Consumed  string `json:"consumed"`
	Requested string `json:"requested"`
	Remaining string `json:"remaining"`
	Pass      bool   `json:"pass"`
	Note      string `json:"note,omitzero"`
}

const (
	windowAction = "per-action"
	windowDay    = "rolling-24h"
	windowTask   = "task-total"
	day          = 24 * time.Hour
)

// A charge is one spending of a budget.
type charge struct {
	ts    time.Time
	task  string
	class string
	cost  Micros
}

// charges lists what was spent: every grant, and every start that no grant in
// the log's last day paid for. What failed was still spent.
func (v *View) charges() []charge {
	var out []charge
	granted := map[string]bool{}
	for i := range v.Records {
		r := &v.Records[i]
		switch r.Event {
		case alog.ApprovalGranted:
			if v.inDay(r.TS) {
				granted[r.ActionKey] = true
			}
		case alog.ExecutionStarted:
		default:
			continue
		}
		var p struct {
			Class string `json:"class"`
			Cost  Micros `json:"est_cost_usd"`
		}
		_ = r.Decode(&p) // what does not say its cost costs nothing, and counts as an action
		if r.Event == alog.ExecutionStarted && granted[r.ActionKey] {
			continue
		}
		out = append(out, charge{ts: r.TS, task: r.Task, class: p.Class, cost: p.Cost})
	}
	return out
}

// inDay reports whether t lies in the 24 hours that end now.
func (v *View) inDay(t time.Time) bool {
	now := v.Now.Truncate(time.Millisecond)
	return t.After(now.Add(-day)) && !t.After(now)
}

// sum adds up the last day's charges that pick chooses.
func (v *View) sum(all []charge, pick func(charge) bool) (cost Micros, actions int64) {
	for _, c := range all {
		if v.inDay(c.ts) && pick(c) {
			cost, actions = cost+c.cost, actions+1
		}
	}
	return cost, actions
}

func moneyVerdict(name, scope, window string, limit, consumed, requested Micros) Verdict {
	left := limit - consumed - requested
	return Verdict{Limit: name, Scope: scope, Window: window, Consumed: consumed.String(), Requested: requested.String(),
		Remaining: left.String(), Pass: left >= 0}
}

// countVerdict counts in millionths too: a limit of 2.5 actions is a valid one.
func countVerdict(name, scope string, limit float64, consumed int64) Verdict {
	return moneyVerdict(name, scope, windowDay, microsOf(limit), Micros(consumed*1e6), 1e6)
}

// Budgets judges one more action of the declaration by the limits of its rule,
// of every budget, and of its task. A limit whose name means nothing fails: its
// author believed in it.
func (v *View) Budgets(a *Action, r policy.Resolution, d *policy.Document) []Verdict {
	all := v.charges()
	cost := a.cost()
	var out []Verdict
	for _, l := range r.Limits {
		ofClass := func(c charge) bool { return c.class != "" && policy.Matches(r.Pattern, c.class) }
		usd, actions := v.sum(all, ofClass)
		switch l.Name {
		case policy.LimitPerActionUSD:
			out = append(out, moneyVerdict(l.Name, "class", windowAction, microsOf(l.Value), 0, cost))
		case policy.LimitDailyUSD:
			out = append(out, moneyVerdict(l.Name, "class", windowDay, microsOf(l.Value), usd, cost))
		case policy.LimitDailyActions:
			out = append(out, countVerdict(l.Name, "class", l.Value, actions))
		case policy.LimitMaxPending, policy.LimitRequestsPerHour: // of the queue, not of the spending
		default:
			out = append(out, Verdict{Limit: l.Name, Scope: "class", Window: windowDay, Consumed: "0", Requested: "0",
				Remaining: "0", Note: "no limit of this name exists"})
		}
	}
	if d.Policy != nil {
		usd, actions := v.sum(all, func(charge) bool { return true })
		for _, b := range d.Policy.Budgets {
			for _, l := range b.Limits {
				name := b.Scope + "." + l.Name
				switch l.Name {
				case policy.LimitDailyUSD:
					out = append(out, moneyVerdict(name, "global", windowDay, microsOf(l.Value), usd, cost))
				case policy.LimitDailyActions:
					out = append(out, countVerdict(name, "global", l.Value, actions))
				}
			}
		}
	}
	return append(out, v.taskVerdict(all, a, cost)...)
}

// taskVerdict judges by the task's lifetime cap, which the log holds.
func (v *View) taskVerdict(all []charge, a *Action, cost Micros) []Verdict {
	t := v.Tasks[a.Task]
	if t == nil || t.MaxCost == nil {
		return nil
	}
	var spent Micros
	for _, c := range all {
		if c.task == a.Task {
			spent += c.cost
		}
	}
	return []Verdict{moneyVerdict("budget.max_cost_usd", "task", windowTask, *t.MaxCost, spent, cost)}
}

// checkBudgets refuses when a verdict fails, after the log has it. The seq of
// that record is in the refusal.
func (g *Gate) checkBudgets(ctx context.Context, v *View, a *Action, r policy.Resolution, d *policy.Document, actor, stage string) error {
	verdicts := v.Budgets(a, r, d)
	pass := true
	for _, verdict := range verdicts {
		pass = pass && verdict.Pass
	}
	if pass {
		return nil
	}
	rec, err := g.append(ctx, v, alog.Draft{Event: alog.BudgetExceeded, Actor: actor, Task: a.Task, ActionKey: a.Key,
		Payload: budgetPayload{Class: a.Class, Cost: a.cost(), Stage: stage, Verdicts: verdicts}})
	if err != nil {
		return err
	}
	return &Error{Code: CodeBudgetExceeded, Message: "a budget of the policy is used up", Verdicts: verdicts, Seq: rec.Seq}
}

// BrokerQueueFull reports whether as many questions of actor's broker wait as may.
func (v *View) BrokerQueueFull(actor string, d *policy.Document) bool {
	n := 0
	for _, key := range v.Order {
		a := v.Actions[key]
		if a.State() == StateRequested && a.Requested.Said.Execution == ExecBroker && a.Requested.Actor == actor && !v.Lapsed(a, d) {
			n++
		}
	}
	return n >= MaxBrokerQuestions
}

// checkQueue refuses a question when too many wait already, or too many were
// put in the last hour.
func (v *View) checkQueue(r policy.Resolution, d *policy.Document) error {
	pending := func(pick func(class string) bool) (n float64) {
		for _, key := range v.Order {
			if a := v.Actions[key]; a.State() == StateRequested && !v.Lapsed(a, d) && pick(a.Class) {
				n++
			}
		}
		return n
	}
	ofClass := func(class string) bool { return policy.Matches(r.Pattern, class) }
	for _, l := range r.Limits {
		switch {
		case l.Name == policy.LimitMaxPending && pending(ofClass) >= l.Value:
			return refuse(CodeQueueFull, "as many questions of this class wait as the policy allows")
		case l.Name == policy.LimitRequestsPerHour && v.askedInHour(ofClass) >= l.Value:
			return refuse(CodeRateLimited, "as many questions of this class were put in the last hour as the policy allows")
		}
	}
	if d.Policy == nil {
		return nil
	}
	for _, b := range d.Policy.Budgets {
		for _, l := range b.Limits {
			if l.Name == policy.LimitMaxPending && pending(func(string) bool { return true }) >= l.Value {
				return refuse(CodeQueueFull, "as many questions wait as the policy allows")
			}
		}
	}
	return nil
}

func (v *View) askedInHour(pick func(class string) bool) (n float64) {
	for i := range v.Records {
		r := &v.Records[i]
		var p requestPayload
		if r.Event == alog.ApprovalRequested && r.TS.After(v.Now.Add(-time.Hour)) && r.Decode(&p) == nil && pick(p.Class) {
			n++
		}
	}
	return n
}
