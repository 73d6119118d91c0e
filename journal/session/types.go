package session

import (
	"strings"

	"gloved.dev/internal/ident"
)

// A State is a place in a session's life.
type State string

// States.
const (
	Created   State = "created"
	Preparing State = "preparing"
	Starting  State = "starting"
	Running   State = "running"
	Stopping  State = "stopping"
	Exited    State = "exited"
	Failed    State = "failed"
)

// Terminal reports whether nothing can follow s.
func (s State) Terminal() bool { return s == Exited || s == Failed }

// Failure codes of MarkFailed.
const (
	AuthorizationExpired    = "authorization_expired"
	LaunchFailed            = "launch_failed"
	SupervisorError         = "supervisor_error"
	RecoveredWithoutProcess = "recovered_without_process"
	RecoveredTerminated     = "recovered_terminated"
)

// Bounds.
const (
	// MaxAuthorizationMS is the longest life of a start authorization.
	MaxAuthorizationMS = 120_000
	// MaxPartitions bounds the partitions of a session's file systems.
	MaxPartitions = 128
	// MaxMonitor bounds the canonical JSON of a monitor locator in bytes.
	MaxMonitor = 4096
	// DefaultMaxBytes and DefaultMaxRecords bound the store.
	DefaultMaxBytes   = 64 << 20
	DefaultMaxRecords = 10_000
)

const identitySchema = 1

// An Authorization permits one start of one session within a half-open window
// of Unix milliseconds, [ApprovedAtMS, ExpiresAtMS).
type Authorization struct {
	SchemaVersion        uint8  `json:"schema_version"`
	AuthorizationID      string `json:"authorization_id"`
	SessionID            string `json:"session_id"`
	ControllerPlanDigest string `json:"controller_plan_digest"`
	PlanContentDigest    string `json:"plan_content_digest"`
	ApprovedAtMS         uint64 `json:"approved_at_ms"`
	ExpiresAtMS          uint64 `json:"expires_at_ms"`
}

func (a Authorization) wellFormed() bool {
	return a.SchemaVersion == 1 && ident.ID(a.AuthorizationID) && ident.MatID(a.SessionID) &&
		ident.Hex64(a.ControllerPlanDigest) && ident.Hex64(a.PlanContentDigest) &&
		a.ApprovedAtMS != 0 && a.ExpiresAtMS > a.ApprovedAtMS && a.ExpiresAtMS <= ident.MaxInt &&
		a.ExpiresAtMS-a.ApprovedAtMS <= MaxAuthorizationMS
}

// A CgroupIdentity names a control group by device and inode.
type CgroupIdentity struct {
	Schema uint8  `json:"schema"`
	Dev    uint64 `json:"dev"`
	Ino    uint64 `json:"ino"`
}

func (c *CgroupIdentity) wellFormed() bool {
	return c == nil || c.Schema == identitySchema && c.Dev <= ident.MaxInt && c.Ino != 0 && c.Ino <= ident.MaxInt
}

func (c *CgroupIdentity) clone() *CgroupIdentity {
	if c == nil {
		return nil
	}
	own := *c
	return &own
}

// A Partition is one file system of a session: its alias and hard size in bytes.
type Partition struct {
	Alias      string `json:"alias"`
	QuotaBytes uint64 `json:"quota_bytes"`
}

// A FilesystemIdentity is how a session's disk limit is divided. What the
// partitions leave of DiskLimitBytes is scratch, and there must be some.
type FilesystemIdentity struct {
	Schema         uint8       `json:"schema"`
	DiskLimitBytes uint64      `json:"disk_limit_bytes"`
	Partitions     []Partition `json:"partitions"`
}

func (f *FilesystemIdentity) wellFormed() bool {
	if f == nil {
		return true
	}
	if f.Schema != identitySchema || f.DiskLimitBytes > ident.MaxInt || len(f.Partitions) > MaxPartitions {
		return false
	}
	var sum uint64
	last := ""
	for _, p := range f.Partitions {
		if !ident.MatID(p.Alias) || p.Alias <= last || p.QuotaBytes == 0 || p.QuotaBytes > f.DiskLimitBytes {
			return false
		}
		sum += p.QuotaBytes // at most 128 times 2^53
		last = p.Alias
	}
	return sum < f.DiskLimitBytes
}

func (f *FilesystemIdentity) clone() *FilesystemIdentity {
	if f == nil {
		return nil
	}
	own := *f
	own.Partitions = append([]Partition{}, f.Partitions...)
	return &own
}

func (f *FilesystemIdentity) equal(g *FilesystemIdentity) bool {
	if f == nil || g == nil {
		return f == g
	}
	if f.Schema != g.Schema || f.DiskLimitBytes != g.DiskLimitBytes || len(f.Partitions) != len(g.Partitions) {
		return false
	}
	for i := range f.Partitions {
		if f.Partitions[i] != g.Partitions[i] {
			return false
		}
	}
	return true
}

