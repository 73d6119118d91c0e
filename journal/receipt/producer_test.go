package receipt

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/session"
)

var (
	ctx  = context.Background()
	ctl  = strings.Repeat("a", 64)
	prof = strings.Repeat("c", 64)
)

func options(t testing.TB) Options {
	t.Helper()
	d := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(d, 0o700); err != nil {
		t.Fatal(err)
	}
	k := testKey()
	key := filepath.Join(d, "audit-key")
	if err := os.WriteFile(key, []byte(" "+hex.EncodeToString(k.secret[:])+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Options{KeyPath: key, JournalPath: filepath.Join(d, "receipts.jsonl"), Clock: clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))}
}

func producer(t testing.TB, o Options) *Producer {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// ready is a producer whose fresh journal a controller has acknowledged.
func ready(t testing.TB, o Options) *Producer {
	t.Helper()
	p := producer(t, o)
	if _, err := p.Page(ctx, Genesis(p.KeyID()), 1); err != nil {
		t.Fatal(err)
	}
	if err := p.Acknowledge(ctx, Genesis(p.KeyID())); err != nil {
		t.Fatal(err)
	}
	return p
}

func commit(t testing.TB, p *Producer, id string, c *Confinement) Envelope {
	t.Helper()
	res, err := p.ReserveRecovered(id, ctl, prof)
	if err != nil {
		t.Fatal(err)
	}
	v, err := res.CommitResource(ctx, r0(), c)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantCode(t *testing.T, code Code, err error) {
	t.Helper()
	if CodeOf(err) != code {
		t.Errorf("want %s, got %v", code, err)
	}
}

func TestKeyFile(t *testing.T) {
	o := options(t)
	good, err := os.ReadFile(o.KeyPath)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSpace(string(good))
	for name, content := range map[string]string{
		"short": text[1:], "long": text + strings.Repeat(" ", 65), "upper": strings.ToUpper(text), "inner": text[:32] + " " + text[32:],
		"empty": "", "unicode space": text + "\u00a0",
	} {
		if err := os.WriteFile(o.KeyPath, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(o)
		if CodeOf(err) != KeyInvalid || strings.Contains(fmt.Sprint(err), text[:16]) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := os.WriteFile(o.KeyPath, []byte(text+strings.Repeat("\n", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(o); err != nil {
		t.Errorf("128 bytes: %v", err)
	}
	if err := os.Chmod(o.KeyPath, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err = New(o)
	wantCode(t, KeyInvalid, err)
	_, err = New(Options{KeyPath: o.KeyPath, JournalPath: o.KeyPath})
	wantCode(t, InvalidRequest, err)
}

// Nothing exists and nothing may start before a controller has shown its anchor
// and acknowledged the exact head.
func TestGating(t *testing.T) {
	o := options(t)
	p := producer(t, o)
	if _, err := os.Stat(o.JournalPath); err == nil {
		t.Error("the journal exists before the first page")
	}
	_, err := p.Reserve("s1", ctl, prof)
	wantCode(t, ReconciliationRequired, err)
	wantCode(t, ReconciliationFailed, p.Acknowledge(ctx, Genesis(p.KeyID())))
	_, err = p.Lookup("s1", ctl, prof)
	wantCode(t, ReconciliationRequired, err)
	_, err = p.Page(ctx, Anchor{p.KeyID(), 1, prof}, 1)
	wantCode(t, ReconciliationFailed, err)
	_, err = p.Page(ctx, Genesis(prof), 1)
	wantCode(t, ReconciliationFailed, err)
	if _, err := os.Stat(o.JournalPath); err == nil {
		t.Error("a wrong anchor created the journal")
	}
	page, err := p.Page(ctx, Genesis(p.KeyID()), 1000)
	if err != nil || len(page.Envelopes) != 0 || page.HasMore || page.LocalAnchor != Genesis(p.KeyID()) || p.Reconciled() {
		t.Fatalf("%+v %v", page, err)
	}
	_, err = p.Reserve("s1", ctl, prof)
	wantCode(t, ReconciliationRequired, err)
	wantCode(t, ReconciliationFailed, p.Acknowledge(ctx, Anchor{p.KeyID(), 1, prof}))
	if p.Reconciled() {
		t.Error("a wrong acknowledgement reconciled")
	}
	if err := p.Acknowledge(ctx, Genesis(p.KeyID())); err != nil || !p.Reconciled() {
		t.Fatal(err)
	}
	for _, limit := range []int{0, 1001} {
		_, err = p.Page(ctx, Genesis(p.KeyID()), limit)
		wantCode(t, InvalidRequest, err)
	}
}

func TestPagesVerify(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	const n = 40
	c := confinement()
	for i := range n {
		commit(t, p, fmt.Sprint("s", i), &c)
	}
	if _, err := p.CommitChangeApply(ctx, "s0", ctl, []byte(`{"b": 1, "a": "x"}`)); err != nil {
		t.Fatal(err)
	}
	res, err := p.Reserve("r", ctl, prof)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := res.CommitRefinement(ctx, r1(), nil); err != nil {
		t.Fatal(err)
	}
	pages := func(p *Producer) (kinds map[string]int, end Anchor) {
		kinds = map[string]int{}
		at := Genesis(p.KeyID())
		for more := true; more; {
			page, err := p.Page(ctx, at, 1000)
			if err != nil || len(page.Envelopes) > MaxPage {
				t.Fatal(len(page.Envelopes), err)
			}
			for _, v := range page.Envelopes {
				// What a controller decodes from the wire verifies as it is.
				raw, err := strictjson.Canonical(v)
				if err != nil {
					t.Fatal(err)
				}
				var back Envelope
				if err := strictjson.Decode(raw, &back, strictjson.Limits{}); err != nil {
					t.Fatal(err)
				}
				if at, err = testKey().Verify(at, back, Expectation{ControllerPlanDigest: ctl}); err != nil {
					t.Fatal(err)
				}
				kinds[v.Kind]++
			}
			if more = page.HasMore; !more && at != page.LocalAnchor {
				t.Errorf("ended at %v, head %v", at, page.LocalAnchor)
			}
		}
		return kinds, at
	}
	want := map[string]int{KindResource: n, KindRefinement: 1, KindChangeApply: 1}
	kinds, end := pages(p)
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Error(diff)
	}
	if err := p.Acknowledge(ctx, end); err != nil {
		t.Error(err)
	}
	p.Close()
	p = producer(t, o)
	if page, err := p.Page(ctx, end, 5); err != nil || len(page.Envelopes) != 0 || !p.Reconciled() {
		t.Fatalf("%+v %v: a head that was archived reconciles at once", page, err)
	}
	if again, _ := pages(p); !cmp.Equal(want, again) {
		t.Error(again)
	}
	v, err := p.Lookup("s7", ctl, prof)
	if err != nil || v == nil || v.SessionID != "s7" {
		t.Fatalf("%+v %v", v, err)
	}
	ref, ok := v.TerminalReference()
	if err := p.Confirm(ref); err != nil || !ok {
		t.Error(err)
	}
	ref.HMAC = prof
	wantCode(t, NotReserved, p.Confirm(ref))
	if v, err := p.Lookup("s7", prof, prof); v != nil || err != nil {
		t.Error(v, err)
	}
}

func TestReservationIsBound(t *testing.T) {
	p := ready(t, options(t))
	res, err := p.Reserve("s1", ctl, prof)
	if err != nil {
		t.Fatal(err)
	}
	var _ session.TerminalReservation = res
	if !res.BoundTo("s1", ctl, prof) || res.BoundTo("s2", ctl, prof) || res.BoundTo("s1", prof, prof) || res.BoundTo("s1", ctl, ctl) {
		t.Error("BoundTo")
	}
	other := r0()
	other.ProfileDigest = ctl
	_, err = res.CommitResource(ctx, other, nil)
	wantCode(t, NotReserved, err)
	bad := r0()
	bad.ExitCode = nil
	_, err = res.CommitResource(ctx, bad, nil)
	wantCode(t, InvalidReceipt, err)
	v, err := res.CommitResource(ctx, r0(), nil)
	if err != nil || v.Sequence != 1 {
		t.Fatal(err)
	}
	_, err = res.CommitResource(ctx, r0(), nil)
	wantCode(t, Ambiguous, err)
	_, err = p.Reserve("s1", ctl, prof)
	wantCode(t, Ambiguous, err)
	if s := p.Status(); s.Journal.ReservedBytes != 0 || s.Head.Sequence != 1 {
		t.Errorf("%+v", s)
	}
}

func TestReservedCapacity(t *testing.T) {
	o := options(t)
	o.MaxBytes = 2*MaxEnvelope + 100
	p := ready(t, o)
	a, err := p.Reserve("a", ctl, prof)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Reserve("b", ctl, prof); err != nil {
		t.Fatal(err)
	}
	_, err = p.Reserve("c", ctl, prof)
	wantCode(t, Capacity, err)
	_, err = p.CommitChangeApply(ctx, "x", ctl, []byte(`{}`))
	wantCode(t, Capacity, err)
	if _, err := a.CommitResource(ctx, r0(), nil); err != nil {
		t.Fatal(err)
	}
}

// Only a controller that knows a prefix lets the torn tail go.
func TestTornTail(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	first := commit(t, p, "s1", nil)
	commit(t, p, "s2", nil)
	end := p.Status().Head
	p.Close()
	tear := func() {
		f, err := os.OpenFile(o.JournalPath, os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(`{"alg":"sha`); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	tear()
	p = producer(t, o)
	for _, a := range []Anchor{{p.KeyID(), 1, end.HeadHMAC}, {p.KeyID(), 3, end.HeadHMAC}, {p.KeyID(), 2, first.ThisHMAC}} {
		_, err := p.Page(ctx, a, 1)
		wantCode(t, ReconciliationFailed, err)
	}
	page, err := p.Page(ctx, Anchor{p.KeyID(), 1, first.ThisHMAC}, 10)
	if err != nil || len(page.Envelopes) != 1 || page.LocalAnchor != end || p.Reconciled() {
		t.Fatalf("%+v %v", page, err)
	}
	kept, err := filepath.Glob(o.JournalPath + ".torn-*")
	if err != nil || len(kept) != 1 {
		t.Errorf("kept %v %v", kept, err)
	}
}

// Every kind of forgery has its own refusal, and none moves the anchor.
func TestVerifyRefuses(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	c := confinement()
	v := commit(t, p, "s1", &c)
	k, at := testKey(), Genesis(p.KeyID())
	for name, row := range map[string]struct {
		code Code
		edit func(*Envelope, *Anchor, *Expectation)
	}{
		"schema":     {BadSchema, func(v *Envelope, _ *Anchor, _ *Expectation) { v.SchemaVersion = 2 }},
		"two kinds":  {BadSchema, func(v *Envelope, _ *Anchor, _ *Expectation) { x := r1(); v.Refinement = &x }},
		"kind":       {BadSchema, func(v *Envelope, _ *Anchor, _ *Expectation) { v.Kind = KindRefinement }},
		"session":    {BadSession, func(_ *Envelope, _ *Anchor, w *Expectation) { w.SessionID = "s2" }},
		"controller": {BadSession, func(_ *Envelope, _ *Anchor, w *Expectation) { w.ControllerPlanDigest = prof }},
		"key":        {BadKey, func(v *Envelope, _ *Anchor, _ *Expectation) { v.KeyID = prof }},
		"anchor key": {BadKey, func(_ *Envelope, a *Anchor, _ *Expectation) { a.KeyID = prof }},
		"sequence":   {BadSequence, func(v *Envelope, _ *Anchor, _ *Expectation) { v.Sequence = 2 }},
		"previous":   {BadPrevious, func(_ *Envelope, a *Anchor, _ *Expectation) { a.HeadHMAC = prof }},
		"receipt":    {BadDigest, func(v *Envelope, _ *Anchor, _ *Expectation) { r := *v.Resource; r.FinishedAtMS++; v.Resource = &r }},
		"hmac":       {BadHMAC, func(v *Envelope, _ *Anchor, _ *Expectation) { v.ThisHMAC = prof }},
		"renamed":    {BadHMAC, func(v *Envelope, _ *Anchor, _ *Expectation) { v.SessionID = "s2" }},
		"confinement": {BadConfinement, func(v *Envelope, _ *Anchor, _ *Expectation) {
			c := *v.Confinement
			c.LandlockABI = 0
			v.Confinement = &c
		}},
		"stripped": {BadConfinement, func(v *Envelope, _ *Anchor, w *Expectation) {
			v.Confinement, v.ConfinementHMAC, w.RequireConfinement = nil, "", true
		}},
		"half": {BadSchema, func(v *Envelope, _ *Anchor, _ *Expectation) { v.ConfinementHMAC = "" }},
	} {
		e, a, w := v, at, Expectation{}
		row.edit(&e, &a, &w)
		if got, err := k.Verify(a, e, w); CodeOf(err) != row.code || got != a {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := k.Verify(at, v, Expectation{"s1", ctl, true}); err != nil {
		t.Error(err)
	}
	var other [32]byte
	_, err := NewKey(other).Verify(Genesis(NewKey(other).id), v, Expectation{})
	wantCode(t, BadKey, err)
}

// A journal re-sealed with another key, or without its end, does not pass: trap
// I4 and I5.
func TestForeignJournal(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	commit(t, p, "s1", nil)
	end := commit(t, p, "s2", nil)
	p.Close()
	whole, err := os.ReadFile(o.JournalPath)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(whole), "\n")
	if err := os.WriteFile(o.JournalPath, []byte(lines[0]), 0o600); err != nil {
		t.Fatal(err)
	}
	p = producer(t, o)
	_, err = p.Page(ctx, Anchor{p.KeyID(), 2, end.ThisHMAC}, 1)
	wantCode(t, ReconciliationFailed, err)
	if err := os.WriteFile(o.JournalPath, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(o.KeyPath, []byte(strings.Repeat("1", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	p = producer(t, o)
	_, err = p.Page(ctx, Genesis(p.KeyID()), 1)
	wantCode(t, Storage, err)
}

func TestResourceRefusals(t *testing.T) {
	for name, edit := range map[string]func(*Resource){
		"cause":       func(r *Resource) { r.TerminationCause = "bored" },
		"exit 256":    func(r *Resource) { r.ExitCode = exitCode(256) },
		"exit -1":     func(r *Resource) { r.ExitCode = exitCode(-1) },
		"signal code": func(r *Resource) { r.TerminationCause = CauseSignaled },
		"no cpu":      func(r *Resource) { r.ConfiguredLimits.CPUTimeMS = 0 },
		"huge":        func(r *Resource) { r.Observed.DiskBytes = ident.MaxInt + 1 },
		"mechanism":   func(r *Resource) { r.Mechanisms.Memory = "unavailable" },
		"watchdog":    func(r *Resource) { r.Mechanisms.WallTime = "cgroup_v2" },
		"unverified":  func(r *Resource) { r.IndependentlyVerified = false },
		"claim":       func(r *Resource) { r.ObservationAuthority = AuthorityRemote },
		"times":       func(r *Resource) { r.FinishedAtMS = 999 },
		"129":         func(r *Resource) { r.LibraryProjections = make([]Projection, 129) },
		"65":          func(r *Resource) { r.RetainedChanges = make([]RetainedChange, 65) },
	} {
		r := r0()
		edit(&r)
		if err := r.Validate(); CodeOf(err) != InvalidReceipt {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, m := range []string{MechanismCgroupV1, MechanismRlimit} {
		r := r0()
		r.Mechanisms.CPUTime, r.Mechanisms.Memory, r.Mechanisms.PIDs = m, m, m
		if err := r.Validate(); err != nil {
			t.Error(m, err)
		}
	}
}

// A file that somebody else changed is not trusted any more.
func TestChangedBehindOurBack(t *testing.T) {
	o := options(t)
	p := ready(t, o)
	commit(t, p, "s1", nil)
	if err := os.Truncate(o.JournalPath, 10); err != nil {
		t.Fatal(err)
	}
	_, err := p.Page(ctx, Genesis(p.KeyID()), 1)
	wantCode(t, Storage, err)
	_, err = p.Reserve("s2", ctl, prof)
	wantCode(t, Storage, err)
	var e *Error
	if !errors.As(err, &e) {
		t.Error(err)
	}
}
