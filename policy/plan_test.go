package policy

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/pathwalk"
	"gloved.dev/internal/strictjson"
)

// local gives a refusal's text for the owner, which says more than the public one.
func local(err error) string {
	if e, ok := errors.AsType[*PlanError](err); ok {
		return e.Local()
	}
	return err.Error()
}

func TestAcceptedPlans(t *testing.T) {
	d := document(t, "full.json")
	p := mustParse(t, d)
	for name, plan := range map[string]*Plan{
		"schema 1": fullPlan(t, d), "schema 2": exposurePlan(t, d), "refinement": refinementPlan(t, d),
	} {
		decoded, err := DecodePlan(raw(t, plan))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := p.Validate(decoded, start, fakeExposures{})
		if err != nil {
			t.Fatalf("%s: %v", name, local(err))
		}
		if !bytes.Equal(got.Canonical, raw(t, plan)) || !strictjson.IsCanonical(got.Canonical) {
			t.Errorf("%s: canonical bytes are %s", name, got.Canonical)
		}
		if got.ContentDigest != PlanContentDigest(got.Canonical) || got.SchemaVersion != plan.SchemaVersion || got.PolicyRevision != 3 {
			t.Errorf("%s: %+v", name, got)
		}
		if !got.Verifies(ControllerDigest(got.Canonical)) || got.Verifies(got.ContentDigest) {
			t.Errorf("%s: Verifies confuses the digests", name)
		}
	}
}

// The same plan in any order of members and with any blanks is one plan.
func TestCanonicalFormIsUnique(t *testing.T) {
	d := document(t, "full.json")
	p := mustParse(t, d)
	plan := raw(t, fullPlan(t, d))
	loose := bytes.ReplaceAll(plan, []byte(`,"`), []byte(", \n\t\""))
	loose = append([]byte(`{"schema_version":1,`), bytes.Replace(loose[1:], []byte(", \n\t\"schema_version\":1"), nil, 1)...)
	if bytes.Equal(loose, plan) {
		t.Fatal("the variant is the same text")
	}
	decoded, err := DecodePlan(loose)
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Validate(decoded, start, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Canonical, plan) {
		t.Errorf("canonical form\n%s\nwant\n%s", got.Canonical, plan)
	}
}

