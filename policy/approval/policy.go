package approval

import (
	"time"
)

// An Autonomy says how freely actions of a class may happen.
type Autonomy string

// Autonomies, strictest first. The public format also writes supervised, which
// is read as SupervisedRetro.
const (
	// HumanOnly actions are not for agents at all: not even a question is put.
	HumanOnly Autonomy = "human-only"
	// Manual actions need a person's grant each time.
	Manual Autonomy = "manual"
	// SupervisedLive actions are drawn by lot for a grant. The draw needs the
	// operator's sampling secret and the daemon of another program: here every
	// one of them is asked, which is what the format does when no draw can be made.
	SupervisedLive Autonomy = "supervised-live"
	// SupervisedRetro actions happen, and may be reviewed afterwards.
	SupervisedRetro Autonomy = "supervised-retro"
	// Autonomous actions happen.
	Autonomous Autonomy = "autonomous"

	supervised = "supervised"
)

var strictness = map[Autonomy]int{HumanOnly: 5, Manual: 4, SupervisedLive: 3, SupervisedRetro: 2, Autonomous: 1}

// StricterThan reports whether a asks for more than b.
func (a Autonomy) StricterThan(b Autonomy) bool { return strictness[a] > strictness[b] }

// NeedsPerson reports whether an action of this autonomy waits for a grant, or
// is not for agents.
func (a Autonomy) NeedsPerson() bool {
	return strictness[a] >= strictness[SupervisedLive] || strictness[a] == 0
}

// TokenDelivery says how an execution token reaches who spends it.
type TokenDelivery string

// Token deliveries. This project's gate prints a token once and seals none: under a policy that wants
// them sealed it grants no action that needs one.
const (
	DeliverManual TokenDelivery = "manual"
	DeliverSealed TokenDelivery = "sealed"
)

// A Policy is a parsed, valid policy block.
type Policy struct {
	Version       string
	Default       Autonomy      // Manual where the block says nothing
	Channel       string        // of defaults; "" when absent
	TTL           time.Duration // of requests; 0: never lapses
	OnExpiry      string        // "reject" or ""
	TokenDelivery TokenDelivery
	Retention     time.Duration // of payloads; 0: for ever
	Protected     []Route       // additions to the built-in protected paths
	Approvers     map[string]Approver
	Rules         []Rule // in file order
	Budgets       []Budget
	Audit         Audit
	VaultEnv      string // name of an environment variable
	Channels      map[string]Channel
}

// A Route is one entry of protected_paths; Class is "policy.edit" unless the
// entry names a sub-class.
type Route struct {
	Path  string
	Class string
}

// An Approver is a person who may decide, and the channels to reach them.
type Approver struct {
	Channels []string
}

// A Rule binds a class pattern to what it decides.
type Rule struct {
	Pattern           string
	Autonomy          Autonomy
	Approvers         []string // nil: any human
	Limits            []Limit  // by name
	LiveRate          float64  // of SupervisedLive
	RetroRate         float64  // of SupervisedRetro; 0 when absent
	AllowIrreversible bool
	Line              int
}

// A Limit is one named bound. Money is in USD, counts are numbers of actions.
type Limit struct {
	Name  string
	Value float64
}

// A Budget is a scope whose limits bind every action.
type Budget struct {
	Scope  string
	Limits []Limit // by name
}

// Names of limits that have a meaning. Any other name in a rule's limits makes
// every action of the rule fail its budget.
const (
	LimitPerActionUSD    = "per_action_usd"
	LimitDailyUSD        = "daily_usd"
	LimitDailyActions    = "daily_actions"
	LimitMaxPending      = "max_pending"
	LimitRequestsPerHour = "requests_per_hour"
)

// Audit is retrospective review. Nothing here decides by it.
type Audit struct {
	SampleRate    float64
	SecretEnv     string
	SkewTolerance time.Duration // 0: the log's default
}

// A Channel names where a person is reached: names of variables, never values.
type Channel struct {
	ChatIDEnv, TokenEnv string
	Port                int
}
