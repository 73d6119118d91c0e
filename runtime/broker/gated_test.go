package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
	"gloved.dev/runtime/gate"
)

// policyText is an attestable policy with the classes given as YAML.
func policyText(classes string) string {
	return "# Policy\n\n```yaml approval-policy\nversion: \"0.1\"\n" + classes + "```\n"
}

const (
	autonomousPolicy = "classes:\n  files.write.workspace:\n    autonomy: autonomous\n    allow_irreversible: true\n  policy.edit:\n    autonomy: manual\n" +
		"  policy.edit.secret:\n    autonomy: human-only\nprotected_paths:\n  - path: secret/\n    class: policy.edit.secret\n"
	flooredPolicy = "classes:\n  files.write.workspace:\n    autonomy: autonomous\n"
)

// A gatedSite is a workspace under the real gate.
type gatedSite struct {
	*site
	real   *gate.Gate
	clock  *clock.Fake
	policy string
}

func newGatedSite(t *testing.T, classes string) *gatedSite {
	t.Helper()
	s := newSite(t)
	g := &gatedSite{site: s, clock: clock.NewFake(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)), policy: filepath.Join(s.root, "APPROVAL.md")}
	log := filepath.Join(s.root, ".approval", "log", "events.jsonl")
	g.real = gate.New(gate.Config{Log: log, Policy: g.policy, Clock: g.clock})
	g.attest(policyText(classes))
	b, err := New(Options{Instance: "test", Workspace: s.ws, Evidence: EvidenceDir(log), Gate: NewGate(g.real, "agent:codex-test")})
	if err != nil {
		t.Fatal(err)
	}
	s.b = b
	s.dir("docs")
	return g
}

func (g *gatedSite) attest(text string) {
	g.t.Helper()
	if err := os.WriteFile(g.policy, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
	if _, _, err := g.real.Attest(context.Background(), "human:ada"); err != nil { //nolint:usetesting // helpers run in cleanups too
		g.t.Fatal(err)
	}
}

func (g *gatedSite) proposal(ops ...op) []byte {
	g.t.Helper()
	text, err := os.ReadFile(g.policy)
	if err != nil {
		g.t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{"operations": ops, "expected_policy_sha256": digest.SHA256Hex(text)})
	if err != nil {
		g.t.Fatal(err)
	}
	return raw
}

func (g *gatedSite) apply(ops ...op) *Refusal {
	g.t.Helper()
	_, err := g.b.Apply(g.t.Context(), g.proposal(ops...))
	return g.refusal(err)
}

// events counts the records of each event and proves the log.
func (g *gatedSite) events() map[alog.Event]int {
	g.t.Helper()
	v, err := g.real.View()
	if err != nil {
		g.t.Fatal(err)
	}
	n := map[alog.Event]int{}
	for _, r := range v.Records {
		n[r.Event]++
		if strings.HasPrefix(string(r.Event), "execution.started") && r.Actor != "agent:codex-test" {
			g.t.Fatalf("record %d is by %s", r.Seq, r.Actor)
		}
	}
	return n
}

func (g *gatedSite) bytes() string {
	g.t.Helper()
	data, err := os.ReadFile(g.real.Log().Path())
	if err != nil {
		g.t.Fatal(err)
	}
	return string(data)
}

func TestReq014To016LogFirst(t *testing.T) {
	for name, c := range map[string]struct {
		detail string
		harm   func(path, text string) error
	}{
		"flipped":   {"log-corrupt", func(p, s string) error { return os.WriteFile(p, []byte(strings.Replace(s, "ada", "bob", 1)), 0o600) }},
		"torn":      {"log-torn-tail", func(p, s string) error { return os.WriteFile(p, []byte(strings.TrimSuffix(s, "\n")), 0o600) }},
		"directory": {"log-unreadable", func(p, s string) error { return firstError(os.Remove(p), os.Mkdir(p, 0o755)) }},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGatedSite(t, autonomousPolicy)
			if err := c.harm(g.real.Log().Path(), g.bytes()); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(g.policy, []byte("drifted"), 0o644); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(g.real.Log().Path())
			want(t, g.apply(create("docs/a", "x")), CodeLogUnavailable, c.detail)
			if after, _ := os.ReadFile(g.real.Log().Path()); string(after) != string(before) {
				t.Fatal("the log changed")
			}
		})
	}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func TestReq018To024Policy(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	good, err := os.ReadFile(g.policy)
	if err != nil {
		t.Fatal(err)
	}
	// 19: one byte more.
	if err := os.WriteFile(g.policy, append(good, ' '), 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, g.apply(create("docs/a", "x")), CodePolicyNotAttested, "hash-mismatch")
	// 24: an older attestation of the same bytes does not help.
	g.attest(policyText(flooredPolicy))
	if err := os.WriteFile(g.policy, good, 0o644); err != nil {
		t.Fatal(err)
	}
	want(t, g.apply(create("docs/a", "x")), CodePolicyNotAttested, "hash-mismatch")
	// 22 and 23: another expected digest, before any look at paths.
	g.attest(string(good))
	raw := strings.Replace(string(g.proposal(create("../x", "x"))), digest.SHA256Hex(good), strings.Repeat("b", 64), 1)
	_, err = g.b.Apply(t.Context(), []byte(raw))
	want(t, g.refusal(err), CodeAttestationDrift, "")
	old := g.proposal(create("docs/a", "x"))
	g.attest(policyText(autonomousPolicy + "# more\n"))
	_, err = g.b.Apply(t.Context(), old)
	want(t, g.refusal(err), CodeAttestationDrift, "")
	// 20 and 21: attested, but no policy.
	for _, text := range []string{string(good) + string(good), policyText(autonomousPolicy + "---\nversion: \"0.1\"\n"), "nothing"} {
		g.attest(text)
		want(t, g.apply(remove("secret/x", "x")), CodePolicyUnavailable, "")
	}
	// 18: never attested.
	fresh := newGatedSite(t, autonomousPolicy)
	if err := os.Remove(fresh.real.Log().Path()); err != nil {
		t.Fatal(err)
	}
	want(t, fresh.apply(create("docs/a", "x")), CodePolicyNotAttested, "not-attested")
}