func TestDecodePlan(t *testing.T) {
	d := document(t, "full.json")
	good := string(raw(t, fullPlan(t, d)))
	v2 := string(raw(t, exposurePlan(t, d)))
	ref := string(raw(t, refinementPlan(t, d)))
	swap := func(s, old, new string) string {
		t.Helper()
		if !strings.Contains(s, old) {
			t.Fatalf("%s is not in the plan", old)
		}
		return strings.Replace(s, old, new, 1)
	}
	for _, c := range []struct{ name, in, pointer string }{
		{"empty", "", ""},
		{"no version", swap(good, `"schema_version":1`, `"version":1`), "/schema_version"},
		{"null version", swap(good, `"schema_version":1`, `"schema_version":null`), "/schema_version"},
		{"version 0", swap(good, `"schema_version":1`, `"schema_version":0`), "/schema_version"},
		{"version 3", swap(good, `"schema_version":1`, `"schema_version":3`), "/schema_version"},
		{"version 257", swap(good, `"schema_version":1`, `"schema_version":257`), "/schema_version"},
		{"version as string", swap(good, `"schema_version":1`, `"schema_version":"1"`), "/schema_version"},
		{"no object", `[]`, "/schema_version"},
		{"executable", swap(good, `"schema_version"`, `"executable":"/bin/sh","schema_version"`), "/executable"},
		{"host path in a grant", swap(good, `"alias":"workspace"`, `"alias":"workspace","host_path":"/"`), "/path_grants/1/host_path"},
		{"environment", swap(good, `"schema_version"`, `"environment":[],"schema_version"`), "/environment"},
		{"case", swap(good, `"runtime_id"`, `"Runtime_id"`), "/Runtime_id"},
		{"duplicate", swap(good, `"schema_version":1`, `"schema_version":1,"schema_version":1`), "/schema_version"},
		{"absent revision", swap(good, `"policy_revision":3,`, ``), "/policy_revision"},
		{"absent grants", swap(good, `"secret_handles":["codex-auth"],`, ``), "/secret_handles"},
		{"absent limit", swap(good, `"pids":256,`, ``), "/limits/pids"},
		{"null refinement", swap(good, `"runtime_id"`, `"refinement":null,"runtime_id"`), "/refinement"},
		{"number too large", swap(good, `"policy_revision":3`, `"policy_revision":9007199254740992`), "/policy_revision"},
		{"pids too large", swap(good, `"pids":256`, `"pids":4294967296`), "/limits/pids"},
		{"negative", swap(good, `"policy_revision":3`, `"policy_revision":-3`), "/policy_revision"},
		{"schema 1 grants under 2", swap(good, `"schema_version":1`, `"schema_version":2`), "/path_grants/0/alias"},
		{"schema 2 grants under 1", swap(v2, `"schema_version":2`, `"schema_version":1`), "/path_grants/0/exposure_id"},
		{"absent generation", swap(v2, `"generation":1,`, ``), "/path_grants/0/generation"},
		{"absent variant", swap(ref, `,"variant":"candidate"`, ``), "/refinement/variant"},
		{"trailing", good + "{}", ""},
	} {
		_, err := DecodePlan([]byte(c.in))
		t.Run(c.name, func(t *testing.T) { wantRefusal(t, err, ReasonSchema, c.pointer) })
	}
	for name, text := range map[string]string{
		"deep": strings.Repeat("[", 1<<20), "large": good + strings.Repeat(" ", MaxDocument),
		"long member name": swap(good, `"schema_version"`, `"`+strings.Repeat("x", 5000)+`":1,"schema_version"`),
	} {
		_, err := DecodePlan([]byte(text))
		e, ok := errors.AsType[*PlanError](err)
		if !ok || e.Reason != ReasonSchema || len(e.Error()) > 400 {
			t.Errorf("%s: %.200v", name, err)
		}
	}
	at := good + strings.Repeat(" ", MaxDocument-len(good))
	if _, err := DecodePlan([]byte(at)); err != nil {
		t.Errorf("a plan of exactly 1 MiB: %v", err)
	}
}

type planRow struct {
	name    string
	change  func(*Plan)
	reason  Reason // "" for accepted
	pointer string
	policy  string // policy pointer that stands against it, when the row cares
}

func runPlans(t *testing.T, make func(testing.TB, Document) *Plan, rows []planRow) {
	t.Helper()
	d := document(t, "full.json")
	p := mustParse(t, d)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			plan := make(t, d)
			r.change(plan)
			_, err := p.Validate(plan, start, fakeExposures{refuse: "revoked"})
			if r.reason == "" {
				if err != nil {
					t.Fatalf("refused: %v", local(err))
				}
				return
			}
			e := wantRefusal(t, err, r.reason, r.pointer)
			if r.policy != "" && e.PolicyPointer != r.policy {
				t.Errorf("policy pointer %q, want %q", e.PolicyPointer, r.policy)
			}
		})
	}
}

