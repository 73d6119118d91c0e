package policy

import "slices"

// Backend is what enforces a sandbox.
type Backend string

// The backends a template may name. Only BackendLinux has an operational lifecycle here; the others
// are accepted in policies and plans and construct nothing. BackendMacOS is a legacy value, decoded only.
const (
	BackendLinux  Backend = "linux_production"
	BackendRemote Backend = "remote_linux_container"
	BackendApple  Backend = "apple_container"
	BackendMacOS  Backend = "macos_experimental"
)

// Backends returns every known backend.
func Backends() []Backend { return []Backend{BackendLinux, BackendRemote, BackendApple, BackendMacOS} }

// Known reports whether b is one of the backends.
func (b Backend) Known() bool { return slices.Contains(Backends(), b) }

// Access is what a session may do with a path.
type Access string

// The kinds of access. DirectWrite is a legacy value that validates and never launches.
const (
	AccessRead           Access = "read"
	AccessEphemeralWrite Access = "ephemeral_write"
	AccessRetainedWrite  Access = "retained_write"
	AccessDirectWrite    Access = "direct_write"
)

// Known reports whether a is one of the kinds of access.
func (a Access) Known() bool {
	return slices.Contains([]Access{AccessRead, AccessEphemeralWrite, AccessRetainedWrite, AccessDirectWrite}, a)
}

// Quota reports whether the access writes into a materialization of bounded size.
func (a Access) Quota() bool { return a == AccessEphemeralWrite || a == AccessRetainedWrite }

// Materialization is how a path gets into the sandbox.
type Materialization string

// The materializations.
const (
	MaterializeBind        Materialization = "bind"
	MaterializeSnapshot    Materialization = "snapshot"
	MaterializeGitWorktree Materialization = "git_worktree"
	MaterializeCopy        Materialization = "copy"
)

// Known reports whether m is one of the materializations.
func (m Materialization) Known() bool {
	return slices.Contains([]Materialization{
		MaterializeBind, MaterializeSnapshot, MaterializeGitWorktree, MaterializeCopy,
	}, m)
}

// CreatePolicy is what a materialization starts from. It is local: plans do not name it.
type CreatePolicy string

// The create policies.
const (
	CreateNever          CreatePolicy = "never"
	CreateEmptyDirectory CreatePolicy = "empty_directory"
	CreateGitWorktree    CreatePolicy = "git_worktree"
)

// Known reports whether c is one of the create policies.
func (c CreatePolicy) Known() bool {
	return slices.Contains([]CreatePolicy{CreateNever, CreateEmptyDirectory, CreateGitWorktree}, c)
}

// CleanupPolicy is what becomes of a materialization when its session ends.
type CleanupPolicy string

// The cleanup policies.
const (
	CleanupRetain CleanupPolicy = "retain"
	CleanupRemove CleanupPolicy = "remove"
)

// Known reports whether c is one of the cleanup policies.
func (c CleanupPolicy) Known() bool { return c == CleanupRetain || c == CleanupRemove }

// Variant is which of a refinement's two skills a session evaluates.
type Variant string

// The variants.
const (
	VariantBase      Variant = "base"
	VariantCandidate Variant = "candidate"
)

// Known reports whether v is one of the variants.
func (v Variant) Known() bool { return v == VariantBase || v == VariantCandidate }
