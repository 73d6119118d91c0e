package sandbox

import "gloved.dev/runtime/sandbox/probe"

// The handshake. Every message is one packet of strict JSON on a SOCK_SEQPACKET pair; init
// and launch have a pair each, the other end of both is the caller's. The builder speaks
// on init's. The kernel stamps launch's packets with its pid as the caller sees it.
//
//	caller                   init            builder              launch
//	  │ (clone; the sockets are descriptors it inherits)
//	  │                        │ ── fork, exec ─▶│                   │
//	  │                        │ ── fork, exec ─────────────────────▶│
//	  │                        │ drops everything, executes itself   │
//	  │ ◀── guarded ────────── │                 │                   │
//	  │ ◀───────────────────────────────────────────────── hello ── │
//	  │  opens a pidfd         │                 │                   │
//	  │ ── hold ───────────────────────────────────────────────────▶│
//	  │ ◀────────────────────────────────────────────────── held ── │
//	  │  same pid, alive throughout: the pidfd is launch's           │
//	  │  Prepare ends          │                 │ root, /dev, /proc,│
//	  │                        │                 │ the system        │
//	  │  (here a Room waits for its session)     │                   │
//	  │ ── spec + mounts ───────────────────────▶│                   │
//	  │  Hooks.Placed          │                 │ ── spec ─────────▶│
//	  │                        │                 │ the rest; pivots  │
//	  │                        │                 │ ── terminal ─────▶│
//	  │ ◀── terminal + PTY master ───────────── │                   │
//	  │ ── confine ────────────────────────────────────────────────▶│
//	  │                        │ ◀── exit 0 ──── │ confines itself, probes
//	  │ ◀──────────────────────────────────────── report | failed ── │
//	  │ ◀── ready ──────────── │                                     │
//	  │  Start returns         │                                     │
//	  │ ── exec ───────────────────────────────────────────────────▶│
//	  │ ◀─────────────────────────── end of file at exec | failed ── │
//	  │  Release returns       │                                     │
//	  │ ◀── exit ───────────── │ (reaped launch)
//	  │                        │ kills what is left, ends
//
// init and the builder may send failed at any time before ready. End of file on init's
// socket means that the caller is gone: whoever sees it ends, and everything with init.
const (
	msgSpec     = "spec"
	msgTerminal = "terminal"
	msgHello    = "hello"
	msgHold     = "hold"
	msgHeld     = "held"
	msgReady    = "ready"
	msgConfine  = "confine"
	msgReport   = "report"
	msgExec     = "exec"
	msgGuarded  = "guarded"
	msgExit     = "exit"
	msgFailed   = "failed"
)

// message is the one shape of every packet; a kind uses the members it needs.
type message struct {
	Kind   string         `json:"kind"`
	Failed *StepError     `json:"failed,omitzero"`
	ABI    int            `json:"abi,omitzero"`
	Filter string         `json:"filter,omitzero"`
	Probes []probe.Result `json:"probes,omitzero"`
	Status uint32         `json:"status,omitzero"` // as wait4(2) gives it
}

// maxMessage bounds one packet; the largest, a report, is under 8 KiB.
const maxMessage = 64 << 10

// maxSpec bounds the serialized spec.
const maxSpec = 2*MaxArgBytes + 1<<20

// Descriptors init is born with. The spec, a sealed memory file, and the mounts in the
// order of the spec come in one packet; SCM_MAX_FD, 253, is more than MaxMounts.
const (
	fdControl = 3 // init's socket, the builder's too
	fdLaunch  = 4 // launch's socket, handed on
	fdExe     = 5 // what init is executed from
)

// fdDoor is the builder's end of its socket to launch.
const fdDoor = 4

// The roles, as argv[0] of a re-execution. init has two lives: first it starts the
// others, with capabilities; then it has executed itself again and keeps.
const (
	roleStart  = "gloved: init (starting)"
	roleBuild  = "gloved: builder"
	roleInit   = "gloved: init"
	roleLaunch = "gloved: launch"
)

// spec is what init and launch need to know.
type spec struct {
	Hostname    string      `json:"hostname"`
	Argv        []string    `json:"argv"`
	Env         []string    `json:"env"`
	WorkDir     string      `json:"work_dir"`
	Rows        uint16      `json:"rows"`
	Cols        uint16      `json:"cols"`
	Mounts      []specMount `json:"mounts"`
	SystemPaths []string    `json:"system_paths"`
	Loopback    bool        `json:"loopback"`
}

type specMount struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
	File     bool   `json:"file"`
	Exec     bool   `json:"exec"`
}

// Names of the steps, in the order they happen. A StepError's Step is one of them.
const (
	stepConfig     = "config"
	stepExecutable = "executable"
	stepSpawn      = "spawn"
	stepLaunch     = "launch"
	stepHold       = "hold"
	stepPrivate    = "private"
	stepRoot       = "root"
	stepSkeleton   = "skeleton"
	stepDev        = "dev"
	stepProc       = "proc"
	stepSystem     = "system"
	stepLoopback   = "loopback"
	stepSpec       = "spec"
	stepPlace      = "place"
	stepMore       = "more_system"
	stepEtc        = "etc"
	stepShm        = "shm"
	stepMounts     = "mounts"
	stepPivot      = "pivot"
	stepSeal       = "seal"
	stepHostname   = "hostname"
	stepTerminal   = "terminal"
	stepInit       = "init"
	stepCgroupNS   = "cgroup_namespace"
	stepWorkDir    = "work_dir"
	stepLimits     = "limits"
	stepSignals    = "signals"
	stepCaps       = "capabilities"
	stepLandlock   = "landlock"
	stepFDs        = "descriptors"
	stepFilter     = "filter"
	stepProbe      = "probe"
	stepReport     = "report"
	stepExec       = "exec"
)

// Steps lists the names of all set-up steps in the order they happen.
func Steps() []string {
	return []string{
		stepConfig, stepExecutable, stepSpawn, stepLaunch, stepHold, stepPrivate, stepRoot, stepSkeleton,
		stepDev, stepProc, stepSystem, stepLoopback, stepSpec, stepPlace, stepMore, stepEtc, stepShm, stepMounts,
		stepPivot, stepSeal, stepHostname, stepTerminal, stepInit, stepCgroupNS, stepWorkDir, stepLimits, stepSignals,
		stepCaps, stepLandlock, stepFDs, stepFilter, stepProbe, stepReport, stepExec,
	}
}
