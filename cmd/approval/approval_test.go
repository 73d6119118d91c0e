package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
	"gloved.dev/runtime"
	"gloved.dev/runtime/broker"
	"gloved.dev/runtime/gate"
)

func TestMain(m *testing.M) {
	runtime.Main()
	os.Exit(m.Run())
}

// A desk is the program in a fresh folder, with a clock and an environment of its own.
type desk struct {
	*testing.T
	dir   string
	clock *clock.Fake
	env   map[string]string
}

func newDesk(t *testing.T) *desk {
	d := &desk{T: t, dir: t.TempDir(), clock: clock.NewFake(time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC)), env: map[string]string{}}
	t.Chdir(d.dir)
	return d
}

// run runs a command line and returns what it printed and its exit code.
func (d *desk) run(args ...string) (out, errs string, code int) {
	d.Helper()
	var o, e bytes.Buffer
	a := newApp(&ui.Streams{In: strings.NewReader(""), Out: &o, Err: &e, Width: 80})
	a.clock, a.getenv = d.clock, func(name string) string { return d.env[name] }
	code = ui.Run(a.root(), a.Streams, args)
	return o.String(), e.String(), code
}

// want runs a command line that must end with code and print each part, on either stream.
func (d *desk) want(code int, line string, parts ...string) string {
	d.Helper()
	out, errs, got := d.run(strings.Fields(line)...)
	if got != code {
		d.Fatalf("approval %s: exit %d, want %d\n%s%s", line, got, code, out, errs)
	}
	for _, part := range parts {
		if !strings.Contains(out+errs, part) {
			d.Errorf("approval %s lacks %q:\n%s%s", line, part, out, errs)
		}
	}
	return out
}

func (d *desk) policy(body string) {
	d.Helper()
	d.file("APPROVAL.md", "```yaml approval-policy\nversion: \"0.1\"\n"+body+"\n```\n")
	d.want(0, "policy attest --as human:ada")
}

func (d *desk) file(name, text string) {
	d.Helper()
	if err := os.MkdirAll(filepath.Dir(filepath.Join(d.dir, name)), 0o700); err != nil {
		d.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o600); err != nil {
		d.Fatal(err)
	}
}

const logPath = ".approval/log/events.jsonl"

func TestEveryCommandHasAnExampleAndAShortText(t *testing.T) {
	a := newApp(&ui.Streams{})
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		if command.Short == "" || command.Example == "" {
			t.Errorf("%s: short %q, example %q; both must be there", command.CommandPath(), command.Short, command.Example)
		}
		for _, child := range command.Commands() {
			visit(child)
		}
	}
	visit(a.root())
}

// TestStory walks the way of one action, as a person and an agent at a terminal would.
func TestStory(t *testing.T) {
	d := newDesk(t)
	d.want(0, "init", "made .approval/log", "made APPROVAL.md", "policy attest")
	d.want(0, "init", "everything was there")
	d.want(0, "policy explain README.md", "files.write.workspace", "manual")
	d.want(1, "run k --class a.b --as agent:x -- true", "policy-not-attested", "not-attested")
	d.want(2, "policy attest", "who decides")
	d.want(2, "policy attest --as agent:x", "must be human:NAME")
	d.env["APPROVAL_HUMAN"] = "human:ada"
	d.want(0, "policy attest", "attested", "record 2")
	d.want(2, "policy attest --as ada", "must be human:NAME") // a bad --as does not fall back

	d.want(1, "run k --as agent:x -- false", "payload-mismatch") // true was declared
	d.want(5, "run k --as agent:x -- true", "token-required", "approval show k")
	d.want(0, "queue", "k", "a.b", "agent:x")
	out := d.want(0, "show k", "asked by", "requested", "[0] true", "runs, in")
	if strings.Contains(out, "\x1b") {
		t.Error("colour in a pipe")
	}
	d.want(1, "grant nothing", "action-not-registered", "no task declares")
	token := strings.TrimSpace(strings.SplitAfter(d.want(0, "grant k --note fine", "granted k"), "token, shown once: ")[1])
	d.want(1, "run k --as agent:x --token "+strings.Repeat("0", 64)+" -- true", "token-mismatch")
	d.want(1, "run k --as agent:x --token "+token+" -- false", "payload-mismatch")
	d.env["APPROVAL_TOKEN"] = token
	d.want(0, "run k --as agent:x -- true")
	d.want(1, "run k --as agent:x -- true", "token-consumed")
	d.want(1, "grant k", "already-decided")
	d.want(1, "revoke k", "already-executed")
	d.want(0, "status", "no key waits")
	d.want(0, "status k", "granted", "completed")
	d.want(0, "status --all --json", `"execution": "completed"`, `"attested": true`)
	d.want(0, "log verify", "clean", "records proven")
	d.want(0, "log show --key k", "approval.granted", "execution.completed")
	d.want(0, "log tail -n 1", "execution.completed")
	raw, err := os.ReadFile(logPath)
	if err != nil || strings.Contains(string(raw), token) {
		t.Errorf("the log has the token (%v)", err)
	}
}

