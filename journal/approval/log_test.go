package approval

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
)

// The public known-answer chain of three records (the approval.md hash fixtures), each
// as its hash input; the hashes are the published ones.
var known = []struct{ body, hash string }{
	{`{"actor":"agent:planner","alg":"sha256/jcs","channel":"cli","event":"task.registered","payload":{"envelope":"backlog/task-042.md","title":"Chase the overdue invoice"},"prev":null,"seq":1,"task":"task-042","ts":"2026-08-04T09:11:02Z"}`,
		"6a076d1e8930f73be61ba514c804ec06516ae4798b5f9c67a0612eec6faae7e6"},
	{`{"action_key":"task-042:chaser:2026-08-04","actor":"agent:chaser","alg":"sha256/jcs","channel":"telegram","event":"approval.requested","payload":{"class":"communicate.email.external","est_cost_usd":"0","reversible":false},"prev":"6a076d1e8930f73be61ba514c804ec06516ae4798b5f9c67a0612eec6faae7e6","seq":2,"task":"task-042","ts":"2026-08-04T09:13:40Z"}`,
		"951325fd9756ab9496273602ab4dbb9c13dffb607450744c14f0e64fce81e2bc"},
	{`{"action_key":"task-042:chaser:2026-08-04","actor":"human:carter","alg":"sha256/jcs","channel":"telegram","event":"approval.granted","payload":{"amounts":{"retries":100,"share":0.5,"total_gbp":1200},"note":"chase the £1,200 déjà-vu invoice ☑","zulu":["b","a"],"Álvaro":"approver"},"prev":"951325fd9756ab9496273602ab4dbb9c13dffb607450744c14f0e64fce81e2bc","seq":3,"task":"task-042","ts":"2026-08-04T09:14:02Z"}`,
		"819a937c7829ee39afc9b9c48670080208147c9cd78d016f3c43a3653db8e076"},
}

// knownLog is the chain as a file, its lines not in canonical member order.
func knownLog() []byte {
	var b bytes.Buffer
	for _, k := range known {
		b.WriteString(strings.TrimSuffix(k.body, "}") + `,"hash":"` + k.hash + "\"}\n")
	}
	return b.Bytes()
}

func TestKnownAnswers(t *testing.T) {
	v := VerifyReader(bytes.NewReader(knownLog()), VerifyOptions{})
	if v.Status != journal.StatusClean || v.Records != 3 || v.Head.Hash != known[2].hash {
		t.Fatalf("the published chain: %+v", v)
	}
}

func tempLog(t *testing.T) (*Log, *clock.Fake) {
	t.Helper()
	c := clock.NewFake(time.Date(2026, 8, 4, 9, 0, 0, 0, time.UTC))
	return Open(filepath.Join(t.TempDir(), ".approval", "log", "events.jsonl"), Options{Clock: c, Wait: 100 * time.Millisecond}), c
}

func granted(key string) Draft {
	return Draft{Event: ApprovalGranted, Actor: "human:ada", Task: "t", ActionKey: key, Payload: map[string]any{"class": "a.b"}}
}

func must(t *testing.T, l *Log, d Draft) Record {
	t.Helper()
	r, err := l.Append(context.Background(), nil, d)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAppendReadsBack(t *testing.T) {
	l, c := tempLog(t)
	first := must(t, l, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t"})
	c.Advance(time.Second)
	second := must(t, l, granted("k"))
	s, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Records) != 2 || s.Records[0].Hash != first.Hash || s.Head != second.Head() {
		t.Fatalf("read back %+v", s)
	}
	raw, err := os.ReadFile(l.Path())
	if err != nil {
		t.Fatal(err)
	}
	want := `"prev":"` + first.Hash + `","seq":2,"task":"t","ts":"2026-08-04T09:00:01.000Z"}` + "\n"
	if !strings.HasSuffix(string(raw), want) {
		t.Errorf("stored %s, want the end %s", raw, want)
	}
	for path, mode := range map[string]os.FileMode{l.Path(): 0o600, filepath.Dir(l.Path()): 0o700 | os.ModeDir} {
		if st, err := os.Stat(path); err != nil || st.Mode() != mode {
			t.Errorf("%s: mode %v, %v; want %v", path, st.Mode(), err, mode)
		}
	}
	if _, err := os.Lstat(l.Path() + ".lock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the lock file is still there: %v", err)
	}
}

