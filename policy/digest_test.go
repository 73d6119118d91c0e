package policy

import (
	"strings"
	"testing"

	"gloved.dev/internal/digest"
)

// The launch vectors are those that existing controllers' verifiers reproduce.
func TestLaunchDigestVectors(t *testing.T) {
	base := func() Launch {
		return Launch{
			ExecutablePath: "/usr/bin/true", Arguments: []string{"--version"},
			Environment: []string{"PATH=/usr/bin:/bin", "TERM=xterm-256color"},
		}
	}
	with := func(change func(*Launch)) Launch {
		l := base()
		change(&l)
		return l
	}
	for _, v := range []struct {
		name   string
		launch Launch
		want   string
	}{
		{"pinned", base(), "0129a3a97cacbef9bd8a2df44ea3b1e01ae8dad706cbe0c27c2237881b5107e7"},
		{"codex-safe", with(func(l *Launch) { l.ReadOnlyPaths = []string{"/opt/operator-harness/codex-runtime"} }),
			"e66c0652fedc80fcdfe875761036053f973708ad72207e388c07de41553c4e33"},
		{"other read-only path", with(func(l *Launch) { l.ReadOnlyPaths = []string{"/opt/glove/codex-runtime"} }),
			"8558f2c6d724210a295974e4ae0b188de804e38752b6b6c904194d87ae8df19f"},
		{"discovered", with(func(l *Launch) {
			l.ExecutablePath, l.Discovery, l.SearchPaths = "", "codex", []string{"/opt/harness/bin"}
		}), "69766220f87c3f43aa37bf58e47e87032092218ee7152986fdbbe9fe69cfa302"},
		{"cloudflare-os", Launch{
			ExecutablePath: "/opt/glove/runtime/cloudflare-os/node-v25/bin/node",
			Arguments:      []string{"/opt/glove/runtime/cloudflare-os/closure/scripts/run-local.mjs"},
			ReadOnlyPaths:  []string{"/opt/glove/runtime/cloudflare-os/closure"},
		}, "2c3af3985743cc37adbc120a49290f48ac04ddc1e3bde1aa16fee8301a259cee"},
	} {
		if got := LaunchDigest(v.launch); got != v.want {
			t.Errorf("%s: LaunchDigest = %s, want %s", v.name, got, v.want)
		}
		if LegacyLaunchDigest(v.launch) == v.want {
			t.Errorf("%s: the legacy digest equals the right one", v.name)
		}
	}
	stale := with(func(l *Launch) { l.ReadOnlyPaths = []string{"/opt/operator-harness/codex-runtime"} })
	const want = "05a49649e7973f6f8d6b119c9d525472517e6021fb38f8b191e0b40c8c4741d0"
	if got := LegacyLaunchDigest(stale); got != want {
		t.Errorf("LegacyLaunchDigest = %s, want %s", got, want)
	}
}

// A launch's members must not be able to stand for each other.
func TestLaunchDigestSeparatesFields(t *testing.T) {
	seen := map[string]string{}
	for name, l := range map[string]Launch{
		"argument":      {ExecutablePath: "/x", Arguments: []string{"a"}},
		"environment":   {ExecutablePath: "/x", Environment: []string{"a"}},
		"read-only":     {ExecutablePath: "/x", ReadOnlyPaths: []string{"a"}},
		"executable":    {ExecutablePath: "/xa"},
		"two arguments": {ExecutablePath: "/x", Arguments: []string{"a", ""}},
		"discovery":     {Discovery: "/x", SearchPaths: []string{"a"}},
		"search path":   {Discovery: "/xa"},
	} {
		d := LaunchDigest(l)
		if other, ok := seen[d]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[d] = name
	}
}

func TestPlanContextDigest(t *testing.T) {
	d := document(t, "full.json")
	p := refinementPlan(t, d)
	golden := PlanContextDigest(p)
	// Written out independently of the encoder's chaining.
	e := digest.New("glove.refinement-plan-context").U8(1)
	for _, s := range []string{"codex", "refinement-eval-v1", p.AdapterDigest, "linux_production", "no-network", "sage-readonly"} {
		e.S(s)
	}
	e.U32(0)
	e.U64(60000).U64(1 << 30).U32(256).U64(120000).U64(2 << 30).U64(16 << 20).U64(3)
	for _, s := range []string{"skill-base", hex64('2'), "libraries", "skill-candidate", hex64('3'), "libraries"} {
		e.S(s)
	}
	if e.Sum() != golden {
		t.Errorf("PlanContextDigest = %s, want %s", golden, e.Sum())
	}
	same := func(name string, change func(*Plan)) {
		q := refinementPlan(t, d)
		change(q)
		if PlanContextDigest(q) != golden {
			t.Errorf("%s changed the plan context", name)
		}
	}
	same("expiry", func(q *Plan) { q.ExpiresAtMS++ })
	same("variant", func(q *Plan) { q.Refinement.Variant = VariantBase; q.LibraryProjections[1] = q.Refinement.Base })
	same("fixture", func(q *Plan) { q.Refinement.Fixture.ContentDigest = hex64('7') })
	same("matched context", func(q *Plan) { q.Refinement.MatchedContextDigest = hex64('7') })
	differs := func(name string, change func(*Plan)) {
		q := refinementPlan(t, d)
		change(q)
		if PlanContextDigest(q) == golden {
			t.Errorf("%s did not change the plan context", name)
		}
	}
	differs("secret", func(q *Plan) { q.SecretHandles = []string{"x"} })
	differs("pids", func(q *Plan) { q.Limits.PIDs++ })
	differs("revision", func(q *Plan) { q.PolicyRevision++ })
	differs("base", func(q *Plan) { q.Refinement.Base.DestinationAlias = "x" })
	if got := PlanContextDigest(fullPlan(t, d)); got != "" {
		t.Errorf("a plan without refinement has context %q, want none", got)
	}
}

