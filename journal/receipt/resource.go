package receipt

import (
	"strings"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
)

// Backends and authorities.
const (
	BackendLinux          = "linux_production"
	BackendRemote         = "remote_linux_container"
	AuthorityLocal        = "local_enforcement"
	AuthorityRemote       = "trusted_remote_claim"
	BackendIDCgroupV2     = "linux-production:cgroup-v2-v1"
	BackendIDCgroupV1     = "linux-production:cgroup-v1-v1"
	receiptSchema         = 1
	maxProjections        = 128
	maxRetained           = 64
	maxRetainedChanges    = 100_000
	mechanismSchema       = 1
	causeExited           = "exited"
	maxExit               = 255
	MechanismCgroupV2     = "cgroup_v2"
	MechanismCgroupV1     = "cgroup_v1"
	MechanismRlimit       = "rlimit"
	MechanismWatchdog     = "watchdog"
	MechanismQuota        = "filesystem_quota"
	MechanismByteCounter  = "byte_counter"
	resourceReceiptDomain = "glove.resource-enforcement-receipt"
)

// Termination causes.
const (
	CauseExited              = causeExited
	CauseSignaled            = "signaled"
	CauseCPUTimeLimit        = "cpu_time_limit"
	CauseMemoryLimit         = "memory_limit"
	CausePIDLimit            = "pid_limit"
	CauseWallTimeLimit       = "wall_time_limit"
	CauseDiskLimit           = "disk_limit"
	CauseTerminalOutputLimit = "terminal_output_limit"
	CauseSupervisorError     = "supervisor_error"
)

var causes = map[string]bool{
	CauseExited: true, CauseSignaled: true, CauseCPUTimeLimit: true, CauseMemoryLimit: true, CausePIDLimit: true,
	CauseWallTimeLimit: true, CauseDiskLimit: true, CauseTerminalOutputLimit: true, CauseSupervisorError: true,
}

