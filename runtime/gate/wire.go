package gate

import "github.com/go-json-experiment/json/jsontext"

// The payloads of the gate's records. They are read leniently, because other
// programs add members, and written with exactly these.

// A Declaration is what a task declares of one action, for good.
type Declaration struct {
	Class       string  `json:"class"`
	Key         string  `json:"idempotency_key"`
	Summary     string  `json:"summary,omitzero"`
	Reversible  *bool   `json:"reversible,omitzero"`
	Cost        *Micros `json:"est_cost_usd,omitzero"`
	PayloadHash string  `json:"payload_hash,omitzero"`
}

func (d Declaration) cost() Micros {
	if d.Cost == nil {
		return 0
	}
	return *d.Cost
}

// A TaskBudget caps what a task may cost in its life.
type TaskBudget struct {
	MaxCostUSD *Micros `json:"max_cost_usd,omitzero"`
	MaxLatency string  `json:"max_latency,omitzero"`
}

type registeredPayload struct {
	Actions []Declaration `json:"actions"`
	State   string        `json:"state,omitzero"`
	Budget  *TaskBudget   `json:"budget,omitzero"`
}

type requestPayload struct {
	Class        string `json:"class"`
	Cost         Micros `json:"est_cost_usd"`
	PayloadHash  string `json:"payload_hash"`
	Summary      string `json:"summary,omitzero"`
	Reversible   *bool  `json:"reversible,omitzero"`
	Execution    string `json:"execution,omitzero"`
	PolicySHA256 string `json:"policy_sha256,omitzero"`
}

type grantPayload struct {
	Class        string `json:"class"`
	Cost         Micros `json:"est_cost_usd"`
	PayloadHash  string `json:"payload_hash,omitzero"`
	TokenSHA256  string `json:"token_sha256,omitzero"`
	Execution    string `json:"execution,omitzero"`
	Note         string `json:"note,omitzero"`
	PolicySHA256 string `json:"policy_sha256,omitzero"`
}

type notePayload struct {
	Note string `json:"note,omitzero"`
}

type expiredPayload struct {
	RequestedTS string `json:"requested_ts"`
	TTLMS       int64  `json:"ttl_ms"`
	OnExpiry    string `json:"on_expiry,omitzero"`
	Class       string `json:"class,omitzero"`
}

type withdrawnPayload struct {
	ActionKey string `json:"action_key"`
	Reason    string `json:"reason"`
	Note      string `json:"note,omitzero"`
}

type startPayload struct {
	Class        string `json:"class"`
	Cost         Micros `json:"est_cost_usd"`
	TokenSHA256  string `json:"token_sha256,omitzero"`
	PayloadHash  string `json:"payload_hash,omitzero"`
	Execution    string `json:"execution,omitzero"`
	GrantSeq     uint64 `json:"grant_seq,omitzero"`
	PolicySHA256 string `json:"policy_sha256,omitzero"`
}

type endPayload struct {
	ExitCode        *int   `json:"exit_code"` // null where nobody saw one
	Reason          string `json:"reason,omitzero"`
	Note            string `json:"note,omitzero"`
	AttestedByHuman bool   `json:"attested_by_human,omitzero"`
}

type reconciledPayload struct {
	IndeterminateSeq uint64 `json:"indeterminate_seq"`
	Resolution       string `json:"resolution"`
	Note             string `json:"note"`
	AttestedByHuman  bool   `json:"attested_by_human"`
}

type attestPayload struct {
	PolicyPath string `json:"policy_path"`
	SHA256     string `json:"sha256"`
}

type budgetPayload struct {
	Class    string    `json:"class"`
	Cost     Micros    `json:"est_cost_usd"`
	Stage    string    `json:"stage"`
	Verdicts []Verdict `json:"verdicts"`
}

// An Envelope is what a task is registered with. It is closed.
type Envelope struct {
	Origin  Origin         `json:"origin"`
	State   string         `json:"state"`
	Route   jsontext.Value `json:"route,omitzero"`
	Actions []Declaration  `json:"actions,omitzero"`
	Budget  *TaskBudget    `json:"budget,omitzero"`
}

// An Origin says which program and actor made a task.
type Origin struct {
	App       string `json:"app"`
	CreatedBy string `json:"created_by"`
}
