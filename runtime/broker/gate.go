package broker

import "context"

// A Gate is where authority comes from: the event log and the policy of one instance, acted on as
// the instance's actor. The broker writes nothing to the log but through it.
type Gate interface {
	// Open verifies the log, reads the policy file once, and checks its attestation. Refusals are
	// CodeLogUnavailable (detail log-unreadable, log-torn-tail, log-corrupt), CodePolicyUnavailable
	// and CodePolicyNotAttested (detail not-attested, hash-mismatch, unreadable).
	Open(ctx context.Context) (Reading, error)
}

// A Reading is one reading of log and policy, as it was at Open. What it appends, it appends only
// if the log has not moved in a way that matters to what was decided.
type Reading interface {
	// PolicySHA256 is the attested digest, in lowercase hex.
	PolicySHA256() string
	// Classify gives the class of a workspace path and whether policy leaves it to people alone.
	Classify(path string) Class
	// History tells what became of earlier attempts at a payload. Attempts are numbered from 0.
	History(task Task) (Attempts, error)
	// Register declares the task with one action per class, none of them reversible, unless the log
	// has it already. Refusal: CodeRegisterRefused.
	Register(ctx context.Context, task Task, summary string) error
	// Authorise asks policy about a leg. A leg that needs a person is requested, with payload, unless
	// that has been done. Refusal: CodeRequestRefused.
	Authorise(ctx context.Context, leg Leg, payload []byte) (Authorisation, error)
	// Start appends execution.started for a leg; for one that a person granted it spends the grant.
	// Refusal: CodeStartRefused.
	Start(ctx context.Context, leg Leg) error
	// Outcome appends what became of a started leg. It does nothing if the leg has an outcome.
	Outcome(ctx context.Context, leg Leg, outcome Outcome) error
	// Status tells where a leg stands.
	Status(ctx context.Context, leg Leg) (LegStatus, error)
}

// A Class is what policy says of a path.
type Class struct {
	Name string
	// HumanOnly classes are refused before anything of the path is read.
	HumanOnly bool
}

// A Task names one attempt at one payload.
type Task struct {
	Instance    string
	PayloadHash string
	Attempt     int
	Classes     []string // distinct, sorted
}

// A Leg is one class of a task, which is one action of the gate.
type Leg struct {
	Task        string `json:"task"`
	Key         string `json:"key"`
	Class       string `json:"class"`
	PayloadHash string `json:"payload_hash"`
}

// Attempts tells what the log says of earlier attempts at a payload.
type Attempts struct {
	// Next is the attempt to make now: the number of earlier ones that started and failed.
	Next int
	// Spent is set when there is nothing left to make: the payload has been applied, or its effect
	// is unknown, or a start has no outcome. It is then the detail of CodeReplay.
	Spent string
}

// Details of CodeReplay.
const (
	SpentApplied       = "already-executed"
	SpentDangling      = "execution-dangling"
	SpentIndeterminate = "execution-indeterminate"
)

// An Authorisation is what stands between a leg and its start.
type Authorisation int

// Authorisations.
const (
	Proceed Authorisation = iota // policy allows it, or a person granted it
	Waiting                      // a person has been asked
)

// An Outcome is what an execution comes to.
type Outcome string

// Outcomes, in the log's words after "execution.".
const (
	Completed     Outcome = "completed"
	Failed        Outcome = "failed"
	Indeterminate Outcome = "indeterminate"
)

// A LegStatus is where a leg stands in the log.
type LegStatus struct {
	Started    bool
	Outcome    Outcome // "" if started and not settled
	Reconciled bool    // a person settled an indeterminate outcome
}
