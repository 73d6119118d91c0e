package policy

import (
	"bytes"
	"testing"

	"gloved.dev/internal/strictjson"
)

// FuzzPlan: whatever decodes has one canonical form, which is that of its bytes, and judging it never
// panics nor names a host path in public.
func FuzzPlan(f *testing.F) {
	d := document(f, "full.json")
	p := mustParse(f, d)
	seeds := [][]byte{raw(f, fullPlan(f, d)), raw(f, exposurePlan(f, d)), raw(f, refinementPlan(f, d))}
	for _, s := range seeds {
		plan, err := DecodePlan(s)
		if err != nil {
			f.Fatalf("seed does not decode: %v", err)
		}
		if _, err := p.Validate(plan, start, fakeExposures{}); err != nil {
			f.Fatalf("seed is refused: %v", err)
		}
		f.Add(s)
	}
	f.Add([]byte(`{"schema_version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		plan, err := DecodePlan(data)
		if err != nil {
			wantRefusalText(t, err)
			return
		}
		got, err := plan.Canonical()
		if err != nil {
			t.Fatalf("a decoded plan has no canonical form: %v", err)
		}
		want, err := strictjson.CanonicalBytes(data)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("canonical form\n%s\nwant\n%s (%v)", got, want, err)
		}
		if _, err := p.Validate(plan, start, fakeExposures{}); err != nil {
			wantRefusalText(t, err)
		}
	})
}

func wantRefusalText(t *testing.T, err error) {
	t.Helper()
	e, ok := err.(*PlanError) //nolint:errorlint // the type itself is the promise
	if !ok || e.Reason == "" || e.Message == "" || planFixes[e.Reason] == "" {
		t.Fatalf("refusal %#v", err)
	}
}

// FuzzPolicy: whatever is accepted, encoded again, is accepted again and encodes to the same bytes.
func FuzzPolicy(f *testing.F) {
	host := &fakeHost{exe: "/opt/harness/bin/copilot"}
	for _, name := range []string{"codex-safe.json", "cloudflare-os.json", "full.json"} {
		data := readFile(f, name)
		if _, err := Parse(data, host.env()); err != nil {
			f.Fatalf("seed %s is refused: %v", name, err)
		}
		f.Add(data)
	}
	f.Add(readFile(f, "codex-safe-stale-digest.json"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Parse(data, host.env())
		if err != nil {
			if e, ok := err.(*Error); !ok || e.Code == "" || e.Fix == "" { //nolint:errorlint // the type itself is the promise
				t.Fatalf("refusal %#v", err)
			}
			return
		}
		once, err := p.Document().Canonical()
		if err != nil {
			t.Fatalf("an accepted policy has no canonical form: %v", err)
		}
		q, err := Parse(once, host.env())
		if err != nil {
			t.Fatalf("an accepted policy is refused when encoded again: %v\n%s", err, once)
		}
		twice, err := q.Document().Canonical()
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%s\nbecame\n%s (%v)", once, twice, err)
		}
		Explain(p)
	})
}
