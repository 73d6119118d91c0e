package approval

import (
	"fmt"
	"strings"
	"testing"
)

// file is a policy file with body as its block.
func file(body string) string { return "# Policy\n\n```yaml approval-policy\n" + body + "\n```\n" }

func policyOf(t *testing.T, body string) *Policy {
	t.Helper()
	d := Parse([]byte(file(body)))
	if d.Failure != nil {
		t.Fatalf("policy refused: %v\n%s", d.Failure, body)
	}
	return d.Policy
}

func TestFences(t *testing.T) {
	const v = `version: "0.1"`
	for _, test := range []struct{ name, text, code string }{
		{"plain", file(v), ""},
		{"no final newline", strings.TrimSuffix(file(v), "\n"), ""},
		{"CRLF", strings.ReplaceAll(file(v), "\n", "\r\n"), ""},
		{"CR", strings.ReplaceAll(file(v), "\n", "\r"), ""},
		{"spaces and tabs in the info", "```  yaml \t approval-policy \n" + v + "\n```", ""},
		{"three spaces", "   ```yaml approval-policy\n" + v + "\n   ```", ""},
		{"longer closer", "```yaml approval-policy\n" + v + "\n`````  \t\n", ""},
		{"four backticks", "````yaml approval-policy\n" + v + "\n````\n", ""},
		{"four spaces", "    ```yaml approval-policy\n" + v + "\n    ```\n", CodeNoBlock},
		{"tilde", "~~~yaml approval-policy\n" + v + "\n~~~\n", CodeNoBlock},
		{"upper case", "```YAML approval-policy\n" + v + "\n```\n", CodeNoBlock},
		{"more info", "```yaml approval-policy x\n" + v + "\n```\n", CodeNoBlock},
		{"other info", "```yaml\n" + v + "\n```\n", CodeNoBlock},
		{"two backticks", "``yaml approval-policy\n" + v + "\n``\n", CodeNoBlock},
		{"no-break space", "```yaml\u00a0approval-policy\n" + v + "\n```\n", CodeNoBlock},
		{"inside another fence", "````\n" + file(v) + "````\n", CodeNoBlock},
		{"beside an example", "````\n" + file(v) + "````\n" + file(v), ""},
		{"short closer", "````yaml approval-policy\n" + v + "\n```\n", CodeNoBlock},
		{"unterminated", "```yaml approval-policy\n" + v + "\n", CodeNoBlock},
		{"text after closer", "```yaml approval-policy\n" + v + "\n``` x\n", CodeNoBlock},
		{"empty file", "", CodeNoBlock},
		{"two", file(v) + file(v), CodeMultipleBlocks},
		{"two, one open", file(v) + "```yaml approval-policy\n", CodeNoBlock},
		{"not UTF-8", file(v + "\nchannels: {a: {b: \"\xff\"}}"), CodeYAML},
	} {
		d := Parse([]byte(test.text))
		if code := codeOf(d); code != test.code {
			t.Errorf("%s: %q (%v), want %q", test.name, code, d.Failure, test.code)
		}
	}
}

func codeOf(d *Document) string {
	if d.Failure == nil {
		return ""
	}
	return d.Failure.Code
}

