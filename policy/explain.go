package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/pathwalk"
	"gloved.dev/policy/harness"
)

// Explanation says, for its owner, what a policy allows. It holds host paths and stays local.
type Explanation struct {
	SchemaVersion uint8                 `json:"schema_version"` // 1
	Revision      uint64                `json:"revision"`
	MaxPlanTTLMS  uint64                `json:"max_plan_ttl_ms"`
	Templates     []TemplateExplanation `json:"templates"`
	Profiles      []Profile             `json:"resource_profiles"`
	Egress        []EgressExplanation   `json:"egress"`
	ToolPolicyIDs []string              `json:"tool_policy_ids"`
	// Notes are what is allowed in a policy and yet will not work, or not as it may seem.
	Notes []Note `json:"notes"`
}

// Note is one remark on a policy. Pointer is an RFC 6901 pointer into it.
type Note struct {
	Pointer string `json:"pointer"`
	Text    string `json:"text"`
}

// TemplateExplanation says what one template may do.
type TemplateExplanation struct {
	Pointer       string              `json:"pointer"`
	ID            string              `json:"runtime_template_id"`
	RuntimeID     string              `json:"runtime_id"`
	Backend       Backend             `json:"sandbox_backend"`
	AdapterDigest string              `json:"adapter_command_digest"`
	NativeAdapter bool                `json:"native_adapter"`
	Executable    string              `json:"executable"` // pinned or discovered now; "" if there is none
	Discovered    bool                `json:"discovered"` // the executable is looked for at each launch
	SearchPaths   []string            `json:"executable_search_paths"`
	Arguments     []string            `json:"arguments"` // template's, then the adapter's
	Environment   []string            `json:"environment"`
	ReadOnlyPaths []string            `json:"read_only_paths"`
	Paths         []PathExplanation   `json:"paths"`
	Destinations  []Destination       `json:"projection_destinations"`
	Secrets       []SecretExplanation `json:"secrets"`
	// Launchable: nothing in the policy keeps a Linux session of this template from starting. What a
	// plan asks for and what the host can enforce are not judged here.
	Launchable bool   `json:"launchable"`
	Notes      []Note `json:"notes"`
}

// PathExplanation is one allowed use of one path.
type PathExplanation struct {
	Alias      string      `json:"alias"`
	HostPath   string      `json:"host_path"`
	TargetPath string      `json:"target_path"`
	MaxTTLSecs uint64      `json:"max_ttl_secs"`
	Use        AccessEntry `json:"use"`
}

// SecretExplanation is one secret that plans for a template may name.
type SecretExplanation struct {
	Handle     string `json:"handle"`
	Mounted    bool   `json:"mounted"` // false: naming it makes the launch fail
	SourcePath string `json:"source_path"`
	TargetPath string `json:"target_path"`
}

// EgressExplanation is what one egress policy id stands for.
type EgressExplanation struct {
	PolicyID   string         `json:"policy_id"`
	Targets    []EgressTarget `json:"targets"`
	Launchable bool           `json:"launchable"` // false: the id has no entry
}

// Explain describes a policy. It looks at the host (does an executable exist?) but changes nothing.
func Explain(p *Policy) Explanation {
	d := p.doc.clone()
	x := Explanation{
		SchemaVersion: 1, Revision: d.Revision, MaxPlanTTLMS: d.MaxPlanTTLMS, Profiles: d.ResourceProfiles,
		Templates: []TemplateExplanation{}, Egress: []EgressExplanation{}, ToolPolicyIDs: d.ToolPolicyIDs,
		Notes: []Note{},
	}
	for i := range d.RuntimeTemplates {
		x.Templates = append(x.Templates, p.explainTemplate(i))
	}
	for i, id := range d.EgressPolicyIDs {
		x.explainEgress(d, i, id)
	}
	for i, a := range d.PathAliases {
		x.Notes = append(x.Notes, aliasNotes(a, fmt.Sprintf("/path_aliases/%d", i))...)
	}
	for i, h := range d.SecretHandles {
		if !ident.Secret(h) {
			x.note(fmt.Sprintf("/secret_handles/%d", i), "the handle is longer than %d bytes: no plan can use it", ident.MaxSecret)
		}
	}
	return x
}