func TestRunPassesTheExitCodeOn(t *testing.T) {
	d := newDesk(t)
	d.policy("classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	for i, test := range []struct {
		argv []string
		code int
		last string
	}{
		{[]string{"true"}, 0, "execution.completed"},
		{[]string{"sh", "-c", "exit 7"}, 7, "execution.failed"},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, "execution.failed"},
	} {
		args := append([]string{"run", fmt.Sprint("k", i), "--class", "a.b", "--as", "agent:x", "--"}, test.argv...)
		out, errs, code := d.run(args...)
		if code != test.code {
			t.Errorf("%v: exit %d, want %d: %s%s", test.argv, code, test.code, out, errs)
		}
		d.want(0, "log tail -n 1", test.last)
	}
	d.want(127, "run nope --class a.b --as agent:x -- no-such-program-here", "no-such-program-here")
	d.want(2, "run k --as agent:x true", "--")
	d.want(2, "run k --class a.b -- true", "who acts?")
	d.want(2, "run k --class a.b --as system:gate -- true")
}

func TestRunWithholdsSecrets(t *testing.T) {
	d := newDesk(t)
	d.policy("classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}\naudit: {sampling_secret_env: MY_SAMPLING}\nchannels: {telegram: {token_env: MY_TG}}")
	for _, name := range []string{"APPROVAL_TOKEN", "APPROVAL_VAULT_PASSPHRASE", "MY_SAMPLING", "MY_TG"} {
		t.Setenv(name, "hush-hush")
	}
	t.Setenv("OTHER", "passed-on")
	out := d.want(0, "run k --class a.b --as agent:x -- env", "passed-on")
	if strings.Contains(out, "hush-hush") {
		t.Errorf("the command sees a secret:\n%s", out)
	}
}

func TestDecisionsAsJSON(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	d.want(5, "run a --class a.b --as agent:x -- true")
	d.want(5, "run b --class a.b --as agent:x -- true")
	var q struct {
		OK      bool           `json:"ok"`
		Pending []gate.Pending `json:"pending"`
	}
	d.decode("queue --json", &q)
	if !q.OK || len(q.Pending) != 2 || q.Pending[0].ActionKey != "a" || q.Pending[0].TTLRemainingMS != nil {
		t.Errorf("queue %+v", q)
	}
	var decided map[string]any
	d.decode("grant a --as human:ada --json", &decided)
	if decided["decision"] != "grant" || decided["state"] != "granted" || len(decided["token"].(string)) != 64 {
		t.Errorf("grant %+v", decided)
	}
	decided = nil
	d.decode("reject b --as human:ada --json", &decided)
	if _, has := decided["token"]; has || decided["state"] != "rejected" {
		t.Errorf("reject %+v", decided)
	}
	d.decode("revoke a --as human:ada --json", &decided)
	out, errs, code := d.run("grant", "a", "--as", "human:ada", "--json")
	if code != 1 || errs != "" || !strings.Contains(out, `"code": "already-decided"`) || !strings.Contains(out, `"ok": false`) {
		t.Errorf("refusal: %d %q %q", code, out, errs)
	}
	d.want(2, "grant a --as human:ada --bogus", "unknown flag")
	d.want(2, "grant --as human:ada", "needs ")

	// The beginning of a key is enough, where it is enough.
	d.want(5, "run deploy:one --class a.b --as agent:x -- true")
	d.want(5, "run deploy:two --class a.b --as agent:x -- true")
	d.want(1, "show deploy:", "key-ambiguous", "deploy:one", "deploy:two")
	d.want(1, "grant dep --as human:ada", "action-not-registered") // too short to mean anything
	d.want(0, "show deploy:o", "deploy:one")
	d.want(0, "reject deploy:t --as human:ada", "rejected deploy:two")
	d.want(0, "status deploy:o", "deploy:one")
}

