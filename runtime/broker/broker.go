package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
)

// Options make a Broker. All come from the operator.
type Options struct {
	// Instance is the instance's id, Workspace the absolute path of its workspace.
	Instance, Workspace string
	// Evidence is the directory, in the gate's home, where the journal and preimages of a
	// transaction go once people have settled it. Its parent must exist.
	Evidence string
	// RequireExclusive refuses to move anything under merely advisory custody.
	RequireExclusive bool
	Gate             Gate
	// Log receives causes and host paths that refusals withhold. Nil discards them.
	Log *slog.Logger
}

// A Broker applies proposals to one workspace. Its methods may be called from several goroutines;
// whether two of them meet is decided by the workspace's lock, as between processes.
type Broker struct {
	opt   Options
	step  func(Step) error
	mover mover
}

// New returns a Broker for the workspace, which must exist by the time of the first call.
func New(opt Options) (*Broker, error) {
	switch {
	case !instanceID.MatchString(opt.Instance):
		return nil, refuse(CodeInstallationInvalid, "instance", "the instance's id is none")
	case !ident.AbsPath(opt.Workspace), !ident.AbsPath(opt.Evidence):
		return nil, refuse(CodeInstallationInvalid, "path", "the workspace and the evidence directory must be absolute paths")
	case ident.Within(opt.Evidence, opt.Workspace):
		return nil, refuse(CodeInstallationInvalid, "path", "the gate's home must not lie in the workspace")
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Broker{opt: opt, step: func(Step) error { return nil }, mover: mover{renameNew, exchange}}, nil
}

// A Result is what a successful apply proved.
type Result struct {
	OK           bool     `json:"ok"`
	State        State    `json:"state"`
	Task         string   `json:"task"`
	PayloadHash  string   `json:"payload_hash"`
	PolicySHA256 string   `json:"policy_sha256"`
	Classes      []string `json:"classes"`
	Actions      []string `json:"actions"`
	Paths        []string `json:"paths"`
	Custody      *Custody `json:"custody"`
}

// A Preview is what planning a proposal found. Nothing was written anywhere.
type Preview struct {
	OK           bool       `json:"ok"`
	PayloadHash  string     `json:"payload_hash"`
	PolicySHA256 string     `json:"expected_policy_sha256"`
	Classes      []string   `json:"classes"`
	Endpoints    []Endpoint `json:"endpoints"`
}

// An attempt is one apply on its way.
type attempt struct {
	b       *Broker
	tree    *tree
	prop    *Proposal
	reading Reading
	plan    *Plan
	task    Task
	legs    []Leg
	lock    *lock
	custody *Custody
}

// Apply does everything a proposal needs, in this order: verify log and policy; settle what a crash
// left; compare the policy's digest; plan; register; authorise every leg; start every leg; lock;
// revalidate under the lock; stage; write the journal; move; read back; append the outcome. Every
// error is a *Refusal.
//
// Up to the first start ctx can end it. From there on it runs to its outcome: a caller that goes
// away must not leave a started leg behind.
func (b *Broker) Apply(ctx context.Context, input []byte) (*Result, error) {
	prop, err := ParseProposal(input)
	if err != nil {
		return nil, err
	}
	a, err := b.begin(ctx, prop)
	if err != nil {
		return nil, err
	}
	defer a.tree.close()
	if err := b.settle(ctx, a.tree, a.reading); err != nil {
		return nil, err
	}
	if err := a.prepare(ctx); err != nil {
		return nil, err
	}
	return a.carryOut(context.WithoutCancel(ctx))
}

// Plan checks a proposal as Apply would, and stops before anything is written. An empty
// expected digest is not possible: a proposal always says which policy it was made for.
func (b *Broker) Plan(ctx context.Context, input []byte) (*Preview, error) {
	prop, err := ParseProposal(input)
	if err != nil {
		return nil, err
	}
	a, err := b.begin(ctx, prop)
	if err != nil {
		return nil, err
	}
	defer a.tree.close()
	if err := a.makePlan(); err != nil {
		return nil, err
	}
	return &Preview{OK: true, PayloadHash: a.plan.PayloadHash, PolicySHA256: a.reading.PolicySHA256(),
		Classes: a.plan.Classes, Endpoints: a.plan.Endpoints()}, nil
}

func (b *Broker) begin(ctx context.Context, prop *Proposal) (*attempt, error) {
	reading, err := b.opt.Gate.Open(ctx)
	if err != nil {
		return nil, AsRefusal(err, CodeLogUnavailable)
	}
	t, err := openTree(b.opt.Workspace)
	if err != nil {
		return nil, AsRefusal(err, CodeInstallationInvalid)
	}
	return &attempt{b: b, tree: t, prop: prop, reading: reading}, nil
}

// makePlan compares the digest the proposal was made for, then plans.
func (a *attempt) makePlan() error {
	if a.prop.ExpectedPolicySHA256 != a.reading.PolicySHA256() {
		return refuse(CodeAttestationDrift, "",
			"the proposal was made for another policy than the one that is attested; read the policy again")
	}
	plan, err := a.planNow()
	if err != nil {
		return err
	}
	a.plan = plan
	return nil
}

func (a *attempt) planNow() (*Plan, error) {
	a.tree.forget()
	p := planner{tree: a.tree, classify: a.reading.Classify}
	plan, err := p.plan(a.prop, a.b.opt.Instance)
	if err != nil {
		return nil, AsRefusal(err, CodePlanRefused)
	}
	return plan, nil
}

// prepare goes as far as the workspace stays untouched and no leg has started.
func (a *attempt) prepare(ctx context.Context) error {
	if err := a.makePlan(); err != nil {
		return err
	}
	if err := a.step(StepPlanned); err != nil {
		return err
	}
	a.task = Task{Instance: a.b.opt.Instance, PayloadHash: a.plan.PayloadHash, Classes: a.plan.Classes}
	history, err := a.reading.History(a.task)
	if err != nil {
		return AsRefusal(err, CodeLogUnavailable)
	}
	if history.Spent != "" {
		return refuse(CodeReplay, history.Spent, "this very change has been started before; only a new proposal can be tried")
	}
	a.task = a.task.with(history.Next)
	a.legs = a.task.Legs()
	if err := a.reading.Register(ctx, a.task, a.summary()); err != nil {
		return AsRefusal(err, CodeRegisterRefused)
	}
	if err := a.step(StepRegistered); err != nil {
		return err
	}
	return a.authorise(ctx)
}

// summary is the line a person sees in the queue. It is made from the plan, never from the caller.
func (a *attempt) summary() string {
	n := len(a.plan.changes)
	first := a.plan.changes[0]
	s := fmt.Sprintf("%s %s", first.op.Kind, printable(first.ends[0].Path))
	if n > 1 {
		s += fmt.Sprintf(" and %d more", n-1)
	}
	return s
}

// authorise asks about every leg before it says that one waits, so that a person finds all the
// questions of a change at once.
func (a *attempt) authorise(ctx context.Context) error {
	var pending []string
	for _, leg := range a.legs {
		answer, err := a.reading.Authorise(ctx, leg, a.plan.Payload)
		if err != nil {
			return AsRefusal(err, CodeRequestRefused)
		}
		if answer == Waiting {
			pending = append(pending, leg.Key)
		}
	}
	if len(pending) > 0 {
		r := refuse(CodeApprovalRequired, "", "a person must decide first; the same proposal applies once that is done")
		r.Pending = pending
		return r
	}
	return a.step(StepAuthorised)
}

// step passes a named moment.
func (a *attempt) step(s Step) error {
	if err := a.b.step(s); err != nil {
		return refuse(CodeStageFailed, "interrupted", "stopped at step %s", s).because(err)
	}
	return nil
}

// carryOut starts the legs and takes the change to its outcome.
func (a *attempt) carryOut(ctx context.Context) (*Result, error) {
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	x, err := a.underLock(ctx)
	if err != nil {
		return nil, err
	}
	defer x.stage.Close()
	state, failure := x.run()
	if failure != nil {
		a.b.opt.Log.Warn("apply", "task", a.task.ID(), "state", state, "error", failure)
	}
	if err := a.step(StepReadBack); err != nil {
		a.lock.keep()
		return nil, err
	}
	return a.conclude(ctx, state, failure)
}

// start starts every leg, or none: the ones before a refusal are closed as failed. The lock is
// looked at first, so that a workspace in use costs nobody's grant.
func (a *attempt) start(ctx context.Context) error {
	locked, txn, err := a.tree.present()
	if err != nil {
		return refuse(CodeCustodyUnavailable, "", "the workspace's lock cannot be examined").because(err)
	}
	if locked || txn {
		return contended("")
	}
	for i, leg := range a.legs {
		if err := a.reading.Start(ctx, leg); err != nil {
			return a.fail(ctx, AsRefusal(err, CodeStartRefused), a.legs[:i])
		}
	}
	if err := a.step(StepStarted); err != nil {
		return a.fail(ctx, err, a.legs)
	}
	return nil
}

func contended(detail string) *Refusal {
	return refuse(CodeCustodyContended, detail, "another change has the workspace's lock")
}

// fail closes started legs of a change that has not touched the workspace.
func (a *attempt) fail(ctx context.Context, cause error, legs []Leg) *Refusal {
	r := AsRefusal(cause, CodeStageFailed)
	r.Custody = a.custody
	for _, leg := range legs {
		if err := a.reading.Outcome(ctx, leg, Failed); err != nil {
			a.b.opt.Log.Error("outcome", "action", leg.Key, "error", err)
			r.Err = errors.Join(r.Err, fmt.Errorf("the log did not take the outcome of %s: %w", leg.Key, err))
		}
	}
	return r
}

// underLock takes the lock, plans again under it, stages, and makes the journal durable. When it
// refuses, every leg is closed as failed, and nothing of it stays in the workspace.
func (a *attempt) underLock(ctx context.Context) (*txn, error) {
	l, err := takeLock(a.tree, lockRecord{Schema: lockSchema, Instance: a.task.Instance, Task: a.task.ID(),
		PayloadHash: a.task.PayloadHash, Legs: a.legs})
	if exists(err) {
		return nil, a.fail(ctx, contended(""), a.legs)
	}
	if err != nil {
		r := refuse(CodeCustodyUnavailable, "", "the workspace's lock cannot be taken").because(err)
		return nil, a.fail(ctx, r, a.legs)
	}
	a.lock = l
	x, err := a.stage()
	if err == nil {
		return x, nil
	}
	r := a.fail(ctx, err, a.legs)
	if x != nil && x.stage != nil {
		x.stage.Close()
		if err := clear(a.tree, a.b.step); err != nil {
			a.b.opt.Log.Error("clear", "error", err)
		}
	}
	if err := l.release(); err != nil {
		a.b.opt.Log.Error("release", "error", err)
	}
	return nil, r
}

func (a *attempt) stage() (*txn, error) {
	if err := a.step(StepLocked); err != nil {
		return nil, err
	}
	if err := a.revalidate(); err != nil {
		return nil, err
	}
	if a.b.opt.RequireExclusive && a.custody.Level != CustodyExclusive {
		return nil, refuse(CodeCustodyInsufficient, a.custody.Level,
			"by owner or mode another user can write the workspace, and exclusive custody is required")
	}
	if err := a.step(StepRevalidated); err != nil {
		return nil, err
	}
	x := &txn{t: a.tree, plan: a.plan, step: a.b.step, mover: a.b.mover}
	fill := func() error {
		if err := x.fill(); err != nil {
			return err
		}
		if err := a.b.step(StepStaged); err != nil {
			return err
		}
		if err := x.writeJournal(newJournal(a.b.opt.Instance, a.task, a.plan, a.tree)); err != nil {
			return err
		}
		return a.b.step(StepJournal)
	}
	err := x.makeStage()
	if err == nil {
		err = fill()
	}
	if err != nil {
		return x, refuse(CodeStageFailed, "", "the change cannot be staged in the workspace").because(err)
	}
	return x, nil
}

// revalidate plans again under the lock. The plan from before proves only what was true before
// another writer could act.
func (a *attempt) revalidate() error {
	again, err := a.planNow()
	if err == nil {
		a.custody = judgeCustody(a.touched(again))
		if again.PayloadHash == a.plan.PayloadHash {
			a.plan = again
			return nil
		}
	} else {
		a.custody = judgeCustody([]safefile.Identity{a.tree.id})
	}
	r := refuse(CodeWorkspaceDrift, "", "the workspace has changed since the change was planned")
	if inner := AsRefusal(err, CodePlanRefused); err != nil {
		r.Detail, r.Path, r.Err = inner.Detail, inner.Path, inner
	}
	return r
}

// touched are the directories whose owner and mode custody depends on.
func (a *attempt) touched(p *Plan) []safefile.Identity {
	root, err := safefile.Stat(a.tree.root)
	if err != nil {
		root = safefile.Identity{Mode: 0o777} // unknown is writable
	}
	dirs := []safefile.Identity{root}
	for _, e := range p.Endpoints() {
		dirs = append(dirs, e.parent)
	}
	return dirs
}

// outcomes says what each state comes to in the log.
var outcomes = map[State]Outcome{StateAfter: Completed, StateBefore: Failed, StateMixed: Indeterminate}

// conclude appends the outcome and, unless a person must look, removes the traces.
func (a *attempt) conclude(ctx context.Context, state State, failure error) (*Result, error) {
	for _, leg := range a.legs {
		if err := a.reading.Outcome(ctx, leg, outcomes[state]); err != nil {
			// The workspace is as it is, and the journal says so: the next apply appends it.
			a.lock.keep()
			r := refuse(CodeLogUnavailable, "outcome", "the workspace was read as %s, and the log did not take it", state).because(err)
			r.State, r.Custody = state, a.custody
			return nil, r
		}
	}
	if err := a.step(StepOutcome); err != nil {
		a.lock.keep()
		return nil, err
	}
	if state == StateMixed {
		a.lock.keep()
		r := refuse(CodeCommitUnknown, "workspace-commit-unknown",
			"part of the change is in the workspace; it stays locked until a person has looked").because(failure)
		r.State, r.Custody = state, a.custody
		return nil, r
	}
	a.b.tidy(a.tree, a.lock)
	if state == StateBefore {
		r := refuse(CodeCommitNotApplied, "", "the change could not be made, and the workspace is as it was").because(failure)
		r.State, r.Custody = state, a.custody
		return nil, r
	}
	return a.result(), nil
}

// tidy removes staging directory, journal and lock of a transaction that the log has settled. What
// it cannot remove the next apply will find, and know from the log.
func (b *Broker) tidy(t *tree, l *lock) {
	err := clear(t, b.step)
	if err == nil {
		err = l.release()
	} else {
		l.keep()
	}
	if err == nil {
		err = b.step(StepReleased)
	}
	if err != nil {
		b.opt.Log.Error("tidy", "error", err)
	}
}

func (a *attempt) result() *Result {
	r := &Result{OK: true, State: StateAfter, Task: a.task.ID(), PayloadHash: a.task.PayloadHash,
		PolicySHA256: a.reading.PolicySHA256(), Classes: a.task.Classes, Custody: a.custody}
	for _, leg := range a.legs {
		r.Actions = append(r.Actions, leg.Key)
	}
	for _, e := range a.plan.Endpoints() {
		r.Paths = append(r.Paths, e.Path)
	}
	return r
}