func (x *Explanation) note(at, format string, args ...any) {
	x.Notes = append(x.Notes, Note{at, fmt.Sprintf(format, args...)})
}

func (x *Explanation) explainEgress(d Document, i int, id string) {
	e := EgressExplanation{PolicyID: id, Targets: []EgressTarget{}, Launchable: true}
	k := slices.IndexFunc(d.EgressPolicies, func(p EgressPolicy) bool { return p.PolicyID == id })
	switch {
	case id == EgressNone || id == EgressDenyAll:
		if k >= 0 && len(d.EgressPolicies[k].Targets) > 0 {
			x.note(fmt.Sprintf("/egress_policies/%d/targets", k), "%s always means no network: these targets are ignored", id)
		}
	case k < 0:
		e.Launchable = false
		x.note(fmt.Sprintf("/egress_policy_ids/%d", i), "%q has no entry in egress_policies: plans validate, launches fail", id)
	default:
		for _, t := range d.EgressPolicies[k].Targets {
			e.Targets = append(e.Targets, t.Target())
		}
	}
	x.Egress = append(x.Egress, e)
}

func aliasNotes(a PathAlias, at string) []Note {
	var notes []Note
	if !ident.MatID(a.Alias) {
		notes = append(notes, Note{at + "/alias", fmt.Sprintf("an alias longer than %d bytes cannot be granted", ident.MaxMatID)})
	}
	for j, e := range a.Access {
		here := fmt.Sprintf("%s/access/%d", at, j)
		switch {
		case e.Access == AccessDirectWrite:
			notes = append(notes, Note{here, "direct writes validate but never launch"})
		case e.Access == AccessRetainedWrite:
			notes = append(notes, Note{here, "retained writes are granted through exposures only, not through static aliases"})
		case e.Access == AccessRead && e.Materialization != MaterializeBind,
			e.Access.Quota() && e.Materialization != MaterializeCopy:
			notes = append(notes, Note{here, fmt.Sprintf("%s by %s validates but does not launch on Linux", e.Access, e.Materialization)})
		case e.MaxBytes%PageSize != 0:
			notes = append(notes, Note{here + "/max_bytes", fmt.Sprintf("a launch needs a quota in whole pages: ask for at most %d", e.MaxBytes-e.MaxBytes%PageSize)})
		}
	}
	return notes
}

func (p *Policy) explainTemplate(i int) TemplateExplanation {
	t := p.doc.RuntimeTemplates[i].clone()
	x := TemplateExplanation{
		Pointer: fmt.Sprintf("/runtime_templates/%d", i), ID: t.ID, RuntimeID: t.RuntimeID, Backend: t.Backend,
		AdapterDigest: t.AdapterDigest, Launchable: true,
		SearchPaths: []string{}, Arguments: []string{}, Environment: []string{}, ReadOnlyPaths: []string{},
		Paths: []PathExplanation{}, Destinations: []Destination{}, Secrets: []SecretExplanation{}, Notes: []Note{},
	}
	_, x.NativeAdapter = harness.Lookup(t.RuntimeID)
	if t.Backend != BackendLinux {
		x.obstacle(x.Pointer+"/sandbox_backend", "plans are accepted, but "+string(t.Backend)+" has no lifecycle here")
	}
	p.explainLaunch(&x, t)
	p.explainPaths(&x, t)
	for _, alias := range t.AllowedDestinations {
		k := slices.IndexFunc(p.doc.Destinations, func(d Destination) bool { return d.Alias == alias })
		x.Destinations = append(x.Destinations, p.doc.Destinations[k])
	}
	if t.Backend != BackendRemote { // the remote backend takes no secrets
		p.explainSecrets(&x, t)
	}
	return x
}

// obstacle notes what keeps every session of the template from starting.
func (x *TemplateExplanation) obstacle(at, text string) {
	x.Launchable = false
	x.Notes = append(x.Notes, Note{at, text})
}