func (d *desk) decode(line string, v any) {
	d.Helper()
	if err := json.Unmarshal([]byte(d.want(0, line)), v); err != nil {
		d.Fatal(err)
	}
}

func TestLogVerifyExitCodes(t *testing.T) {
	d := newDesk(t)
	d.want(0, "log verify", "clean", "no records")
	if _, err := os.Lstat(".approval"); err == nil {
		t.Error("verify made something")
	}
	d.policy("defaults: {autonomy: manual}")
	whole, _ := os.ReadFile(logPath)
	head := strings.Fields(strings.SplitAfter(d.want(0, "log verify"), "head ")[1])[0]
	d.want(0, "log verify --anchor "+head, "clean")
	d.want(1, "log verify --anchor 2:"+strings.Repeat("0", 64), "head-mismatch")
	d.want(2, "log verify --anchor x")
	d.file(logPath, string(whole[:len(whole)-1]))
	d.want(3, "log verify --json", `"torn-tail"`, `"intactThroughSeq": 0`)
	d.want(3, "log show", "log-torn-tail")
	d.want(3, "queue", "log-torn-tail")
	d.file(logPath, strings.Replace(string(whole), "human:ada", "human:eve", 1))
	d.want(1, "log verify", "hash-mismatch")
	d.want(1, "log tail", "log-corrupt")
	d.want(1, "status", "log-corrupt")
	if err := os.Remove(logPath); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(logPath, 0o700); err != nil {
		t.Fatal(err)
	}
	d.want(4, "log verify", "unreadable")
	d.want(4, "queue", "log-unreadable")
}

func TestPolicyCommands(t *testing.T) {
	d := newDesk(t)
	d.want(0, "policy check a.b", "manual", "file-missing")
	d.file("APPROVAL.md", template)
	d.want(0, "policy check files.write.workspace", "manual")
	d.file("APPROVAL.md", "```yaml approval-policy\nversion: \"0.1\"\nclasses:\n  a.*: {autonomy: autonomous}\n  a.b: {autonomy: supervised, approvers: [ada], limits: {daily_actions: 3}}\n```\n")
	var c checked
	d.decode("policy check a.b --reversible false --json", &c)
	if c.Outcome.Autonomy != "manual" || c.Provenance != "floor" || *c.ManualBecause != "irreversibility-floor" || *c.Matched != "a.b" ||
		len(c.Candidates) != 2 || (*c.Outcome.Limits)["daily_actions"] != 3 || (*c.Outcome.Approvers)[0] != "ada" {
		t.Errorf("check %+v", c)
	}
	if out := d.want(0, "policy check x.y --json"); !strings.Contains(out, `"approvers": null`) || !strings.Contains(out, `"matched": null`) {
		t.Errorf("nothing is null: %s", out)
	}
	d.want(2, "policy check a.*", "no class")
	d.want(2, "policy check a.b --reversible maybe")
	d.want(2, "policy explain /etc/passwd", "relative")
	d.want(0, "policy explain AGENTS.md docs/x", "built-in protection: AGENTS.md", "policy.edit", "files.write.workspace")
	d.file("APPROVAL.md", "```yaml approval-policy\nversion: \"0.1\"\nversion: \"0.2\"\n```\n")
	d.want(0, "policy check a.b", "manual", "yaml-error", "twice")
	d.want(0, "policy attest --as human:ada", "no valid policy")
	if err := os.Remove("APPROVAL.md"); err != nil {
		t.Fatal(err)
	}
	d.want(1, "policy attest --as human:ada", "policy-not-attested", "unreadable")
	if err := os.Mkdir("APPROVAL.md", 0o700); err != nil {
		t.Fatal(err)
	}
	d.want(4, "policy check a.b", "not a regular file")
}

func TestTemplateIsValid(t *testing.T) {
	d := newDesk(t)
	d.file("APPROVAL.md", d.want(0, "policy template"))
	var c checked
	d.decode("policy check policy.edit --json", &c)
	if c.LoadFailure != nil || c.Outcome.Autonomy != "human-only" {
		t.Errorf("the template decides %+v", c)
	}
}

