package policy

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/pathwalk"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy/harness"
)

// start is the time at which test plans are judged: 1 000 000 s after the epoch.
var start = time.UnixMilli(1_000_000_000)

// fakeHost is a host on which every path is a directory of its own, but for those it names.
type fakeHost struct {
	objects map[string]pathwalk.Identity
	errs    map[string]error
	exe     string // what discovery finds; "" for nothing
	exeErr  error
}

func (h *fakeHost) env() Env {
	return Env{
		Identify: func(path string) (pathwalk.Identity, error) {
			if err := h.errs[path]; err != nil {
				return pathwalk.Identity{}, err
			}
			if id, ok := h.objects[path]; ok {
				return id, nil
			}
			ino := uint64(2166136261)
			for _, c := range []byte(path) {
				ino = (ino ^ uint64(c)) * 16777619
			}
			return pathwalk.Identity{Dev: 1, Ino: ino, Mode: 0o40755}, nil
		},
		Discover: func(a harness.Adapter, roots []string) (string, error) {
			if h.exe == "" {
				err := h.exeErr
				if err == nil {
					err = &harness.NotFoundError{RuntimeID: a.RuntimeID}
				}
				return "", err
			}
			return h.exe, nil
		},
	}
}

func readFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "testdata", "policies", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// document returns a fresh copy of an example policy.
func document(t testing.TB, name string) Document {
	t.Helper()
	var d Document
	if err := strictjson.Decode(readFile(t, name), &d, strictjson.Limits{}); err != nil {
		t.Fatal(err)
	}
	return d
}

// redigest sets every template's digest to that of its launch, after a test changed one.
func redigest(d *Document) {
	for i, t := range d.RuntimeTemplates {
		if t.Launch != nil {
			d.RuntimeTemplates[i].AdapterDigest = LaunchDigest(*t.Launch)
		}
	}
}

// parse marshals without any check and parses.
func parse(t testing.TB, d Document, h *fakeHost) (*Policy, error) {
	t.Helper()
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return Parse(raw, h.env())
}

func mustParse(t testing.TB, d Document) *Policy {
	t.Helper()
	p, err := parse(t, d, &fakeHost{exe: "/opt/harness/bin/copilot"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// wantFault checks an *Error's code and pointer and that it tells how to mend the fault.
func wantFault(t *testing.T, err error, code, pointer string) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("got %v, want code %s at %q", err, code, pointer)
	}
	if e.Code != code || e.Pointer != pointer {
		t.Errorf("got %s at %q (%v), want %s at %q", e.Code, e.Pointer, e, code, pointer)
	}
	if e.Detail == "" || e.Fix == "" {
		t.Errorf("%s at %q has no detail or no fix: %+v", e.Code, e.Pointer, e)
	}
}

// wantRefusal checks a *PlanError's reason and pointer and that its public text is clean.
func wantRefusal(t *testing.T, err error, reason Reason, pointer string) *PlanError {
	t.Helper()
	e, ok := errors.AsType[*PlanError](err)
	if !ok {
		t.Fatalf("got %v, want reason %s at %q", err, reason, pointer)
	}
	if e.Reason != reason || e.Pointer != pointer {
		t.Errorf("got %s at %q (%s), want %s at %q", e.Reason, e.Pointer, e.Local(), reason, pointer)
	}
	if !errors.Is(err, &PlanError{Reason: reason}) && e.Reason == reason {
		t.Errorf("errors.Is does not match reason %s", reason)
	}
	for _, host := range []string{"/srv", "/opt", "/home", "/usr"} {
		if strings.Contains(e.Error(), host) {
			t.Errorf("the public text holds a host path: %s", e.Error())
		}
	}
	return e
}

func wantLaunchError(t *testing.T, err error, code LaunchCode) *LaunchError {
	t.Helper()
	e, ok := errors.AsType[*LaunchError](err)
	if !ok || e.Code != code {
		t.Fatalf("got %v, want launch error %s", err, code)
	}
	if e.Error() == "" || e.Detail == "" {
		t.Errorf("%s has no text", code)
	}
	return e
}

// fullPlan is a plan that full.json admits at start, with a bit of everything that schema 1 has.
func fullPlan(t testing.TB, d Document) *Plan {
	t.Helper()
	return &Plan{
		SchemaVersion: 1, RuntimeID: "codex", RuntimeTemplateID: "codex-safe",
		AdapterDigest: d.RuntimeTemplates[0].AdapterDigest, Backend: BackendLinux,
		EgressPolicyID: "no-network", ToolPolicyID: "sage-readonly",
		PathGrants: []AliasGrant{
			{"inputs", AccessRead, MaterializeSnapshot, 0, 60, CleanupRemove},
			{"workspace", AccessEphemeralWrite, MaterializeCopy, 4096, 60, CleanupRemove},
		},
		LibraryProjections: []Projection{{"p-1", hex64('1'), "libraries"}, {"p-2", hex64('2'), "libraries"}},
		SecretHandles:      []string{"codex-auth"},
		Limits:             d.ResourceProfiles[0].Limits(),
		PolicyRevision:     d.Revision,
		ExpiresAtMS:        uint64(start.UnixMilli()) + 60_000,
	}
}

// refinementPlan is a refinement plan that full.json admits at start.
func refinementPlan(t testing.TB, d Document) *Plan {
	t.Helper()
	p := fullPlan(t, d)
	p.RuntimeTemplateID, p.AdapterDigest = RefinementTemplateID, d.RuntimeTemplates[3].AdapterDigest
	p.PathGrants, p.SecretHandles = []AliasGrant{}, []string{}
	r := &Refinement{
		SchemaVersion: 1, Variant: VariantCandidate, MatchedContextDigest: hex64('9'),
		Fixture:   Projection{"fixture", hex64('1'), "fixtures"},
		Base:      Projection{"skill-base", hex64('2'), "libraries"},
		Candidate: Projection{"skill-candidate", hex64('3'), "libraries"},
	}
	p.Refinement, p.LibraryProjections = r, []Projection{r.Fixture, r.Candidate}
	return p
}

func hex64(c byte) string { return strings.Repeat(string(c), 64) }

// fakeExposures admits every grant but those it names.
type fakeExposures struct{ refuse, gone string }

func (f fakeExposures) ValidateGrant(_ string, g ExposureGrant, _ time.Time) error {
	if g.ExposureID == f.refuse {
		return errors.New("exposure of /srv/private is revoked")
	}
	return nil
}

func (f fakeExposures) ResolveGrant(_ string, g ExposureGrant, _ time.Time) (ExposureSource, error) {
	if g.ExposureID == f.gone {
		return ExposureSource{}, errors.New("source identity changed")
	}
	return ExposureSource{HostPath: "/srv/exposed/" + g.ExposureID, SourceIdentityDigest: hex64('e')}, nil
}

// exposurePlan is a schema 2 plan that full.json and fakeExposures admit at start.
func exposurePlan(t testing.TB, d Document) *Plan {
	t.Helper()
	p := fullPlan(t, d)
	p.SchemaVersion, p.PathGrants = 2, nil
	p.ExposureGrants = []ExposureGrant{
		{"docs", 1, hex64('a'), AccessRead, MaterializeBind, 0, 60, CleanupRetain},
		{"project", 3, hex64('b'), AccessRetainedWrite, MaterializeCopy, 32 << 20, 60, CleanupRetain},
	}
	return p
}

// raw encodes a plan without any check.
func raw(t testing.TB, p *Plan) []byte {
	t.Helper()
	out, err := p.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