func (p *Policy) explainLaunch(x *TemplateExplanation, t Template) {
	if t.Launch == nil {
		x.obstacle(x.Pointer, "there is no launch: plans validate, launches fail")
		return
	}
	x.Discovered = t.Launch.Discovery != ""
	x.SearchPaths = slices.Concat(x.SearchPaths, t.Launch.SearchPaths)
	x.ReadOnlyPaths = slices.Concat(x.ReadOnlyPaths, t.Launch.ReadOnlyPaths)
	adapter, _ := harness.Lookup(t.RuntimeID)
	x.Arguments = slices.Concat(x.Arguments, t.Launch.Arguments, adapter.Arguments)
	l := &ResolvedLaunch{RuntimeID: t.RuntimeID}
	j := judge{policy: p, template: p.templates[t.ID]}
	err := j.resolveCommand(l)
	x.Executable, x.Environment = l.Executable, slices.Concat(x.Environment, l.Env)
	if err != nil {
		x.Environment = slices.Concat(x.Environment, t.Launch.Environment)
	}
	if e, ok := errors.AsType[*LaunchError](err); ok {
		text := e.Detail
		if e.Err != nil {
			text += ": " + e.Err.Error()
		}
		x.obstacle(e.PolicyPointer, text)
	}
	if t.Launch.Discovery == "" {
		if why := p.pinnedObstacle(t.Launch.ExecutablePath); why != "" {
			x.obstacle(x.Pointer+"/launch/executable_path", why)
		}
	}
	if adapter.NeedsAdoption && t.Adoption == nil {
		x.obstacle(x.Pointer, "runtime "+t.RuntimeID+" launches with adopted extensions only")
	}
}

// pinnedObstacle says why a pinned executable could not be started as things are; "" when
// nothing is known against it. A start opens the path without following links.
func (p *Policy) pinnedObstacle(path string) string {
	const format, regular, executable = 0o170000, 0o100000, 0o111
	id, err := p.env.Identify(path)
	switch {
	case pathwalk.Code(err) == pathwalk.CodeNotFound:
		return "the executable does not exist"
	case pathwalk.Code(err) == pathwalk.CodeSymlink:
		return "a component of the path is a symbolic link, which a start never follows: pin the real path, as glove policy generate prints it"
	case err == nil && id.Mode&format == regular && id.Mode&executable == 0:
		return "the file is not executable"
	}
	return ""
}

func (p *Policy) explainPaths(x *TemplateExplanation, t Template) {
	for n, name := range t.AllowedAliases {
		k, ok := p.aliases[name]
		if !ok {
			x.Notes = append(x.Notes, Note{fmt.Sprintf("%s/allowed_path_aliases/%d", x.Pointer, n), fmt.Sprintf("there is no path alias %q", name)})
			continue
		}
		a := p.doc.PathAliases[k]
		for _, e := range a.Access {
			x.Paths = append(x.Paths, PathExplanation{a.Alias, a.HostPath, a.TargetPath, a.MaxTTLSecs, e})
		}
	}
}

func (p *Policy) explainSecrets(x *TemplateExplanation, t Template) {
	for n, h := range p.doc.SecretHandles {
		s := SecretExplanation{Handle: h}
		k := slices.IndexFunc(p.doc.SecretMounts, func(m SecretMount) bool { return m.Handle == h && m.RuntimeID == t.RuntimeID })
		if k >= 0 {
			s.Mounted, s.SourcePath, s.TargetPath = true, p.doc.SecretMounts[k].SourcePath, p.doc.SecretMounts[k].TargetPath
		} else {
			x.Notes = append(x.Notes, Note{fmt.Sprintf("/secret_handles/%d", n),
				fmt.Sprintf("%q has no mount for runtime %s: a plan that names it validates, its launch fails", h, t.RuntimeID)})
		}
		x.Secrets = append(x.Secrets, s)
	}
}

// pointerValue returns the JSON text of a document at an RFC 6901 pointer, cut to 200 bytes, or "".
func pointerValue(doc any, pointer string) string {
	at := doc
	for _, token := range strings.Split(pointer, "/")[1:] {
		at = child(at, strings.NewReplacer("~1", "/", "~0", "~").Replace(token))
		if at == nil {
			return ""
		}
	}
	return brief(at)
}