func TestMatchedContextDigest(t *testing.T) {
	provider, exit, latency := "acme", uint32(0), uint64(9)
	full := MatchedContext{
		Schema: "glove.refinement-eval-fixture-v1", EvaluationRunID: "run", PairID: "pair", ProposalDigest: hex64('1'),
		BaseDigest: hex64('2'), CandidateDigest: hex64('3'), FixtureID: "fix", FixtureDigest: hex64('4'),
		DatasetRef: "set", DatasetFingerprint: hex64('5'), Seed: 7,
		Model:   MatchedModel{Provider: &provider, ModelID: "m", Tier: "t", NormalizerVersion: 2},
		Harness: "codex",
		Module: &MatchedModule{RepositoryID: "r", RepositoryTree: hex64('6'), ModuleID: hex64('7'), Label: "l",
			IncludePaths: []string{"a"}, Languages: []string{"go"}, DetectorVersion: 3},
		Termination: "exited", ExitCode: &exit, Required: []string{"ok"}, Forbidden: []string{"no", "nope"}, MaxLatencyMS: &latency,
	}
	e := digest.New("glove.refinement-matched-context").U8(1)
	for _, s := range []string{hex64('c'), full.Schema, "run", "pair", hex64('1'), hex64('2'), hex64('3'), "fix", hex64('4'), "set", hex64('5')} {
		e.S(s)
	}
	e.U64(7).U8(1).S("acme").S("m").U8(0).U8(0).S("t").U32(2).S("codex")
	e.U8(1).S("r").S(hex64('6')).S(hex64('7')).S("l")
	e.U32(1).S("a").U32(0).U32(1).S("go").U32(0).U32(0).U32(3)
	e.S("exited").U8(1).U32(0).U32(1).S("ok").U32(2).S("no").S("nope").U8(1).U64(9)
	if got := full.Digest(hex64('c')); got != e.Sum() {
		t.Errorf("Digest = %s, want %s", got, e.Sum())
	}
	bare := full
	bare.Module, bare.ExitCode, bare.MaxLatencyMS, bare.Model.Provider = nil, nil, nil, nil
	e = digest.New("glove.refinement-matched-context").U8(1)
	for _, s := range []string{hex64('c'), full.Schema, "run", "pair", hex64('1'), hex64('2'), hex64('3'), "fix", hex64('4'), "set", hex64('5')} {
		e.S(s)
	}
	e.U64(7).U8(0).S("m").U8(0).U8(0).S("t").U32(2).S("codex").U8(0)
	e.S("exited").U8(0).U32(1).S("ok").U32(2).S("no").S("nope").U8(0)
	if got := bare.Digest(hex64('c')); got != e.Sum() {
		t.Errorf("bare Digest = %s, want %s", got, e.Sum())
	}
}

func TestDigestLines(t *testing.T) {
	lines, err := DigestLines(readFile(t, "full.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 4 {
		t.Fatalf("%d lines, want one for each of the four launches", len(lines))
	}
	for _, l := range lines {
		if l.Digest != l.Declared || l.ID == "-" {
			t.Errorf("line %+v: declared and calculated digest differ", l)
		}
	}
	stale, err := DigestLines(readFile(t, "codex-safe-stale-digest.json"))
	if err != nil || len(stale) != 1 || stale[0].Digest != "e66c0652fedc80fcdfe875761036053f973708ad72207e388c07de41553c4e33" ||
		stale[0].Declared == stale[0].Digest {
		t.Errorf("stale policy: %+v, %v", stale, err)
	}
	bare, err := DigestLines([]byte(`{"executable_path":"/usr/bin/true","arguments":["--version"],"environment":["PATH=/usr/bin:/bin","TERM=xterm-256color"]}`))
	if err != nil || len(bare) != 1 || bare[0] != (DigestLine{ID: "-", Digest: "0129a3a97cacbef9bd8a2df44ea3b1e01ae8dad706cbe0c27c2237881b5107e7"}) {
		t.Errorf("bare launch: %+v, %v", bare, err)
	}
	one, err := DigestLines([]byte(`{"runtime_template_id":"x","launch":{"executable_path":"/a","arguments":[],"environment":[]}}`))
	if err != nil || len(one) != 1 || one[0].ID != "x" || one[0].Declared != "" {
		t.Errorf("template: %+v, %v", one, err)
	}
	for _, c := range []struct{ name, in, code, pointer string }{
		{"no object", `[]`, CodeJSON, ""},
		{"no JSON", `{`, CodeJSON, ""},
		{"templates no list", `{"runtime_templates":1}`, CodeJSON, "/runtime_templates"},
		{"too many", `{"runtime_templates":[` + strings.TrimSuffix(strings.Repeat("{},", 65), ",") + `]}`, CodeCollection, "/runtime_templates"},
		{"unknown member", `{"executable_path":"/a","arguments":[],"environment":[],"path":1}`, CodeJSON, "/path"},
		{"unknown member in template", `{"runtime_templates":[{"runtime_template_id":"x","y":1}]}`, CodeJSON, "/runtime_templates/0/y"},
		{"bad launch", `{"runtime_templates":[{"runtime_template_id":"x","launch":{"executable_path":"a","arguments":[],"environment":[]}}]}`,
			CodePath, "/runtime_templates/0/launch/executable_path"},
		{"no launch", `{"runtime_template_id":"x"}`, CodeLaunch, "/launch"},
	} {
		_, err := DigestLines([]byte(c.in))
		t.Run(c.name, func(t *testing.T) { wantFault(t, err, c.code, c.pointer) })
	}
}
