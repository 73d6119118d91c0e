package localrun

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
)

// A Request is what the user asked for.
type Request struct {
	Argv        []string
	Dir         string // the caller's working directory, absolute
	Home        string
	SearchPath  string // the caller's PATH
	Root        bool   // sessions run as users of their own
	Workspace   string // "" is Dir
	NoWorkspace bool
	Reads       []string
	Writes      []string
	Env         []string // names to pass on
	Getenv      func(string) (string, bool)
	Limits      Limits
	Interactive bool // a person's terminal is at both ends
}

// A Job is a request with everything decided.
type Job struct {
	Document   policy.Document
	Plan       []byte // canonical
	Mounts     []*Mount
	Notes      []string
	Executable string
	Limits     policy.Limits

	digest string
}

// Names in the policy of a run. There is one of each.
const (
	templateID = "run"
	profileID  = "run"
	egressID   = "no-network"
	toolID     = "none"
	// startTime is how long a plan lives beyond the wall time: copying comes first.
	startTime = 30 * time.Minute
)

// kept are variables that the sandbox sets itself, or that would point out of it.
var kept = []string{"HOME", "PATH", "TMPDIR", "GLOVE_SANDBOXED", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY",
	"https_proxy", "http_proxy", "all_proxy"}

// NewJob decides everything about a request. Its errors are *ui.Error.
func NewJob(ctx context.Context, r *Request) (*Job, error) {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return nil, usageNext("glove run -- COMMAND", "there is no command to run")
	}
	mounts, err := r.mounts()
	if err != nil {
		return nil, err
	}
	program, err := r.program(mounts)
	if err != nil {
		return nil, err
	}
	env, err := r.environment(program.Path)
	if err != nil {
		return nil, err
	}
	var copies []*Mount
	for _, m := range mounts {
		if m.Copy {
			if err := m.measure(ctx); err != nil {
				return nil, err
			}
			copies = append(copies, m)
		}
	}
	host, err := readMachine()
	if err != nil {
		return nil, ui.Failf("no_memory_facts", "%w", err)
	}
	limits, notes, err := r.Limits.settle(host, copies)
	if err != nil {
		return nil, err
	}
	j := &Job{Mounts: mounts, Notes: append(program.Notes, notes...), Executable: program.What, Limits: limits}
	launch := policy.Launch{ExecutablePath: program.Executable, Arguments: append([]string{}, program.Args...),
		Environment: env, ReadOnlyPaths: program.ReadOnly}
	if err := j.write(launch); err != nil {
		return nil, err
	}
	return j, nil
}

// Copied is how much a start will copy, in bytes and entries.
func (j *Job) Copied() (bytes, entries uint64) {
	for _, m := range j.Mounts {
		if m.Copy {
			bytes, entries = bytes+m.bytes, entries+m.entries
		}
	}
	return bytes, entries
}

// environment is the session's: PATH, a terminal's kind, UTF-8, and what was asked for.
// There is a terminal inside even where nobody looks at one; a program that pages its
// output there would wait for a key.
func (r *Request) environment(path []string) ([]string, error) {
	env := map[string]string{"PATH": strings.Join(path, ":"), "LANG": "C.UTF-8", "TERM": "dumb"}
	if !r.Interactive {
		env["PAGER"], env["GIT_PAGER"] = "cat", "cat"
	} else {
		env["TERM"] = "xterm-256color"
		for _, name := range []string{"TERM", "COLORTERM"} {
			if value, ok := r.Getenv(name); ok && ident.ArgString(value) && len(value) <= 64 {
				env[name] = value
			}
		}
	}
	for _, name := range r.Env {
		if at := strings.IndexByte(name, '='); at >= 0 {
			return nil, usageNext("export "+name[:at]+", then: --env "+name[:at],
				"--env takes a name, not a value: what is on a command line can be seen by every process of the machine")
		}
		if !ident.EnvName(name) {
			return nil, ui.Usage("--env %q is no name of a variable", name)
		}
		if slices.Contains(kept, name) {
			return nil, usageNext("leave it out", "--env %s: the sandbox sets that itself", name)
		}
		value, ok := r.Getenv(name)
		if !ok {
			return nil, usageNext("export "+name+" first", "--env %s: it is not set", name)
		}
		env[name] = value
	}
	out := make([]string, 0, len(env))
	for name, value := range env {
		entry := name + "=" + value
		if !ident.ArgString(entry) {
			return nil, ui.Usage("--env %s: the value is too long or holds a NUL", name)
		}
		out = append(out, entry)
	}
	slices.Sort(out)
	return out, nil
}