func TestReq039HumanOnlyByRoutedPath(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	before := g.bytes()
	want(t, g.apply(remove("secret/none", "x")), CodePlanRefused, "class-human-only")
	if g.bytes() != before {
		t.Fatal("something was logged")
	}
}

func TestReq043And047And048Registration(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	g.dir("x/.approval")
	g.dir(".github/workflows")
	ops := []op{create("docs/a", "x"), create("x/.approval/y", "1"), create("AGENTS.md", "2"), create(".github/workflows/a.yml", "3")}
	r := g.apply(ops...)
	want(t, r, CodeApprovalRequired, "")
	v, err := g.real.View()
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Order) != 2 || len(r.Pending) != 1 || !strings.HasSuffix(r.Pending[0], ":policy.edit") {
		t.Fatalf("keys %v, pending %v", v.Order, r.Pending)
	}
	for _, key := range v.Order {
		a := v.Action(key)
		if a.Reversible == nil || *a.Reversible || a.PayloadHash == "" || !strings.HasPrefix(key, "codex-workspace:test:"+a.PayloadHash+":0:") {
			t.Errorf("%s is declared as %+v", key, a.Declaration)
		}
	}
	payload, err := os.ReadFile(filepath.Join(g.real.Payloads().Dir, v.Action(r.Pending[0]).PayloadHash+".json"))
	if err != nil || digest.SHA256Hex(payload) != v.Action(r.Pending[0]).PayloadHash {
		t.Fatalf("the stored payload: %v", err)
	}
}

func TestReq056And060GrantedAppliesOnce(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	ops := []op{create("AGENTS.md", "x"), create("docs/a", "y")}
	r := g.apply(ops...)
	want(t, r, CodeApprovalRequired, "")
	want(t, g.apply(ops...), CodeApprovalRequired, "")
	if n := g.events(); n[alog.TaskRegistered] != 1 || n[alog.ApprovalRequested] != 1 || n[alog.ExecutionStarted] != 0 {
		t.Fatalf("%v", n)
	}
	out, err := g.real.Grant(t.Context(), gate.Decision{Actor: "human:ada", Key: r.Pending[0]})
	if err != nil || out.Token != "" {
		t.Fatalf("%+v %v", out, err)
	}
	applied(t, g.apply(ops...))
	if n := g.events(); n[alog.ExecutionStarted] != 2 || n[alog.ExecutionCompleted] != 2 || n[alog.ApprovalGranted] != 1 {
		t.Fatalf("%v", n)
	}
	if strings.Contains(g.bytes(), "token_sha256") {
		t.Fatal("a token was minted")
	}
}

