package broker

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/require"
)

// manifestV1 is a manifest as the existing installations have it.
const manifestV1 = `{"schema_version":"approval.codex.instance.v1","instance_id":"team","platform":"darwin","codex_version":"0.152.1",` +
	`"node_version":"20.19.0","package_version":"0.1.0","paths":{"install_root":"/Library/Application Support/approval-codex",` +
	`"package_root":"/Library/Application Support/approval-codex/package","workspace":"/Users/_approval_codex/workspace",` +
	`"primary":"/Users/operator/primary","policy":"/Users/operator/primary/APPROVAL.md","log":"/Users/operator/primary/.approval/log/events.jsonl",` +
	`"manifest":"/Library/Application Support/approval-codex/instances/team.json","codex_executable":"/Library/Application Support/approval-codex/bin/codex",` +
	`"node_executable":"/Library/Application Support/approval-codex/bin/node","mcp_executable":"/Library/Application Support/approval-codex/bin/mcp",` +
	`"broker_executable":"/Library/Application Support/approval-codex/bin/broker","runner_executable":"/Library/Application Support/approval-codex/bin/runner"},` +
	`"principals":{"codex":"_approval_codex","broker":"_approval_broker","runner":"_approval_runner"},` +
	`"invocation":{"command":"/Library/Application Support/approval-codex/bin/mcp","args":["codex","serve","--manifest","/Library/Application Support/approval-codex/instances/team.json"]},` +
	`"components":{"broker":"required-not-shipped","runner":"required-not-shipped"}}`