// TestReq021YAMLIsOneStrictDocument: what another YAML reader could take otherwise is no policy.
func TestReq021YAMLIsOneStrictDocument(t *testing.T) {
	const v = "version: \"0.1\"\n"
	for _, test := range []struct{ name, body, code string }{
		{"start marker", "---\n" + v, ""},
		{"end marker", v + "...", ""},
		{"second document", v + "---\nversion: \"0.2\"", CodeYAML},
		{"empty second document", v + "---", CodeYAML},
		{"garbage second document", v + "---\n{[", CodeYAML},
		{"garbage after the end", v + "...\n{[", CodeYAML},
		{"document after the end", v + "...\nversion: \"0.2\"", CodeYAML},
		{"directive", "%YAML 1.1\n---\n" + v, CodeYAML},
		{"duplicate key", v + "version: \"0.2\"", CodeYAML},
		{"nested duplicate key", v + "defaults: {autonomy: manual, autonomy: autonomous}", CodeYAML},
		{"duplicate class", v + "classes:\n  a.b: {autonomy: manual}\n  \"a.b\": {autonomy: autonomous}", CodeYAML},
		{"tag", "version: !!str 0.1", CodeYAML},
		{"local tag", v + "classes: {a: !x {autonomy: manual}}", CodeYAML},
		{"empty tag", "version: ! \"0.1\"", CodeYAML},
		{"empty tag after an anchor", v + "defaults: &x ! {autonomy: manual}", CodeYAML},
		{"empty tag on the next line", v + "defaults: &x\n  ! {autonomy: manual}", CodeYAML},
		{"anchor before nothing", v + "defaults: &x", CodeSchema},
		{"tag on a key", "!!str version: \"0.1\"", CodeYAML},
		{"number key", v + "classes: {1: {autonomy: manual}}", CodeYAML},
		{"list key", v + "? [a]\n: b", CodeYAML},
		{"alias", v + "classes:\n  a: &x {autonomy: manual}\n  b: *x", ""},
		{"merge key is none", v + "classes:\n  a: &x {autonomy: manual}\n  b:\n    <<: *x", CodeSchema},
		{"unknown alias", v + "classes: {a: *x}", CodeYAML},
		{"recursive alias", v + "classes: &x {a: *x}", CodeYAML},
		{"33 aliases", v + "approvers:\n  x: &x {channels: [cli]}\n" + aliases(33), CodeYAML},
		{"32 aliases", v + "approvers:\n  x: &x {channels: [cli]}\n" + aliases(32), ""},
		{"bomb", v + bomb(), CodeYAML},
		{"deep", v + "channels: {a: {b: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}}", CodeYAML},
		{"empty block", "", CodeYAML},
		{"only a comment", "# nothing", CodeYAML},
		{"scalar", "hello", CodeSchema},
		{"unquoted version", "version: 0.1", CodeSchema},
		{"yes is a string", v + "classes: {a: {autonomy: autonomous, allow_irreversible: yes}}", CodeSchema},
		{"on is a string", v + "defaults: {autonomy: on}", CodeSchema},
		{"1_000 is a string", v + "budgets: {global: {daily_usd: 1_000}}", CodeSchema},
		{"infinite", v + "budgets: {global: {daily_usd: .inf}}", CodeYAML},
		{"NUL", v + "defaults: {channel: \"\\0\"}", CodeYAML},
		{"tab indentation", v + "defaults:\n\tautonomy: manual", CodeYAML},
	} {
		d := Parse([]byte(file(test.body)))
		if code := codeOf(d); code != test.code {
			t.Errorf("%s: %q (%v), want %q", test.name, code, d.Failure, test.code)
		}
		if d.Failure != nil && d.Resolve("a", nil).Autonomy != Manual {
			t.Errorf("%s: a failed policy is not manual", test.name)
		}
	}
}

func aliases(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  a%d: *x\n", i)
	}
	return b.String()
}

// bomb doubles a list at every level.
func bomb() string {
	var b strings.Builder
	b.WriteString("channels:\n  c:\n    a0: &a0 [x, x]\n")
	for i := range 30 {
		fmt.Fprintf(&b, "    a%d: &a%d [*a%d, *a%d]\n", i+1, i+1, i, i)
	}
	return b.String()
}