func TestValidateScalars(t *testing.T) {
	now := uint64(start.UnixMilli())
	short := func(p *Plan) { p.PathGrants = nil } // grants would outlive a short plan
	runPlans(t, fullPlan, []planRow{
		{"other revision", func(p *Plan) { p.PolicyRevision = 4 }, ReasonRevision, "/policy_revision", "/revision"},
		{"expires now", func(p *Plan) { p.ExpiresAtMS = now }, ReasonExpired, "/expires_at_ms", ""},
		{"expires next millisecond", func(p *Plan) { short(p); p.ExpiresAtMS = now + 1 }, "", "", ""},
		{"expired long ago", func(p *Plan) { p.ExpiresAtMS = 0 }, ReasonExpired, "/expires_at_ms", ""},
		{"longest life", func(p *Plan) { p.ExpiresAtMS = now + 600_000 }, "", "", ""},
		{"life one too long", func(p *Plan) { p.ExpiresAtMS = now + 600_001 }, ReasonTTL, "/expires_at_ms", "/max_plan_ttl_ms"},
		{"runtime id malformed", func(p *Plan) { p.RuntimeID = "a/b" }, ReasonSchema, "/runtime_id", ""},
		{"template id malformed", func(p *Plan) { p.RuntimeTemplateID = "" }, ReasonSchema, "/runtime_template_id", ""},
		{"egress id malformed", func(p *Plan) { p.EgressPolicyID = strings.Repeat("x", 129) }, ReasonSchema, "/egress_policy_id", ""},
		{"tool id malformed", func(p *Plan) { p.ToolPolicyID = "ä" }, ReasonSchema, "/tool_policy_id", ""},
		{"digest malformed", func(p *Plan) { p.AdapterDigest = hex64('A') }, ReasonSchema, "/adapter_command_digest", ""},
		{"limit zero", func(p *Plan) { p.Limits.DiskBytes = 0 }, ReasonLimits, "/limits", ""},
		{"no such template", func(p *Plan) { p.RuntimeTemplateID = "x" }, ReasonRuntime, "/runtime_template_id", "/runtime_templates"},
		{"other runtime", func(p *Plan) { p.RuntimeID = "pi" }, ReasonRuntime, "/runtime_id", "/runtime_templates/0/runtime_id"},
		{"other digest", func(p *Plan) { p.AdapterDigest = hex64('0') }, ReasonRuntime, "/adapter_command_digest", "/runtime_templates/0/adapter_command_digest"},
		{"other backend", func(p *Plan) { p.Backend = BackendApple }, ReasonBackend, "/sandbox_backend", "/runtime_templates/0/sandbox_backend"},
		{"unknown backend", func(p *Plan) { p.Backend = "docker" }, ReasonBackend, "/sandbox_backend", "/runtime_templates/0/sandbox_backend"},
		{"unlisted egress", func(p *Plan) { p.EgressPolicyID = "x" }, ReasonPolicyID, "/egress_policy_id", "/egress_policy_ids"},
		{"unlisted tool", func(p *Plan) { p.ToolPolicyID = "x" }, ReasonPolicyID, "/tool_policy_id", "/tool_policy_ids"},
		{"other profile", func(p *Plan) { p.Limits.CPUTimeMS, p.Limits.WallTimeMS = 120_000, 300_000 }, "", "", ""},
		{"limits of no profile", func(p *Plan) { p.Limits.PIDs-- }, ReasonLimits, "/limits", "/resource_profiles"},
		{"mixed profiles", func(p *Plan) { p.Limits.CPUTimeMS = 120_000 }, ReasonLimits, "/limits", "/resource_profiles"},
		{"schema version 3", func(p *Plan) { p.SchemaVersion = 3 }, ReasonSchema, "/schema_version", ""},
		{"both kinds of grants", func(p *Plan) { p.ExposureGrants = []ExposureGrant{{}} }, ReasonSchema, "/path_grants", ""},
	})
}