func TestReq058DecidedAgainst(t *testing.T) {
	for name, decide := range map[string]func(g *gatedSite, key string) error{
		"rejected": func(g *gatedSite, key string) error {
			_, err := g.real.Reject(g.t.Context(), gate.Decision{Actor: "human:ada", Key: key})
			return err
		},
		"revoked": func(g *gatedSite, key string) error {
			_, err := g.real.Grant(g.t.Context(), gate.Decision{Actor: "human:ada", Key: key})
			if err == nil {
				_, err = g.real.Revoke(g.t.Context(), gate.Decision{Actor: "human:ada", Key: key})
			}
			return err
		},
		"expired": func(g *gatedSite, key string) error {
			_, err := g.real.Grant(g.t.Context(), gate.Decision{Actor: "human:ada", Key: key})
			g.clock.Advance(25 * time.Hour)
			return err
		},
		"withdrawn": func(g *gatedSite, key string) error {
			_, err := g.real.Withdraw(g.t.Context(), "agent:codex-test", key, "", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGatedSite(t, autonomousPolicy)
			r := g.apply(create("AGENTS.md", "x"))
			want(t, r, CodeApprovalRequired, "")
			if err := decide(g, r.Pending[0]); err != nil {
				t.Fatal(err)
			}
			r = g.apply(create("AGENTS.md", "x"))
			switch name {
			case "rejected", "revoked":
				want(t, r, CodeRequestRefused, name)
			default:
				want(t, r, CodeApprovalRequired, "")
			}
			if _, ok := g.content("AGENTS.md"); ok || g.events()[alog.ExecutionStarted] != 0 {
				t.Fatal("it was applied")
			}
		})
	}
}

func TestReq061And062Floor(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	applied(t, g.apply(create("docs/a", "x")))
	for event := range g.events() {
		if strings.HasPrefix(string(event), "approval.") {
			t.Errorf("an autonomous change has %s", event)
		}
	}
	want(t, newGatedSite(t, flooredPolicy).apply(create("docs/a", "x")), CodeApprovalRequired, "")
}

func TestReq063Budget(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy+"budgets:\n  all:\n    daily_actions: 1\n")
	applied(t, g.apply(create("docs/a", "x")))
	want(t, g.apply(create("docs/b", "x")), CodeStartRefused, "budget-exceeded")
	if _, ok := g.content("docs/b"); ok || g.events()["budget.exceeded"] != 1 {
		t.Fatal("the budget did not hold")
	}
}

func TestReq070PolicyChangesBeforeStart(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	input := g.proposal(create("docs/a", "x"))
	g.at(StepAuthorised, 1, func() error { g.attest(policyText(autonomousPolicy + "# other\n")); return nil })
	_, err := g.b.Apply(t.Context(), input)
	want(t, g.refusal(err), CodeStartRefused, "")
	if _, ok := g.content("docs/a"); ok {
		t.Fatal("it was applied")
	}
}

// TestTaskDeclaredByAnother: a task id that somebody took first, with a way back declared, is not
// used.
func TestTaskDeclaredByAnother(t *testing.T) {
	g := newGatedSite(t, flooredPolicy)
	p, err := g.b.Plan(t.Context(), g.proposal(create("docs/a", "x")))
	if err != nil {
		t.Fatal(err)
	}
	task := Task{Instance: "test", PayloadHash: p.PayloadHash, Classes: p.Classes}
	yes := true
	e := gate.Envelope{Origin: gate.Origin{App: "x", CreatedBy: "agent:codex-test"}, State: "proposed"}
	for _, leg := range task.Legs() {
		e.Actions = append(e.Actions, gate.Declaration{Class: leg.Class, Key: leg.Key, Reversible: &yes, PayloadHash: leg.PayloadHash})
	}
	if _, err := g.real.Register(t.Context(), gate.Registration{Actor: "agent:codex-test", Task: task.ID(), Envelope: e}); err != nil {
		t.Fatal(err)
	}
	want(t, g.apply(create("docs/a", "x")), CodeRegisterRefused, "declared-otherwise")
}

