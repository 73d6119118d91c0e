package monitor

import (
	"time"

	"gloved.dev/journal/receipt"
)

// DefaultGrace is how long a harness that is asked to end may take.
const DefaultGrace = 5 * time.Second

// ProtocolVersion is the version of the protocol between gloved and a monitor.
// A gloved that finds a monitor of another version does not guess: it says so
// and leaves the session to the build that started it.
const ProtocolVersion = 1

// A Spec tells a new monitor what to run. It arrives over an inherited socket,
// never by arguments or environment, because it holds the session's key.
type Spec struct {
	ProtocolVersion      int      `json:"protocol_version"`
	SessionID            string   `json:"session_id"`
	Dir                  string   `json:"dir"` // the session's owner directory
	Key                  string   `json:"key"` // 64 hex: proves either side to the other
	ControllerPlanDigest string   `json:"controller_plan_digest"`
	Executable           string   `json:"executable"`
	Argv                 []string `json:"argv"`
	Environment          []string `json:"environment"`
	WorkDir              string   `json:"work_dir"`
	ReadOnlyPaths        []string `json:"read_only_paths"`
	Grants               []Grant  `json:"grants"`
	Limits               Limits   `json:"limits"`
	// UIDRange gives a root daemon's sessions a host user of their own. Count
	// is 0 on an unprivileged daemon: the session maps to the daemon's user.
	UIDRange UIDRange `json:"uid_range"`
	// Unprivileged says that the monitor was started as root of a user
	// namespace that maps only the daemon's user.
	Unprivileged bool   `json:"unprivileged"`
	Rows         uint16 `json:"rows"`
	Columns      uint16 `json:"columns"`
	// Transparent makes the terminal one that changes no byte (see transparent).
	Transparent bool `json:"transparent"`
	RingBytes   int  `json:"ring_bytes"`
}

// A Grant is one host object made visible to the session.
type Grant struct {
	Alias    string `json:"alias"`
	HostPath string `json:"host_path"`
	Target   string `json:"target"`
	// Copy selects an ephemeral writable copy of at most MaxBytes; otherwise
	// the object is bound read-only.
	Copy     bool   `json:"copy"`
	MaxBytes uint64 `json:"max_bytes"`
	// Source is the object that was resolved; another one at HostPath is
	// refused.
	Source SourceIdentity `json:"source"`
}

// Limits are the six limits of a session: times in milliseconds, sizes in
// bytes.
type Limits struct {
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	MemoryBytes         uint64 `json:"memory_bytes"`
	PIDs                uint32 `json:"pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// A UIDRange is a range of host user ids set aside for sessions.
type UIDRange struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// A Partition is one filesystem of a hard size.
type Partition struct {
	Alias string `json:"alias"`
	Bytes uint64 `json:"bytes"`
}

// Prepared is what the session will be made of, bound before launch.
type Prepared struct {
	ProfileDigest string      `json:"profile_digest"`
	Cgroup        CgroupID    `json:"cgroup"`
	CgroupName    string      `json:"cgroup_name"`
	Partitions    []Partition `json:"partitions"`
	Mechanisms    Mechanisms  `json:"mechanisms"`
}

// CgroupID identifies the session's control group.
type CgroupID struct {
	Dev        uint64 `json:"dev"`
	Ino        uint64 `json:"ino"`
	PathDigest string `json:"path_digest"`
}

// ProcessID identifies the session's first process without trusting its PID.
type ProcessID struct {
	PID        uint32   `json:"pid"`
	BootID     string   `json:"boot_id"`
	StartTicks uint64   `json:"start_ticks"`
	Cgroup     CgroupID `json:"cgroup"`
}

// Mechanisms names what enforces each limit.
type Mechanisms struct {
	CPUTime        string `json:"cpu_time"`
	Memory         string `json:"memory"`
	PIDs           string `json:"pids"`
	WallTime       string `json:"wall_time"`
	Disk           string `json:"disk"`
	TerminalOutput string `json:"terminal_output"`
}

// Launched is the confined, probed process that waits for its release.
type Launched struct {
	Process ProcessID `json:"process"`
}

// States of a monitor.
const (
	StateIdle     = "idle"     // nothing made yet
	StatePrepared = "prepared" // resources made, nothing started
	StateLaunched = "launched" // the child is confined and blocked
	StateRunning  = "running"  // the harness runs
	StateEnded    = "ended"    // the outcome is durable
)

// Status is what a monitor says of itself.
type Status struct {
	State   string   `json:"state"`
	Outcome *Outcome `json:"outcome,omitempty"`
}

// An Outcome is the durable end of a session: written by the monitor before
// anyone is told, turned into a receipt by whichever gloved finds it.
type Outcome struct {
	ProtocolVersion int                 `json:"protocol_version"`
	SessionID       string              `json:"session_id"`
	ProfileDigest   string              `json:"profile_digest"`
	Cause           string              `json:"cause"`
	ExitCode        *uint32             `json:"exit_code,omitempty"`
	Signal          uint32              `json:"signal,omitzero"` // that ended it, where Cause is "signaled"
	StartedAtMS     uint64              `json:"started_at_ms"`
	FinishedAtMS    uint64              `json:"finished_at_ms"`
	Limits          Limits              `json:"limits"`
	Observed        Observed            `json:"observed"`
	Mechanisms      Mechanisms          `json:"mechanisms"`
	Transcript      TranscriptID        `json:"transcript"`
	Confinement     receipt.Confinement `json:"confinement"`
	// Quarantined names what could not be removed, for the operator.
	Quarantined []string `json:"quarantined,omitempty"`
}

// Observed is what the session used: times in milliseconds, sizes in bytes.
type Observed struct {
	CPUTimeMS           uint64 `json:"cpu_time_ms"`
	PeakMemoryBytes     uint64 `json:"peak_memory_bytes"`
	PeakPIDs            uint32 `json:"peak_pids"`
	WallTimeMS          uint64 `json:"wall_time_ms"`
	DiskBytes           uint64 `json:"disk_bytes"`
	TerminalOutputBytes uint64 `json:"terminal_output_bytes"`
}

// TranscriptID commits the whole raw terminal stream, retained or not.
type TranscriptID struct {
	Schema    string `json:"schema"`
	SHA256    string `json:"sha256"`
	ByteCount uint64 `json:"byte_count"`
	Complete  bool   `json:"complete"`
}

// GroundPrefix begins the name of a directory that was made ahead of need, for a session
// that is not known yet; what follows also ends the name of its control group.
const GroundPrefix = "glove-ground-"
