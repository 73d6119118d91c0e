package policy

import (
	"gloved.dev/internal/pathwalk"
	"gloved.dev/policy/harness"
)

// ResolvedLaunch is an accepted plan with the owner's local facts filled in: everything a runtime
// needs to prepare a session. It holds host paths, so it stays on this machine; it holds no secret
// bytes. It marshals to JSON, for a monitor process that is handed it.
type ResolvedLaunch struct {
	PlanSchemaVersion uint8   `json:"plan_schema_version"`
	PolicyRevision    uint64  `json:"policy_revision"`
	ExpiresAtMS       uint64  `json:"expires_at_ms"` // of the plan
	ContentDigest     string  `json:"plan_content_digest"`
	TemplateID        string  `json:"runtime_template_id"`
	RuntimeID         string  `json:"runtime_id"`
	AdapterDigest     string  `json:"adapter_command_digest"`
	Backend           Backend `json:"sandbox_backend"`
	ProfileID         string  `json:"profile_id"`
	Limits            Limits  `json:"limits"`

	Executable string   `json:"executable"` // absolute host path; the runtime pins its bytes
	Argv       []string `json:"argv"`       // argv[0] is Executable
	// Env is the whole environment, sorted, but for the proxy and local-service variables, which the
	// runtime knows: template, adapter, HOME and GLOVE_SANDBOXED.
	Env []string `json:"env"`
	// WorkDir is /workspace if a grant or projection is at or below it, else Home.
	WorkDir string `json:"work_dir"`
	Home    string `json:"home"` // the private home directory, harness.Home
	// ManagedHome: the runtime is a native adapter, whose home Glove fills.
	ManagedHome   bool     `json:"managed_home"`
	ReadOnlyPaths []string `json:"read_only_paths"` // host paths, mounted at the same place

	Grants      []ResolvedGrant      `json:"grants"`
	Projections []ResolvedProjection `json:"projections"`
	Secrets     []ResolvedSecret     `json:"secrets"`

	EgressPolicyID string              `json:"egress_policy_id"`
	Egress         []EgressTarget      `json:"egress"` // empty: no network at all
	ToolPolicyID   string              `json:"tool_policy_id"`
	Adoption       *Adoption           `json:"adoption,omitzero"`
	Refinement     *ResolvedRefinement `json:"refinement,omitzero"`

	// RequiresDirectWrite: a grant writes to the host object itself. No runtime does that.
	RequiresDirectWrite bool `json:"requires_direct_write"`
	// RequiresRetainedWrite: a grant's copy outlives the session.
	RequiresRetainedWrite bool `json:"requires_retained_write"`
}

// ResolvedGrant is one path of a session. The runtime opens HostPath without following links and
// refuses it unless what it finds is the object of Identity (device, inode, mode).
type ResolvedGrant struct {
	Alias           string            `json:"alias"` // path alias or exposure id; fit for a directory name
	HostPath        string            `json:"host_path"`
	Target          string            `json:"target"` // absolute path in the sandbox
	Access          Access            `json:"access"`
	Materialization Materialization   `json:"materialization"`
	Create          CreatePolicy      `json:"create_policy"`
	Cleanup         CleanupPolicy     `json:"cleanup_policy"`
	MaxBytes        uint64            `json:"max_bytes"` // quota of a write, 0 for reads
	TTLSecs         uint64            `json:"ttl_secs"`
	Identity        pathwalk.Identity `json:"identity"`
	Exposure        *ExposureRef      `json:"exposure,omitzero"` // schema 2 only
}

// ExposureRef says which generation of an exposure a grant used, for receipts.
type ExposureRef struct {
	Generation           uint64 `json:"generation"`
	ScopeDigest          string `json:"scope_digest"`
	SourceIdentityDigest string `json:"source_identity_digest"`
}

// ExposureSource is the host object behind an exposure grant.
type ExposureSource struct {
	HostPath             string
	Identity             pathwalk.Identity
	SourceIdentityDigest string
}

// ResolvedProjection is one library bundle and where it appears.
type ResolvedProjection struct {
	Projection
	Target string `json:"target"` // the destination's path + "/DIGEST.json"
}

// ResolvedSecret is one secret and where it appears. SourcePath is an owner-protected host file.
type ResolvedSecret struct {
	Handle     string `json:"handle"`
	RuntimeID  string `json:"runtime_id"`
	SourcePath string `json:"source_path"`
	Target     string `json:"target"`
}

// ResolvedRefinement is the plan's binding with the context of its matched pair.
type ResolvedRefinement struct {
	Refinement
	PlanContextDigest string `json:"plan_context_digest"`
}

// Support says what a runtime can do beyond read binds and ephemeral copies without network.
type Support struct {
	RetainedWrite bool
	Egress        bool
	Secrets       bool
	Projections   bool
	Adoption      bool
	Refinement    bool
}

// Unsupported returns nil if a runtime on BackendLinux with this support can launch l, and otherwise
// the first thing it cannot do, as a *LaunchError. A runtime calls it before it prepares anything, so
// that what it does not enforce is refused, never left out.
func (l *ResolvedLaunch) Unsupported(s Support) error {
	if l.Backend != BackendLinux {
		return cannot("the backend %s has no lifecycle here", l.Backend)
	}
	if l.RequiresDirectWrite {
		return cannot("direct writes are refused; use a retained write")
	}
	for _, g := range l.Grants {
		if err := g.unsupported(); err != nil {
			return err
		}
	}
	adapter, _ := harness.Lookup(l.RuntimeID)
	if adapter.NeedsAdoption != (l.Adoption != nil) {
		if adapter.NeedsAdoption {
			return cannot("runtime %s launches with adopted extensions only", l.RuntimeID)
		}
		return cannot("runtime %s takes no adopted extensions", l.RuntimeID)
	}
	for _, need := range []struct {
		needed, have bool
		what         string
	}{
		{l.RequiresRetainedWrite, s.RetainedWrite, "retained writes"},
		{len(l.Egress) > 0, s.Egress, "network egress"},
		{len(l.Secrets) > 0, s.Secrets, "secrets"},
		{len(l.Projections) > 0, s.Projections, "library projections"},
		{l.Adoption != nil, s.Adoption, "adopted extensions"},
		{l.Refinement != nil, s.Refinement, "refinement evaluation"},
	} {
		if need.needed && !need.have {
			return cannot("this runtime has no %s", need.what)
		}
	}
	return nil
}

// unsupported judges one grant: only binds for reading and copies for writing can be mounted, and a
// quota is a file system of whole pages.
func (g ResolvedGrant) unsupported() error {
	switch {
	case g.Access == AccessRead && g.Materialization == MaterializeBind:
		return nil
	case !g.Access.Quota() || g.Materialization != MaterializeCopy:
		return cannot("grant %q: %s by %s cannot be launched", g.Alias, g.Access, g.Materialization)
	case g.MaxBytes%PageSize != 0:
		return &LaunchError{Code: LaunchQuota,
			Detail: "grant \"" + g.Alias + "\": the quota is no multiple of 4096 bytes"}
	}
	return nil
}