func TestExecutionCommands(t *testing.T) {
	d := newDesk(t)
	d.policy("classes: {a.b: {autonomy: autonomous, allow_irreversible: true}}")
	ctx := context.Background()
	log, err := filepath.Abs(logPath)
	if err != nil {
		t.Fatal(err)
	}
	g := gate.New(gate.Config{Log: log, Dir: d.dir, Clock: d.clock})
	for _, key := range []string{"one", "two"} {
		if _, err := g.Register(ctx, gate.Registration{Actor: "agent:x", Task: key, Envelope: gate.Envelope{
			Origin: gate.Origin{App: "t", CreatedBy: "agent:x"}, State: "proposed", Actions: []gate.Declaration{{Class: "a.b", Key: key}}}}); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Start(ctx, gate.Start{Actor: "agent:x", Key: key}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Indeterminate(ctx, "agent:x", "two", alog.IndeterminateCommitUnknown); err != nil {
		t.Fatal(err)
	}
	d.want(0, "status", "dangling", "unknown")
	d.want(2, "execution resolve one --outcome fine --as human:ada", "completed or failed")
	d.want(1, "execution resolve one --outcome failed --as human:ada", "note-required")
	d.want(2, "execution resolve one --outcome failed --note x --as agent:x", "human:NAME")
	d.want(0, "execution resolve one --outcome failed --note down --as human:ada", "one: failed")
	d.want(1, "execution reconcile one --resolution executed --note x --as human:ada", "not-indeterminate")
	d.want(0, "execution reconcile two --resolution executed --note there --as human:ada --json", `"resolution": "executed"`)
	d.want(1, "execution reconcile two --resolution executed --note x --as human:ada", "already-reconciled")
	d.want(0, "log verify", "clean")
}

// ask puts a question about payload and returns its key.
func (d *desk) ask(class string, payload any) string {
	d.Helper()
	ctx := context.Background()
	log, err := filepath.Abs(logPath)
	if err != nil {
		d.Fatal(err)
	}
	g := gate.New(gate.Config{Log: log, Dir: d.dir, Clock: d.clock})
	canonical, hash, err := gate.SealPayload(payload)
	if err != nil {
		d.Fatal(err)
	}
	_, err = g.Register(ctx, gate.Registration{Actor: "agent:x", Task: "task", Envelope: gate.Envelope{
		Origin: gate.Origin{App: "t", CreatedBy: "agent:x"}, State: "proposed",
		Actions: []gate.Declaration{{Class: class, Key: "key", PayloadHash: hash, Summary: "all fine\u202e"}}}})
	if err == nil {
		_, err = g.Request(ctx, gate.Question{Actor: "agent:x", Key: "key", Payload: canonical, Execution: gate.ExecBroker})
	}
	if err != nil {
		d.Fatal(err)
	}
	return "key"
}

func fileImage(text, mode string) broker.PayloadImage {
	size := int64(len(text))
	return broker.PayloadImage{Type: "file", SHA256: digest.SHA256Hex([]byte(text)), Size: &size, Mode: mode}
}

func base64Of(text string) *string {
	s := base64.StdEncoding.EncodeToString([]byte(text))
	return &s
}

// TestShowRendersTheExactChange shows each kind of operation, a binary file, hidden characters, a
// missing final newline, and old text that is not there any more.
func TestShowRendersTheExactChange(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	absent := broker.PayloadImage{Type: "absent"}
	d.file("ws/main.go", "one\ntwo\nthree\n")
	d.file("ws/gone", "bye\n")
	d.file("ws/stale", "somebody else's\n")
	end := func(path string, before, after broker.PayloadImage) broker.PayloadEndpoint {
		return broker.PayloadEndpoint{Path: path, Class: "files.write.workspace", Before: before, After: after}
	}
	d.ask("files.write.workspace", broker.Payload{SchemaVersion: broker.PayloadSchema, Instance: "team",
		Workspace: broker.PayloadRoot{Path: filepath.Join(d.dir, "ws"), Dev: "1", Ino: "2"},
		Operations: []broker.PayloadOperation{
			{Kind: "replace", AfterBase64: base64Of("one\n2\u202e\nthree"), Endpoints: []broker.PayloadEndpoint{
				end("main.go", fileImage("one\ntwo\nthree\n", "0755"), fileImage("one\n2\u202e\nthree", "0755"))}},
			{Kind: "create", AfterBase64: base64Of("x\x00y"), Endpoints: []broker.PayloadEndpoint{end("bin", absent, fileImage("x\x00y", "0644"))}},
			{Kind: "delete", Endpoints: []broker.PayloadEndpoint{end("gone", fileImage("bye\n", "0644"), absent)}},
			{Kind: "move", Endpoints: []broker.PayloadEndpoint{end("a\u200b", fileImage("m", "0644"), absent), end("b", absent, fileImage("m", "0644"))}},
			{Kind: "replace", AfterBase64: base64Of("new\n"), Endpoints: []broker.PayloadEndpoint{end("stale", fileImage("old\n", "0600"), fileImage("new\n", "0600"))}},
			{Kind: "create", AfterBase64: base64Of("lie\n"), Endpoints: []broker.PayloadEndpoint{end("forged", absent, fileImage("truth\n", "0644"))}},
		}})
	out := d.want(0, "show key", "says       all fine⟨U+202E⟩", "question   requested", "policy     manual")
	_, changes, _ := strings.Cut(out, "changes ")
	_, changes, _ = strings.Cut(changes, "\n")
	sum := func(text string) string { return digest.SHA256Hex([]byte(text)) }
	want := `
replace main.go [files.write.workspace]
  before  mode 0755, 14 bytes, sha256 ` + sum("one\ntwo\nthree\n") + `
  after   mode 0755, 14 bytes, sha256 ` + sum("one\n2\u202e\nthree") + `
--- a/main.go
+++ b/main.go
@@ -1,3 +1,3 @@
 one
-two
-three
+2⟨U+202E⟩
+three
\ No newline at end of file

create bin [files.write.workspace]
  before  absent
  after   mode 0644, 3 bytes, sha256 ` + sum("x\x00y") + `
  binary: compare the digests

delete gone [files.write.workspace]
  before  mode 0644, 4 bytes, sha256 ` + sum("bye\n") + `
  after   absent
--- a/gone
+++ /dev/null
@@ -1 +0,0 @@
-bye

move a⟨U+200B⟩ [files.write.workspace] → b [files.write.workspace]
  moves   mode 0644, 1 bytes, sha256 ` + sum("m") + `

replace stale [files.write.workspace]
  before  mode 0600, 4 bytes, sha256 ` + sum("old\n") + `
  after   mode 0600, 4 bytes, sha256 ` + sum("new\n") + `
  the file in the workspace is not (or no longer) the one this replaces; its text is not shown
--- a/stale
+++ b/stale
@@ -0,0 +1 @@
+new

create forged [files.write.workspace]
  before  absent
  after   mode 0644, 6 bytes, sha256 ` + sum("truth\n") + `
  the new content is not the one whose digest the payload names: do not grant it
`
	if changes != want {
		t.Errorf("shown:\n%s\nwant:\n%s", changes, want)
	}
}

func TestShowOtherPayloads(t *testing.T) {
	d := newDesk(t)
	d.policy("defaults: {autonomy: manual}")
	d.ask("a.b", map[string]any{"to": "x\u200b@y", "n": 1})
	d.want(0, "show key", `"to": "x⟨U+200B⟩@y"`, `"n": 1`)
	d.want(0, "show key --json", `"payload_hash"`, `"payload": {`)
	entries, err := os.ReadDir(".approval/payloads")
	if err != nil || len(entries) != 1 {
		t.Fatal(err, entries)
	}
	d.file(".approval/payloads/"+entries[0].Name(), `{"to":"z"}`)
	d.want(1, "show key", "payload-unavailable", "hash-mismatch", "do not grant")
	d.want(1, "show other", "action-not-registered")
}

// TestReq107NoBroadServer: the one server that the program has is `codex serve`, so that no other
// tool list can come to publish what it publishes.
func TestReq107NoBroadServer(t *testing.T) {
	var servers []string
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		if name := command.Name(); name == "serve" || name == "mcp" {
			servers = append(servers, command.CommandPath())
		}
		for _, child := range command.Commands() {
			visit(child)
		}
	}
	visit(newApp(&ui.Streams{}).root())
	if strings.Join(servers, ", ") != "approval codex serve" {
		t.Errorf("servers: %v", servers)
	}
}
