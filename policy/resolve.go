package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gloved.dev/internal/ident"
	"gloved.dev/policy/harness"
)

// Workspace is where a session works if something is mounted there or below.
const Workspace = "/workspace"

// EgressNone and EgressDenyAll are the egress policy ids that never have targets.
const (
	EgressNone    = "no-network"
	EgressDenyAll = "deny-all"
)

// reservedEnvironment are variables that Glove sets, or that would lead traffic and files elsewhere.
var reservedEnvironment = []string{
	"ALL_PROXY", "GLOVE_LOCAL_SERVICE_DIR", "GLOVE_SANDBOXED", "HOME", "HTTPS_PROXY", "HTTP_PROXY",
	"TMPDIR", "all_proxy", "http_proxy", "https_proxy",
}

// ReservedEnvironment returns the variable names that a launch may not set, sorted. The variables of
// a native adapter are reserved too, for templates of its runtime.
func ReservedEnvironment() []string { return slices.Clone(reservedEnvironment) }

// ResolveLaunch validates the plan once more, at this time, and fills in what is local. Errors are
// *PlanError when the plan is refused and *LaunchError when an admitted plan cannot be launched. What
// is resolved may still be more than a runtime can do: it asks Unsupported.
func (p *Policy) ResolveLaunch(plan *Plan, now time.Time, exposures Exposures) (*ResolvedLaunch, error) {
	j := judge{policy: p, plan: plan, now: now, exposures: exposures}
	if err := j.run(); err != nil {
		return nil, err
	}
	canonical, err := plan.Canonical()
	if err != nil {
		return nil, schemaError(err)
	}
	t := j.tmpl()
	if t.Launch == nil {
		return nil, &LaunchError{Code: LaunchTemplateUnavailable, PolicyPointer: j.at(), Detail: "the template has no launch"}
	}
	l := &ResolvedLaunch{
		PlanSchemaVersion: plan.SchemaVersion, PolicyRevision: p.doc.Revision, ExpiresAtMS: plan.ExpiresAtMS,
		ContentDigest: PlanContentDigest(canonical), TemplateID: t.ID, RuntimeID: t.RuntimeID,
		AdapterDigest: t.AdapterDigest, Backend: t.Backend,
		ProfileID: p.doc.ResourceProfiles[j.profile].ID, Limits: plan.Limits,
		Home: harness.Home, ReadOnlyPaths: slices.Concat([]string{}, t.Launch.ReadOnlyPaths),
		EgressPolicyID: plan.EgressPolicyID, ToolPolicyID: plan.ToolPolicyID,
		Grants: []ResolvedGrant{}, Projections: []ResolvedProjection{}, Secrets: []ResolvedSecret{}, Egress: []EgressTarget{},
	}
	if t.Adoption != nil {
		a := *t.Adoption
		l.Adoption = &a
	}
	if plan.Refinement != nil {
		l.Refinement = &ResolvedRefinement{Refinement: *plan.Refinement, PlanContextDigest: PlanContextDigest(plan)}
	}
	for _, step := range []func(*ResolvedLaunch) error{
		j.resolveCommand, j.resolveGrants, j.resolveProjections, j.resolveSecrets, j.resolveEgress, j.composition,
	} {
		if err := step(l); err != nil {
			return nil, err
		}
	}
	l.WorkDir = l.workDir()
	return l, nil
}

func (l *ResolvedLaunch) workDir() string {
	for _, g := range l.Grants {
		if ident.Within(g.Target, Workspace) {
			return Workspace
		}
	}
	for _, p := range l.Projections {
		if ident.Within(p.Target, Workspace) {
			return Workspace
		}
	}
	return l.Home
}