func TestValidateLists(t *testing.T) {
	grant := func(f func(*AliasGrant)) func(*Plan) { return func(p *Plan) { f(&p.PathGrants[1]) } }
	grants := func(n int) func(*Plan) {
		return func(p *Plan) {
			p.PathGrants = list(n, func(i int) AliasGrant { return AliasGrant{Alias: fmt.Sprintf("a%03d", i)} })
		}
	}
	runPlans(t, fullPlan, []planRow{
		{"65 grants", grants(65), ReasonTooMany, "/path_grants", ""},
		{"64 grants", grants(64), ReasonGrant, "/path_grants/0/alias", ""},
		{"129 projections", func(p *Plan) { p.LibraryProjections = make([]Projection, 129) }, ReasonTooMany, "/library_projections", ""},
		{"128 projections", func(p *Plan) {
			p.LibraryProjections = list(128, func(i int) Projection { return Projection{fmt.Sprintf("p%03d", i), hex64('1'), "libraries"} })
		}, "", "", ""},
		{"33 secrets", func(p *Plan) { p.SecretHandles = ids(33) }, ReasonTooMany, "/secret_handles", ""},
		{"32 secrets", func(p *Plan) { p.SecretHandles = ids(32) }, ReasonSecret, "/secret_handles/0", "/secret_handles"},
		{"empty lists", func(p *Plan) {
			p.PathGrants, p.LibraryProjections, p.SecretHandles = nil, nil, nil
		}, "", "", ""},
		{"grants unsorted", func(p *Plan) { p.PathGrants[0], p.PathGrants[1] = p.PathGrants[1], p.PathGrants[0] }, ReasonNotCanonical, "/path_grants/1/alias", ""},
		{"grant twice", func(p *Plan) { p.PathGrants[0] = p.PathGrants[1] }, ReasonNotCanonical, "/path_grants/1/alias", ""},
		{"grant alias malformed", grant(func(g *AliasGrant) { g.Alias = "z/" }), ReasonSchema, "/path_grants/1/alias", ""},
		{"grant alias with colon", grant(func(g *AliasGrant) { g.Alias = "work:space" }), ReasonGrant, "/path_grants/1/alias", ""},
		{"grant alias of 65", grant(func(g *AliasGrant) { g.Alias = strings.Repeat("w", 65) }), ReasonGrant, "/path_grants/1/alias", ""},
		{"alias not allowed", grant(func(g *AliasGrant) { g.Alias = "x" }), ReasonGrant, "/path_grants/1/alias", "/runtime_templates/0/allowed_path_aliases"},
		{"ttl as long as the plan", grant(func(g *AliasGrant) { g.TTLSecs = 60 }), "", "", ""},
		{"ttl one too long", grant(func(g *AliasGrant) { g.TTLSecs = 61 }), ReasonGrant, "/path_grants/1/ttl_secs", ""},
		{"ttl 0", grant(func(g *AliasGrant) { g.TTLSecs = 0 }), ReasonGrant, "/path_grants/1/ttl_secs", "/path_aliases/0/max_ttl_secs"},
		{"ttl 1", grant(func(g *AliasGrant) { g.TTLSecs = 1 }), "", "", ""},
		// 60 999 ms are 60 whole seconds: the life of a grant is never rounded up.
		{"ttl rounded down", func(p *Plan) { p.ExpiresAtMS += 999; p.PathGrants[1].TTLSecs = 61 }, ReasonGrant, "/path_grants/1/ttl_secs", ""},
		{"ttl over the alias's", func(p *Plan) { p.ExpiresAtMS += 1000; p.PathGrants[0].TTLSecs = 61 }, ReasonGrant, "/path_grants/0/ttl_secs", "/path_aliases/1/max_ttl_secs"},
		{"unknown access", grant(func(g *AliasGrant) { g.Access = "write" }), ReasonSchema, "/path_grants/1/access", ""},
		{"unknown materialization", grant(func(g *AliasGrant) { g.Materialization = "" }), ReasonSchema, "/path_grants/1/materialization", ""},
		{"unknown cleanup", grant(func(g *AliasGrant) { g.Cleanup = "keep" }), ReasonSchema, "/path_grants/1/cleanup_policy", ""},
		{"retained in schema 1", grant(func(g *AliasGrant) { g.Access, g.Cleanup = AccessRetainedWrite, CleanupRetain }), ReasonGrant, "/path_grants/1/access", ""},
		{"access not of the alias", func(p *Plan) { p.PathGrants[0].Access = AccessEphemeralWrite }, ReasonGrant, "/path_grants/0/access", "/path_aliases/1/access"},
		{"other materialization", grant(func(g *AliasGrant) { g.Materialization = MaterializeSnapshot }), ReasonGrant, "/path_grants/1/materialization", "/path_aliases/0/access/1/materialization"},
		{"other cleanup", grant(func(g *AliasGrant) { g.Cleanup = CleanupRetain }), ReasonGrant, "/path_grants/1/cleanup_policy", "/path_aliases/0/access/1/cleanup_policy"},
		{"quota 0", grant(func(g *AliasGrant) { g.MaxBytes = 0 }), ReasonGrant, "/path_grants/1/max_bytes", "/path_aliases/0/access/1/max_bytes"},
		{"quota 1", grant(func(g *AliasGrant) { g.MaxBytes = 1 }), "", "", ""},
		{"largest quota", grant(func(g *AliasGrant) { g.MaxBytes = 1 << 30 }), "", "", ""},
		{"quota one too large", grant(func(g *AliasGrant) { g.MaxBytes = 1<<30 + 1 }), ReasonGrant, "/path_grants/1/max_bytes", "/path_aliases/0/access/1/max_bytes"},
		{"read with quota", func(p *Plan) { p.PathGrants[0].MaxBytes = 1 }, ReasonGrant, "/path_grants/0/max_bytes", ""},
		{"direct write", grant(func(g *AliasGrant) {
			*g = AliasGrant{"workspace", AccessDirectWrite, MaterializeBind, 0, 1, CleanupRetain}
		}), "", "", ""},
		{"projections unsorted", func(p *Plan) {
			p.LibraryProjections[0], p.LibraryProjections[1] = p.LibraryProjections[1], p.LibraryProjections[0]
		}, ReasonNotCanonical, "/library_projections/1/projection_id", ""},
		{"projection id malformed", func(p *Plan) { p.LibraryProjections[0].ProjectionID = "" }, ReasonSchema, "/library_projections/0/projection_id", ""},
		{"projection digest malformed", func(p *Plan) { p.LibraryProjections[1].ContentDigest = "x" }, ReasonSchema, "/library_projections/1/content_digest", ""},
		{"destination malformed", func(p *Plan) { p.LibraryProjections[1].DestinationAlias = "" }, ReasonSchema, "/library_projections/1/destination_alias", ""},
		{"destination not allowed", func(p *Plan) { p.LibraryProjections[1].DestinationAlias = "fixtures" }, ReasonProjection, "/library_projections/1/destination_alias", "/runtime_templates/0/allowed_projection_destinations"},
		{"secret malformed", func(p *Plan) { p.SecretHandles = []string{"a b"} }, ReasonSchema, "/secret_handles/0", ""},
		{"secrets unsorted", func(p *Plan) { p.SecretHandles = []string{"spare", "codex-auth"} }, ReasonNotCanonical, "/secret_handles/1", ""},
		{"secret unlisted", func(p *Plan) { p.SecretHandles = []string{"codex-auth", "x"} }, ReasonSecret, "/secret_handles/1", "/secret_handles"},
		{"secret without mount", func(p *Plan) { p.SecretHandles = []string{"spare"} }, "", "", ""},
		{"secret of 121", func(p *Plan) { p.SecretHandles = []string{strings.Repeat("s", 121)} }, ReasonSecret, "/secret_handles/0", ""},
		{"refinement elsewhere", func(p *Plan) { p.Refinement = &Refinement{} }, ReasonRefinement, "/refinement", ""},
	})
}

