package gate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
	alog "gloved.dev/journal/approval"
)

// A site is a gate over a fresh log and policy, with a clock that stands still.
type site struct {
	*testing.T
	*Gate
	clock *clock.Fake
	dir   string
}

const agent, ada = "agent:a", "human:ada"

// newSite makes a gate whose policy block is body, attested unless it is empty.
func newSite(t *testing.T, body string) *site {
	t.Helper()
	dir := t.TempDir()
	c := clock.NewFake(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC))
	s := &site{T: t, clock: c, dir: dir, Gate: New(Config{Log: filepath.Join(dir, ".approval", "log", "events.jsonl"), Dir: dir, Clock: c})}
	if body != "" {
		s.policy(body)
		s.attest()
	}
	return s
}

func (s *site) policy(body string) {
	s.Helper()
	text := "```yaml approval-policy\nversion: \"0.1\"\n" + body + "\n```\n"
	if err := os.WriteFile(filepath.Join(s.dir, "APPROVAL.md"), []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *site) attest() {
	s.Helper()
	if _, _, err := s.Attest(context.Background(), ada); err != nil {
		s.Fatal(err)
	}
}

var payload = []byte(`{"do":"it"}`)

// declare registers one action of class under task; its key is task:class.
func (s *site) declare(task, class string, change ...func(*Declaration)) string {
	s.Helper()
	_, hash, err := SealPayload(map[string]string{"do": "it"})
	if err != nil {
		s.Fatal(err)
	}
	no := false
	d := Declaration{Class: class, Key: task + ":" + class, Reversible: &no, PayloadHash: hash}
	for _, f := range change {
		f(&d)
	}
	_, err = s.Register(context.Background(), Registration{Actor: agent, Task: task, Envelope: Envelope{
		Origin: Origin{App: "test", CreatedBy: agent}, State: "proposed", Actions: []Declaration{d}}})
	if err != nil {
		s.Fatal(err)
	}
	return d.Key
}

func reversible(d *Declaration) { yes := true; d.Reversible = &yes }

func costs(usd string) func(*Declaration) {
	m, err := ParseMicros(usd)
	if err != nil {
		panic(err)
	}
	return func(d *Declaration) { d.Cost = &m }
}

func (s *site) hash(key string) string {
	s.Helper()
	v, err := s.View()
	if err != nil {
		s.Fatal(err)
	}
	return v.Action(key).PayloadHash
}

func (s *site) ask(key, execution string) error {
	_, err := s.Request(context.Background(), Question{Actor: agent, Key: key, Payload: payload, Execution: execution})
	return err
}

func (s *site) grant(key string) (string, error) {
	out, err := s.Grant(context.Background(), Decision{Actor: ada, Key: key})
	return out.Token, err
}

func (s *site) start(key, token, execution string) error {
	s.Helper()
	_, err := s.Start(context.Background(), Start{Actor: agent, Key: key, Token: token, PayloadHash: s.hash(key), Execution: execution})
	return err
}

func (s *site) finish(key string, code int) error {
	_, err := s.Finish(context.Background(), Finish{Actor: agent, Key: key, ExitCode: code})
	return err
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// refuses checks a refusal's code, and that the log still verifies.
func (s *site) refuses(err error, code string) {
	s.Helper()
	if Code(err) != code {
		s.Errorf("%v, want %s", err, code)
	}
	if v := alog.Verify(s.Log().Path(), alog.VerifyOptions{}); v.Status != journal.StatusClean {
		s.Errorf("the log is %+v", v)
	}
}

// events lists the log's events from seq on.
func (s *site) events(from uint64) []string {
	s.Helper()
	v, err := s.View()
	if err != nil {
		s.Fatal(err)
	}
	var out []string
	for _, r := range v.Records {
		if r.Seq >= from {
			out = append(out, string(r.Event))
		}
	}
	return out
}

func (s *site) wantEvents(from uint64, want ...string) {
	s.Helper()
	if diff := cmp.Diff(want, s.events(from)); diff != "" {
		s.Errorf("events (-want +got):\n%s", diff)
	}
}

const manual = "defaults: {autonomy: manual}"

func TestCodesAreFrozen(t *testing.T) {
	want := "policy-not-attested policy-drift envelope-invalid task-already-registered action-not-registered duplicate-request " +
		"already-executed budget-exceeded queue-full rate-limited payload-hash-required payload-mismatch payload-store-failed " +
		"class-human-only loop-escalated not-requested already-decided not-granted grant-classless-request request-withdrawn " +
		"not-requester expired not-expired actor-invalid actor-not-human actor-not-approver delivery-unsupported token-required token-mismatch " +
		"token-consumed token-expired token-revoked harness-executed not-started already-finished execution-delegated " +
		"execution-indeterminate not-indeterminate already-reconciled note-required reason-invalid log-unreadable log-torn-tail " +
		"log-corrupt append-failed"
	if got := strings.Join(Codes(), " "); got != want {
		t.Errorf("codes are\n%s\nwant\n%s", got, want)
	}
}

func TestTokenWay(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	s.refuses(s.start(key, "", ""), CodeNotGranted)
	s.must(s.ask(key, ""))
	s.refuses(s.ask(key, ""), CodeDuplicateRequest)
	s.refuses(s.start(key, strings.Repeat("0", 64), ""), CodeNotGranted)
	token, err := s.grant(key)
	s.must(err)
	if len(token) != 64 {
		t.Fatalf("token %q", token)
	}
	raw, _ := os.ReadFile(s.Log().Path())
	if strings.Contains(string(raw), token) {
		t.Error("the log has the token")
	}
	_, err = s.grant(key)
	s.refuses(err, CodeAlreadyDecided)
	s.refuses(s.ask(key, ""), CodeDuplicateRequest)
	s.refuses(s.start(key, "", ""), CodeTokenRequired)
	s.refuses(s.start(key, "", ExecBroker), CodeTokenRequired)
	s.refuses(s.start(key, strings.Repeat("0", 64), ""), CodeTokenMismatch)
	_, err = s.Start(context.Background(), Start{Actor: agent, Key: key, Token: token, PayloadHash: strings.Repeat("0", 64)})
	s.refuses(err, CodePayloadMismatch)
	s.must(s.start(key, token, ""))
	s.refuses(s.start(key, token, ""), CodeTokenConsumed)
	_, err = s.Revoke(context.Background(), Decision{Actor: ada, Key: key})
	s.refuses(err, CodeAlreadyExecuted)
	s.must(s.finish(key, 0))
	s.refuses(s.finish(key, 0), CodeAlreadyFinished)
	s.refuses(s.ask(key, ""), CodeAlreadyExecuted)
	s.wantEvents(2, "task.registered", "approval.requested", "approval.granted", "execution.started", "execution.completed")
}

// TestReq068ForeignTokens: a token is good for the action whose grant printed it alone.
func TestReq068ForeignTokens(t *testing.T) {
	s := newSite(t, manual)
	one, two := s.declare("t1", "a.b"), s.declare("t2", "a.b")
	s.must(s.ask(one, ""))
	s.must(s.ask(two, ""))
	token, err := s.grant(one)
	s.must(err)
	_, err = s.grant(two)
	s.must(err)
	before := s.events(1)
	s.refuses(s.start(two, token, ""), CodeTokenMismatch)
	s.refuses(s.start(two, strings.Repeat("ab", 32), ""), CodeTokenMismatch)
	if !slices.Equal(before, s.events(1)) {
		t.Error("a refused token wrote to the log")
	}
	s.must(s.start(one, token, ""))
}

// TestReq056BrokerGrant: a broker's grant mints no token, is used once, and only for what was asked.
func TestReq056BrokerGrant(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ExecBroker))
	token, err := s.grant(key)
	s.must(err)
	if token != "" {
		t.Fatalf("a broker's grant minted the token %q", token)
	}
	s.refuses(s.start(key, "", ""), CodeTokenRequired)
	s.refuses(s.start(key, strings.Repeat("0", 64), ""), CodeTokenRequired)
	_, err = s.Start(context.Background(), Start{Actor: agent, Key: key, PayloadHash: strings.Repeat("0", 64), Execution: ExecBroker})
	s.refuses(err, CodePayloadMismatch)
	s.must(s.start(key, "", ExecBroker))
	s.refuses(s.start(key, "", ExecBroker), CodeAlreadyExecuted)
	v, _ := s.View()
	a := v.Action(key)
	var p startPayload
	s.must(a.Started.Decode(&p))
	if p.Execution != ExecBroker || p.GrantSeq != a.Granted.Seq || p.TokenSHA256 != "" || p.PayloadHash != a.PayloadHash {
		t.Errorf("the start says %+v of grant %d", p, a.Granted.Seq)
	}
	// Of the whole log, no text hashes to a token digest: none exists.
	for _, r := range v.Records {
		if strings.Contains(string(r.Payload), "token") {
			t.Errorf("record %d speaks of a token: %s", r.Seq, r.Payload)
		}
	}
}

