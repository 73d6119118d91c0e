package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"gloved.dev/internal/ident"
	"gloved.dev/runtime/sandbox/probe"
)

// Bounds of a Config. Each is the largest value accepted.
const (
	MaxMounts      = 192     // session mounts
	MaxArgs        = 1024    // entries of Argv and, separately, of Env
	MaxArgBytes    = 4 << 20 // Argv and Env together, with terminators
	MaxSystemPaths = 256     // host paths in the base root
	MaxWindow      = 4096    // rows or columns
)

// The one identity inside a session.
const (
	InsideUID  = 1000
	InsideGID  = 1000
	InsideUser = "agent"
	InsideHome = "/home/agent"
)

// DefaultSetupTimeout bounds Start when Config.SetupTimeout is zero.
const DefaultSetupTimeout = 10 * time.Second

// Default window size, the size of a terminal nobody has measured.
const (
	DefaultRows = 24
	DefaultCols = 80
)

// Config says what room to make and what to run in it.
type Config struct {
	// Exe is the executable for init and launch, from SealedExe. Nil means
	// SealedExe is called. It stays the caller's.
	Exe *os.File
	// Tenant is whom the room is for. A Room that was made ahead has its own,
	// which must be the same.
	Tenant
	// Hostname is the UTS name inside; empty means "session".
	Hostname string
	// Argv is the exact argument vector. Argv[0] is the absolute path inside that
	// is executed; PATH is never searched.
	Argv []string
	// Env is the exact environment, NAME=value. Nothing is added.
	Env []string
	// WorkDir is the absolute working directory inside. It must exist.
	WorkDir string
	// Mounts are attached in order on top of the base root. The descriptors stay
	// the caller's; Start moves the mounts they refer to, so that the descriptors
	// are of no further use.
	Mounts []Mount
	// Rows and Cols are the terminal's size before anything runs; zero means the
	// default 24 by 80.
	Rows, Cols uint16
	// SetupTimeout bounds Start; zero means DefaultSetupTimeout.
	SetupTimeout time.Duration
	// SystemPaths are host paths bound read-only into the base root besides those of
	// DefaultSystemPaths; an absent one is skipped, a symbolic link is recreated as
	// the same link.
	SystemPaths []string
	// Loopback admits the two Internet families on the session's loopback-only
	// network, for a session with an egress bridge. False refuses them.
	Loopback bool

	knobs knobs
}

// Tenant is the host's user that a room's processes are.
type Tenant struct {
	// HostUID and HostGID are the ids, in the calling process's user namespace,
	// that the inside uid and gid 1000 map to. No other id is mapped.
	HostUID, HostGID uint32
	// DropGroups empties the supplementary groups. It needs a caller that may
	// call setgroups; an unprivileged daemon's user namespace may not, and there
	// the daemon's own groups stay in the kernel's credentials (unmapped inside).
	DropGroups bool
}

// Mount is one detached mount to attach inside.
type Mount struct {
	// Name appears in errors and in the report; it is not interpreted.
	Name string
	// Target is the absolute path inside. Missing directories (or the file, when
	// File is set) are created on the session's own filesystems only. A target
	// may lie below an earlier mount's target.
	Target string
	// FD is a detached mount from fsmount(2) or open_tree(2) with
	// OPEN_TREE_CLONE, made by the caller.
	FD *os.File
	// ReadOnly, File and Exec: attach read-only; the mount's root is a regular
	// file; programs may be executed from it. nosuid and nodev are always set.
	ReadOnly, File, Exec bool
}

// Hooks are the caller's actions during Start.
type Hooks struct {
	// Placed is called while launch is blocked, before it confines itself. The
	// caller moves launch into its cgroup there. An error aborts the start.
	Placed func(Process) error
}

// Process is one process as the host sees it, held by descriptor.
type Process struct {
	// PID is the id in the caller's PID namespace.
	PID int
	// PidFD refers to the process for as long as it is open; it is the Session's
	// and is closed by Session.Close.
	PidFD *os.File
	// StartTicks is field 22 of /proc/PID/stat: clock ticks after boot.
	StartTicks uint64
}

// Exit is how a session's harness ended.
type Exit struct {
	// Code is the exit status, 0 to 255; -1 when a signal ended the harness.
	Code int
	// Signal is the signal that ended it, or zero.
	Signal syscall.Signal
	// InitDied is set when pid 1 went away without reporting the harness's
	// status, which is also how a Kill looks. Code is then -1.
	InitDied bool
}

// Report is what Start found out. It goes into the receipt.
type Report struct {
	// LandlockABI is the ABI level the ruleset was made for; 0 when the kernel
	// has no Landlock.
	LandlockABI int `json:"landlock_abi"`
	// SeccompDigest is the SHA-256 of the filter program as loaded.
	SeccompDigest string `json:"seccomp_digest"`
	// ProbeDigest is the digest of the list of acts tried, with the answers that
	// count as refusals.
	ProbeDigest string `json:"probe_digest"`
	// Probes are the results, in the list's order. After a successful Start every
	// one is refused.
	Probes []probe.Result `json:"probes"`
}

// StepError is the failure of one named step of making or starting a session.
type StepError struct {
	// Step is the stable lowercase name of the step.
	Step string `json:"step"`
	// Errno is the kernel's answer, zero when the kernel was not the one to refuse.
	Errno syscall.Errno `json:"errno"`
	// Detail names the object concerned, such as a path inside or a probe. It is
	// for the operator; nothing is ever decided by it.
	Detail string `json:"detail"`
}