func TestValidateExposures(t *testing.T) {
	grant := func(f func(*ExposureGrant)) func(*Plan) { return func(p *Plan) { f(&p.ExposureGrants[1]) } }
	runPlans(t, exposurePlan, []planRow{
		{"unsorted", grant(func(g *ExposureGrant) { g.ExposureID = "a" }), ReasonNotCanonical, "/path_grants/1/exposure_id", ""},
		{"malformed id", grant(func(g *ExposureGrant) { g.ExposureID = "/" }), ReasonSchema, "/path_grants/1/exposure_id", ""},
		{"id with colon", grant(func(g *ExposureGrant) { g.ExposureID = "p:q" }), ReasonGrant, "/path_grants/1/exposure_id", ""},
		{"id of 64", grant(func(g *ExposureGrant) { g.ExposureID = strings.Repeat("p", 64) }), "", "", ""},
		{"id of 65", grant(func(g *ExposureGrant) { g.ExposureID = strings.Repeat("p", 65) }), ReasonGrant, "/path_grants/1/exposure_id", ""},
		{"generation 0", grant(func(g *ExposureGrant) { g.Generation = 0 }), ReasonSchema, "/path_grants/1/generation", ""},
		{"scope malformed", grant(func(g *ExposureGrant) { g.ScopeDigest = "" }), ReasonSchema, "/path_grants/1/scope_digest", ""},
		{"unknown access", grant(func(g *ExposureGrant) { g.Access = "" }), ReasonSchema, "/path_grants/1/access", ""},
		{"ttl 0", grant(func(g *ExposureGrant) { g.TTLSecs = 0 }), ReasonGrant, "/path_grants/1/ttl_secs", ""},
		{"ttl one too long", grant(func(g *ExposureGrant) { g.TTLSecs = 61 }), ReasonGrant, "/path_grants/1/ttl_secs", ""},
		{"ttl rounded down", func(p *Plan) { p.ExpiresAtMS += 999; p.ExposureGrants[1].TTLSecs = 61 }, ReasonGrant, "/path_grants/1/ttl_secs", ""},
		{"registry refuses", grant(func(g *ExposureGrant) { g.ExposureID = "revoked" }), ReasonGrant, "/path_grants/1", ""},
		{"65 grants", func(p *Plan) { p.ExposureGrants = make([]ExposureGrant, 65) }, ReasonTooMany, "/path_grants", ""},
		{"too many before revision", func(p *Plan) {
			p.ExposureGrants, p.PolicyRevision = make([]ExposureGrant, 65), 99
		}, ReasonTooMany, "/path_grants", ""},
		{"no grants", func(p *Plan) { p.ExposureGrants = nil }, "", "", ""},
		{"the rest is judged first", func(p *Plan) { p.ExposureGrants[0].ExposureID, p.SecretHandles = "/", []string{"x"} }, ReasonSecret, "/secret_handles/0", ""},
	})
	d := document(t, "full.json")
	_, err := mustParse(t, d).Validate(exposurePlan(t, d), start, nil)
	wantRefusal(t, err, ReasonGrant, "/path_grants")
}

