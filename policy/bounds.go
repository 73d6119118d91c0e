package policy

import "gloved.dev/internal/ident"

// Bounds. Exceeding one refuses the document; nothing is ever truncated.
const (
	// MaxDocument is the size of a policy file or a plan, in bytes: 1 MiB.
	MaxDocument = 1 << 20
	// MaxTemplates, MaxAliases and MaxProfiles bound the policy lists that must not be empty.
	MaxTemplates = 64
	MaxAliases   = 64
	MaxProfiles  = 64
	// MaxEntries bounds every other list of a policy: projection destinations, egress and tool
	// ids, secret handles, egress policies, secret mounts.
	MaxEntries = 128
	// MaxTargets bounds the targets of one egress policy.
	MaxTargets = 128
	// MaxLaunchEntries bounds each list of a launch (arguments, environment, read-only paths,
	// search paths), and the arguments of a launch together with those of its adapter.
	MaxLaunchEntries = 256
	// MaxHost is the longest egress host name, in bytes (RFC 1035 section 2.3.4, less the dots).
	MaxHost = 253
	// MaxPathGrants, MaxProjections and MaxPlanSecrets bound the lists of a plan.
	MaxPathGrants  = 64
	MaxProjections = 128
	MaxPlanSecrets = 32
	// TTLHeadroomMS is how much longer than any profile's wall time a plan may live: the time
	// reserved for approval and launch, in milliseconds.
	TTLHeadroomMS = 1000
	// PageSize is the granularity of a launchable write quota, in bytes.
	PageSize = 4096
	// MaxInteger is the largest integer in any document: 2^53-1.
	MaxInteger = ident.MaxInt
	// DefaultEgressPort is the port of an egress target that names none.
	DefaultEgressPort = 443
	// RefinementTemplateID is the one template that evaluates refinements; only its plans carry a
	// refinement binding, and they must.
	RefinementTemplateID = "refinement-eval-v1"
)