// TestReq058Unusable: rejected, expired, revoked and withdrawn questions never start, and can be
// asked again.
func TestReq058Unusable(t *testing.T) {
	for _, execution := range []string{"", ExecBroker} {
		for name, test := range map[string]struct {
			act  func(s *site, key string) error
			code string
		}{
			"rejected": {func(s *site, key string) error {
				_, err := s.Reject(context.Background(), Decision{Actor: ada, Key: key})
				return err
			}, CodeNotGranted},
			"expired": {func(s *site, key string) error {
				s.clock.Advance(time.Hour + time.Millisecond)
				_, err := s.Expire(context.Background(), key)
				return err
			}, CodeTokenExpired},
			"expired, unrecorded": {func(s *site, key string) error {
				s.clock.Advance(time.Hour + time.Millisecond)
				return nil
			}, CodeTokenExpired},
			"revoked": {func(s *site, key string) error {
				if _, err := s.grant(key); err != nil {
					return err
				}
				_, err := s.Revoke(context.Background(), Decision{Actor: ada, Key: key})
				return err
			}, CodeTokenRevoked},
			"withdrawn": {func(s *site, key string) error {
				_, err := s.Withdraw(context.Background(), agent, key, "", "")
				return err
			}, CodeNotGranted},
			"grant too old": {func(s *site, key string) error {
				if _, err := s.grant(key); err != nil {
					return err
				}
				s.clock.Advance(time.Hour + time.Millisecond)
				return nil
			}, CodeTokenExpired},
		} {
			t.Run(name+execution, func(t *testing.T) {
				s := newSite(t, "defaults: {autonomy: manual, approval_ttl: 1h}")
				key := s.declare("t", "a.b")
				s.must(s.ask(key, execution))
				s.must(test.act(s, key))
				s.refuses(s.start(key, strings.Repeat("0", 64), execution), test.code)
				if slices.Contains(s.events(1), "execution.started") {
					t.Error("it started")
				}
				s.must(s.ask(key, execution))
			})
		}
	}
}