func TestValidateRefinement(t *testing.T) {
	ref := func(f func(*Refinement)) func(*Plan) { return func(p *Plan) { f(p.Refinement) } }
	rows := []planRow{
		{"base selected", func(p *Plan) {
			p.Refinement.Variant, p.LibraryProjections[1] = VariantBase, p.Refinement.Base
		}, "", "", ""},
		{"missing", func(p *Plan) { p.Refinement = nil }, ReasonRefinement, "/refinement", ""},
		{"version", ref(func(r *Refinement) { r.SchemaVersion = 2 }), ReasonRefinement, "/refinement/schema_version", ""},
		{"variant", ref(func(r *Refinement) { r.Variant = "both" }), ReasonRefinement, "/refinement/variant", ""},
		{"fixture id", ref(func(r *Refinement) { r.Fixture.ProjectionID = "" }), ReasonRefinement, "/refinement/fixture", ""},
		{"base digest", ref(func(r *Refinement) { r.Base.ContentDigest = hex64('A') }), ReasonRefinement, "/refinement/base", ""},
		{"candidate destination", ref(func(r *Refinement) { r.Candidate.DestinationAlias = "/" }), ReasonRefinement, "/refinement/candidate", ""},
		{"matched context", ref(func(r *Refinement) { r.MatchedContextDigest = "" }), ReasonRefinement, "/refinement/matched_context_digest", ""},
		{"base is candidate", ref(func(r *Refinement) { r.Base.ProjectionID = r.Candidate.ProjectionID }), ReasonRefinement, "/refinement", ""},
		{"wrong variant projected", ref(func(r *Refinement) { r.Variant = VariantBase }), ReasonRefinement, "/library_projections", ""},
		{"fixture content differs", ref(func(r *Refinement) { r.Fixture.ContentDigest = hex64('8') }), ReasonRefinement, "/library_projections", ""},
		{"one projection", func(p *Plan) { p.LibraryProjections = p.LibraryProjections[:1] }, ReasonRefinement, "/library_projections", ""},
		{"three projections", func(p *Plan) {
			p.LibraryProjections = append(p.LibraryProjections, Projection{"x", hex64('4'), "libraries"})
		}, ReasonRefinement, "/library_projections", ""},
		{"grants in schema 2", func(p *Plan) {
			p.SchemaVersion = 2
			p.ExposureGrants = []ExposureGrant{{"docs", 1, hex64('a'), AccessRead, MaterializeBind, 0, 60, CleanupRetain}}
		}, ReasonRefinement, "/path_grants", ""},
		{"schema 2 without grants", func(p *Plan) { p.SchemaVersion = 2 }, "", "", ""},
	}
	runPlans(t, refinementPlan, rows)

	d := document(t, "full.json")
	d.RuntimeTemplates[3].AllowedAliases = []string{"workspace"}
	p := mustParse(t, d)
	plan := refinementPlan(t, d)
	plan.PathGrants = []AliasGrant{{"workspace", AccessRead, MaterializeBind, 0, 60, CleanupRetain}}
	_, err := p.Validate(plan, start, nil)
	wantRefusal(t, err, ReasonRefinement, "/path_grants")

	d = document(t, "full.json")
	d.RuntimeTemplates[3].Backend = BackendApple
	plan = refinementPlan(t, d)
	plan.Backend = BackendApple
	_, err = mustParse(t, d).Validate(plan, start, nil)
	wantRefusal(t, err, ReasonRefinement, "/sandbox_backend")
}

