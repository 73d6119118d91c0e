package policy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"gloved.dev/internal/pathwalk"
)

func TestResolveLaunch(t *testing.T) {
	d := document(t, "full.json")
	p := mustParse(t, d)
	l, err := p.ResolveLaunch(fullPlan(t, d), start, nil)
	if err != nil {
		t.Fatal(err)
	}
	exe := "/srv/harness/snapshots/" + hex64('a') + "/payload/root-0/bin/codex"
	if want := []string{exe, "--dangerously-bypass-approvals-and-sandbox"}; l.Executable != exe || !slices.Equal(l.Argv, want) {
		t.Errorf("argv %q, want %q", l.Argv, want)
	}
	if want := []string{"CODEX_HOME=/home/agent/.codex", "GLOVE_SANDBOXED=1", "HOME=/home/agent", "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}; !slices.Equal(l.Env, want) {
		t.Errorf("environment %q, want %q", l.Env, want)
	}
	if l.WorkDir != "/workspace" || l.Home != "/home/agent" || !l.ManagedHome || l.ProfileID != "small" || len(l.Egress) != 0 {
		t.Errorf("launch %+v", l)
	}
	if len(l.Grants) != 2 || l.Grants[1].HostPath != "/srv/work/project" || l.Grants[1].Target != "/workspace" ||
		l.Grants[1].Create != CreateEmptyDirectory || l.Grants[1].MaxBytes != 4096 || l.Grants[1].Identity.Ino == 0 {
		t.Errorf("grants %+v", l.Grants)
	}
	if want := "/opt/sage/library-bundles/" + hex64('2') + ".json"; len(l.Projections) != 2 || l.Projections[1].Target != want {
		t.Errorf("projections %+v", l.Projections)
	}
	if len(l.Secrets) != 1 || l.Secrets[0].Target != "/home/agent/.codex/auth.json" {
		t.Errorf("secrets %+v", l.Secrets)
	}
	raw, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var back ResolvedLaunch
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*l, back); diff != "" {
		t.Errorf("the launch changed on its way through JSON:\n%s", diff)
	}
}

