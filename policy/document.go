package policy

import (
	"slices"

	"gloved.dev/internal/strictjson"
)

// Document is the owner's session policy as written. The same type builds a policy in code:
// fill it in, take Canonical and give that to Parse. Members tagged omitzero are optional.
type Document struct {
	SchemaVersion    uint8          `json:"schema_version"`  // 1
	Revision         uint64         `json:"revision"`        // not 0; plans repeat it exactly
	MaxPlanTTLMS     uint64         `json:"max_plan_ttl_ms"` // longest life of a plan, milliseconds
	RuntimeTemplates []Template     `json:"runtime_templates"`
	PathAliases      []PathAlias    `json:"path_aliases"`
	Destinations     []Destination  `json:"library_projection_destinations"`
	ResourceProfiles []Profile      `json:"resource_profiles"`
	EgressPolicyIDs  []string       `json:"egress_policy_ids"`
	ToolPolicyIDs    []string       `json:"tool_policy_ids"`
	SecretHandles    []string       `json:"secret_handles"`
	EgressPolicies   []EgressPolicy `json:"egress_policies,omitzero"`
	SecretMounts     []SecretMount  `json:"secret_mounts,omitzero"`
}

// Template is one runtime that a plan may select by id and digest.
type Template struct {
	ID                  string    `json:"runtime_template_id"`
	RuntimeID           string    `json:"runtime_id"`
	AdapterDigest       string    `json:"adapter_command_digest"` // LaunchDigest of Launch
	Backend             Backend   `json:"sandbox_backend"`
	AllowedAliases      []string  `json:"allowed_path_aliases"`
	AllowedDestinations []string  `json:"allowed_projection_destinations"`
	Adoption            *Adoption `json:"adoption,omitzero"`
	Launch              *Launch   `json:"launch,omitzero"` // absent: plans validate, launches fail
}

// Launch is what a template executes. Either ExecutablePath pins one file, or Discovery names a
// native adapter (equal to the template's runtime id) that is looked for in SearchPaths in order.
type Launch struct {
	Discovery      string   `json:"runtime_discovery,omitzero"`
	ExecutablePath string   `json:"executable_path,omitzero"`
	SearchPaths    []string `json:"executable_search_paths,omitzero"`
	Arguments      []string `json:"arguments"`
	Environment    []string `json:"environment"` // NAME=VALUE, strictly ascending as whole entries
	ReadOnlyPaths  []string `json:"read_only_paths,omitzero"`
}

// Adoption names the fixed set of extensions that a harness may load from its home.
type Adoption struct {
	ManifestRoot   string `json:"manifest_root"`
	ManifestDigest string `json:"manifest_digest"`
	SnapshotDigest string `json:"snapshot_digest"`
}

// PathAlias gives a host object a name that plans may use, a place in the sandbox, and the uses
// allowed.
type PathAlias struct {
	Alias      string        `json:"alias"`
	HostPath   string        `json:"host_path"`
	TargetPath string        `json:"target_path"`
	MaxTTLSecs uint64        `json:"max_ttl_secs"`
	Access     []AccessEntry `json:"access"` // at most one a kind of access
}

// AccessEntry is one allowed use of a path alias.
type AccessEntry struct {
	Access          Access          `json:"access"`
	Materialization Materialization `json:"materialization"`
	Create          CreatePolicy    `json:"create_policy"`
	Cleanup         CleanupPolicy   `json:"cleanup_policy"`
	MaxBytes        uint64          `json:"max_bytes"` // 0 for read and direct_write
}

// Destination is a place in the sandbox for verified library bundles.
type Destination struct {
	Alias      string `json:"alias"`
	TargetPath string `json:"target_path"`
}