func TestSchema(t *testing.T) {
	const v = "version: \"0.1\"\n"
	for _, test := range []struct{ name, body, code string }{
		{"full", full, ""},
		{"no version", "defaults: {autonomy: manual}", CodeSchema},
		{"unknown key", v + "agents: {}", CodeSchema},
		{"unknown default", v + "defaults: {autonomy: manual, ttl: 1h}", CodeSchema},
		{"unknown autonomy", v + "defaults: {autonomy: free}", CodeSchema},
		{"live default", v + "defaults: {autonomy: supervised-live}", CodeSchema},
		{"human-only default", v + "defaults: {autonomy: human-only}", ""},
		{"compound duration", v + "defaults: {approval_ttl: 1h30m}", CodeSchema},
		{"fraction duration", v + "defaults: {approval_ttl: 1.5h}", CodeSchema},
		{"zero duration", v + "defaults: {approval_ttl: 0h}", CodeSchema},
		{"huge duration", v + "defaults: {approval_ttl: 999999999999w}", CodeSchema},
		{"on_expiry grant", v + "defaults: {on_expiry: grant}", CodeSchema},
		{"delivery", v + "defaults: {token_delivery: mail}", CodeSchema},
		{"rule without autonomy", v + "classes: {a: {approvers: [ada]}}", CodeSchema},
		{"unknown rule key", v + "classes: {a: {autonomy: manual, budget: 1}}", CodeSchema},
		{"class key", v + "classes: {a..b: {autonomy: manual}}", CodeSchema},
		{"class key case", v + "classes: {A: {autonomy: manual}}", CodeSchema},
		{"empty class key", v + "classes: {\"\": {autonomy: manual}}", CodeSchema},
		{"live without rate", v + "classes: {a: {autonomy: supervised-live}}", CodeSchema},
		{"live", v + "classes: {a: {autonomy: supervised-live, live_rate: 0.5}}", ""},
		{"rate on manual", v + "classes: {a: {autonomy: manual, live_rate: 0.5}}", CodeSchema},
		{"retro rate on human-only", v + "classes: {a: {autonomy: human-only, retro_rate: 1}}", CodeSchema},
		{"retro rate zero", v + "classes: {a: {autonomy: supervised, retro_rate: 0}}", CodeSchema},
		{"rate above one", v + "classes: {a: {autonomy: supervised-live, live_rate: 1.1}}", CodeSchema},
		{"negative limit", v + "classes: {a: {autonomy: manual, limits: {daily_usd: -1}}}", CodeSchema},
		{"limit of words", v + "classes: {a: {autonomy: manual, limits: {daily_usd: lots}}}", CodeSchema},
		{"fractional max_pending", v + "classes: {a: {autonomy: manual, limits: {max_pending: 1.5}}}", CodeSchema},
		{"unknown limit is valid", v + "classes: {a: {autonomy: manual, limits: {moons: 1}}}", ""},
		{"no approver", v + "classes: {a: {autonomy: manual, approvers: []}}", CodeSchema},
		{"approver twice", v + "classes: {a: {autonomy: manual, approvers: [ada, ada]}}", CodeSchema},
		{"approver id", v + "approvers: {Ada: {channels: [cli]}}", CodeSchema},
		{"approver without channels", v + "approvers: {ada: {channels: []}}", CodeSchema},
		{"empty budget", v + "budgets: {global: {}}", CodeSchema},
		{"fractional actions", v + "budgets: {global: {daily_actions: 1.5}}", CodeSchema},
		{"unknown budget limit", v + "budgets: {global: {daily_moons: 1}}", CodeSchema},
		{"sample rate", v + "audit: {supervised_sample_rate: 1.5}", CodeSchema},
		{"secret literal", v + "audit: {sampling_secret_env: \"s3cr3t value\"}", CodeSchema},
		{"passphrase literal", v + "vault: {passphrase_env: \"correct horse\"}", CodeSchema},
		{"port", v + "channels: {web: {port: 70000}}", CodeSchema},
		{"open channel", v + "channels: {pager: {anything: [1, {x: y}]}}", ""},
		{"absolute path", v + "protected_paths: [/etc/passwd]", CodeSchema},
		{"escape", v + "protected_paths: [../x]", CodeSchema},
		{"glob", v + "protected_paths: [\"docs/*.md\"]", CodeSchema},
		{"space", v + "protected_paths: [\"a b\"]", CodeSchema},
		{"double slash", v + "protected_paths: [a//b]", CodeSchema},
		{"path twice", v + "protected_paths: [a, a]", CodeSchema},
		{"route outside policy.edit", v + "protected_paths: [{path: a, class: files.write.workspace}]", CodeSchema},
		{"route too deep", v + "protected_paths: [{path: a, class: policy.edit.x.y}]", CodeSchema},
		{"route without class", v + "protected_paths: [{path: a}]", CodeSchema},
		{"laxer route of a built-in", v + "protected_paths: [{path: AGENTS.md, class: policy.edit.h}]\n" +
			"classes: {policy.edit.h: {autonomy: autonomous}}", CodeRouteFloor},
		{"irreversible route of a built-in", v + "protected_paths: [{path: .github/workflows/, class: policy.edit.ci}]\n" +
			"classes: {policy.edit: {autonomy: autonomous}, policy.edit.ci: {autonomy: autonomous, allow_irreversible: true}}", CodeRouteFloor},
		{"equal route of a built-in", v + "protected_paths: [{path: AGENTS.md, class: policy.edit.h}]\n" +
			"classes: {policy.edit.h: {autonomy: manual}}", ""},
	} {
		d := Parse([]byte(file(test.body)))
		if code := codeOf(d); code != test.code {
			t.Errorf("%s: %q (%v), want %q", test.name, code, d.Failure, test.code)
		}
	}
}

