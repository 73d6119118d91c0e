package cgroup

import "time"

// Mechanism names, as receipts and capabilities report them.
const (
	// MechanismV2 is the unified hierarchy.
	MechanismV2 = "cgroup_v2"
	// MechanismV1 is one hierarchy per controller.
	MechanismV1 = "cgroup_v1"
)

// Bounds.
const (
	// MaxControlFile is the most that is read from one control file, in bytes.
	MaxControlFile = 64 << 10
	// MaxNameLength is the longest group name, in bytes.
	MaxNameLength = 128
	// MaxGroups is the most directory entries considered below one base.
	MaxGroups = 10000
	// MaxNesting is the deepest tree of groups made inside a session that is
	// removed; a deeper one is quarantined.
	MaxNesting = 64
	// MinMemory is the smallest memory limit, in bytes: below it the kernel could
	// not even exec the first program.
	MinMemory = 64 << 10
	// MaxPIDs is the kernel's own ceiling on tasks (PID_MAX_LIMIT, 64-bit); a
	// larger limit is written as "max", which is the same thing.
	MaxPIDs = 4 << 20
	// KillBound is how long one [Group.Kill] works at a cgroup v1 group.
	KillBound = 500 * time.Millisecond
	// DestroyBound is how long [Group.Destroy] waits for a group to empty.
	DestroyBound = 2 * time.Second
)

// Limits are the hard limits the kernel enforces on a group.
type Limits struct {
	// MemoryBytes is the limit on memory, kernel memory and page cache of the whole
	// group, in bytes, at least [MinMemory]; rounded down to whole pages. Swap
	// is not allowed on top of it.
	MemoryBytes uint64
	// PIDs is the most tasks (processes and threads) at once, at least 1.
	PIDs uint32
}

func (l Limits) check() error {
	if l.MemoryBytes < MinMemory {
		return fail(CodeInvalid, "check_limits", "memory_bytes", nil)
	}
	if l.PIDs == 0 {
		return fail(CodeInvalid, "check_limits", "pids", nil)
	}
	return nil
}

// Identity names one group durably.
//
// On v2 Dev and Ino are those of the group's directory and PathDigest is the
// lowercase hex SHA-256 of "glove.linux-cgroup-path:" followed by the group's
// path as /proc/PID/cgroup shows it.
//
// On v1 Dev and Ino are those of the memory hierarchy's directory, and the path
// that is digested is a text that commits every hierarchy the limits depend on:
// "v1", then for memory, pids and cpuacct in this order a line feed and
// "controller:dev:ino:path". The freezer is a tool, not a limit, and left out.
type Identity struct {
	Dev        uint64
	Ino        uint64
	PathDigest string
}

// Usage is what a group has used so far. Counters never decrease while the
// group exists.
type Usage struct {
	// CPUMicros is CPU time of all tasks ever in the group, in microseconds.
	CPUMicros uint64
	// MemoryBytes is the memory charged now.
	MemoryBytes uint64
	// MemoryPeakBytes is the most memory ever charged. Kernels before 5.19 do not
	// tell on v2; there it is the most seen by any observation.
	MemoryPeakBytes uint64
	// PIDs is the number of tasks now.
	PIDs uint64
	// PIDsPeak is the most tasks at once. Kernels before 6.6 do not tell; there it
	// is the most seen by any observation, or the limit once that was hit.
	PIDsPeak uint64
	// MemoryLimitHits counts how often a charge met the limit. Most are harmless:
	// the kernel then drops page cache, so a program that merely reads a large
	// file gets here.
	MemoryLimitHits uint64
	// OOMs counts how often the limit could not be met by reclaim (v2 only).
	OOMs uint64
	// OOMKills counts processes killed for want of memory.
	OOMKills uint64
	// PIDLimitHits counts refused forks.
	PIDLimitHits uint64
}

// Cause is why a watched group must end.
type Cause string

// Causes, in the words receipts use.
const (
	// CauseCPU says that CPU time reached its limit.
	CauseCPU Cause = "cpu_time_limit"
	// CauseMemory says that the group ran out of memory: the kernel killed in it or
	// found nothing to reclaim. Meeting the limit with page cache alone is not a
	// cause (see [Usage.MemoryLimitHits]).
	CauseMemory Cause = "memory_limit"
	// CausePIDs says that a fork was refused by the limit on tasks.
	CausePIDs Cause = "pid_limit"
	// CauseSupervisorError says that the group could no longer be observed.
	CauseSupervisorError Cause = "supervisor_error"
)

// Exceeded returns the cause this usage amounts to, by the priority memory, pids,
// CPU time, and false when no limit was met. A cpuLimit of 0 means none.
func (u Usage) Exceeded(cpuLimit time.Duration) (Cause, bool) {
	switch {
	case u.OOMs > 0 || u.OOMKills > 0:
		return CauseMemory, true
	case u.PIDLimitHits > 0:
		return CausePIDs, true
	case cpuLimit > 0 && u.CPUMicros >= uint64(cpuLimit.Microseconds()):
		return CauseCPU, true
	}
	return "", false
}

// validName accepts what may name a group: 1..MaxNameLength of A-Z a-z 0-9 - _ .,
// starting with a letter or digit, and not a name this package keeps for itself.
func validName(s string) bool {
	if s == "" || len(s) > MaxNameLength || hasLeafPrefix(s) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return true
}