func TestTTLBound(t *testing.T) {
	s := newSite(t, "defaults: {autonomy: manual, approval_ttl: 1h}")
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ""))
	s.clock.Advance(time.Hour) // exactly at the bound it is alive
	_, err := s.Expire(context.Background(), key)
	s.refuses(err, CodeNotExpired)
	token, err := s.grant(key)
	s.must(err)
	s.clock.Advance(time.Hour)
	s.must(s.start(key, token, ""))
}

func TestLapsedQuestionIsRecordedByWhoMeetsIt(t *testing.T) {
	for name, act := range map[string]func(s *site, key string) error{
		"grant": func(s *site, key string) error { _, err := s.grant(key); return err },
		"reject": func(s *site, key string) error {
			_, err := s.Reject(context.Background(), Decision{Actor: ada, Key: key})
			return err
		},
		"revoke": func(s *site, key string) error {
			_, err := s.Revoke(context.Background(), Decision{Actor: ada, Key: key})
			return err
		},
		"withdraw": func(s *site, key string) error {
			_, err := s.Withdraw(context.Background(), agent, key, "", "")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, "defaults: {autonomy: manual, approval_ttl: 1h, on_expiry: reject}")
			key := s.declare("t", "a.b")
			s.must(s.ask(key, ""))
			s.clock.Advance(time.Hour + time.Millisecond)
			s.refuses(act(s, key), CodeExpired)
			s.wantEvents(4, "approval.expired")
			v, _ := s.View()
			last := v.Records[len(v.Records)-1]
			if want := `{"class":"a.b","on_expiry":"reject","requested_ts":"2026-09-01T12:00:00.000Z","ttl_ms":3600000}`; string(last.Payload) != want || last.Actor != alog.SystemGate {
				t.Errorf("%s says %s", last.Actor, last.Payload)
			}
			s.refuses(act(s, key), CodeExpired)
			s.wantEvents(5)
		})
	}
}

// A broker's grant lapses after 24 hours even under a policy without a TTL, and under a longer one.
func TestBrokerCeiling(t *testing.T) {
	for _, body := range []string{manual, "defaults: {autonomy: manual, approval_ttl: 4w}"} {
		for _, over := range []time.Duration{0, time.Millisecond} {
			s := newSite(t, body)
			key, plain := s.declare("t", "a.b"), s.declare("p", "a.b")
			s.must(s.ask(key, ExecBroker))
			s.must(s.ask(plain, ""))
			_, err := s.grant(key)
			s.must(err)
			token, err := s.grant(plain)
			s.must(err)
			s.clock.Advance(BrokerTTL + over)
			if over == 0 {
				s.must(s.start(key, "", ExecBroker))
			} else {
				s.refuses(s.start(key, "", ExecBroker), CodeTokenExpired)
			}
			s.must(s.start(plain, token, ""))
		}
	}
}