// Limits are the six limits of a session, in milliseconds, bytes and processes.
type Limits struct {
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	MemoryBytes         uint64 `json:"memory_bytes"`
	PIDs                uint32 `json:"pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// Observed is what a session used, in the units of Limits.
type Observed struct {
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	PeakMemoryBytes     uint64 `json:"peak_memory_bytes"`
	PeakPIDs            uint32 `json:"peak_pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// Mechanisms names what enforced each limit, truthfully. cgroup_v1 is an
// extension for hosts that still mount the controllers that way.
type Mechanisms struct {
	CPUTime        string `json:"cpu_time"`
	Memory         string `json:"memory"`
	PIDs           string `json:"pids"`
	WallTime       string `json:"wall_time"`
	Disk           string `json:"disk"`
	TerminalOutput string `json:"terminal_output"`
	SchemaVersion  uint8  `json:"receipt_schema_version"`
}

func (m Mechanisms) complete() bool {
	kernel := func(s string) bool {
		return s == MechanismCgroupV2 || s == MechanismCgroupV1 || s == MechanismRlimit
	}
	return kernel(m.CPUTime) && kernel(m.Memory) && kernel(m.PIDs) && m.WallTime == MechanismWatchdog &&
		m.Disk == MechanismQuota && m.TerminalOutput == MechanismByteCounter && m.SchemaVersion == mechanismSchema
}

// A Projection is a library projection that was mounted.
type Projection struct {
	ProjectionID     string `json:"projection_id"`
	DestinationAlias string `json:"destination_alias"`
	TargetPath       string `json:"target_path"`
	ContentDigest    string `json:"content_digest"`
}

// A RetainedChange is a staged copy that a session left.
type RetainedChange struct {
	ExposureID           string `json:"exposure_id"`
	Generation           uint64 `json:"generation"`
	ScopeDigest          string `json:"scope_digest"`
	SourceIdentityDigest string `json:"source_identity_digest"`
	BaselineDigest       string `json:"baseline_digest"`
	StagedDigest         string `json:"staged_digest"`
	ManifestDigest       string `json:"manifest_digest"`
	Created              uint64 `json:"created"`
	Modified             uint64 `json:"modified"`
	Renamed              uint64 `json:"renamed"`
	Removed              uint64 `json:"removed"`
	BytesBefore          uint64 `json:"bytes_before"`
	BytesAfter           uint64 `json:"bytes_after"`
}

// A Resource receipt says under which limits a session ran, what enforced them,
// what it used and why it ended. Times are Unix milliseconds.
type Resource struct {
	SchemaVersion         uint8            `json:"schema_version"`
	ProfileDigest         string           `json:"profile_digest"`
	Backend               string           `json:"backend"`
	BackendID             string           `json:"backend_id"`
	ObservationAuthority  string           `json:"observation_authority"`
	IndependentlyVerified bool             `json:"independently_verified"`
	ConfiguredLimits      Limits           `json:"configured_limits"`
	Mechanisms            Mechanisms       `json:"mechanisms"`
	Observed              Observed         `json:"observed"`
	TerminationCause      string           `json:"termination_cause"`
	ExitCode              *int64           `json:"exit_code,omitzero"`
	StartedAtMS           uint64           `json:"started_at_ms"`
	FinishedAtMS          uint64           `json:"finished_at_ms"`
	LibraryProjections    []Projection     `json:"library_projections,omitzero"`
	RetainedChanges       []RetainedChange `json:"retained_changes,omitzero"`
}

// Validate says why the receipt is incomplete or contradicts itself.
func (r Resource) Validate() error {
	l, o := r.ConfiguredLimits, r.Observed
	switch {
	case r.SchemaVersion != receiptSchema:
		return refuse(InvalidReceipt, "unknown schema_version")
	case !ident.Hex64(r.ProfileDigest) || !ident.ID(r.Backend) || !ident.ID(r.BackendID):
		return refuse(InvalidReceipt, "an ill-formed id or digest")
	case l.CPUTimeMS == 0 || l.MemoryBytes == 0 || l.PIDs == 0 || l.WallTimeMS == 0 || l.DiskBytes == 0 || l.TerminalOutputBytes == 0:
		return refuse(InvalidReceipt, "a limit is missing")
	case tooLarge(l.CPUTimeMS, l.MemoryBytes, l.WallTimeMS, l.DiskBytes, l.TerminalOutputBytes,
		o.CPUTimeMS, o.PeakMemoryBytes, o.WallTimeMS, o.DiskBytes, o.TerminalOutputBytes, r.StartedAtMS, r.FinishedAtMS):
		return refuse(InvalidReceipt, "a number has no exact JSON form")
	case !causes[r.TerminationCause]:
		return refuse(InvalidReceipt, "unknown termination_cause")
	case (r.ExitCode != nil) != (r.TerminationCause == causeExited) || r.ExitCode != nil && (*r.ExitCode < 0 || *r.ExitCode > maxExit):
		return refuse(InvalidReceipt, "an exit code belongs to the cause exited, and is 0 to 255")
	case r.StartedAtMS == 0 || r.FinishedAtMS < r.StartedAtMS:
		return refuse(InvalidReceipt, "times out of order")
	}
	if err := r.authority(); err != nil {
		return err
	}
	if err := validProjections(r.LibraryProjections); err != nil {
		return err
	}
	return r.validRetained()
}

func (r Resource) authority() error {
	if r.Backend == BackendRemote {
		if r.ObservationAuthority != AuthorityRemote || r.IndependentlyVerified || len(r.RetainedChanges) != 0 {
			return refuse(InvalidReceipt, "a remote receipt is an unverified claim without retained changes")
		}
		if r.Mechanisms.SchemaVersion != mechanismSchema {
			return refuse(InvalidReceipt, "unknown mechanism schema")
		}
		for _, m := range r.Mechanisms.names() {
			if !ident.ID(m) {
				return refuse(InvalidReceipt, "an ill-formed mechanism")
			}
		}
		return nil
	}
	if r.ObservationAuthority != AuthorityLocal || !r.IndependentlyVerified || !r.Mechanisms.complete() {
		return refuse(InvalidReceipt, "a local receipt is a verified observation by complete mechanisms")
	}
	return nil
}

func (m Mechanisms) names() [6]string {
	return [6]string{m.CPUTime, m.Memory, m.PIDs, m.WallTime, m.Disk, m.TerminalOutput}
}

func tooLarge(numbers ...uint64) bool {
	for _, n := range numbers {
		if n > ident.MaxInt {
			return true
		}
	}
	return false
}

func validProjections(list []Projection) error {
	if len(list) > maxProjections {
		return refuse(InvalidReceipt, "too many library projections")
	}
	last := ""
	for i, p := range list {
		if !ident.ID(p.ProjectionID) || p.ProjectionID <= last || !ident.ID(p.DestinationAlias) ||
			!ident.Hex64(p.ContentDigest) || !ident.AbsPath(p.TargetPath) ||
			!strings.HasSuffix(p.TargetPath, "/"+p.ContentDigest+".json") {
			return refuse(InvalidReceipt, "an ill-formed or unsorted library projection")
		}
		for _, q := range list[:i] {
			if ident.Overlap(p.TargetPath, q.TargetPath) {
				return refuse(InvalidReceipt, "library projections overlap")
			}
		}
		last = p.ProjectionID
	}
	return nil
}

func (r Resource) validRetained() error {
	if len(r.RetainedChanges) > maxRetained {
		return refuse(InvalidReceipt, "too many retained changes")
	}
	last := ""
	for _, c := range r.RetainedChanges {
		var total uint64
		for _, n := range []uint64{c.Created, c.Modified, c.Renamed, c.Removed} {
			if n > maxRetainedChanges {
				return refuse(InvalidReceipt, "too many changes")
			}
			total += n
		}
		disk := r.ConfiguredLimits.DiskBytes
		if !ident.ID(c.ExposureID) || c.ExposureID <= last || c.Generation == 0 || c.Generation > ident.MaxInt ||
			!ident.Hex64(c.ScopeDigest) || !ident.Hex64(c.SourceIdentityDigest) || !ident.Hex64(c.BaselineDigest) ||
			!ident.Hex64(c.StagedDigest) || !ident.Hex64(c.ManifestDigest) ||
			total > maxRetainedChanges || c.BytesBefore > disk || c.BytesAfter > disk {
			return refuse(InvalidReceipt, "an ill-formed or unsorted retained change")
		}
		last = c.ExposureID
	}
	return nil
}

// Digest is the receipt's digest, in the layout of the existing system.
func (r Resource) Digest() string {
	e := digest.New(resourceReceiptDomain).U8(1).U8(r.SchemaVersion).S(r.ProfileDigest).S(r.Backend).S(r.BackendID)
	if r.Backend == BackendRemote {
		e.S("glove.remote-observation-authority").U8(1).S(r.ObservationAuthority).Bool(r.IndependentlyVerified)
	}
	l, o := r.ConfiguredLimits, r.Observed
	e.U64(l.CPUTimeMS).U64(l.MemoryBytes).U32(l.PIDs).U64(l.WallTimeMS).U64(l.DiskBytes).U64(l.TerminalOutputBytes)
	for _, name := range r.Mechanisms.names() {
		e.S(name)
	}
	e.U8(r.Mechanisms.SchemaVersion)
	e.U64(o.CPUTimeMS).U64(o.PeakMemoryBytes).U32(o.PeakPIDs).U64(o.WallTimeMS).U64(o.DiskBytes).U64(o.TerminalOutputBytes)
	e.S(r.TerminationCause)
	if e.Opt(r.ExitCode != nil); r.ExitCode != nil {
		e.U32(uint32(*r.ExitCode)) //nolint:gosec // 0..255
	}
	e.U64(r.StartedAtMS).U64(r.FinishedAtMS)
	if len(r.LibraryProjections) > 0 {
		e.S("glove.library-projection-receipts").U8(1).U32(uint32(len(r.LibraryProjections)))
		for _, p := range r.LibraryProjections {
			e.S(p.ProjectionID).S(p.DestinationAlias).S(p.TargetPath).S(p.ContentDigest)
		}
	}
	if len(r.RetainedChanges) > 0 {
		e.S("glove.retained-change-receipts").U8(1).U32(uint32(len(r.RetainedChanges)))
		for _, c := range r.RetainedChanges {
			e.S(c.ExposureID).U64(c.Generation).S(c.ScopeDigest).S(c.SourceIdentityDigest).
				S(c.BaselineDigest).S(c.StagedDigest).S(c.ManifestDigest).
				U64(c.Created).U64(c.Modified).U64(c.Renamed).U64(c.Removed).U64(c.BytesBefore).U64(c.BytesAfter)
		}
	}
	return e.Sum()
}