func TestReq099To101Reconcile(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	g.file("docs/a", "old a")
	g.file("docs/b", "old b")
	ops := []op{replace("docs/a", "old a", "new a"), replace("docs/b", "old b", "new b")}
	g.at(StepMoved, 1, func() error {
		return firstError(os.Remove(filepath.Join(g.ws, TransactionDir, stagedNew(0))), fmt.Errorf("injected"))
	})
	want(t, g.apply(ops...), CodeCommitUnknown, "workspace-commit-unknown")
	g.b.step = func(Step) error { return nil }
	v, err := g.real.View()
	if err != nil {
		t.Fatal(err)
	}
	key := v.Order[0]
	a := v.Action(key)
	var said struct {
		Reason string `json:"reason"`
	}
	if !a.Indeterminate() || a.Ended.Decode(&said) != nil || said.Reason != "workspace-commit-unknown" {
		t.Fatalf("%+v %+v", a.Ended, said)
	}
	for _, c := range []struct{ actor, note, code string }{
		{"agent:codex-test", "n", gate.CodeActorNotHuman}, {"human:ada", "", gate.CodeNoteRequired},
		{"human:ada", "looked", ""}, {"human:ada", "looked", gate.CodeAlreadyReconciled},
	} {
		_, err := g.real.Reconcile(t.Context(), gate.Decision{Actor: c.actor, Key: key, Note: c.note}, alog.ReconciledExecuted)
		if gate.Code(err) != c.code {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if err := g.b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(g.left()) != 0 {
		t.Fatalf("left %v", g.left())
	}
	// Its key is spent for ever, and the payload has no further attempt.
	started := g.events()[alog.ExecutionStarted]
	reading, err := g.b.opt.Gate.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h, err := reading.History(Task{Instance: "test", PayloadHash: a.PayloadHash, Classes: []string{a.Class}})
	if err != nil || h.Spent != SpentIndeterminate {
		t.Fatalf("%+v %v", h, err)
	}
	if _, err := g.real.Start(t.Context(), gate.Start{Actor: "agent:codex-test", Key: key, PayloadHash: a.PayloadHash, Execution: gate.ExecBroker}); err == nil {
		t.Fatal("the key started again")
	}
	r := g.apply(ops...)
	if r == nil || g.events()[alog.ExecutionStarted] != started {
		t.Fatalf("started again: %v", r)
	}
}

func TestLogLockedIsExit4(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	if err := os.WriteFile(g.real.Log().Path()+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := g.apply(create("docs/a", "x"))
	want(t, r, CodeRegisterRefused, alog.CodeLockTimeout)
	if gate.ExitCode(r.Err) != gate.ExitIO {
		t.Fatalf("exit %d", gate.ExitCode(r.Err))
	}
}

// TestReq091SettledThroughTheRealGate: a broker that stops after the moves, before it told the log,
// leaves what the next apply settles from reading back; one that stops before the journal leaves a
// lock that names legs without an outcome, and nothing moved.
func TestReq091SettledThroughTheRealGate(t *testing.T) {
	g := newGatedSite(t, autonomousPolicy)
	stop := fmt.Errorf("stopped")
	g.at(StepReadBack, 1, func() error { return stop })
	if r := g.apply(create("docs/a", "x")); r == nil || len(g.left()) != 2 {
		t.Fatalf("%v, left %v", r, g.left())
	}
	if n := g.events(); n[alog.ExecutionStarted] != 1 || n[alog.ExecutionCompleted] != 0 {
		t.Fatalf("%v", n)
	}
	g.b.step = func(Step) error { return nil }
	applied(t, g.apply(create("docs/b", "x")))
	if n := g.events(); n[alog.ExecutionCompleted] != 2 || n[alog.ExecutionFailed] != 0 || len(g.left()) != 0 {
		t.Fatalf("%v, left %v", n, g.left())
	}
	// A lock whose holder is gone, and no journal.
	tree, err := openTree(g.ws)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.close()
	rec := lockRecord{Schema: lockSchema, Instance: "test"}
	g.at(StepStarted, 1, func() error {
		v, err := g.real.View()
		if err != nil {
			return err
		}
		key := v.Order[len(v.Order)-1]
		a := v.Action(key)
		rec.Task, rec.PayloadHash = a.Task, a.PayloadHash
		rec.Legs = []Leg{{Task: a.Task, Key: key, Class: a.Class, PayloadHash: a.PayloadHash}}
		l, err := takeLock(tree, rec)
		if err != nil {
			return err
		}
		l.keep()
		return nil
	})
	want(t, g.apply(create("docs/c", "x")), CodeCustodyContended, "")
	if n := g.events(); n[alog.ExecutionFailed] != 1 {
		t.Fatalf("%v", n)
	}
	g.b.step = func(Step) error { return nil }
	if err := g.b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	applied(t, g.apply(create("docs/c", "x"))) // the second attempt at the very same change
	if len(g.left()) != 0 {
		t.Fatalf("left %v", g.left())
	}
}