// full uses every key of the language.
const full = `version: "0.1"
defaults:
  autonomy: supervised
  channel: cli
  approval_ttl: 24h
  on_expiry: reject
  token_delivery: sealed
payload_retention: 30d
protected_paths:
  - SPEC.md
  - {path: docs/, class: policy.edit.design}
approvers:
  ada: {channels: [cli, telegram]}
classes:
  files.write.*: {autonomy: autonomous, allow_irreversible: true, limits: {daily_actions: 5, per_action_usd: 0.5}}
  files.delete: {autonomy: supervised-retro, retro_rate: 1}
  mail.*: {autonomy: supervised-live, live_rate: 0.25}
  policy.edit: {autonomy: manual, approvers: [ada]}
  keys.*: {autonomy: human-only}
budgets:
  global: {daily_usd: 100, daily_actions: 200, max_pending: 3}
audit: {supervised_sample_rate: 0.1, sampling_secret_env: SECRET, skew_tolerance: 250ms}
vault: {passphrase_env: PASS}
channels:
  telegram: {chat_id_env: A, token_env: B}
  web: {port: 8080}
`

func TestResolve(t *testing.T) {
	p := policyOf(t, `version: "0.1"
defaults: {autonomy: supervised}
classes:
  "*": {autonomy: autonomous}
  read.*: {autonomy: autonomous}
  files.*: {autonomy: supervised}
  files.write.*: {autonomy: autonomous, allow_irreversible: true}
  files.*.secret: {autonomy: human-only}
  files.write.secret: {autonomy: manual}
  a.*.c: {autonomy: autonomous, allow_irreversible: true}
  a.b.*: {autonomy: autonomous}
  x.*.z: {autonomy: autonomous}
  x.y.*: {autonomy: manual, approvers: [ada]}
  policy.edit: {autonomy: manual, approvers: [ada]}
  policy.edit.ci: {autonomy: supervised}
  mail: {autonomy: supervised-live, live_rate: 0.1}`)
	yes, no := true, false
	for _, test := range []struct {
		class      string
		reversible *bool
		autonomy   Autonomy
		provenance string
		pattern    string
	}{
		{"read", nil, Autonomous, FromRule, "*"},
		{"read.file", nil, Autonomous, FromRule, "read.*"},
		{"read.file.deep.er", nil, Autonomous, FromRule, "read.*"},
		{"read.file", &no, Manual, FromFloor, "read.*"},
		{"read.file", &yes, Autonomous, FromRule, "read.*"},
		{"unknown.class", nil, SupervisedRetro, FromDefault, ""},
		{"unknown.class", &no, Manual, FromFloor, ""},
		{"files.write.workspace", &no, Autonomous, FromRule, "files.write.*"},
		{"files.read.secret", nil, HumanOnly, FromRule, "files.*.secret"},
		{"files.read.secret", &no, HumanOnly, FromRule, "files.*.secret"},
		{"files.write.secret", nil, Manual, FromRule, "files.write.secret"},
		{"files.write.secret", &no, Manual, FromRule, "files.write.secret"},
		{"a.b.c", &no, Manual, FromFloor, "a.*.c"}, // tied, and one of the two does not opt out
		{"a.q.c", &no, Autonomous, FromRule, "a.*.c"},
		{"x.y.z", nil, Manual, FromRule, "x.y.*"},
		{"policy.edit.spec", nil, Manual, FromInherited, "policy.edit"},
		{"policy.edit.ci", nil, SupervisedRetro, FromRule, "policy.edit.ci"},
		{"policy.edit.spec.deep", nil, SupervisedRetro, FromDefault, ""},
		{"mail", nil, SupervisedLive, FromRule, "mail"},
	} {
		r := p.Resolve(test.class, test.reversible)
		if r.Autonomy != test.autonomy || r.Provenance != test.provenance || r.Pattern != test.pattern {
			t.Errorf("%s (reversible %v): %s from %s %q, want %s from %s %q; steps %q", test.class, test.reversible,
				r.Autonomy, r.Provenance, r.Pattern, test.autonomy, test.provenance, test.pattern, r.Steps)
		}
		if want := r.Autonomy == HumanOnly || r.Autonomy == Manual || r.Autonomy == SupervisedLive; r.NeedsPerson() != want {
			t.Errorf("%s: needs a person %v", test.class, r.NeedsPerson())
		}
	}
	if r := p.Resolve("x.y.z", nil); len(r.Candidates) != 2 || r.Candidates[0].TieBreak != "strictest-autonomy" ||
		r.Candidates[1].TieBreak != "tied-specificity" || r.Approvers[0] != "ada" {
		t.Errorf("candidates %+v", r.Candidates)
	}
	var none *Policy
	if r := none.Resolve("read.file", &yes); r.Autonomy != Manual || r.ManualBecause() != BecauseFailure {
		t.Errorf("without a policy: %+v", r)
	}
}