// write composes the policy and the plan, and has them judged here, where there is
// still somebody to tell.
func (j *Job) write(launch policy.Launch) error {
	j.digest = policy.LaunchDigest(launch)
	profile := policy.NewProfile(profileID, j.Limits)
	life := j.Limits.WallTimeMS + uint64(startTime.Milliseconds())
	j.Document = policy.Document{
		SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: life,
		RuntimeTemplates: []policy.Template{{ID: templateID, RuntimeID: templateID, AdapterDigest: j.digest,
			Backend: policy.BackendLinux, AllowedAliases: []string{}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{}, Destinations: []policy.Destination{},
		ResourceProfiles: []policy.Profile{profile},
		EgressPolicyIDs:  []string{egressID}, ToolPolicyIDs: []string{toolID}, SecretHandles: []string{},
	}
	grants := []policy.AliasGrant{}
	ttl := j.Limits.WallTimeMS/1000 + 1 // what the plan has left when copying is over
	for _, m := range j.Mounts {
		entry := policy.AccessEntry{Access: policy.AccessRead, Materialization: policy.MaterializeBind,
			Create: policy.CreateNever, Cleanup: policy.CleanupRetain}
		if m.Copy {
			entry = policy.AccessEntry{Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy,
				Create: policy.CreateEmptyDirectory, Cleanup: policy.CleanupRemove, MaxBytes: uint64(m.MaxBytes)}
		}
		j.Document.PathAliases = append(j.Document.PathAliases, policy.PathAlias{Alias: m.Alias, HostPath: m.Host,
			TargetPath: m.Target, MaxTTLSecs: ttl, Access: []policy.AccessEntry{entry}})
		j.Document.RuntimeTemplates[0].AllowedAliases = append(j.Document.RuntimeTemplates[0].AllowedAliases, m.Alias)
		grants = append(grants, policy.AliasGrant{Alias: m.Alias, Access: entry.Access, Materialization: entry.Materialization,
			MaxBytes: entry.MaxBytes, TTLSecs: ttl, Cleanup: entry.Cleanup})
	}
	slices.SortFunc(grants, func(a, b policy.AliasGrant) int { return strings.Compare(a.Alias, b.Alias) }) // as a plan demands
	if len(grants) == 0 {                                                                                  // a policy must name some path; this one is granted to nobody
		j.Document.PathAliases = append(j.Document.PathAliases, policy.PathAlias{Alias: "none", HostPath: "/usr", TargetPath: WorkspaceTarget,
			MaxTTLSecs: 1, Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind,
				Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}})
	}
	raw, err := j.Document.Canonical()
	if err != nil {
		return ui.Failf("policy_invalid", "%w", err)
	}
	judge, err := policy.Parse(raw, policy.Env{})
	if err != nil {
		return ui.Failf("policy_invalid", "no policy can permit this command: %w", err)
	}
	plan := policy.PlanV1{SchemaVersion: 1, RuntimeID: templateID, RuntimeTemplateID: templateID, AdapterDigest: j.digest,
		Backend: policy.BackendLinux, EgressPolicyID: egressID, ToolPolicyID: toolID, PathGrants: grants,
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: j.Limits, PolicyRevision: 1,
		ExpiresAtMS: uint64(time.Now().UnixMilli()) + life - 1000}
	if j.Plan, err = strictjson.Canonical(plan); err != nil {
		return ui.Failf("policy_invalid", "%w", err)
	}
	decoded, err := policy.DecodePlan(j.Plan)
	if err == nil {
		_, err = judge.ResolveLaunch(decoded, time.Now(), nil)
	}
	if err != nil {
		return ui.Failf("policy_invalid", "no policy can permit this command: %w", err)
	}
	return nil
}

// Describe says in one line what the job mounts, for --verbose.
func (m *Mount) Describe() string {
	if m.Copy {
		return fmt.Sprintf("%s is copied to %s (%s, %d files; room for %s)", m.Source, m.Target, Bytes(m.bytes), m.entries, m.MaxBytes)
	}
	return fmt.Sprintf("%s is readable at %s", m.Source, m.Target)
}
