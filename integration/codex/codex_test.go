package codex

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/require"
)

// binary is the approval program, built once.
var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "codex-binary-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "approval")
	if out, err := exec.Command("go", "build", "-o", binary, "gloved.dev/cmd/approval").CombinedOutput(); err != nil {
		panic(string(out))
	}
	return m.Run()
}

// An instance is an installation in a temporary folder.
type instance struct {
	t                              testing.TB
	dir, ws, primary, log, install string
	manifest, policy, home         string
	env                            []string
}

const policyText = "# Policy\n\n```yaml approval-policy\nversion: \"0.1\"\nclasses:\n  files.write.workspace:\n    autonomy: autonomous\n" +
	"    allow_irreversible: true\n  policy.edit:\n    autonomy: manual\n```\n"

func newInstance(t testing.TB) *instance {
	t.Helper()
	require.Linux(t)
	dir, err := os.MkdirTemp("", "codex-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	i := &instance{t: t, dir: dir, ws: dir + "/ws", primary: dir + "/primary", install: dir + "/install",
		home: dir + "/primary/.approval", log: dir + "/primary/.approval/log/events.jsonl",
		policy: dir + "/primary/APPROVAL.md", manifest: dir + "/install/instances/team.json"}
	for _, d := range []string{i.ws + "/docs", i.home + "/log", i.home + "/keys", i.install + "/bin", i.install + "/instances", dir + "/other"} {
		i.must(os.MkdirAll(d, 0o755))
	}
	i.must(os.Chmod(dir, 0o755))
	for name, text := range map[string]string{
		i.policy: policyText, i.ws + "/docs/keep.txt": "keep", i.dir + "/other/secret": "elsewhere",
		i.home + "/vault.enc": "vault", i.home + "/keys/k": "key", i.install + "/bin/broker": "broker",
	} {
		i.must(os.WriteFile(name, []byte(text), 0o644))
	}
	for _, name := range []string{"approval", "codex"} {
		data, err := os.ReadFile("/bin/true")
		i.must(err)
		i.must(os.WriteFile(i.install+"/bin/"+name, data, 0o755))
	}
	i.writeManifest()
	i.ok("policy", "attest", "--as", "human:ada", "--log", i.log, "--policy", i.policy)
	return i
}

func (i *instance) must(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *instance) writeManifest() {
	bin := i.install + "/bin/"
	m := map[string]any{
		"schema_version": "approval.codex.instance.v2", "instance_id": "team", "platform": "linux", "codex_version": "0", "package_version": "0",
		"paths": map[string]string{"install_root": i.install, "workspace": i.ws, "primary": i.primary, "policy": i.policy, "log": i.log,
			"manifest": i.manifest, "codex_executable": bin + "codex", "mcp_executable": bin + "approval",
			"broker_executable": bin + "approval", "runner_executable": bin + "approval"},
		"principals": map[string]string{"codex": "nobody", "broker": "daemon", "runner": "bin"},
		"invocation": map[string]any{"command": bin + "approval", "args": []string{"codex", "serve", "--manifest", i.manifest}},
		"components": map[string]string{"broker": "included", "runner": "included"},
	}
	raw, err := json.Marshal(m)
	i.must(err)
	i.must(os.WriteFile(i.manifest, raw, 0o644))
}

// result is what a run of the program came to.
type result struct {
	exit        int
	out, errOut string
}

func (i *instance) run(stdin string, args ...string) result {
	i.t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = i.dir + "/other"
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), i.env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		i.t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func (i *instance) ok(args ...string) string {
	i.t.Helper()
	r := i.run("", args...)
	if r.exit != 0 {
		i.t.Fatalf("%v: exit %d\n%s%s", args, r.exit, r.out, r.errOut)
	}
	return r.out
}

// codex runs a codex command of the instance.
func (i *instance) codex(stdin, verb string, args ...string) result {
	i.t.Helper()
	return i.run(stdin, append([]string{"codex", verb, "--manifest", i.manifest}, args...)...)
}