// A ProcessIdentity names a process beyond the reuse of its PID: the boot, the
// PID, its start time in clock ticks, and its control group.
type ProcessIdentity struct {
	Schema           uint8  `json:"schema"`
	PID              uint32 `json:"pid"`
	BootID           string `json:"boot_id"`
	StartTicks       uint64 `json:"start_ticks"`
	CgroupDev        uint64 `json:"cgroup_dev"`
	CgroupIno        uint64 `json:"cgroup_ino"`
	CgroupPathDigest string `json:"cgroup_path_digest"`
}

func (p ProcessIdentity) wellFormed() bool {
	return p.Schema == identitySchema && p.PID > 1 && bootID(p.BootID) &&
		p.StartTicks <= ident.MaxInt && p.CgroupDev <= ident.MaxInt && p.CgroupIno <= ident.MaxInt &&
		ident.Hex64(p.CgroupPathDigest)
}

// bootID reports whether s is a lowercase UUID, the form of
// /proc/sys/kernel/random/boot_id.
func bootID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
				return false
			}
		}
	}
	return true
}

// Kinds of a terminal reference.
const (
	KindResource   = "resource"
	KindRefinement = "refinement"
)

// A TerminalReference names the terminal receipt of a session in the receipt
// journal, and repeats of it what a session's status tells.
type TerminalReference struct {
	Kind                 string `json:"kind"`
	Sequence             uint64 `json:"sequence"`
	KeyID                string `json:"key_id"`
	SessionID            string `json:"session_id"`
	ControllerPlanDigest string `json:"controller_plan_digest"`
	ProfileDigest        string `json:"profile_digest"`
	ReceiptDigest        string `json:"receipt_digest"`
	PreviousHMAC         string `json:"previous_hmac"`
	HMAC                 string `json:"hmac"`
	TerminationCause     string `json:"termination_cause"`
	StartedAtMS          uint64 `json:"started_at_ms"`
	FinishedAtMS         uint64 `json:"finished_at_ms"`
	ExitCode             *int64 `json:"exit_code,omitzero"`
}

// causeExited is the one termination cause that has an exit code.
const causeExited = "exited"

func (t TerminalReference) wellFormed() bool {
	exit := t.ExitCode == nil
	if t.TerminationCause == causeExited {
		exit = t.ExitCode != nil && *t.ExitCode >= 0 && *t.ExitCode <= 255
	}
	return exit && (t.Kind == KindResource || t.Kind == KindRefinement) &&
		t.Sequence != 0 && t.Sequence <= ident.MaxInt && ident.MatID(t.SessionID) &&
		ident.Hex64(t.KeyID) && ident.Hex64(t.ControllerPlanDigest) && ident.Hex64(t.ProfileDigest) &&
		ident.Hex64(t.ReceiptDigest) && ident.Hex64(t.PreviousHMAC) && ident.Hex64(t.HMAC) &&
		ident.ID(t.TerminationCause) && t.StartedAtMS != 0 && t.FinishedAtMS >= t.StartedAtMS && t.FinishedAtMS <= ident.MaxInt
}

// A Monitor locates and proves a session's monitor for a later gloved: names,
// versions, and the per-session key, which must outlive the gloved that made it.
// The key is why the store is an owner file and why no record is ever sent or
// logged with its Monitor: whoever reads it can speak to the monitor, whose
// socket is as private. Secrets of other things do not belong in it.
type Monitor map[string]string

// A Record is what the store knows of one session. Its pointers, maps and slices
// are shared: treat them as read-only. Times are Unix milliseconds; those of
// states not reached are 0.
type Record struct {
	SessionID                string
	State                    State
	ControllerPlanDigest     string
	ControllerDigestVerified bool // ControllerPlanDigest is BLAKE3 of the canonical plan
	PlanContentDigest        string
	Plan                     []byte // canonical
	PolicyRevision           uint64
	ExpiresAtMS              uint64 // the plan's
	Refinement               bool   // the plan asks for a refinement evaluation
	CreatedAtMS              uint64

	Authorization  *Authorization
	AuthorizedAtMS uint64

	ProfileDigest string
	Cgroup        *CgroupIdentity
	Filesystem    *FilesystemIdentity
	Monitor       Monitor
	StartingAtMS  uint64

	Process      *ProcessIdentity
	RunningAtMS  uint64
	StoppingAtMS uint64

	Terminal     *TerminalReference
	FailureCode  string
	FinishedAtMS uint64

	Sequence uint64 // of the session's last record in the journal
}

// lastMS is the time of the last transition.
func (r *Record) lastMS() uint64 {
	return max(r.CreatedAtMS, r.AuthorizedAtMS, r.StartingAtMS, r.RunningAtMS, r.StoppingAtMS)
}

// AuthorizationExpired reports whether the session waits in preparing for a start
// that can no longer come.
func (r *Record) AuthorizationExpired(nowMS uint64) bool {
	return r.State == Preparing && (nowMS >= r.Authorization.ExpiresAtMS || nowMS >= r.ExpiresAtMS)
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c < 0x20 || c == 0x7f || c == 0xfffd })
}
