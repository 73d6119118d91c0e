package gate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"

	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
)

// TestReq048PayloadStore: a stored payload's file is its own proof.
func TestReq048PayloadStore(t *testing.T) {
	p := Payloads{Dir: filepath.Join(t.TempDir(), "payloads")}
	canonical, hash, err := SealPayload(map[string]any{"b": 1, "a": []string{"é"}})
	if err != nil {
		t.Fatal(err)
	}
	if string(canonical) != `{"a":["é"],"b":1}` {
		t.Errorf("canonical form %s", canonical)
	}
	for range 2 { // what is there is kept
		if got, err := p.Put(canonical); err != nil || got != hash {
			t.Fatalf("Put: %s, %v", got, err)
		}
	}
	file := filepath.Join(p.Dir, hash+".json")
	raw, err := os.ReadFile(file)
	if err != nil || digest.SHA256Hex(raw) != hash {
		t.Errorf("the file is not its own name: %v", err)
	}
	if got, err := p.Get(hash); err != nil || string(got) != string(canonical) {
		t.Errorf("Get: %s, %v", got, err)
	}
	entries, _ := os.ReadDir(p.Dir)
	if len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if _, err := p.Put([]byte(`{"b":1,"a":2}`)); err == nil {
		t.Error("a payload that is not canonical was stored")
	}
	// Another program may have stored it with other spacing: the value is what is proven.
	write(t, file, `{ "b": 1, "a": ["\u00e9"] }`)
	if got, err := p.Get(hash); err != nil || string(got) != string(canonical) {
		t.Errorf("Get of other spacing: %s, %v", got, err)
	}
	for name, test := range map[string]struct{ text, code string }{
		"changed":   {`{"a":["e"],"b":1}`, PayloadMismatch},
		"reference": {`{"$ref":"s3://x"}`, PayloadReference},
		"no JSON":   {`{`, PayloadUnreadable},
		"duplicate": {`{"a":["é"],"b":2,"b":1}`, PayloadUnreadable},
	} {
		write(t, file, test.text)
		got, err := p.Get(hash)
		var e *PayloadError
		if !errors.As(err, &e) || e.Code != test.code || got != nil {
			t.Errorf("%s: %s, %v; want %s", name, got, err, test.code)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "x")
	write(t, other, string(canonical))
	if err := os.Symlink(other, file); err != nil {
		t.Fatal(err)
	}
	for name, code := range map[string]string{hash: PayloadUnreadable, strings.Repeat("0", 64): PayloadAbsent, "../x": PayloadAbsent} {
		var e *PayloadError
		if _, err := p.Get(name); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: %v, want %s", name, err, code)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestMicros(t *testing.T) {
	for text, want := range map[string]Micros{"0": 0, "1": 1e6, "0.25": 250_000, "0.000001": 1, "12.5": 12_500_000, "0.1": 100_000} {
		got, err := ParseMicros(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("%s: %d, %v, %s", text, got, err, got)
		}
	}
	for _, text := range []string{"", "-1", "+1", "01", "1.", ".5", "1.0", "0.50", "1e3", "0.0000001", "1,5", "99999999999999999999", " 1"} {
		if got, err := ParseMicros(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
	for raw, want := range map[string]Micros{`0`: 0, `0.1`: 100_000, `0.30000000000000004`: 300_000, `"0.3"`: 300_000, `1e2`: 100_000_000} {
		var m Micros
		if err := json.Unmarshal([]byte(raw), &m); err != nil || m != want {
			t.Errorf("%s: %d, %v", raw, m, err)
		}
	}
	for _, raw := range []string{`-1`, `1e300`, `true`, `"x"`, `null`} {
		var m Micros
		if err := json.Unmarshal([]byte(raw), &m); err == nil {
			t.Errorf("%s is %s", raw, m)
		}
	}
}

// TestStateOfForeignCycles follows the public rules over records that this gate would not write:
// the first decision settles a question, later ones change nothing, a revocation always counts.
func TestStateOfForeignCycles(t *testing.T) {
	req := alog.Draft{Event: alog.ApprovalRequested, Actor: agent, Payload: map[string]any{"class": "a.b", "est_cost_usd": 0}}
	grant := alog.Draft{Event: alog.ApprovalGranted, Actor: ada, Payload: map[string]any{"class": "a.b", "est_cost_usd": 0, "token_sha256": strings.Repeat("0", 64)}}
	reject := alog.Draft{Event: alog.ApprovalRejected, Actor: ada}
	revoke := alog.Draft{Event: alog.ApprovalRevoked, Actor: ada}
	withdraw := alog.Draft{Event: alog.ApprovalWithdrawn, Actor: agent, Payload: map[string]any{"action_key": "t:a.b", "reason": "cancelled"}}
	for _, test := range []struct {
		name  string
		steps []alog.Draft
		want  State
	}{
		{"nothing", nil, StateNone},
		{"grant without a question", []alog.Draft{grant}, StateNone},
		{"asked", []alog.Draft{req}, StateRequested},
		{"withdrawn before granted", []alog.Draft{req, withdraw, grant}, StateWithdrawn},
		{"rejected before granted", []alog.Draft{req, reject, grant}, StateRejected},
		{"granted before rejected", []alog.Draft{req, grant, reject}, StateGranted},
		{"revoked", []alog.Draft{req, grant, revoke}, StateRevoked},
		{"revoked after rejected", []alog.Draft{req, reject, revoke}, StateRevoked},
		{"asked again", []alog.Draft{req, reject, req}, StateRequested},
	} {
		s := newSite(t, manual)
		key := s.declare("t", "a.b")
		for _, d := range test.steps {
			d.Task, d.ActionKey = "t", key
			_, err := s.Log().Append(context.Background(), nil, d)
			s.must(err)
		}
		v, err := s.View()
		s.must(err)
		if got := v.Action(key).State(); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if test.want != StateGranted {
			s.refuses(s.start(key, strings.Repeat("0", 64), ""), map[State]string{StateRevoked: CodeTokenRevoked}[test.want]+
				map[bool]string{true: CodeNotGranted}[test.want != StateRevoked])
		}
	}
}

// TestReq069OneStart: however many start one key at once, the log has one start.
func TestReq069OneStart(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ""))
	token, err := s.grant(key)
	s.must(err)
	hash := s.hash(key)
	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		other := New(Config{Log: s.Log().Path(), Dir: s.dir, Clock: s.clock})
		wg.Go(func() {
			_, errs[i] = other.Start(context.Background(), Start{Actor: agent, Key: key, Token: token, PayloadHash: hash})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		switch Code(err) {
		case "":
			won++
		case CodeTokenConsumed, CodeAppendFailed:
		default:
			t.Errorf("a loser got %v", err)
		}
	}
	if got := strings.Count(strings.Join(s.events(1), " "), "execution.started"); won != 1 || got != 1 {
		t.Errorf("%d won, and the log has %d starts", won, got)
	}
}

func TestQueue(t *testing.T) {
	s := newSite(t, "defaults: {autonomy: manual, approval_ttl: 1h}")
	one, two := s.declare("t1", "a.b", costs("0.5")), s.declare("t2", "a.b")
	s.must(s.ask(two, ExecBroker))
	s.must(s.ask(one, ""))
	v, err := s.View()
	s.must(err)
	q := v.Queue(s.Document())
	if len(q) != 2 || q[0].ActionKey != two || q[1].Cost.String() != "0.5" || *q[0].TTLRemainingMS != 3_600_000 || q[0].Execution != ExecBroker {
		t.Errorf("queue %+v", q)
	}
	s.clock.Advance(3_600_001 * 1e6)
	v, err = s.View()
	s.must(err)
	if q := v.Queue(s.Document()); len(q) != 0 {
		t.Errorf("lapsed questions in the queue: %+v", q)
	}
}