func TestResolveVariants(t *testing.T) {
	d := document(t, "full.json")
	h := &fakeHost{exe: "/opt/harness/bin/copilot"}
	p, err := parse(t, d, h)
	if err != nil {
		t.Fatal(err)
	}
	plan := fullPlan(t, d)
	plan.RuntimeID, plan.RuntimeTemplateID, plan.AdapterDigest = "copilot", "copilot-found", d.RuntimeTemplates[1].AdapterDigest
	plan.PathGrants, plan.SecretHandles, plan.EgressPolicyID = nil, nil, "vendor"
	l, err := p.ResolveLaunch(plan, start, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(l.Argv, []string{"/opt/harness/bin/copilot", "--banner"}) || l.WorkDir != "/home/agent" {
		t.Errorf("argv %q in %s", l.Argv, l.WorkDir)
	}
	want := []EgressTarget{{"api.example.com", 443, false}, {".example.org", 8443, false}}
	if !slices.Equal(l.Egress, want) {
		t.Errorf("egress %v, want %v", l.Egress, want)
	}
	h.exe = ""
	_, err = p.ResolveLaunch(plan, start, nil)
	wantLaunchError(t, err, LaunchExecutable)

	l, err = p.ResolveLaunch(refinementPlan(t, d), start, nil)
	if err != nil {
		t.Fatal(err)
	}
	if l.Refinement == nil || l.Refinement.PlanContextDigest != PlanContextDigest(refinementPlan(t, d)) {
		t.Errorf("refinement %+v", l.Refinement)
	}

	l, err = p.ResolveLaunch(exposurePlan(t, d), start, fakeExposures{})
	if err != nil {
		t.Fatal(err)
	}
	g := l.Grants[1]
	if !l.RequiresRetainedWrite || l.RequiresDirectWrite || g.Target != "/workspace/exposures/project" || g.HostPath != "/srv/exposed/project" ||
		g.Exposure == nil || g.Exposure.Generation != 3 || l.Grants[0].Create != CreateNever || g.Create != CreateEmptyDirectory {
		t.Errorf("launch %+v", l)
	}
	_, err = p.ResolveLaunch(exposurePlan(t, d), start, fakeExposures{gone: "docs"})
	wantLaunchError(t, err, LaunchGrant)
}

func TestLaunchRefusals(t *testing.T) {
	for _, c := range []struct {
		name    string
		change  func(*Document)
		plan    func(*Plan)
		code    LaunchCode
		pointer string
	}{
		{"no launch", func(d *Document) { d.RuntimeTemplates[0].Launch = nil }, nil, LaunchTemplateUnavailable, "/runtime_templates/0"},
		{"managed argument", func(d *Document) {
			d.RuntimeTemplates[0].Launch.Arguments = []string{"x", "--dangerously-bypass-approvals-and-sandbox"}
		}, nil, LaunchArguments, "/runtime_templates/0/launch/arguments/1"},
		{"257 arguments", func(d *Document) { d.RuntimeTemplates[0].Launch.Arguments = ids(256) }, nil, LaunchArguments, "/runtime_templates/0/launch/arguments"},
		{"adapter variable", func(d *Document) { d.RuntimeTemplates[0].Launch.Environment = []string{"CODEX_HOME=/x"} }, nil, LaunchEnvironment, "/runtime_templates/0/launch/environment/0"},
		{"egress without entry", nil, func(p *Plan) { p.EgressPolicyID = "unfinished" }, LaunchEgress, "/egress_policies"},
		{"secret without mount", nil, func(p *Plan) { p.SecretHandles = []string{"spare"} }, LaunchSecret, "/secret_mounts"},
		{"secret of another runtime", func(d *Document) { d.SecretMounts[0].RuntimeID = "pi" }, nil, LaunchSecret, "/secret_mounts"},
		{"same bundle twice", nil, func(p *Plan) { p.LibraryProjections[1].ContentDigest = hex64('1') }, LaunchTarget, "/library_projection_destinations/0"},
		{"grant in the home", func(d *Document) { d.PathAliases[0].TargetPath = "/home/agent/work" }, nil, LaunchTarget, ""},
		{"grant in /tmp", func(d *Document) { d.PathAliases[0].TargetPath = "/tmp/x" }, nil, LaunchTarget, ""},
		{"grant over /var/tmp", func(d *Document) { d.PathAliases[0].TargetPath = "/var" }, nil, LaunchTarget, ""},
		{"grant over the executable", func(d *Document) { d.PathAliases[0].TargetPath = "/srv/harness" }, nil, LaunchTarget, ""},
		{"grant over a destination", func(d *Document) { d.PathAliases[0].TargetPath = "/opt/sage" }, nil, LaunchTarget, ""},
		{"read-only path hides /tmp", func(d *Document) { d.RuntimeTemplates[0].Launch.ReadOnlyPaths = []string{"/tmp"} }, nil, LaunchTarget, ""},
		{"refused plan", nil, func(p *Plan) { p.ExpiresAtMS = 1 }, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := document(t, "full.json")
			if c.change != nil {
				c.change(&d)
				redigest(&d)
			}
			p := mustParse(t, d)
			plan := fullPlan(t, d)
			if c.plan != nil {
				c.plan(plan)
			}
			_, err := p.ResolveLaunch(plan, start, nil)
			if c.code == "" {
				wantRefusal(t, err, ReasonExpired, "/expires_at_ms")
				return
			}
			if e := wantLaunchError(t, err, c.code); e.PolicyPointer != c.pointer {
				t.Errorf("policy pointer %q, want %q", e.PolicyPointer, c.pointer)
			}
		})
	}
}

func TestReservedEnvironment(t *testing.T) {
	for _, name := range ReservedEnvironment() {
		d := document(t, "full.json")
		d.RuntimeTemplates[0].Launch.Environment = []string{name + "=x"}
		redigest(&d)
		_, err := mustParse(t, d).ResolveLaunch(fullPlan(t, d), start, nil)
		wantLaunchError(t, err, LaunchEnvironment)
	}
	if !slices.Contains(ReservedEnvironment(), "GLOVE_LOCAL_SERVICE_DIR") || !slices.IsSorted(ReservedEnvironment()) {
		t.Errorf("reserved names %v", ReservedEnvironment())
	}
}

// A discovered executable is under the same rule about read-only paths as a pinned one.
func TestDiscoveredOverlap(t *testing.T) {
	d := document(t, "full.json")
	d.RuntimeTemplates[1].Launch.ReadOnlyPaths = []string{"/opt/harness"}
	redigest(&d)
	p := mustParse(t, d)
	plan := fullPlan(t, d)
	plan.RuntimeID, plan.RuntimeTemplateID, plan.AdapterDigest = "copilot", "copilot-found", d.RuntimeTemplates[1].AdapterDigest
	plan.PathGrants, plan.SecretHandles = nil, nil
	_, err := p.ResolveLaunch(plan, start, nil)
	wantLaunchError(t, err, LaunchTarget)
}