func TestAppendCompares(t *testing.T) {
	l, _ := tempLog(t)
	ctx := context.Background()
	if _, err := l.Append(ctx, &journal.Head{Seq: 1, Hash: known[0].hash}, granted("k")); !errors.Is(err, ErrHeadMoved) {
		t.Fatalf("an empty log has a head: %v", err)
	}
	first, err := l.Append(ctx, &journal.Head{}, granted("k"))
	if err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(l.Path())
	for name, head := range map[string]journal.Head{
		"empty": {}, "other hash": {Seq: 1, Hash: known[0].hash}, "other seq": {Seq: 2, Hash: first.Hash},
	} {
		if _, err := l.Append(ctx, &head, granted("k")); Code(err) != CodeHeadMoved {
			t.Errorf("%s: %v, want head-moved", name, err)
		}
	}
	if after, _ := os.ReadFile(l.Path()); !bytes.Equal(before, after) {
		t.Error("a refused append changed the file")
	}
	head := first.Head()
	if r, err := l.Append(ctx, &head, granted("k2")); err != nil || r.Seq != 2 {
		t.Errorf("the right head: %v %v", r.Seq, err)
	}
}

func TestAppendRefusesDrafts(t *testing.T) {
	l, _ := tempLog(t)
	tests := []struct {
		name, code string
		draft      Draft
	}{
		{"unknown event", CodeValidation, Draft{Event: "approval.gone", Actor: "human:a", Task: "t", ActionKey: "k"}},
		{"actor kind", CodeValidation, Draft{Event: TaskRegistered, Actor: "robot:a", Task: "t"}},
		{"actor name", CodeValidation, Draft{Event: TaskRegistered, Actor: "agent:", Task: "t"}},
		{"agent grants", CodeValidation, Draft{Event: ApprovalGranted, Actor: "agent:a", Task: "t", ActionKey: "k"}},
		{"agent reconciles", CodeValidation, Draft{Event: ExecutionReconciled, Actor: "agent:a", Task: "t", ActionKey: "k", Payload: map[string]any{"resolution": "executed"}}},
		{"no task", CodeValidation, Draft{Event: TaskRegistered, Actor: "agent:a"}},
		{"no key", CodeValidation, Draft{Event: ExecutionStarted, Actor: "agent:a", Task: "t"}},
		{"no payload", CodeValidation, Draft{Event: ApprovalWithdrawn, Actor: "agent:a", Task: "t", ActionKey: "k"}},
		{"withdrawn reason", CodeValidation, Draft{Event: ApprovalWithdrawn, Actor: "agent:a", Task: "t", ActionKey: "k", Payload: map[string]any{"action_key": "k", "reason": "bored"}}},
		{"system withdraws", CodeValidation, Draft{Event: ApprovalWithdrawn, Actor: SystemGate, Task: "t", ActionKey: "k", Payload: map[string]any{"action_key": "k", "reason": "cancelled"}}},
		{"agent claims drift", CodeValidation, Draft{Event: ApprovalWithdrawn, Actor: "agent:a", Task: "t", ActionKey: "k", Payload: map[string]any{"action_key": "k", "reason": "policy-drift"}}},
		{"indeterminate reason", CodeValidation, Draft{Event: ExecutionIndeterminate, Actor: "agent:a", Task: "t", ActionKey: "k", Payload: map[string]any{"reason": "who knows"}}},
		{"indeterminate without", CodeValidation, Draft{Event: ExecutionIndeterminate, Actor: "agent:a", Task: "t", ActionKey: "k"}},
		{"resolution", CodeValidation, Draft{Event: ExecutionReconciled, Actor: "human:a", Task: "t", ActionKey: "k", Payload: map[string]any{"resolution": "maybe"}}},
		{"pruned hash", CodeValidation, Draft{Event: PayloadPruned, Actor: SystemGate, Payload: map[string]any{"payload_hash": "AB"}}},
		{"stage", CodeValidation, Draft{Event: BudgetExceeded, Actor: "agent:a", Task: "t", Payload: map[string]any{"stage": "later"}}},
		{"batch", CodeValidation, Draft{Event: ApprovalRejected, Actor: "human:a", Task: "t", ActionKey: "k", Payload: map[string]any{"batch_delivery_id": ""}}},
		{"cost", CodeValidation, Draft{Event: ApprovalRequested, Actor: "agent:a", Task: "t", ActionKey: "k", Payload: map[string]any{"est_cost_usd": "1.50"}}},
		{"payload array", CodeValidation, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t", Payload: []int{1}}},
		{"duplicate names", CodeCanonicalization, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t", Payload: jsontext.Value(`{"a":1,"a":2}`)}},
		{"nested duplicate names", CodeCanonicalization, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t", Payload: jsontext.Value(`{"x":[{"a":1,"a":2}]}`)}},
		{"lone surrogate", CodeCanonicalization, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t", Payload: jsontext.Value(`{"a":"\ud800"}`)}},
		{"invalid UTF-8", CodeCanonicalization, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t\xff"}},
		{"integer beyond 2^53", CodeCanonicalization, Draft{Event: TaskRegistered, Actor: "agent:a", Task: "t", Payload: jsontext.Value(`{"a":9007199254740993}`)}},
	}
	for _, test := range tests {
		_, err := l.Append(context.Background(), nil, test.draft)
		if Code(err) != test.code {
			t.Errorf("%s: %v, want %s", test.name, err, test.code)
		}
	}
	if _, err := os.Stat(l.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a refused draft made a log: %v", err)
	}
}

func TestAppendCorruptTail(t *testing.T) {
	whole := string(knownLog())
	for name, text := range map[string]string{
		"torn":          whole[:len(whole)-1],
		"blank line":    whole + "\n",
		"not JSON":      whole + "x\n",
		"no object":     whole + "[]\n",
		"bad seq":       whole + `{"seq":0,"hash":"` + known[0].hash + "\"}\n",
		"bad hash":      whole + `{"seq":4,"hash":"x"}` + "\n",
		"changed":       strings.Replace(whole, "Álvaro", "Alvaro", 1),
		"other actor":   strings.Replace(whole, "human:carter", "agent:carter", 1),
		"overlong line": whole + strings.Repeat("x", journal.MaxRecord+10) + "\n",
	} {
		l, _ := tempLog(t)
		write(t, l.Path(), text)
		if _, err := l.Append(context.Background(), nil, granted("k")); Code(err) != CodeCorruptTail {
			t.Errorf("%s: %v, want corrupt-tail", name, err)
		}
		if after, _ := os.ReadFile(l.Path()); string(after) != text {
			t.Errorf("%s: the file was changed", name)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestAppendLockTimesOut(t *testing.T) {
	l, _ := tempLog(t)
	must(t, l, granted("k"))
	lock := l.Path() + ".lock"
	write(t, lock, "")
	old := time.Now().Add(-48 * time.Hour)
	if err := os.Chtimes(lock, old, old); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(context.Background(), nil, granted("k2")); Code(err) != CodeLockTimeout {
		t.Errorf("with a stale lock: %v, want lock-timeout", err)
	}
	if _, err := os.Lstat(lock); err != nil {
		t.Errorf("the stale lock was broken: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := l.Append(ctx, nil, granted("k2")); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	must(t, l, granted("k2"))
}

func TestAppendRefusesLinks(t *testing.T) {
	for name, make := range map[string]func(target, path string) error{"symlink": os.Symlink, "hard link": os.Link} {
		l, _ := tempLog(t)
		target := filepath.Join(t.TempDir(), "other")
		write(t, target, string(knownLog()))
		if err := os.MkdirAll(filepath.Dir(l.Path()), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := make(target, l.Path()); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append(context.Background(), nil, granted("k")); Code(err) != CodeIO {
			t.Errorf("%s: %v, want io", name, err)
		}
	}
}

func TestAppendersShare(t *testing.T) {
	l, _ := tempLog(t)
	other := Open(l.Path(), Options{})
	l = Open(l.Path(), Options{})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			log := l
			if i%2 == 0 {
				log = other
			}
			if _, err := log.Append(context.Background(), nil, granted("k")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if v := Verify(l.Path(), VerifyOptions{}); v.Status != journal.StatusClean || v.Records != 20 {
		t.Errorf("after 20 appends: %+v", v)
	}
}