func TestActors(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	ctx := context.Background()
	for _, actor := range []string{"", "a", "system:gate", "robot:a", "agent:", "human:\nada"} {
		_, err := s.Request(ctx, Question{Actor: actor, Key: key, Payload: payload})
		s.refuses(err, CodeActorInvalid)
		_, err = s.Start(ctx, Start{Actor: actor, Key: key})
		s.refuses(err, CodeActorInvalid)
		_, err = s.Register(ctx, Registration{Actor: actor, Task: "x"})
		s.refuses(err, CodeActorInvalid)
	}
	s.must(s.ask(key, ""))
	for _, actor := range []string{"", agent, "system:gate", "ada", "human:"} {
		for _, decide := range []func(context.Context, Decision) (Decided, error){s.Grant, s.Reject, s.Revoke} {
			_, err := decide(ctx, Decision{Actor: actor, Key: key})
			s.refuses(err, CodeActorNotHuman)
		}
		_, _, err := s.Attest(ctx, actor)
		s.refuses(err, CodeActorNotHuman)
	}
	_, err := s.Withdraw(ctx, "agent:other", key, "", "")
	s.refuses(err, CodeNotRequester)
	_, err = s.Withdraw(ctx, agent, key, alog.WithdrawnPolicyDrift, "")
	s.refuses(err, CodeReasonInvalid)
}

func TestApproversAreEnforced(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: manual, approvers: [ada]}}")
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ""))
	_, err := s.Grant(context.Background(), Decision{Actor: "human:eve", Key: key})
	s.refuses(err, CodeActorNotApprover)
	_, err = s.grant(key)
	s.must(err)
}

func TestHumanOnly(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: human-only}}")
	key := s.declare("t", "a.b")
	s.refuses(s.ask(key, ""), CodeClassHumanOnly)
	s.refuses(s.start(key, strings.Repeat("0", 64), ""), CodeClassHumanOnly)
	s.wantEvents(3)
}

// TestReq061Autonomous: what the policy lets pass leaves no approval record, and is started once.
func TestReq061Autonomous(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	key := s.declare("t", "a.b")
	answer, err := s.Request(context.Background(), Question{Actor: agent, Key: key, Payload: payload})
	s.must(err)
	if !answer.Proceed {
		t.Fatal("it asked a person")
	}
	_, err = s.Start(context.Background(), Start{Actor: agent, Key: key, PayloadHash: strings.Repeat("0", 64)})
	s.refuses(err, CodePayloadMismatch)
	s.must(s.start(key, "", ""))
	s.refuses(s.start(key, "", ""), CodeAlreadyExecuted)
	s.must(s.finish(key, 0))
	s.refuses(s.start(key, "", ""), CodeAlreadyExecuted)
	s.wantEvents(2, "task.registered", "execution.started", "execution.completed")
}

// TestSupervisedLive: no draw can be made here, so every action is asked, and granted as a manual one.
func TestSupervisedLive(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: supervised-live, live_rate: 0.01}}")
	key := s.declare("t", "a.b", reversible)
	s.refuses(s.start(key, "", ""), CodeNotGranted)
	s.must(s.ask(key, ""))
	token, err := s.grant(key)
	s.must(err)
	s.must(s.start(key, token, ""))
}

// TestReq062Floor: an autonomous rule without allow_irreversible still asks when nothing can be
// taken back.
func TestReq062Floor(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous}}")
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ""))
	s.wantEvents(3, "approval.requested")
	easy := s.declare("u", "a.b", reversible)
	s.must(s.start(easy, "", ""))
}

// TestReq063Budgets: an exhausted budget is recorded and refuses.
func TestReq063Budgets(t *testing.T) {
	const open = "autonomy: autonomous, allow_irreversible: true"
	for _, test := range []struct{ name, body, verdict string }{
		{"class actions", "classes: {a.b: {" + open + ", limits: {daily_actions: 1}}}", "daily_actions"},
		{"class usd", "classes: {a.*: {" + open + ", limits: {daily_usd: 0.5}}}", "daily_usd"},
		{"per action", "classes: {a.b: {" + open + ", limits: {per_action_usd: 0.2}}}", "per_action_usd"},
		{"global actions", "classes: {a.b: {" + open + "}}\nbudgets: {global: {daily_actions: 1}}", "global.daily_actions"},
		{"other scope", "classes: {a.b: {" + open + "}}\nbudgets: {team: {daily_usd: 0.5}}", "team.daily_usd"},
		{"unknown limit", "classes: {a.b: {" + open + ", limits: {moons: 9}}}", "moons"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t, test.body)
			first, second := s.declare("t1", "a.b", costs("0.3")), s.declare("t2", "a.b", costs("0.3"))
			err := s.start(first, "", "")
			if err == nil {
				s.must(s.finish(first, 1)) // what failed was spent all the same
				err = s.start(second, "", "")
			}
			s.refuses(err, CodeBudgetExceeded)
			var e *Error
			if !errors.As(err, &e) || !slices.ContainsFunc(e.Verdicts, func(v Verdict) bool { return v.Limit == test.verdict && !v.Pass }) {
				t.Fatalf("verdicts %+v", e.Verdicts)
			}
			events := s.events(1)
			if events[len(events)-1] != "budget.exceeded" {
				t.Errorf("events %v", events)
			}
			if test.name == "per action" || test.name == "unknown limit" {
				return
			}
			s.clock.Advance(24*time.Hour - time.Millisecond)
			s.refuses(s.start(second, "", ""), CodeBudgetExceeded)
			s.clock.Advance(time.Millisecond) // now the first lies outside the window
			s.must(s.start(second, "", ""))
		})
	}
}