// resolveCommand fills in executable, arguments and environment.
func (j *judge) resolveCommand(l *ResolvedLaunch) error {
	launch, at := j.tmpl().Launch, j.at()+"/launch"
	adapter, native := harness.Lookup(l.RuntimeID)
	l.ManagedHome = native
	for i, a := range launch.Arguments {
		if slices.Contains(adapter.Arguments, a) {
			return &LaunchError{Code: LaunchArguments, PolicyPointer: fmt.Sprintf("%s/arguments/%d", at, i),
				Detail: "Glove adds this argument for the runtime; the template may not repeat it"}
		}
	}
	if len(launch.Arguments)+len(adapter.Arguments) > MaxLaunchEntries {
		return &LaunchError{Code: LaunchArguments, PolicyPointer: at + "/arguments",
			Detail: fmt.Sprintf("with those of the runtime there are more than %d arguments", MaxLaunchEntries)}
	}
	exe, err := j.executable(launch, at)
	if err != nil {
		return err
	}
	l.Executable = exe
	l.Argv = slices.Concat([]string{exe}, launch.Arguments, adapter.Arguments)
	l.Env, err = environment(launch, adapter, at)
	return err
}

// executable returns the pinned path untouched, or the discovered one, to which the rule about
// read-only paths applies just the same.
func (j *judge) executable(launch *Launch, at string) (string, error) {
	if launch.Discovery == "" {
		return launch.ExecutablePath, nil
	}
	adapter, ok := harness.Lookup(launch.Discovery)
	if !ok { // the policy would not have loaded
		return "", &LaunchError{Code: LaunchExecutable, PolicyPointer: at + "/runtime_discovery", Detail: "no such adapter"}
	}
	exe, err := j.policy.env.Discover(adapter, slices.Clone(launch.SearchPaths))
	if err != nil {
		return "", &LaunchError{Code: LaunchExecutable, PolicyPointer: at + "/executable_search_paths",
			Detail: "no trusted executable was found", Err: err}
	}
	for i, ro := range launch.ReadOnlyPaths {
		if ident.Overlap(ro, exe) && !snapshotCovers(ro, exe) {
			return "", &LaunchError{Code: LaunchTarget, PolicyPointer: fmt.Sprintf("%s/read_only_paths/%d", at, i),
				Detail: "the path overlaps the discovered executable, which is not part of a staged snapshot"}
		}
	}
	return exe, nil
}

// environment is the template's, the adapter's and what every session has. A template may set none of
// the latter two: it would either be overridden silently or break the sandbox's own arrangements.
func environment(launch *Launch, adapter harness.Adapter, at string) ([]string, error) {
	reserved := ReservedEnvironment()
	for _, entry := range adapter.Environment {
		name, _, _ := strings.Cut(entry, "=")
		reserved = append(reserved, name)
	}
	for i, entry := range launch.Environment {
		if name, _, _ := strings.Cut(entry, "="); slices.Contains(reserved, name) {
			return nil, &LaunchError{Code: LaunchEnvironment, PolicyPointer: fmt.Sprintf("%s/environment/%d", at, i),
				Detail: "Glove sets " + name + " itself; the template may not"}
		}
	}
	env := slices.Concat(launch.Environment, adapter.Environment, []string{"HOME=" + harness.Home, "GLOVE_SANDBOXED=1"})
	slices.Sort(env)
	return env, nil
}

func (j *judge) resolveGrants(l *ResolvedLaunch) error {
	for _, g := range j.plan.PathGrants {
		r, err := j.resolveAlias(g)
		if err != nil {
			return err
		}
		l.Grants = append(l.Grants, r)
	}
	for _, g := range j.plan.ExposureGrants {
		r, err := j.resolveExposure(g)
		if err != nil {
			return err
		}
		l.Grants = append(l.Grants, r)
	}
	for _, g := range l.Grants {
		l.RequiresDirectWrite = l.RequiresDirectWrite || g.Access == AccessDirectWrite
		l.RequiresRetainedWrite = l.RequiresRetainedWrite || g.Access == AccessRetainedWrite
	}
	return nil
}

