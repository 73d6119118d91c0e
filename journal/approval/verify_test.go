package approval

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/gowebpki/jcs"

	"gloved.dev/internal/digest"
	"gloved.dev/journal"
)

// chain links bodies (objects without prev, seq and hash) into a log, each line as given but for
// the members that link it.
func chain(t testing.TB, bodies ...string) string {
	t.Helper()
	var out strings.Builder
	prev := "null"
	for i, b := range bodies {
		open := strings.TrimSuffix(strings.TrimSpace(b), "}") + `,"prev":` + prev + `,"seq":` + string(rune('1'+i))
		canonical, err := jcs.Transform([]byte(open + "}"))
		if err != nil {
			t.Fatal(err)
		}
		hash := digest.SHA256Hex(canonical)
		prev = `"` + hash + `"`
		out.WriteString(open + `,"hash":` + prev + "}\n")
	}
	return out.String()
}

const head = `"alg":"sha256/jcs","ts":"2026-08-04T09:11:02Z",`

func verify(text string) journal.Verdict {
	return VerifyReader(strings.NewReader(text), VerifyOptions{})
}

func TestVerifyStatuses(t *testing.T) {
	whole := string(knownLog())
	lines := strings.SplitAfter(strings.TrimSuffix(whole, "\n"), "\n")
	lines[2] += "\n"
	second := func(old, new string) string { return strings.Replace(whole, old, new, 1) }
	for _, test := range []struct {
		name, text string
		status     journal.Status
		reason     journal.Reason
		records    uint64
		bad        uint64 // firstBadSeq, 0 for null
	}{
		{"empty", "", journal.StatusClean, "", 0, 0},
		{"whole", whole, journal.StatusClean, "", 3, 0},
		{"CRLF", strings.ReplaceAll(whole, "\n", "\r\n"), journal.StatusClean, "", 3, 0},
		{"spaces", second(`"actor":"agent:chaser",`, `"actor" : "agent:chaser" , `), journal.StatusClean, "", 3, 0},
		{"escapes", second("chase the", `\u0063hase the`), journal.StatusClean, "", 3, 0},
		{"other number spelling", second(`"retries":100`, `"retries":1.00E2`), journal.StatusClean, "", 3, 0},
		{"1.0 as seq", second(`"seq":2,`, `"seq":2.0,`), journal.StatusClean, "", 3, 0},
		{"torn", whole[:len(whole)-1], journal.StatusTorn, "", 2, 0},
		{"torn half", whole[:len(whole)-30], journal.StatusTorn, "", 2, 0},
		{"only a torn one", "x", journal.StatusTorn, "", 0, 0},
		{"blank line", whole + "\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"BOM", "\ufeff" + whole, journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"array", "[]\n", journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"corrupt and torn", "[]\nx", journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"no alg", second(`"alg":"sha256/jcs",`, ""), journal.StatusCorrupt, journal.ReasonBadAlg, 0, 1},
		{"alg before schema", second(`"alg":"sha256/jcs","channel":"cli","event":"task.registered"`, `"alg":"md5","event":"nope"`), journal.StatusCorrupt, journal.ReasonBadAlg, 0, 1},
		{"schema before digest", second(`"event":"task.registered"`, `"event":"task.vanished"`), journal.StatusCorrupt, journal.ReasonSchema, 0, 1},
		{"8.5 as seq", second(`"seq":2,`, `"seq":8.5,`), journal.StatusCorrupt, journal.ReasonSchema, 0, 0},
		{"changed", second("Álvaro", "Alvaro"), journal.StatusCorrupt, journal.ReasonHash, 0, 3},
		{"1e400", second(`"retries":100`, `"retries":1e400`), journal.StatusCorrupt, journal.ReasonHash, 0, 3},
		{"first missing", lines[1] + lines[2], journal.StatusCorrupt, journal.ReasonGap, 0, 2},
		{"middle missing", lines[0] + lines[2], journal.StatusCorrupt, journal.ReasonGap, 0, 3},
		{"twice", lines[0] + lines[0], journal.StatusCorrupt, journal.ReasonDuplicate, 0, 1},
		{"last missing", lines[0] + lines[1], journal.StatusClean, "", 2, 0}, // not detectable without an anchor
		{"duplicate member", second(`"channel":"cli"`, `"channel":"x","channel":"cli"`), journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"nested duplicate member", second(`"share":0.5`, `"share":0.4,"share":0.5`), journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
		{"lone surrogate", second("déjà-vu", `\ud800`), journal.StatusCorrupt, journal.ReasonMalformed, 0, 0},
	} {
		v := verify(test.text)
		var bad uint64
		if v.FirstBadSeq != nil {
			bad = *v.FirstBadSeq
		}
		if v.Status != test.status || v.Reason != test.reason || bad != test.bad || test.status != journal.StatusCorrupt && v.Records != test.records {
			t.Errorf("%s: %s %s bad %d records %d (%s)", test.name, v.Status, v.Reason, bad, v.Records, v.Message)
		}
	}
	other := chain(t, `{`+head+`"actor":"agent:a","event":"task.registered","task":"t"}`)
	linked := strings.Replace(other, `"prev":null`, `"prev":"`+known[0].hash+`"`, 1)
	if v := verify(linked); v.Reason != journal.ReasonHash { // the digest is judged before the link
		t.Errorf("changed prev: %+v", v)
	}
}

func TestVerifyLinks(t *testing.T) {
	body := func(prev, seq string) string {
		open := `{` + head + `"actor":"agent:a","event":"task.registered","task":"t","prev":` + prev + `,"seq":` + seq
		canonical, err := jcs.Transform([]byte(open + "}"))
		if err != nil {
			t.Fatal(err)
		}
		return open + `,"hash":"` + digest.SHA256Hex(canonical) + "\"}\n"
	}
	zero := `"` + strings.Repeat("0", 64) + `"`
	for name, test := range map[string]struct {
		text string
		want journal.Reason
	}{
		"genesis with a predecessor": {body(zero, "1"), journal.ReasonNotGenesis},
		"wrong predecessor":          {body("null", "1") + body(zero, "2"), journal.ReasonPrev},
		"gap":                        {body("null", "2"), journal.ReasonGap},
		"zero":                       {body("null", "0"), journal.ReasonSchema},
	} {
		if v := verify(test.text); v.Reason != test.want {
			t.Errorf("%s: %+v, want %s", name, v, test.want)
		}
	}
}

func TestAnchor(t *testing.T) {
	at := func(seq uint64, hash string) journal.Verdict {
		return VerifyReader(bytes.NewReader(knownLog()), VerifyOptions{Anchor: &journal.Head{Seq: seq, Hash: hash}})
	}
	if v := at(2, known[1].hash); v.Status != journal.StatusClean {
		t.Errorf("an anchor inside: %+v", v)
	}
	for _, v := range []journal.Verdict{at(4, known[2].hash), at(2, known[2].hash)} {
		if v.Status != journal.StatusCorrupt || v.Reason != journal.ReasonHeadMismatch {
			t.Errorf("a wrong anchor: %+v", v)
		}
	}
}

// TestSchema holds records by other programs to the closed sets.
func TestSchema(t *testing.T) {
	for _, test := range []struct {
		body string
		good bool
	}{
		{`"actor":"agent:a","event":"task.registered","task":"t"`, true},
		{`"actor":"agent:a","event":"task.registered","task":"t","color":"red"`, false},
		{`"actor":"agent:a","event":"task.registered","task":""`, false},
		{`"actor":"agent:a","event":"task.registered","task":null`, false},
		{`"actor":"agent:a","event":"task.registered","task":7`, false},
		{`"actor":"agent:a","event":"task.registered"`, false},
		{`"actor":"agent:a","event":"task.registered","task":"t","payload":[]`, false},
		{`"actor":"agent:a","event":"task.registered","task":"t","payload":null`, false},
		{`"actor":"agent:a","event":"task.registered","task":"t","payload":{"budget":{"max_cost_usd":"1.50"}}`, false},
		{`"actor":"agent:a","event":"task.registered","task":"t","payload":{"budget":{"max_cost_usd":1.5}}`, true},
		{`"actor":"x:a","event":"task.registered","task":"t"`, false},
		{`"actor":"agent:\n","event":"task.registered","task":"t"`, false},
		{`"actor":"agent:a","event":"approval.granted","task":"t","action_key":"k"`, false},
		{`"actor":"human:a","event":"approval.granted","task":"t","action_key":"k"`, true},
		{`"actor":"human:a","event":"approval.granted","task":"t"`, false},
		{`"actor":"agent:a","event":"approval.revoked","task":"t","action_key":"k"`, true},
		{`"actor":"system:gate","event":"approval.withdrawn","task":"t","action_key":"k","payload":{"action_key":"k","reason":"policy-drift"}`, true},
		{`"actor":"agent:a","event":"approval.withdrawn","task":"t","action_key":"k","payload":{"action_key":"k","reason":"policy-drift"}`, false},
		{`"actor":"agent:a","event":"approval.withdrawn","task":"t","action_key":"k","payload":{"action_key":"","reason":"cancelled"}`, false},
		{`"actor":"agent:a","event":"execution.indeterminate","task":"t","action_key":"k","payload":{"reason":"workspace-commit-unknown","exit_code":null}`, true},
		{`"actor":"agent:a","event":"execution.indeterminate","task":"t","action_key":"k","payload":{"reason":"shrug"}`, false},
		{`"actor":"agent:a","event":"execution.reconciled","task":"t","action_key":"k","payload":{"resolution":"executed"}`, false},
		{`"actor":"human:a","event":"execution.reconciled","task":"t","action_key":"k","payload":{"resolution":"executed"}`, true},
		{`"actor":"agent:a","event":"approval.requested","task":"t","action_key":"k","payload":{"est_cost_usd":0}`, true},
		{`"actor":"agent:a","event":"approval.requested","task":"t","action_key":"k","payload":{"est_cost_usd":"0.25"}`, true},
		{`"actor":"agent:a","event":"approval.requested","task":"t","action_key":"k","payload":{"est_cost_usd":"0.250"}`, false},
		{`"actor":"agent:a","event":"approval.requested","task":"t","action_key":"k","payload":{"est_cost_usd":-1}`, false},
		{`"actor":"system:daemon","event":"payload.pruned","payload":{"payload_hash":"` + strings.Repeat("a", 64) + `"}`, true},
		{`"actor":"human:a","event":"payload.pruned","payload":{"payload_hash":"` + strings.Repeat("a", 64) + `"}`, false},
		{`"actor":"system:daemon","event":"envelope.drift","task":"t","payload":{"reason":"mood"}`, false},
		{`"actor":"human:a","event":"policy.updated","payload":{"sha256":"x"}`, true},
		{`"actor":"system:daemon","event":"log.checkpoint","daemon":"daemon-0a1b2c3d"`, true},
		{`"actor":"system:daemon","event":"log.checkpoint","daemon":"Daemon 1"`, false},
		{`"actor":"human:a","event":"gate.opened","payload":{"why":"x"}`, true},
	} {
		v := verify(chain(t, "{"+head+test.body+"}"))
		if good := v.Status == journal.StatusClean; good != test.good || !good && v.Reason != journal.ReasonSchema {
			t.Errorf("%s: %s %s %s, want good %v", test.body, v.Status, v.Reason, v.Message, test.good)
		}
	}
}

func TestTimestamps(t *testing.T) {
	for ts, good := range map[string]bool{
		"2026-08-20T19:17:15.812Z": true, "2026-08-20t19:17:15z": true, "2026-08-20 19:17:15+02:00": true,
		"2026-08-20T19:17:15+0200": true, "2016-12-31T23:59:60Z": true, "2026-08-20T19:17:15.123456789123Z": true,
		"2026-08-20T19:17:15": false, "2026-08-20T19:17:15.Z": false, "2026-02-30T00:00:00Z": false,
		"2026-08-20T24:00:00Z": false, "2026-08-20T19:17:60Z": false, "2026-08-20  19:17:15Z": false, "": false,
	} {
		text := chain(t, `{"alg":"sha256/jcs","ts":"`+ts+`","actor":"agent:a","event":"task.registered","task":"t"}`)
		if v := verify(text); (v.Status == journal.StatusClean) != good {
			t.Errorf("%q: %s %s", ts, v.Status, v.Message)
		}
	}
}

// TestAnomalies: time that runs backwards is reported among gate-typed records only, and changes
// no verdict.
func TestAnomalies(t *testing.T) {
	at := func(ts, event string) string {
		return `{"alg":"sha256/jcs","ts":"` + ts + `","actor":"human:a","event":"` + event + `","task":"t","action_key":"k"}`
	}
	text := chain(t,
		at("2026-08-04T09:00:10.000Z", "approval.requested"),
		at("2026-08-04T08:00:00.000Z", "task.registered"),   // not gate-typed
		at("2026-08-04T09:00:08.000Z", "approval.rejected"), // exactly the tolerance
		at("2026-08-04T09:00:05.999Z", "policy.updated"),
		at("2026-08-04T09:00:06.000Z", "execution.started"))
	v := verify(text)
	if v.Status != journal.StatusClean || len(v.Anomalies) != 1 || v.ExitCode() != 0 {
		t.Fatalf("%+v", v)
	}
	got, err := json.Marshal(v.Anomalies[0], json.Deterministic(true))
	want := `{"kind":"gate-ts-regression","seq":4,"detail":{"event":"policy.updated","previousSeq":3,"previousTs":"2026-08-04T09:00:08.000Z","skewMs":2001,"ts":"2026-08-04T09:00:05.999Z"}}`
	if err != nil || string(got) != want {
		t.Errorf("anomaly %s, %v; want %s", got, err, want)
	}
	if v := VerifyReader(strings.NewReader(text), VerifyOptions{Skew: 3 * time.Second}); len(v.Anomalies) != 0 {
		t.Errorf("with a wider tolerance: %+v", v.Anomalies)
	}
	broken := text[:len(text)-3] + "x}\n"
	if v := verify(broken); v.Status != journal.StatusCorrupt || v.Anomalies != nil {
		t.Errorf("a corrupt log reports anomalies: %+v", v)
	}
}

func TestReadForADecision(t *testing.T) {
	l, _ := tempLog(t)
	if s, err := l.Read(); err != nil || len(s.Records) != 0 || s.Head.Seq != 0 {
		t.Errorf("absent: %+v %v", s, err)
	}
	whole := string(knownLog())
	for name, test := range map[string]struct{ text, code string }{
		"empty": {"", ""}, "whole": {whole, ""},
		"torn":    {whole[:len(whole)-1], CodeLogTornTail},
		"corrupt": {strings.Replace(whole, "agent:chaser", "agent:closer", 1), CodeLogCorrupt},
		"schema":  {strings.Replace(whole, "human:carter", "agent:carter", 1), CodeLogCorrupt},
	} {
		write(t, l.Path(), test.text)
		if _, err := l.Read(); Code(err) != test.code {
			t.Errorf("%s: %v, want %q", name, err, test.code)
		}
	}
	if err := os.Remove(l.Path()); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(l.Path(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(); Code(err) != CodeLogUnreadable {
		t.Errorf("directory: %v", err)
	}
	if v := Verify(l.Path(), VerifyOptions{}); v.Status != journal.StatusUnreadable || v.ExitCode() != 4 {
		t.Errorf("directory: %+v", v)
	}
}

// Verifying and reading write, lock and create nothing.
func TestVerifyLeavesNoTrace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log", "events.jsonl")
	if v := Verify(path, VerifyOptions{}); v.Status != journal.StatusClean {
		t.Errorf("absent: %+v", v)
	}
	if _, err := Open(path, Options{}).Read(); err != nil {
		t.Error(err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("made %v", entries)
	}
}

func TestWalkAndFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	write(t, path, string(knownLog()))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var seen []Event
	see := func(_ journal.Entry, r Record) error {
		seen = append(seen, r.Event)
		if len(seen) == 3 {
			stop()
		}
		return nil
	}
	if err := Walk(path, see); err != nil || !slices.Equal(seen, []Event{TaskRegistered, ApprovalRequested, ApprovalGranted}) {
		t.Errorf("walk saw %v, %v", seen, err)
	}
	seen = nil
	if err := Follow(ctx, path, see); err != nil || len(seen) != 3 {
		t.Errorf("follow saw %v, %v", seen, err)
	}
	enough := errors.New("enough")
	if err := Walk(path, func(journal.Entry, Record) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("the caller's error became %v", err)
	}
}

func TestEventsAreClosed(t *testing.T) {
	if got := len(Events()); got != 35 {
		t.Errorf("%d events, want the 35 of the public format", got)
	}
	if !slices.IsSorted(Events()) || len(slices.Compact(Events())) != len(Events()) {
		t.Error("the list is not sorted, or names one twice")
	}
	gate := map[Event]bool{PolicyUpdated: true, ApprovalRequested: true, ExecutionReconciled: true, BudgetExceeded: true,
		AuditSampled: true, TaskRegistered: false, PayloadPruned: false, EnvelopeDrift: false, "log.checkpoint": false}
	for e, want := range gate {
		if GateTyped(e) != want {
			t.Errorf("%s: gate-typed %v", e, !want)
		}
	}
}