func TestBudgetCountsAGrantOnce(t *testing.T) {
	s := newSite(t, manual+"\nbudgets: {global: {daily_actions: 2}}")
	one, two, three := s.declare("t1", "a.b"), s.declare("t2", "a.b"), s.declare("t3", "a.b")
	for _, key := range []string{one, two, three} {
		s.must(s.ask(key, ""))
	}
	token, err := s.grant(one)
	s.must(err)
	s.must(s.start(one, token, "")) // paid for by its grant
	_, err = s.grant(two)
	s.must(err)
	_, err = s.grant(three)
	s.refuses(err, CodeBudgetExceeded)
}

func TestTaskCap(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	limit, _ := ParseMicros("0.5")
	cost, _ := ParseMicros("0.3")
	_, hash, _ := SealPayload(map[string]string{"do": "it"})
	_, err := s.Register(context.Background(), Registration{Actor: agent, Task: "t", Envelope: Envelope{
		Origin: Origin{App: "x", CreatedBy: agent}, State: "proposed", Budget: &TaskBudget{MaxCostUSD: &limit},
		Actions: []Declaration{{Class: "a.b", Key: "k1", Cost: &cost, PayloadHash: hash}, {Class: "a.b", Key: "k2", Cost: &cost, PayloadHash: hash}}}})
	s.must(err)
	s.must(s.start("k1", "", ""))
	s.clock.Advance(30 * 24 * time.Hour) // a task's cap is for its life
	s.refuses(s.start("k2", "", ""), CodeBudgetExceeded)
}

func TestQueueBounds(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: manual, limits: {max_pending: 1}}, c.d: {autonomy: manual, limits: {requests_per_hour: 1}}}\nbudgets: {global: {max_pending: 2}}")
	keys := []string{s.declare("1", "a.b"), s.declare("2", "a.b"), s.declare("3", "c.d"), s.declare("4", "c.d"), s.declare("5", "e.f")}
	s.must(s.ask(keys[0], ""))
	s.refuses(s.ask(keys[1], ""), CodeQueueFull)
	s.must(s.ask(keys[2], ""))
	s.refuses(s.ask(keys[3], ""), CodeRateLimited)
	s.refuses(s.ask(keys[4], ""), CodeQueueFull)
	_, err := s.Reject(context.Background(), Decision{Actor: ada, Key: keys[2]})
	s.must(err)
	s.refuses(s.ask(keys[3], ""), CodeRateLimited)
	s.clock.Advance(time.Hour)
	s.must(s.ask(keys[3], ""))
}

// TestReq064Loop: three failures in a row send a task's free actions to a person; a completion
// clears the count.
func TestReq064Loop(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous, allow_irreversible: true}, m.m: {autonomy: manual}}")
	_, hash, _ := SealPayload(map[string]string{"do": "it"})
	var actions []Declaration
	for i := range 8 {
		actions = append(actions, Declaration{Class: "a.b", Key: fmt.Sprint("k", i), PayloadHash: hash})
	}
	actions = append(actions, Declaration{Class: "m.m", Key: "m", PayloadHash: hash})
	_, err := s.Register(context.Background(), Registration{Actor: agent, Task: "t", Envelope: Envelope{
		Origin: Origin{App: "x", CreatedBy: agent}, State: "proposed", Actions: actions}})
	s.must(err)
	run := func(key string, code int) {
		t.Helper()
		s.must(s.start(key, "", ""))
		s.must(s.finish(key, code))
	}
	run("k0", 1)
	run("k1", 1)
	run("k2", 0)
	run("k3", 1)
	run("k4", 1)
	run("k5", 1)
	s.refuses(s.start("k6", "", ""), CodeLoopEscalated)
	s.refuses(s.ask("k6", ""), CodeLoopEscalated)
	s.must(s.ask("m", "")) // people can still let things pass
	token, err := s.grant("m")
	s.must(err)
	s.must(s.start("m", token, ""))
	s.must(s.finish("m", 0))
	run("k6", 0)
}