func TestRemoteConstraint(t *testing.T) {
	d := document(t, "full.json")
	d.RuntimeTemplates[0].Backend = BackendRemote
	p := mustParse(t, d)
	plan := func(f func(*Plan)) *Plan {
		q := fullPlan(t, d)
		q.Backend, q.SecretHandles = BackendRemote, nil
		f(q)
		return q
	}
	check := func(q *Plan, reason Reason, pointer string) {
		t.Helper()
		_, err := p.Validate(q, start, fakeExposures{})
		if reason == "" {
			if err != nil {
				t.Errorf("refused: %v", err)
			}
			return
		}
		wantRefusal(t, err, reason, pointer)
	}
	check(plan(func(*Plan) {}), "", "")
	check(plan(func(q *Plan) { q.SecretHandles = []string{"codex-auth"} }), ReasonSecret, "/secret_handles")
	check(plan(func(q *Plan) {
		q.PathGrants[1] = AliasGrant{"workspace", AccessDirectWrite, MaterializeBind, 0, 60, CleanupRetain}
	}), ReasonGrant, "/path_grants/1/access")
	check(plan(func(q *Plan) { q.PathGrants[1].Access = AccessRetainedWrite }), ReasonGrant, "/path_grants/1/access")
	check(plan(func(q *Plan) {
		q.SchemaVersion, q.PathGrants, q.ExposureGrants = 2, nil, exposurePlan(t, d).ExposureGrants
	}), ReasonGrant, "/path_grants/1/access")
}

func TestLegacyPlanDigest(t *testing.T) {
	d := document(t, "full.json")
	p := mustParse(t, d)
	plan := fullPlan(t, d)
	plan.AdapterDigest = LegacyLaunchDigest(*d.RuntimeTemplates[0].Launch)
	_, err := p.Validate(plan, start, nil)
	e := wantRefusal(t, err, ReasonRuntime, "/adapter_command_digest")
	for _, part := range []string{"legacy", d.RuntimeTemplates[0].AdapterDigest} {
		if !strings.Contains(e.Error(), part) {
			t.Errorf("the public text lacks %q: %s", part, e)
		}
	}
	plan.AdapterDigest = hex64('0')
	_, err = p.Validate(plan, start, nil)
	if strings.Contains(err.Error(), d.RuntimeTemplates[0].AdapterDigest) {
		t.Errorf("a wrong guess was told the right digest: %v", err)
	}
}