func templateV2(t testing.TB) []byte {
	t.Helper()
	data, err := bundle.ReadFile("bundle/instance.template.json")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestReq001ActorFromTheManifest(t *testing.T) {
	for _, text := range []string{manifestV1, string(templateV2(t))} {
		m, err := ParseManifest([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if m.Actor() != "agent:codex-team" {
			t.Fatalf("actor %s", m.Actor())
		}
	}
}

func TestReq011ManifestIsStrict(t *testing.T) {
	v2 := string(templateV2(t))
	edit := func(old, now string) string {
		if !strings.Contains(v2, old) {
			t.Fatalf("the template has no %s", old)
		}
		return strings.Replace(v2, old, now, 1)
	}
	for name, text := range map[string]string{
		"unknown member":    edit(`"instance_id"`, `"extra": 1, "instance_id"`),
		"duplicate":         edit(`"platform": "linux"`, `"platform": "linux", "platform": "linux"`),
		"version":           edit("instance.v2", "instance.v3"),
		"platform":          edit(`"linux"`, `"windows"`),
		"v1 on linux":       edit("instance.v2", "instance.v1"),
		"instance":          edit(`"team"`, `"Team"`),
		"relative":          edit(`"/srv/codex/workspace"`, `"srv/codex"`),
		"not normal":        edit(`"/srv/codex/workspace"`, `"/srv/codex/../workspace"`),
		"root":              edit(`"/srv/codex/workspace"`, `"/"`),
		"overlap":           edit(`"/srv/codex/workspace"`, `"/srv/approval/workspace"`),
		"outside install":   edit(`"mcp_executable": "/opt/approval-codex/bin/approval"`, `"mcp_executable": "/usr/bin/approval"`),
		"command":           edit(`"command": "/opt/approval-codex/bin/approval"`, `"command": "/opt/approval-codex/bin/codex"`),
		"args":              edit(`"serve"`, `"apply"`),
		"principal":         edit(`"_approval_codex"`, `"bad name"`),
		"node in version 2": edit(`"codex_version"`, `"node_version": "20", "codex_version"`),
		"null":              "null", "empty": "",
	} {
		_, err := ParseManifest([]byte(text))
		e, ok := errors.AsType[*ManifestError](err)
		if !ok || e.Code != CodeManifestInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "copy.json")
	if err := os.WriteFile(path, []byte(v2), 0o644); err != nil {
		t.Fatal(err)
	}
	for p, code := range map[string]string{path: CodeManifestDrift, "copy.json": CodeManifestInvalid, filepath.Join(dir, "no"): CodeManifestInvalid, dir: CodeManifestInvalid} {
		_, err := LoadManifest(p)
		if e, ok := errors.AsType[*ManifestError](err); !ok || e.Code != code {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// FuzzManifest: what is accepted holds every rule that the parts rely on, and is accepted again once
// written.
func FuzzManifest(f *testing.F) {
	for _, seed := range []string{manifestV1, string(templateV2(f)), "{}", "null", `{"schema_version":"approval.codex.instance.v2"}`} {
		f.Add([]byte(seed))
	}
	for _, seed := range []string{manifestV1, string(templateV2(f))} {
		if _, err := ParseManifest([]byte(seed)); err != nil {
			f.Fatalf("a good seed is refused: %v", err)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseManifest(data)
		if err != nil {
			if _, ok := errors.AsType[*ManifestError](err); !ok {
				t.Fatalf("%v", err)
			}
			return
		}
		if !strings.HasPrefix(m.Actor(), "agent:codex-") || m.Invocation.Args[3] != m.Paths.Manifest {
			t.Fatalf("accepted %+v", m)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseManifest(text); err != nil {
			t.Fatalf("not accepted again: %v", err)
		}
	})
}

// TestReq131Bundle checks the templates, and each way in which a folder is not them.
func TestReq131Bundle(t *testing.T) {
	fresh := func() string {
		dir := filepath.Join(t.TempDir(), "bundle")
		if err := WriteBundle(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	r, err := CheckBundle(fresh())
	if err != nil || !r.OK || !r.Inert || r.Ready {
		t.Fatalf("%+v %v", r, err)
	}
	for name, c := range map[string]struct {
		code string
		harm func(dir string) error
	}{
		"extra file":    {CodeBundleFiles, func(d string) error { return os.WriteFile(filepath.Join(d, "x"), nil, 0o644) }},
		"extra folder":  {CodeBundleFiles, func(d string) error { return os.Mkdir(filepath.Join(d, "x"), 0o755) }},
		"missing file":  {CodeBundleFiles, func(d string) error { return os.Remove(filepath.Join(d, "README.txt")) }},
		"changed byte":  {CodeBundleHash, func(d string) error { return os.WriteFile(filepath.Join(d, "README.txt"), []byte("x"), 0o644) }},
		"linked index":  {CodeBundleIndex, func(d string) error { return relink(d, bundleIndex) }},
		"missing index": {CodeBundleIndex, func(d string) error { return os.Remove(filepath.Join(d, bundleIndex)) }},
		"linked file":   {CodeBundleFiles, func(d string) error { return relink(d, "README.txt") }},
	} {
		dir := fresh()
		if err := c.harm(dir); err != nil {
			t.Fatal(err)
		}
		_, err := CheckBundle(dir)
		if e, ok := errors.AsType[*BundleError](err); !ok || e.Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	dir := fresh()
	if err := WriteBundle(dir); err == nil {
		t.Error("an existing folder was written to")
	}
}

func relink(dir, name string) error {
	away := filepath.Join(filepath.Dir(dir), "away")
	return errors.Join(os.Rename(filepath.Join(dir, name), away), os.Symlink(away, filepath.Join(dir, name)))
}

// installation makes an installation below a folder that only root can write, so that doctor finds
// nothing but what a test breaks.
func installation(t *testing.T) (dir string, write func(edit func(string) string) string) {
	t.Helper()
	require.Root(t)
	dir, err := os.MkdirTemp("/var", "approval-doctor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"install/bin", "install/instances", "ws", "primary/.approval/log"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"install/bin/approval": 0o755, "install/bin/codex": 0o755, "primary/APPROVAL.md": 0o644, "primary/.approval/log/events.jsonl": 0o644} {
		text := "#!/bin/sh\ntouch " + dir + "/ran\n"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "install/instances/team.json")
	return dir, func(edit func(string) string) string {
		text := strings.NewReplacer("/opt/approval-codex", dir+"/install", "/srv/codex/workspace", dir+"/ws", "/srv/approval", dir+"/primary",
			"_approval_codex", "nobody", "_approval_broker", "daemon", "_approval_runner", "bin").Replace(string(templateV2(t)))
		if err := os.WriteFile(path, []byte(edit(text)), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func TestReq132And133Doctor(t *testing.T) {
	same := func(s string) string { return s }
	dir, write := installation(t)
	d := Doctor(write(same))
	if !d.OK || len(d.Notes) != 1 || d.Notes[0] != "acl-unproven" {
		t.Fatalf("a good installation: %+v", d)
	}
	if _, err := os.Stat(dir + "/ran"); err == nil {
		t.Fatal("a program of the manifest was run")
	}
	for name, c := range map[string]struct {
		code string
		edit func(string) string
		harm func(dir string) error
	}{
		"root principal":    {FindPrincipalRoot, func(s string) string { return strings.Replace(s, `"daemon"`, `"root"`, 1) }, nil},
		"equal principals":  {FindPrincipalsEqual, func(s string) string { return strings.Replace(s, `"daemon"`, `"nobody"`, 1) }, nil},
		"unknown principal": {FindPrincipal, func(s string) string { return strings.Replace(s, `"daemon"`, `"no_such_user"`, 1) }, nil},
		"overlapping roots": {FindManifest, func(s string) string { return strings.Replace(s, `/ws"`, `/primary/ws"`, 1) }, nil},
		"other path":        {FindManifestDrift, func(s string) string { return strings.ReplaceAll(s, "team.json", "other.json") }, nil},
		"missing program":   {FindMissing, same, func(d string) error { return os.Remove(d + "/install/bin/codex") }},
		"no x bit":          {FindNotExecutable, same, func(d string) error { return os.Chmod(d+"/install/bin/codex", 0o644) }},
		"symlink": {FindSymlink, same, func(d string) error {
			return errors.Join(os.Rename(d+"/install/bin/codex", d+"/codex"), os.Symlink(d+"/codex", d+"/install/bin/codex"))
		}},
		"writable ancestor":  {FindWritable, same, func(d string) error { return os.Chmod(d+"/install/bin", 0o777) }},
		"writable workspace": {FindWorkspace, same, func(d string) error { return os.Chown(d+"/ws", 65534, 65534) }},
		"writable policy":    {FindAuthority, same, func(d string) error { return os.Chmod(d+"/primary/APPROVAL.md", 0o666) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir, write := installation(t)
			path := write(c.edit)
			if c.harm != nil {
				if err := c.harm(dir); err != nil {
					t.Fatal(err)
				}
			}
			d := Doctor(path)
			found := false
			for _, f := range d.Findings {
				found = found || f.Code == c.code
			}
			if d.OK || !found || d.Notes[0] != ACLUnproven {
				t.Fatalf("%+v", d)
			}
		})
	}
}
