package room

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"gloved.dev/internal/ident"
	"gloved.dev/runtime/sandbox"
)

// Codes of an Error. The list is closed and public.
const (
	CodeUnsupported  = "sandbox-unsupported"
	CodeUnavailable  = "sandbox-unavailable"
	CodeWorkspace    = "workspace-unavailable"
	CodeUnresolvable = "command-unresolvable"
	CodeTimeout      = "timeout"
)

// Codes returns every code an Error can have.
func Codes() []string {
	return []string{CodeUnsupported, CodeUnavailable, CodeWorkspace, CodeUnresolvable, CodeTimeout}
}

// DefaultTimeout ends a room whose operator named no other bound.
const DefaultTimeout = 120 * time.Second

// DefaultProcesses is how many tasks, threads included, a room may have at once.
const DefaultProcesses = 1024

// An Error is why a room did not run its command, or did not run it to its end.
type Error struct {
	Code    string
	Message string
	Err     error
}

// Error gives code and message.
func (e *Error) Error() string {
	if e.Err != nil {
		return e.Code + ": " + e.Message + ": " + e.Err.Error()
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func fault(code string, err error, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...), Err: err}
}

// Variables that make a room refuse. They can do nothing else.
const (
	forceUnavailable = "APPROVAL_SANDBOX_FORCE_UNAVAILABLE"
	forceUnsupported = "APPROVAL_SANDBOX_FORCE_UNSUPPORTED"
)

// WorkspaceVariable names the disposable workspace inside the room.
const WorkspaceVariable = "APPROVAL_CODEX_SESSION_WORKSPACE"

// Options describe a room. All paths are absolute and come from the operator's manifest.
type Options struct {
	Canonical   string
	InstallRoot string
	// Home is the gate's home: log, payloads, vault, keys. Policy is the policy file.
	Home, Policy, Log string
	// UID and GID are who a room that root starts runs as. Another caller's room runs as the caller.
	UID, GID uint32
	// Getenv reads the caller's environment.
	Getenv func(string) string
	// Timeout ends the room; zero means DefaultTimeout.
	Timeout time.Duration
	// Processes is how many tasks the room may have at once; zero means DefaultProcesses.
	Processes uint32
	// Memory bounds the room in bytes, where its user may make control groups; zero means three
	// quarters of the machine's.
	Memory uint64
}

// A Description is what a room is, before anything runs in it.
type Description struct {
	OK          bool     `json:"ok"`
	Mechanism   string   `json:"mechanism"`
	Egress      string   `json:"egress"` // always "denied"
	Canonical   string   `json:"canonical"`
	WriteAllow  []string `json:"write_allow"`
	ReadAllow   []string `json:"read_allow"`
	DenyRead    []string `json:"deny_read"`
	Runtime     []string `json:"runtime"`
	Environment []string `json:"environment"` // names only
	Limits      []string `json:"limits"`
	// Profile is the Seatbelt text, on macOS.
	Profile string `json:"profile,omitempty"`
}

// Disposable stands in a Description for the folder that a running room will have.
const Disposable = "<disposable>"

// limits is what the room does not do, said in every description.
func limits() []string {
	return []string{
		"inbound sockets are not denied by a rule; the room has no network and no sockets but pairs",
		"secrets inside the canonical workspace are readable",
		"processes started outside the room are not covered",
		"access lists are unproven (acl-unproven)",
		"the environment is filtered by names",
		"memory is bounded where the user may make control groups, and disk by the room's time alone",
	}
}

// credentialFiles are names in a gate's home that hold secrets.
var credentialFiles = []string{"vault.enc", "env", "keys"}

// Denied are the paths a room must not read, wherever they lie.
func (o *Options) denied() []string {
	list := []string{o.Home, o.Policy, o.Log}
	for _, name := range credentialFiles {
		list = append(list, filepath.Join(o.Home, name))
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func (o *Options) check() error {
	for _, p := range []string{o.Canonical, o.InstallRoot, o.Home, o.Policy, o.Log} {
		if !ident.AbsPath(p) {
			return fault(CodeWorkspace, nil, "a path of the room is not absolute")
		}
	}
	real, err := filepath.EvalSymlinks(o.Canonical)
	if err != nil {
		return fault(CodeWorkspace, err, "the canonical workspace cannot be reached")
	}
	if info, err := os.Stat(real); err != nil || !info.IsDir() || real != o.Canonical {
		return fault(CodeWorkspace, err, "the canonical workspace must be a directory reached without symbolic links")
	}
	return nil
}

// Describe says what the room is. It makes and runs nothing.
func Describe(o Options) (*Description, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d := &Description{
		OK: true, Mechanism: mechanism(), Egress: "denied", Canonical: o.Canonical, WriteAllow: []string{Disposable},
		ReadAllow: []string{Disposable, o.Canonical}, DenyRead: o.denied(),
		Runtime: sandbox.DefaultSystemPaths(), Limits: limits(),
	}
	for _, e := range environment(o.Getenv, Disposable) {
		name, _, _ := strings.Cut(e, "=")
		d.Environment = append(d.Environment, name)
	}
	if runtime.GOOS == "darwin" {
		d.Runtime = seatbeltRuntime
		d.Profile = Seatbelt(d.WriteAllow, d.ReadAllow, d.DenyRead)
	}
	return d, nil
}

func mechanism() string {
	switch runtime.GOOS {
	case "linux":
		return "namespaces"
	case "darwin":
		return "seatbelt-profile-only"
	}
	return "none"
}

// passed are the variables whose values come from the caller. PATH, HOME and TMPDIR are the room's
// own: the caller's point to places the room does not have.
var passed = []string{"SHELL", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLORTERM", "TZ"}

// roomPath is where programs are looked for inside.
const roomPath = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"

// environment is the room's whole environment.
func environment(getenv func(string) string, disposable string) []string {
	env := []string{"PATH=" + roomPath, "HOME=" + disposable, "TMPDIR=" + disposable, WorkspaceVariable + "=" + disposable}
	for _, name := range passed {
		// A value is as much from outside as a name: one with control characters is no terminal
		// type and no locale.
		if v := getenv(name); v != "" && len(v) <= 256 && strings.IndexFunc(v, func(r rune) bool { return r < ' ' }) < 0 {
			env = append(env, name+"="+v)
		}
	}
	return env
}