// A host object that vanished after load takes its grants with it, and tells nothing of its path.
func TestVanishedObject(t *testing.T) {
	d := document(t, "full.json")
	h := &fakeHost{errs: map[string]error{}}
	p, err := parse(t, d, h)
	if err != nil {
		t.Fatal(err)
	}
	h.errs["/srv/work/project"] = &pathwalk.Error{Code: pathwalk.CodeSymlink, Path: "/srv/work"}
	_, err = p.Validate(fullPlan(t, d), start, nil)
	e := wantRefusal(t, err, ReasonGrant, "/path_grants/1/alias")
	if !strings.Contains(e.Local(), "/srv/work") || e.PolicyPointer != "/path_aliases/0/host_path" {
		t.Errorf("the local text does not say where: %s", e.Local())
	}
}

// A clock before 1970 must not make a plan live for ever.
func TestClockBeforeEpoch(t *testing.T) {
	d := document(t, "full.json")
	_, err := mustParse(t, d).Validate(fullPlan(t, d), time.Unix(-10, 0), nil)
	wantRefusal(t, err, ReasonTTL, "/expires_at_ms")
}

// With two faults at once, the earlier check is the one reported.
func TestOrderOfRefusals(t *testing.T) {
	breaks := []struct {
		name, pointer string
		change        func(*Plan)
	}{
		{"revision", "/policy_revision", func(p *Plan) { p.PolicyRevision = 1 }},
		{"expiry", "/expires_at_ms", func(p *Plan) { p.ExpiresAtMS = 5 }},
		{"ids", "/runtime_id", func(p *Plan) { p.RuntimeID = "" }},
		{"digest form", "/adapter_command_digest", func(p *Plan) { p.AdapterDigest = "" }},
		{"zero limit", "/limits", func(p *Plan) { p.Limits.PIDs = 0 }},
		{"bounds", "/library_projections", func(p *Plan) { p.LibraryProjections = make([]Projection, 129) }},
		{"template", "/runtime_template_id", func(p *Plan) { p.RuntimeTemplateID = "none" }},
		{"egress", "/egress_policy_id", func(p *Plan) { p.EgressPolicyID = "none" }},
		{"tool", "/tool_policy_id", func(p *Plan) { p.ToolPolicyID = "none" }},
		{"grants", "/path_grants/1/alias", func(p *Plan) { p.PathGrants[1].Alias = "nonez" }},
		{"refinement", "/refinement", func(p *Plan) { p.Refinement = &Refinement{} }},
		{"secrets", "/secret_handles/0", func(p *Plan) { p.SecretHandles = []string{"none"} }},
	}
	d := document(t, "full.json")
	p := mustParse(t, d)
	for i, first := range breaks {
		for _, second := range breaks[i+1:] {
			plan := fullPlan(t, d)
			second.change(plan)
			first.change(plan)
			_, err := p.Validate(plan, start, nil)
			e, ok := errors.AsType[*PlanError](err)
			if !ok || e.Pointer != first.pointer {
				t.Errorf("%s and %s: got %v, want %s", first.name, second.name, err, first.pointer)
			}
		}
	}
}

func TestReasonsAreTheClosedSet(t *testing.T) {
	want := "backend_mismatch expired grant_not_authorized limits_not_authorized not_canonical policy_id_not_authorized " +
		"projection_not_authorized refinement_binding revision_mismatch runtime_not_authorized schema secret_not_authorized too_many ttl_too_long"
	var got []string
	for _, r := range Reasons() {
		got = append(got, string(r))
		if planFixes[r] == "" {
			t.Errorf("reason %s has no fix", r)
		}
	}
	if strings.Join(got, " ") != want {
		t.Errorf("reasons %v, want %s", got, want)
	}
}