// Limits are the six limits of a session. All are enforced and none is zero.
type Limits struct {
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	MemoryBytes         uint64 `json:"memory_bytes"`
	PIDs                uint32 `json:"pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// complete reports whether no limit is zero.
func (l Limits) complete() bool {
	return l.CPUTimeMS != 0 && l.MemoryBytes != 0 && l.PIDs != 0 &&
		l.WallTimeMS != 0 && l.DiskBytes != 0 && l.TerminalOutputBytes != 0
}

// Profile is one set of limits that plans may ask for, by its numbers.
type Profile struct {
	ID                  string `json:"profile_id"`
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	MemoryBytes         uint64 `json:"memory_bytes"`
	PIDs                uint32 `json:"pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// NewProfile returns the profile of these limits.
func NewProfile(id string, l Limits) Profile {
	return Profile{id, l.CPUTimeMS, l.MemoryBytes, l.PIDs, l.WallTimeMS, l.DiskBytes, l.TerminalOutputBytes}
}

// Limits returns the profile's six numbers.
func (p Profile) Limits() Limits {
	return Limits{p.CPUTimeMS, p.MemoryBytes, p.PIDs, p.WallTimeMS, p.DiskBytes, p.TerminalOutputBytes}
}

// EgressPolicy lists the network targets behind one egress policy id.
type EgressPolicy struct {
	PolicyID string        `json:"policy_id"`
	Targets  []EgressEntry `json:"targets"`
}

// EgressEntry is a target as a policy writes it.
type EgressEntry struct {
	Host         string  `json:"host"`
	Port         *uint16 `json:"port,omitzero"`          // absent: DefaultEgressPort
	AllowPrivate bool    `json:"allow_private,omitzero"` // absent: false
}

// Target returns the entry with its defaults filled in.
func (e EgressEntry) Target() EgressTarget {
	t := EgressTarget{Host: e.Host, Port: DefaultEgressPort, AllowPrivate: e.AllowPrivate}
	if e.Port != nil {
		t.Port = *e.Port
	}
	return t
}

// EgressTarget is one host and port that a session may reach. A host that begins with "." stands for
// that domain and everything below it. AllowPrivate admits addresses that are not public.
type EgressTarget struct {
	Host         string `json:"host"`
	Port         uint16 `json:"port"`
	AllowPrivate bool   `json:"allow_private"`
}

// SecretMount says which owner-protected file stands behind a secret handle for one runtime, and
// where below the private home it appears.
type SecretMount struct {
	Handle     string `json:"handle"`
	RuntimeID  string `json:"runtime_id"`
	SourcePath string `json:"source_path"`
	TargetPath string `json:"target_path"`
}

// Canonical returns the RFC 8785 bytes of the document. It fails on numbers beyond 2^53-1 and on
// invalid UTF-8; it does not check the policy: Parse does.
func (d Document) Canonical() ([]byte, error) { return strictjson.Canonical(d) }

// clone returns a deep copy, so that a frozen policy cannot be changed through what it hands out.
func (d Document) clone() Document {
	d.RuntimeTemplates = slices.Clone(d.RuntimeTemplates)
	for i, t := range d.RuntimeTemplates {
		d.RuntimeTemplates[i] = t.clone()
	}
	d.PathAliases = slices.Clone(d.PathAliases)
	for i := range d.PathAliases {
		d.PathAliases[i].Access = slices.Clone(d.PathAliases[i].Access)
	}
	d.Destinations = slices.Clone(d.Destinations)
	d.ResourceProfiles = slices.Clone(d.ResourceProfiles)
	d.EgressPolicyIDs = slices.Clone(d.EgressPolicyIDs)
	d.ToolPolicyIDs = slices.Clone(d.ToolPolicyIDs)
	d.SecretHandles = slices.Clone(d.SecretHandles)
	d.EgressPolicies = slices.Clone(d.EgressPolicies)
	for i := range d.EgressPolicies {
		d.EgressPolicies[i].Targets = slices.Clone(d.EgressPolicies[i].Targets)
	}
	d.SecretMounts = slices.Clone(d.SecretMounts)
	return d
}

func (t Template) clone() Template {
	t.AllowedAliases = slices.Clone(t.AllowedAliases)
	t.AllowedDestinations = slices.Clone(t.AllowedDestinations)
	if t.Adoption != nil {
		a := *t.Adoption
		t.Adoption = &a
	}
	if t.Launch != nil {
		l := t.Launch.clone()
		t.Launch = &l
	}
	return t
}

func (l Launch) clone() Launch {
	l.SearchPaths = slices.Clone(l.SearchPaths)
	l.Arguments = slices.Clone(l.Arguments)
	l.Environment = slices.Clone(l.Environment)
	l.ReadOnlyPaths = slices.Clone(l.ReadOnlyPaths)
	return l
}