// TestReq018And019And024Attestation: only the bytes that people attested last decide.
func TestReq018And019And024Attestation(t *testing.T) {
	s := newSite(t, "")
	s.policy("classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	path := filepath.Join(s.dir, "APPROVAL.md")
	original, _ := os.ReadFile(path)
	key := s.declare("t", "a.b")
	detail := func(err error, want string) {
		t.Helper()
		s.refuses(err, CodePolicyNotAttested)
		var e *Error
		if errors.As(err, &e); e != nil && e.Detail != want {
			t.Errorf("detail %s, want %s", e.Detail, want)
		}
	}
	detail(s.ask(key, ""), NotAttested)
	detail(s.start(key, "", ""), NotAttested)
	s.attest()
	s.must(s.ask(key, ""))
	write := func(data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(append(slices.Clone(original), ' '))
	detail(s.ask(key, ""), AttestationMismatch)
	detail(s.start(key, "", ""), AttestationMismatch)
	s.attest()
	write(original) // attested before, but not last
	detail(s.start(key, "", ""), AttestationMismatch)
	s.must(os.Remove(path))
	detail(s.ask(key, ""), AttestationNoFile)
	write(original)
	forged, err := s.Log().Append(context.Background(), nil, alog.Draft{Event: alog.PolicyUpdated, Actor: agent,
		Payload: attestPayload{PolicyPath: "APPROVAL.md", SHA256: s.Document().SHA256}})
	s.must(err)
	detail(s.ask(key, ""), AttestationMismatch)
	if v, _ := s.View(); v.Attests.Seq >= forged.Seq {
		t.Error("an agent attested the policy")
	}
	write(original)
	s.attest()
	s.must(s.start(key, "", ""))
}

// TestReq070PolicyDrift: a question and a grant are bound to the policy they were put under.
func TestReq070PolicyDrift(t *testing.T) {
	s := newSite(t, manual)
	pending, plain, broker := s.declare("1", "a.b"), s.declare("2", "a.b"), s.declare("3", "a.b")
	s.must(s.ask(pending, ""))
	s.must(s.ask(plain, ""))
	s.must(s.ask(broker, ExecBroker))
	token, err := s.grant(plain)
	s.must(err)
	_, err = s.grant(broker)
	s.must(err)
	v, _ := s.View()
	old, _ := v.Attested()
	s.policy(manual + "\naudit: {supervised_sample_rate: 0.5}")
	s.attest()
	s.refuses(s.start(plain, token, ""), CodePolicyDrift)
	s.refuses(s.start(broker, "", ExecBroker), CodePolicyDrift)
	from := uint64(len(s.events(1)) + 1)
	_, err = s.grant(pending)
	s.refuses(err, CodePolicyDrift)
	s.wantEvents(from, "approval.withdrawn")
	_, err = s.Request(context.Background(), Question{Actor: agent, Key: pending, Payload: payload, PolicySHA256: old})
	s.refuses(err, CodePolicyDrift)
	_, err = s.Start(context.Background(), Start{Actor: agent, Key: plain, Token: token, PayloadHash: s.hash(plain), PolicySHA256: old})
	s.refuses(err, CodePolicyDrift)
	for key, execution := range map[string]string{pending: "", plain: "", broker: ExecBroker} {
		s.must(s.ask(key, execution)) // a new question, under the new policy
	}
}

func TestRegister(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "expensive.class")
	ctx := context.Background()
	env := func(actions ...Declaration) Envelope {
		return Envelope{Origin: Origin{App: "x", CreatedBy: agent}, State: "proposed", Actions: actions}
	}
	_, err := s.Register(ctx, Registration{Actor: agent, Task: "t", Envelope: env()})
	s.refuses(err, CodeTaskAlreadyRegistered)
	_, err = s.Register(ctx, Registration{Actor: agent, Task: "u", Envelope: env(Declaration{Class: "cheap.class", Key: key})})
	s.refuses(err, CodeEnvelopeInvalid)
	for name, e := range map[string]Envelope{
		"no app":       {Origin: Origin{CreatedBy: agent}, State: "proposed"},
		"system":       {Origin: Origin{App: "x", CreatedBy: "system:x"}, State: "proposed"},
		"state":        {Origin: Origin{App: "x", CreatedBy: agent}, State: "done"},
		"class":        env(Declaration{Class: "a.*", Key: "k"}),
		"no key":       env(Declaration{Class: "a.b"}),
		"key twice":    env(Declaration{Class: "a.b", Key: "k"}, Declaration{Class: "a.c", Key: "k"}),
		"payload hash": env(Declaration{Class: "a.b", Key: "k", PayloadHash: "AB"}),
	} {
		if _, err := s.Register(ctx, Registration{Actor: agent, Task: "v", Envelope: e}); Code(err) != CodeEnvelopeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.wantEvents(3)
}

// A log by another program may declare a key twice: the first declaration stands.
func TestForeignRedeclarationDoesNotCount(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "expensive.class")
	_, err := s.Log().Append(context.Background(), nil, alog.Draft{Event: alog.TaskRegistered, Actor: agent, Task: "u",
		Payload: map[string]any{"actions": []any{map[string]any{"class": "cheap.class", "idempotency_key": key}}}})
	s.must(err)
	v, err := s.View()
	s.must(err)
	if got := v.Action(key); got.Class != "expensive.class" || got.Task != "t" {
		t.Errorf("the key is now %+v", got.Declaration)
	}
}

func TestParseEnvelope(t *testing.T) {
	const good = `{"origin":{"app":"x","created_by":"agent:a"},"state":"proposed","actions":[{"class":"a.b","idempotency_key":"k","est_cost_usd":"0.5","reversible":true}],"budget":{"max_cost_usd":1}}`
	e, err := ParseEnvelope([]byte(good))
	if err != nil || e.Actions[0].Cost.String() != "0.5" || e.Budget.MaxCostUSD.String() != "1" {
		t.Fatalf("%+v %v", e, err)
	}
	for _, bad := range []string{
		`{`, `[]`, `{"state":"proposed"}`, strings.Replace(good, `"state"`, `"color":1,"state"`, 1),
		strings.Replace(good, `"app":"x"`, `"app":"x","app":"y"`, 1), strings.Replace(good, `"0.5"`, `"0.50"`, 1),
		strings.Replace(good, `"0.5"`, `-1`, 1), strings.Replace(good, `"class"`, `"Class"`, 1),
	} {
		if _, err := ParseEnvelope([]byte(bad)); Code(err) != CodeEnvelopeInvalid {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestReq099To101Reconcile: only a person says what an execution of unknown effect did, once, and
// the key stays spent.
func TestReq099To101Reconcile(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	ctx := context.Background()
	key, other := s.declare("t", "a.b"), s.declare("u", "a.b")
	in := Decision{Actor: ada, Key: key, Note: "looked"}
	_, err := s.Indeterminate(ctx, agent, key, alog.IndeterminateCommitUnknown)
	s.refuses(err, CodeNotStarted)
	s.must(s.start(key, "", ""))
	_, err = s.Reconcile(ctx, in, alog.ReconciledExecuted)
	s.refuses(err, CodeNotIndeterminate)
	_, err = s.Indeterminate(ctx, agent, key, "because")
	s.refuses(err, CodeReasonInvalid)
	_, err = s.Indeterminate(ctx, "agent:other", key, alog.IndeterminateCommitUnknown)
	s.refuses(err, CodeActorInvalid)
	rec, err := s.Indeterminate(ctx, agent, key, alog.IndeterminateCommitUnknown)
	s.must(err)
	if want := `{"exit_code":null,"reason":"workspace-commit-unknown"}`; string(rec.Payload) != want {
		t.Errorf("payload %s", rec.Payload)
	}
	s.refuses(s.start(key, "", ""), CodeExecutionIndeterminate)
	s.refuses(s.ask(key, ""), CodeExecutionIndeterminate)
	s.refuses(s.finish(key, 0), CodeAlreadyFinished)
	for _, test := range []struct {
		in         Decision
		resolution string
		code       string
	}{
		{Decision{Actor: agent, Key: key, Note: "x"}, "executed", CodeActorNotHuman},
		{Decision{Actor: ada, Key: key}, "executed", CodeNoteRequired},
		{in, "perhaps", CodeReasonInvalid},
		{Decision{Actor: ada, Key: other, Note: "x"}, "executed", CodeNotIndeterminate},
		{Decision{Actor: ada, Key: "none", Note: "x"}, "executed", CodeActionNotRegistered},
	} {
		_, err := s.Reconcile(ctx, test.in, test.resolution)
		s.refuses(err, test.code)
	}
	done, err := s.Reconcile(ctx, in, alog.ReconciledNotExecuted)
	s.must(err)
	want := fmt.Sprintf(`{"attested_by_human":true,"indeterminate_seq":%d,"note":"looked","resolution":"not-executed"}`, rec.Seq)
	if string(done.Payload) != want {
		t.Errorf("payload %s, want %s", done.Payload, want)
	}
	_, err = s.Reconcile(ctx, in, alog.ReconciledExecuted)
	s.refuses(err, CodeAlreadyReconciled)
	s.refuses(s.start(key, "", ""), CodeAlreadyExecuted)
}

func TestResolve(t *testing.T) {
	s := newSite(t, "classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	ctx := context.Background()
	key := s.declare("t", "a.b")
	_, err := s.Resolve(ctx, Decision{Actor: ada, Key: key, Note: "x"}, true)
	s.refuses(err, CodeNotStarted)
	s.must(s.start(key, "", ""))
	v, _ := s.View()
	if dangling, _ := v.Unsettled(); !slices.Equal(dangling, []string{key}) {
		t.Errorf("dangling %v", dangling)
	}
	_, err = s.Resolve(ctx, Decision{Actor: agent, Key: key, Note: "x"}, true)
	s.refuses(err, CodeActorNotHuman)
	_, err = s.Resolve(ctx, Decision{Actor: ada, Key: key}, true)
	s.refuses(err, CodeNoteRequired)
	rec, err := s.Resolve(ctx, Decision{Actor: ada, Key: key, Note: "down"}, false)
	s.must(err)
	if rec.Event != alog.ExecutionFailed || string(rec.Payload) != `{"attested_by_human":true,"exit_code":null,"note":"down"}` {
		t.Errorf("%s %s", rec.Event, rec.Payload)
	}
	_, err = s.Resolve(ctx, Decision{Actor: ada, Key: key, Note: "x"}, true)
	s.refuses(err, CodeAlreadyFinished)
}

// A harness's grant cannot be spent by a token or a broker, and its start has no outcome here.
func TestHarness(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	s.must(s.ask(key, ExecHarness))
	token, err := s.grant(key)
	s.must(err)
	if token != "" {
		t.Error("a token was minted")
	}
	s.refuses(s.start(key, strings.Repeat("0", 64), ""), CodeHarnessExecuted)
	s.refuses(s.start(key, "", ExecBroker), CodeTokenRequired)
	_, err = s.Log().Append(context.Background(), nil, alog.Draft{Event: alog.ExecutionStarted, Actor: agent, Task: "t", ActionKey: key,
		Payload: map[string]any{"class": "a.b", "est_cost_usd": 0, "execution": "harness"}})
	s.must(err)
	s.refuses(s.finish(key, 0), CodeExecutionDelegated)
}

func TestPayloadBinding(t *testing.T) {
	s := newSite(t, manual)
	ctx := context.Background()
	key := s.declare("t", "a.b")
	for _, bad := range []string{`{"do":"that"}`, `{"do":"it","do":"it"}`, `{`, `{"do":"it"} x`} {
		_, err := s.Request(ctx, Question{Actor: agent, Key: key, Payload: []byte(bad)})
		s.refuses(err, CodePayloadMismatch)
	}
	_, err := s.Request(ctx, Question{Actor: agent, Key: key}) // nothing stored: nobody could see it
	s.refuses(err, CodePayloadStoreFailed)
	bare := s.declare("u", "a.b", func(d *Declaration) { d.PayloadHash = "" })
	_, err = s.Request(ctx, Question{Actor: agent, Key: bare, Payload: payload})
	s.refuses(err, CodePayloadHashRequired)
	_, err = s.Request(ctx, Question{Actor: agent, Key: key, Payload: []byte(` { "do" : "\u0069t" } `)})
	s.must(err)
	if got, err := s.Payloads().Get(s.hash(key)); err != nil || string(got) != string(payload) {
		t.Errorf("stored %s, %v", got, err)
	}
}

func TestEmptyAndBrokenLogs(t *testing.T) {
	s := newSite(t, manual)
	key := s.declare("t", "a.b")
	path := s.Log().Path()
	whole, _ := os.ReadFile(path)
	for name, test := range map[string]struct {
		text string
		code string
		exit int
	}{
		"torn":    {string(whole[:len(whole)-1]), CodeLogTornTail, ExitTorn},
		"corrupt": {strings.Replace(string(whole), "policy.updated", "policy.updatee", 1), CodeLogCorrupt, ExitRefused},
		"flipped": {strings.Replace(string(whole), "APPROVAL.md", "APPROVAL.mx", 1), CodeLogCorrupt, ExitRefused},
	} {
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := s.ask(key, "")
		if Code(err) != test.code || ExitCode(err) != test.exit {
			t.Errorf("%s: %v, exit %d", name, err, ExitCode(err))
		}
		if after, _ := os.ReadFile(path); string(after) != test.text {
			t.Errorf("%s: the log was changed", name)
		}
	}
	s.must(os.Remove(path))
	s.must(os.Mkdir(path, 0o700))
	if err := s.ask(key, ""); Code(err) != CodeLogUnreadable || ExitCode(err) != ExitIO {
		t.Errorf("directory: %v", err)
	}
	s.must(os.Remove(path))
	if err := s.ask(key, ""); Code(err) != CodePolicyNotAttested { // an absent log is an empty one
		t.Errorf("absent: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {errors.New("x"), 1}, {&Error{Code: CodeExpired}, 1}, {&Error{Code: CodeTokenRequired}, 5},
		{&Error{Code: CodePayloadStoreFailed}, 4}, {&Error{Code: CodeLogUnreadable}, 4}, {&Error{Code: CodeLogTornTail}, 3},
		{&Error{Code: CodeLogCorrupt}, 1}, {&Error{Code: CodeAppendFailed, Detail: alog.CodeCorruptTail}, 3},
		{&Error{Code: CodeAppendFailed, Detail: alog.CodeIO}, 4}, {&Error{Code: CodeAppendFailed, Detail: alog.CodeLockTimeout}, 4},
		{&Error{Code: CodeAppendFailed, Detail: alog.CodeHeadMoved}, 1},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("%v: exit %d, want %d", test.err, got, test.want)
		}
	}
}
