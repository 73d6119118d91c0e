package receipt

import (
	"encoding/hex"
	"strings"
	"testing"

	"gloved.dev/internal/ident"
)

// testKey is the key of the published vectors: bytes 00 to 1f.
func testKey() *Key {
	var secret [32]byte
	for i := range secret {
		secret[i] = byte(i)
	}
	return NewKey(secret)
}

func exitCode(n int64) *int64 { return &n }

// r0 is the resource receipt of the published vectors.
func r0() Resource {
	return Resource{
		SchemaVersion: 1, ProfileDigest: strings.Repeat("c", 64), Backend: BackendLinux, BackendID: BackendIDCgroupV2,
		ObservationAuthority: AuthorityLocal, IndependentlyVerified: true,
		ConfiguredLimits: Limits{60000, 536870912, 128, 120000, 1073741824, 16777216},
		Mechanisms:       Mechanisms{"cgroup_v2", "cgroup_v2", "cgroup_v2", "watchdog", "filesystem_quota", "byte_counter", 1},
		Observed:         Observed{500, 16777216, 2, 750, 4096, 1024},
		TerminationCause: CauseExited, ExitCode: exitCode(0), StartedAtMS: 1000, FinishedAtMS: 1750,
	}
}

// The vectors of the existing system: an existing verifier must accept ours.
func TestVectors(t *testing.T) {
	const (
		keyID   = "b97d6f8d2ae381761ea00f360c230cf75e8de5fdc6a8d25624a5c36b97f0d475"
		receipt = "cf4dfdc1627c93e00c10a83a780937dba2a9493c03f0f91843af49ee17ed11a4"
		mac     = "57bafec7db274bd24763fdbe4cfb680f6d19c46121bb79649ef3456532458f12"
	)
	k := testKey()
	if k.ID() != keyID {
		t.Errorf("key id %s", k.ID())
	}
	if got := r0().Digest(); got != receipt {
		t.Errorf("receipt digest %s", got)
	}
	if err := r0().Validate(); err != nil {
		t.Error(err)
	}
	v := Envelope{
		Kind: KindResource, Sequence: 1, KeyID: keyID, SessionID: "session-1",
		ControllerPlanDigest: strings.Repeat("a", 64), ReceiptDigest: receipt, PreviousHMAC: ident.ZeroHash,
	}
	if got := k.envelope(v); got != mac {
		t.Errorf("HMAC %s", got)
	}
}

func r1() Refinement {
	h := func(c string) string { return strings.Repeat(c, 64) }
	content := `{"passed":true}`
	return Refinement{
		SchemaVersion: 1, RuntimeTemplateID: "refinement-eval-v1", Resource: r0(), Status: "completed", Variant: "base",
		Fixture: ProjectionBinding{"fixture", h("1"), "fixtures"}, Base: ProjectionBinding{"base", h("2"), "skills"},
		Candidate: ProjectionBinding{"candidate", h("3"), "skills"}, MatchedContextDigest: h("4"),
		Outcome:    Outcome{"glove.refinement-outcome-v1", "json", sha(content), uint64(len(content)), &content},
		Transcript: StreamCommitment{"glove.pty-stream-v1", h("5"), 1024, true},
		Evaluator:  Evaluator{"glove.refinement-evaluator-v1", true, true, 2, 1},
	}
}

// Our own goldens: there is no published vector for these layouts, so what was
// released once is pinned here.
func TestGoldens(t *testing.T) {
	full := r0()
	full.LibraryProjections = []Projection{{"p", "libraries", "/opt/l/" + strings.Repeat("1", 64) + ".json", strings.Repeat("1", 64)}}
	full.RetainedChanges = []RetainedChange{{
		"e", 1, strings.Repeat("2", 64), strings.Repeat("3", 64), strings.Repeat("4", 64), strings.Repeat("5", 64),
		strings.Repeat("6", 64), 1, 2, 3, 4, 5, 6,
	}}
	if err := full.Validate(); err != nil {
		t.Error(err)
	}
	remote := r0()
	remote.Backend, remote.ObservationAuthority, remote.IndependentlyVerified = BackendRemote, AuthorityRemote, false
	if err := remote.Validate(); err != nil {
		t.Error(err)
	}
	signaled := r0()
	signaled.TerminationCause, signaled.ExitCode = CauseSignaled, nil
	if err := r1().Validate(); err != nil {
		t.Error(err)
	}
	mac, err := testKey().confine(strings.Repeat("7", 64), confinement())
	if err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct{ got, want string }{
		"resource with lists": {full.Digest(), goldenFull},
		"remote resource":     {remote.Digest(), goldenRemote},
		"signaled resource":   {signaled.Digest(), goldenSignaled},
		"refinement":          {r1().Digest(), goldenRefinement},
		"confinement HMAC":    {mac, goldenConfinement},
	} {
		if row.got != row.want {
			t.Errorf("%s: %s", name, row.got)
		}
	}
}

func confinement() Confinement {
	return Confinement{
		SchemaVersion: 1, ProbeListDigest: strings.Repeat("8", 64), ProbeCount: 12, ProbeResult: ProbesRefused,
		SeccompDigest: strings.Repeat("9", 64), LandlockABI: 4,
		Transcript: &StreamCommitment{"glove.pty-stream-v1", strings.Repeat("a", 64), 5, true},
	}
}

func TestKeyNeverPrints(t *testing.T) {
	k := testKey()
	for _, s := range []string{k.String(), k.GoString()} {
		if strings.Contains(s, hex.EncodeToString(k.secret[:])) || !strings.Contains(s, k.id) {
			t.Error(s)
		}
	}
}