func TestNoNetworkHasNoTargets(t *testing.T) {
	d := document(t, "full.json")
	d.EgressPolicies = append(d.EgressPolicies, EgressPolicy{EgressNone, []EgressEntry{{Host: "example.com"}}})
	l, err := mustParse(t, d).ResolveLaunch(fullPlan(t, d), start, nil)
	if err != nil || len(l.Egress) != 0 {
		t.Errorf("no-network resolved to %+v, %v", l, err)
	}
}

func TestUnsupported(t *testing.T) {
	all := Support{true, true, true, true, true, true}
	simple := func() *ResolvedLaunch {
		return &ResolvedLaunch{Backend: BackendLinux, RuntimeID: "other", Grants: []ResolvedGrant{
			{Alias: "a", Access: AccessRead, Materialization: MaterializeBind},
			{Alias: "b", Access: AccessEphemeralWrite, Materialization: MaterializeCopy, MaxBytes: 4096},
		}}
	}
	if err := simple().Unsupported(Support{}); err != nil {
		t.Errorf("a plain launch is unsupported: %v", err)
	}
	for _, c := range []struct {
		name   string
		change func(*ResolvedLaunch)
		code   LaunchCode
		always bool // even with every support
	}{
		{"remote", func(l *ResolvedLaunch) { l.Backend = BackendRemote }, LaunchUnsupported, true},
		{"direct", func(l *ResolvedLaunch) { l.RequiresDirectWrite = true }, LaunchUnsupported, true},
		{"snapshot", func(l *ResolvedLaunch) { l.Grants[0].Materialization = MaterializeSnapshot }, LaunchUnsupported, true},
		{"worktree", func(l *ResolvedLaunch) { l.Grants[1].Materialization = MaterializeGitWorktree }, LaunchUnsupported, true},
		{"odd quota", func(l *ResolvedLaunch) { l.Grants[1].MaxBytes = 4097 }, LaunchQuota, true},
		{"pi without adoption", func(l *ResolvedLaunch) { l.RuntimeID = "pi" }, LaunchUnsupported, true},
		{"adoption elsewhere", func(l *ResolvedLaunch) { l.Adoption = &Adoption{} }, LaunchUnsupported, true},
		{"adoption", func(l *ResolvedLaunch) { l.RuntimeID, l.Adoption = "pi", &Adoption{} }, LaunchUnsupported, false},
		{"retained", func(l *ResolvedLaunch) { l.RequiresRetainedWrite = true }, LaunchUnsupported, false},
		{"egress", func(l *ResolvedLaunch) { l.Egress = []EgressTarget{{}} }, LaunchUnsupported, false},
		{"secrets", func(l *ResolvedLaunch) { l.Secrets = []ResolvedSecret{{}} }, LaunchUnsupported, false},
		{"projections", func(l *ResolvedLaunch) { l.Projections = []ResolvedProjection{{}} }, LaunchUnsupported, false},
		{"refinement", func(l *ResolvedLaunch) { l.Refinement = &ResolvedRefinement{} }, LaunchUnsupported, false},
	} {
		l := simple()
		c.change(l)
		wantLaunchError(t, l.Unsupported(Support{}), c.code)
		if err := l.Unsupported(all); (err != nil) != c.always {
			t.Errorf("%s with every support: %v", c.name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	h := &fakeHost{errs: map[string]error{}}
	p, err := parse(t, document(t, "full.json"), h)
	if err != nil {
		t.Fatal(err)
	}
	h.errs["/opt/pi/bin/pi"] = &pathwalk.Error{Code: pathwalk.CodeNotFound}
	x := Explain(p)
	launchable := map[string]bool{"codex-safe": true, "refinement-eval-v1": true}
	for _, tpl := range x.Templates {
		if tpl.Launchable != launchable[tpl.ID] {
			t.Errorf("%s: launchable %v, notes %v", tpl.ID, tpl.Launchable, tpl.Notes)
		}
		if !tpl.Launchable && len(tpl.Notes) == 0 {
			t.Errorf("%s is not launchable and nothing says why", tpl.ID)
		}
		for _, n := range tpl.Notes {
			if strings.HasPrefix(n.Pointer, "/runtime_templates") && p.valueAt(n.Pointer) == "" {
				t.Errorf("note %+v points nowhere", n)
			}
		}
	}
	codex := x.Templates[0]
	if len(codex.Paths) != 5 || len(codex.Secrets) != 2 || !codex.Secrets[0].Mounted || codex.Secrets[1].Mounted ||
		!slices.Contains(codex.Environment, "HOME=/home/agent") || len(codex.Destinations) != 1 {
		t.Errorf("codex-safe: %+v", codex)
	}
	if len(x.Egress) != 3 || x.Egress[2].Launchable || len(x.Egress[1].Targets) != 2 {
		t.Errorf("egress %+v", x.Egress)
	}
	for _, n := range x.Notes {
		if p.valueAt(n.Pointer) == "" {
			t.Errorf("note %+v points nowhere", n)
		}
	}
	if len(x.Notes) != 4 {
		t.Errorf("%d notes, want 4: %v", len(x.Notes), x.Notes)
	}
}

func TestExplainPlan(t *testing.T) {
	d := document(t, "full.json")
	p := mustParse(t, d)
	good := raw(t, fullPlan(t, d))
	x := ExplainPlan(p, good, start, nil)
	if !x.Admitted || !x.Launchable || !x.Canonical || x.ContentDigest != PlanContentDigest(good) || x.ControllerDigest != ControllerDigest(good) {
		t.Errorf("a good plan: %+v", x)
	}
	if x = ExplainPlan(p, append(good, '\n'), start, nil); !x.Admitted || x.Canonical {
		t.Errorf("a good plan with a newline: %+v", x)
	}
	plan := fullPlan(t, d)
	plan.PathGrants[1].MaxBytes = 1<<30 + 1
	x = ExplainPlan(p, raw(t, plan), start, nil)
	if x.Admitted || x.Reason != ReasonGrant || x.PolicyPointer != "/path_aliases/0/access/1/max_bytes" || x.PolicyValue != "1073741824" || x.Fix == "" {
		t.Errorf("a greedy plan: %+v", x)
	}
	plan = fullPlan(t, d)
	plan.EgressPolicyID = "unfinished"
	x = ExplainPlan(p, raw(t, plan), start, nil)
	if !x.Admitted || x.Launchable || x.LaunchCode != string(LaunchEgress) || x.LaunchPolicyPointer != "/egress_policies" {
		t.Errorf("a plan without targets: %+v", x)
	}
	x = ExplainPlan(p, []byte(`{"schema_version":1}`), start, nil)
	if x.Admitted || x.Reason != ReasonSchema || x.Detail == "" {
		t.Errorf("no plan at all: %+v", x)
	}
	plan = fullPlan(t, d)
	plan.ToolPolicyID = "x"
	if x = ExplainPlan(p, raw(t, plan), start, nil); x.PolicyValue != `["sage-readonly"]` {
		t.Errorf("policy value %q", x.PolicyValue)
	}
}

func TestErrorTexts(t *testing.T) {
	cause := errors.New("cause")
	e := &Error{Code: CodePath, Pointer: "/p", Detail: "detail", Fix: "fix", Err: cause}
	if got := e.Error(); got != "policy: /p: detail: cause; fix" || !errors.Is(e, cause) {
		t.Errorf("Error() = %q", got)
	}
	p := refuse(ReasonGrant, "/g", "no").against("/line", "secret place")
	p.Err = cause
	if p.Error() != "plan refused: grant_not_authorized: no (/g)" || !strings.Contains(p.Local(), "secret place") || errors.Is(p, cause) {
		t.Errorf("Error() = %q, Local() = %q", p.Error(), p.Local())
	}
	if errors.Is(p, &PlanError{Reason: ReasonExpired}) {
		t.Error("errors.Is matches another reason")
	}
}

// What a start would stumble over is said before anybody tries one.
func TestPinnedObstacle(t *testing.T) {
	const path = "/bin/agent"
	for _, test := range []struct {
		name string
		host fakeHost
		want string // part of the obstacle; "" for none
	}{
		{"executable", fakeHost{objects: map[string]pathwalk.Identity{path: {Mode: 0o100755}}}, ""},
		{"not executable", fakeHost{objects: map[string]pathwalk.Identity{path: {Mode: 0o100644}}}, "not executable"},
		{"absent", fakeHost{errs: map[string]error{path: &pathwalk.Error{Code: pathwalk.CodeNotFound}}}, "does not exist"},
		{"through a link", fakeHost{errs: map[string]error{path: &pathwalk.Error{Code: pathwalk.CodeSymlink}}}, "real path"},
		{"unknown", fakeHost{errs: map[string]error{path: &pathwalk.Error{Code: pathwalk.CodeIO}}}, ""},
	} {
		p := &Policy{env: test.host.env()}
		if got := p.pinnedObstacle(path); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: %q, want one with %q", test.name, got, test.want)
		}
	}
}