// Error implements error.
func (e *StepError) Error() string {
	var b strings.Builder
	b.WriteString("sandbox: step ")
	b.WriteString(e.Step)
	if e.Detail != "" {
		b.WriteString(" (" + e.Detail + ")")
	}
	if e.Errno != 0 {
		b.WriteString(": " + e.Errno.Error())
	}
	return b.String()
}

// Unwrap returns the errno, so that errors.Is(err, syscall.EPERM) works.
func (e *StepError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Code returns the stable error code of every StepError.
func (e *StepError) Code() string { return "sandbox_step_failed" }

// stepError makes a StepError from whatever a step returned.
func stepError(step string, err error) *StepError {
	if se, ok := errors.AsType[*StepError](err); ok {
		return se
	}
	out := &StepError{Step: step}
	errno, ok := errors.AsType[syscall.Errno](err)
	if ok {
		out.Errno = errno
	}
	out.Detail = detailOf(err, ok)
	return out
}

// detailed is an error that carries the name of the object a step failed on.
type detailed struct {
	detail string
	err    error
}

func (d *detailed) Error() string { return d.detail + ": " + d.err.Error() }
func (d *detailed) Unwrap() error { return d.err }

// at adds the object's name to a step's error.
func at(detail string, err error) error {
	if err == nil {
		return nil
	}
	return &detailed{detail: detail, err: err}
}

func detailOf(err error, hasErrno bool) string {
	if d, ok := errors.AsType[*detailed](err); ok {
		if hasErrno {
			return d.detail
		}
		return d.Error()
	}
	if hasErrno {
		return ""
	}
	return err.Error()
}

// knobs are for this package's own tests: they make a start fail at a named step,
// or leave a layer out so that the self-probe has something to find. They cannot
// be set from outside the package.
type knobs struct {
	FailStep string `json:"fail_step,omitzero"`
	HangStep string `json:"hang_step,omitzero"`
	NoFilter bool   `json:"no_filter,omitzero"`
	Stderr   bool   `json:"stderr,omitzero"`
}

// validate refuses a Config before anything is made. Errors are StepErrors of
// the step "config".
func (c *Config) validate() error {
	fail := func(format string, args ...any) error {
		return &StepError{Step: stepConfig, Errno: syscall.EINVAL, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case len(c.Argv) == 0 || len(c.Argv) > MaxArgs || len(c.Env) > MaxArgs:
		return fail("argument or environment count")
	case !ident.AbsPath(c.Argv[0]):
		return fail("argv[0] is not an absolute path")
	case c.WorkDir != "/" && !ident.AbsPath(c.WorkDir):
		return fail("working directory is not an absolute path")
	case len(c.Mounts) > MaxMounts:
		return fail("%d mounts", len(c.Mounts))
	case len(c.SystemPaths) > MaxSystemPaths:
		return fail("%d system paths", len(c.SystemPaths))
	case c.Rows > MaxWindow || c.Cols > MaxWindow:
		return fail("window size")
	case len(c.Hostname) > 64:
		return fail("hostname length")
	}
	total := 0
	for _, s := range c.Argv {
		total += len(s) + 1
		if strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
			return fail("argument with NUL or invalid UTF-8")
		}
	}
	for _, s := range c.Env {
		total += len(s) + 1
		name, _, ok := strings.Cut(s, "=")
		if !ok || name == "" || strings.IndexByte(s, 0) >= 0 || !utf8.ValidString(s) {
			return fail("malformed environment entry")
		}
	}
	if total > MaxArgBytes {
		return fail("arguments and environment exceed %d bytes", MaxArgBytes)
	}
	for _, p := range c.SystemPaths {
		if !ident.AbsPath(p) {
			return fail("system path is not an absolute path")
		}
	}
	return c.validateMounts(fail)
}

// sealedTargets may not be touched by a session mount at all, above, at or below:
// they carry the confinement itself. /dev/shm is the one exception.
var sealedTargets = []string{"/proc", "/sys", "/dev"}

// coveredTargets may not be hidden by a session mount, but a mount may lie below.
var coveredTargets = []string{"/etc", "/usr", "/bin", "/sbin", "/lib", "/lib64"}

func reserved(target string) bool {
	if target == shmTarget {
		return false
	}
	for _, s := range sealedTargets {
		if ident.Overlap(target, s) {
			return true
		}
	}
	for _, c := range coveredTargets {
		if ident.Within(c, target) {
			return true
		}
	}
	return false
}

func (c *Config) validateMounts(fail func(string, ...any) error) error {
	seen := make(map[string]bool, len(c.Mounts))
	for i, m := range c.Mounts {
		switch {
		case m.FD == nil:
			return fail("mount %q has no descriptor", m.Name)
		case !ident.AbsPath(m.Target):
			return fail("mount %q: target is not an absolute path", m.Name)
		case seen[m.Target]:
			return fail("mount %q: duplicate target", m.Name)
		case reserved(m.Target):
			return fail("mount %q: target %s is reserved", m.Name, m.Target)
		}
		seen[m.Target] = true
		// A later mount above an earlier one would hide it: what the report says
		// is attached would not be what the harness sees.
		for _, earlier := range c.Mounts[:i] {
			if ident.Within(earlier.Target, m.Target) {
				return fail("mount %q would hide mount %q", m.Name, earlier.Name)
			}
			if earlier.File && ident.Within(m.Target, earlier.Target) {
				return fail("mount %q lies below the file %q", m.Name, earlier.Name)
			}
		}
	}
	return nil
}
