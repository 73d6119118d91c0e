package receipt

import (
	"bytes"
	"testing"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

func seeds(t testing.TB) [][]byte {
	t.Helper()
	k := testKey()
	var out [][]byte
	x, y, c := r0(), r1(), confinement()
	for _, v := range []Envelope{
		{Kind: KindResource, Resource: &x, Confinement: &c},
		{Kind: KindRefinement, Refinement: &y},
		{Kind: KindChangeApply, ChangeApply: []byte(`{"state":"applied"}`)},
	} {
		v.SchemaVersion, v.Sequence, v.KeyID, v.SessionID = 1, 1, k.id, "session-1"
		v.ControllerPlanDigest, v.PreviousHMAC = ctl, ident.ZeroHash
		v.ReceiptDigest = v.digest()
		v.ThisHMAC = k.envelope(v)
		if v.Confinement != nil {
			v.ConfinementHMAC, _ = k.confine(v.ThisHMAC, c)
		}
		raw, err := strictjson.Canonical(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
	return out
}

func TestSeedsVerify(t *testing.T) {
	all := seeds(t)
	if len(all) != 3 {
		t.Fatal("seeds are missing")
	}
	for _, raw := range all {
		var v Envelope
		if err := strictjson.Decode(raw, &v, strictjson.Limits{}); err != nil {
			t.Fatal(err)
		}
		if _, err := testKey().Verify(Genesis(testKey().id), v, Expectation{}); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever decodes encodes to the canonical form of what was decoded, and what
// verifies was made with the key: no other bytes can.
func FuzzEnvelope(f *testing.F) {
	genuine := map[string]bool{}
	for _, raw := range seeds(f) {
		genuine[string(raw)] = true
		f.Add(raw)
	}
	k := testKey()
	f.Fuzz(func(t *testing.T, raw []byte) {
		var v Envelope
		if strictjson.Decode(raw, &v, strictjson.Limits{}) != nil {
			return
		}
		canonical, err := strictjson.CanonicalBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		again, err := strictjson.Canonical(v)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(canonical, again) {
			t.Fatalf("decoded\n%s\nencodes to\n%s", canonical, again)
		}
		if _, err := k.Verify(Genesis(k.id), v, Expectation{}); err == nil {
			v.Confinement, v.ConfinementHMAC = nil, ""
			for g := range genuine {
				var w Envelope
				if strictjson.Decode([]byte(g), &w, strictjson.Limits{}) == nil && w.ThisHMAC == v.ThisHMAC {
					return
				}
			}
			t.Fatalf("a forgery verified: %s", raw)
		}
	})
}