func (j *judge) resolveAlias(g AliasGrant) (ResolvedGrant, error) {
	n := j.policy.aliases[g.Alias]
	alias := &j.policy.doc.PathAliases[n]
	id, err := j.policy.env.Identify(alias.HostPath)
	if err != nil {
		return ResolvedGrant{}, &LaunchError{Code: LaunchGrant, PolicyPointer: fmt.Sprintf("/path_aliases/%d/host_path", n),
			Detail: "the host object cannot be opened", Err: err}
	}
	k := slices.IndexFunc(alias.Access, func(e AccessEntry) bool { return e.Access == g.Access })
	return ResolvedGrant{
		Alias: g.Alias, HostPath: alias.HostPath, Target: alias.TargetPath, Access: g.Access,
		Materialization: g.Materialization, Create: alias.Access[k].Create, Cleanup: g.Cleanup,
		MaxBytes: g.MaxBytes, TTLSecs: g.TTLSecs, Identity: id,
	}, nil
}

func (j *judge) resolveExposure(g ExposureGrant) (ResolvedGrant, error) {
	src, err := j.exposures.ResolveGrant(j.plan.RuntimeTemplateID, g, j.now)
	if err != nil {
		return ResolvedGrant{}, &LaunchError{Code: LaunchGrant, Detail: "the exposure cannot be opened", Err: err}
	}
	create := CreateEmptyDirectory
	if g.Materialization == MaterializeBind {
		create = CreateNever
	}
	return ResolvedGrant{
		Alias: g.ExposureID, HostPath: src.HostPath, Target: Workspace + "/exposures/" + g.ExposureID,
		Access: g.Access, Materialization: g.Materialization, Create: create, Cleanup: g.Cleanup,
		MaxBytes: g.MaxBytes, TTLSecs: g.TTLSecs, Identity: src.Identity,
		Exposure: &ExposureRef{Generation: g.Generation, ScopeDigest: g.ScopeDigest, SourceIdentityDigest: src.SourceIdentityDigest},
	}, nil
}

func (j *judge) resolveProjections(l *ResolvedLaunch) error {
	for _, p := range j.plan.LibraryProjections {
		k := slices.IndexFunc(j.policy.doc.Destinations, func(d Destination) bool { return d.Alias == p.DestinationAlias })
		target := j.policy.doc.Destinations[k].TargetPath + "/" + p.ContentDigest + ".json"
		for _, other := range l.Projections {
			if other.Target == target {
				return &LaunchError{Code: LaunchTarget, PolicyPointer: fmt.Sprintf("/library_projection_destinations/%d", k),
					Detail: fmt.Sprintf("projections %q and %q are the same bundle at the same place", other.ProjectionID, p.ProjectionID)}
			}
		}
		l.Projections = append(l.Projections, ResolvedProjection{Projection: p, Target: target})
	}
	return nil
}

func (j *judge) resolveSecrets(l *ResolvedLaunch) error {
	for _, h := range j.plan.SecretHandles {
		k := slices.IndexFunc(j.policy.doc.SecretMounts, func(m SecretMount) bool {
			return m.Handle == h && m.RuntimeID == l.RuntimeID
		})
		if k < 0 {
			return &LaunchError{Code: LaunchSecret, PolicyPointer: "/secret_mounts",
				Detail: fmt.Sprintf("handle %q has no mount for runtime %q", h, l.RuntimeID)}
		}
		m := j.policy.doc.SecretMounts[k]
		l.Secrets = append(l.Secrets, ResolvedSecret{Handle: h, RuntimeID: m.RuntimeID, SourcePath: m.SourcePath, Target: m.TargetPath})
	}
	return nil
}

// resolveEgress fills in the targets. The two ids that promise no network have none, whatever an
// entry of that name says.
func (j *judge) resolveEgress(l *ResolvedLaunch) error {
	if l.EgressPolicyID == EgressNone || l.EgressPolicyID == EgressDenyAll {
		return nil
	}
	list := j.policy.doc.EgressPolicies
	k := slices.IndexFunc(list, func(e EgressPolicy) bool { return e.PolicyID == l.EgressPolicyID })
	if k < 0 {
		return &LaunchError{Code: LaunchEgress, PolicyPointer: "/egress_policies",
			Detail: fmt.Sprintf("the egress policy %q has no entry", l.EgressPolicyID)}
	}
	for _, t := range list[k].Targets {
		l.Egress = append(l.Egress, t.Target())
	}
	return nil
}