func TestMatches(t *testing.T) {
	for _, test := range []struct {
		pattern, class string
		want           bool
	}{
		{"a", "a", true}, {"a", "a.b", false}, {"a.b", "a", false},
		{"*", "a", true}, {"*", "a.b", false},
		{"a.*", "a", false}, {"a.*", "a.b", true}, {"a.*", "a.b.c.d", true}, {"a.*", "b.b", false},
		{"*.b", "a.b", true}, {"*.b", "a.b.c", false}, {"*.*", "a", false}, {"*.*", "a.b.c", true},
		{"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.b.c", false}, {"a.*.*", "a.b", false}, {"a.*.*", "a.b.c.d", true},
	} {
		if got := Matches(test.pattern, test.class); got != test.want {
			t.Errorf("Matches(%q, %q) = %v", test.pattern, test.class, got)
		}
	}
}

// TestReq043BuiltInPaths: the gate's own organs are protected whatever the policy says.
func TestReq043BuiltInPaths(t *testing.T) {
	p := policyOf(t, `version: "0.1"
protected_paths: [SPEC.md, docs/const.md, design/, {path: ci/, class: policy.edit.ci}, {path: ci/keys/, class: policy.edit.keys},
  {path: lax/, class: policy.edit.lax}, {path: hard/, class: policy.edit.hard}]
classes:
  policy.edit: {autonomy: manual}
  policy.edit.ci: {autonomy: supervised}
  policy.edit.lax: {autonomy: autonomous, allow_irreversible: true}
  policy.edit.hard: {autonomy: human-only}`)
	for _, test := range []struct {
		path, class string
	}{
		{"APPROVAL.md", ClassPolicyEdit}, {"x/APPROVALS.md", ClassPolicyEdit}, {"CLAUDE.md", ClassPolicyEdit},
		{"a/b/AGENTS.md", ClassPolicyEdit}, {".npmrc", ClassPolicyEdit}, {"x/.approval/y", ClassPolicyEdit},
		{".approval", ClassPolicyEdit}, {".claude/settings.json", ClassPolicyEdit}, {".claude/settings/x", ClassPolicyEdit},
		{".github/workflows/a.yml", ClassPolicyEdit}, {"./.github//workflows", ClassPolicyEdit}, {`.github\workflows\a`, ClassPolicyEdit},
		{".claude", ClassWorkspace}, {".claude/x", ClassWorkspace}, {"APPROVAL.md/x", ClassWorkspace},
		{"approval.md", ClassWorkspace}, {".github/x", ClassWorkspace}, {"main.go", ClassWorkspace},
		{"SPEC.md", ClassPolicyEdit}, {"docs/SPEC.md", ClassPolicyEdit}, {"docs/const.md", ClassPolicyEdit},
		{"a/docs/const.md", ClassPolicyEdit}, {"const.md", ClassWorkspace}, {"SPEC.md/x", ClassWorkspace},
		{"design", ClassPolicyEdit}, {"design/a/b", ClassPolicyEdit}, {"x/design/y", ClassPolicyEdit}, {"designs/x", ClassWorkspace},
		{"ci/a", "policy.edit.ci"}, {"ci/keys/a", "policy.edit.keys"}, {"lax/a", "policy.edit.lax"},
		{"lax/AGENTS.md", ClassPolicyEdit}, // a wide entry does not weaken a built-in
		{"hard/AGENTS.md", "policy.edit.hard"},
		{"lax/SPEC.md", ClassPolicyEdit}, // nor another entry
	} {
		if got := p.ClassOf(test.path); got.Class != test.class || got.Protected != (test.class != ClassWorkspace) {
			t.Errorf("%s: %+v, want %s", test.path, got, test.class)
		}
	}
	var none *Policy
	if got := none.ClassOf("AGENTS.md"); got.Class != ClassPolicyEdit || !got.BuiltIn {
		t.Errorf("without a policy: %+v", got)
	}
}