func sum(s string) string { h := sha256.Sum256([]byte(s)); return hex.EncodeToString(h[:]) }

func create(path, content string) map[string]any {
	return map[string]any{"kind": "create", "path": path, "after_base64": base64.StdEncoding.EncodeToString([]byte(content))}
}

func replace(path, before, after string) map[string]any {
	o := create(path, after)
	o["kind"], o["expected_before_sha256"] = "replace", sum(before)
	return o
}

func arguments(ops ...map[string]any) map[string]any {
	return map[string]any{"operations": ops, "expected_policy_sha256": sum(policyText)}
}

func proposal(t testing.TB, ops ...map[string]any) string {
	t.Helper()
	raw, err := json.Marshal(arguments(ops...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// code is the error code that a codex command printed as JSON.
func (r result) code(t testing.TB) string {
	t.Helper()
	var m struct {
		Error struct {
			Code    string   `json:"code"`
			Pending []string `json:"pending"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(r.errOut), &m); err != nil {
		t.Fatalf("%q: %v", r.errOut, err)
	}
	return m.Error.Code
}

// TestReq001To002ApplyAsInstalled is a person's way through: plan, ask, show, grant, apply, verify.
// Another actor in the environment and another policy in the working directory change nothing.
func TestReq001To002ApplyAsInstalled(t *testing.T) {
	i := newInstance(t)
	i.env = []string{"APPROVAL_HUMAN=human:mallory", "APPROVAL_AGENT=agent:mallory"}
	for name, text := range map[string]string{"APPROVAL.md": "no policy"} { // a policy of the wrong folder
		i.must(os.WriteFile(i.dir+"/other/"+name, []byte(text), 0o644))
	}
	ops := proposal(t, create("AGENTS.md", "hello\n"), replace("docs/keep.txt", "keep", "kept"))
	if r := i.codex(ops, "plan", "--json", "-"); r.exit != 0 || !strings.Contains(r.out, `"policy.edit"`) {
		t.Fatalf("%+v", r)
	}
	r := i.codex(ops, "apply", "--json", "-")
	if r.exit != 1 || r.code(t) != "approval-required" {
		t.Fatalf("%+v", r)
	}
	key := "codex-workspace:team:"
	queue := i.ok("queue", "--json", "--log", i.log, "--policy", i.policy)
	key = queue[strings.Index(queue, key):]
	key = key[:strings.Index(key, `"`)]
	if shown := i.ok("show", key, "--log", i.log, "--policy", i.policy); !strings.Contains(shown, "+hello") {
		t.Fatalf("shown: %s", shown)
	}
	i.ok("grant", key, "--as", "human:ada", "--log", i.log, "--policy", i.policy)
	if r := i.codex(ops, "apply", "--json", "-"); r.exit != 0 || !strings.Contains(r.out, `"state":"after"`) || !strings.Contains(r.out, "acl-unproven") {
		t.Fatalf("%+v", r)
	}
	if got, err := os.ReadFile(i.ws + "/docs/keep.txt"); err != nil || string(got) != "kept" {
		t.Fatalf("%q %v", got, err)
	}
	i.ok("log", "verify", "--log", i.log, "--policy", i.policy)
	log, err := os.ReadFile(i.log)
	i.must(err)
	if strings.Contains(string(log), "mallory") || !strings.Contains(string(log), "agent:codex-team") {
		t.Fatal("the environment named the actor")
	}
	if list, err := os.ReadDir(i.dir + "/other"); err != nil || len(list) != 2 {
		t.Fatalf("the working directory was used: %v %v", list, err)
	}
}

func TestReq010And012And106CommandLine(t *testing.T) {
	i := newInstance(t)
	good := proposal(t, create("docs/a", "x"))
	for _, flag := range []string{"--as", "--log", "--policy", "--class", "--sandbox", "--token"} {
		if r := i.codex(good, "apply", flag, "x", "-"); r.exit != 2 {
			t.Errorf("apply %s: %+v", flag, r)
		}
	}
	i.must(os.WriteFile(i.dir+"/open.json", []byte("{"), 0o644))
	for _, file := range []string{i.dir + "/no.json", i.dir, i.dir + "/open.json"} {
		if r := i.codex("", "apply", "--json", file); r.exit != 4 || r.code(t) != "proposal-unreadable" {
			t.Errorf("apply %s: %+v", file, r)
		}
	}
	for _, args := range [][]string{
		{}, {"--manifest"}, {"--manifest", "relative.json"}, {"--manifest=" + i.manifest}, {"--manifest", i.manifest, "--json"},
		{"--json", "--manifest", i.manifest}, {"--manifest", i.manifest, "x"}, {"--as", "agent:x"},
	} {
		if r := i.run("", append([]string{"codex", "serve"}, args...)...); r.exit != 2 {
			t.Errorf("serve %v: %+v", args, r)
		}
	}
	copied := i.dir + "/copy.json"
	data, err := os.ReadFile(i.manifest)
	i.must(err)
	i.must(os.WriteFile(copied, data, 0o644))
	if r := i.run(good, "codex", "apply", "--json", "--manifest", copied, "-"); r.exit != 1 || r.code(t) != "manifest-path-drift" {
		t.Errorf("%+v", r)
	}
	if r := i.run(good, "codex", "apply", "--json", "--manifest", "install/instances/team.json", "-"); r.exit != 1 || r.code(t) != "manifest-invalid" {
		t.Errorf("%+v", r)
	}
}

func TestReq096RecoverExit(t *testing.T) {
	i := newInstance(t)
	r := i.codex("", "recover", "--json")
	if r.exit != 0 || !strings.Contains(r.out, `"state":"none"`) {
		t.Fatalf("%+v", r)
	}
	i.must(os.MkdirAll(i.ws+"/.approval-codex-txn", 0o700))
	i.must(os.WriteFile(i.ws+"/.approval-codex-txn/journal.json", []byte("{"), 0o600))
	if r := i.codex("", "recover", "--json"); r.exit != 1 || !strings.Contains(r.out, `"journal":"unreadable"`) {
		t.Fatalf("%+v", r)
	}
}

func TestReq131SetupCommand(t *testing.T) {
	i := newInstance(t)
	dir := i.dir + "/bundle"
	i.ok("codex", "setup", dir)
	if out := i.ok("codex", "setup", "--check", "--json", dir); !strings.Contains(out, `"inert":true`) || !strings.Contains(out, `"ready":false`) {
		t.Fatal(out)
	}
	i.must(os.WriteFile(dir+"/extra", nil, 0o644))
	if r := i.run("", "codex", "setup", "--check", "--json", dir); r.exit != 1 || r.code(t) != "bundle-file-set" {
		t.Fatalf("%+v", r)
	}
}

// TestReq134InstallingChangesNothing looks for what setup leaves: its own folder and nothing else, in
// the working directory, the home and the temporary folder.
func TestReq134InstallingChangesNothing(t *testing.T) {
	i := newInstance(t)
	places := map[string]string{"HOME": t.TempDir(), "TMPDIR": t.TempDir(), "XDG_CONFIG_HOME": t.TempDir(), "CODEX_HOME": t.TempDir()}
	for name, dir := range places {
		i.env = append(i.env, name+"="+dir)
	}
	before := listing(t, i.dir)
	bundle := t.TempDir() + "/bundle"
	i.ok("codex", "setup", bundle)
	i.ok("codex", "setup", "--check", bundle)
	if after := listing(t, i.dir); after != before {
		t.Errorf("the installation changed:\n%s", after)
	}
	for name, dir := range places {
		if list := listing(t, dir); strings.Count(list, "\n") != 1 {
			t.Errorf("%s has %s", name, list)
		}
	}
	if list := listing(t, filepath.Dir(bundle)); strings.Count(list, "\n") != 6 {
		t.Errorf("setup wrote %s", list)
	}
}

// listing describes everything below a folder: name, mode, size and time of change.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintln(&b, path, info.Mode(), info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
