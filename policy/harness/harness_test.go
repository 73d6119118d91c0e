package harness

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/require"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// root returns a trusted search root that holds the named executables.
func root(t *testing.T, names ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	dir = filepath.Join(dir, "bin")
	must(t, os.Mkdir(dir, 0o755))
	for _, n := range names {
		program(t, filepath.Join(dir, n), 0o755)
	}
	return dir
}

func program(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700))
	must(t, os.Chmod(path, mode)) // past the umask
}

func codex(t *testing.T) Adapter {
	t.Helper()
	a, ok := Lookup("codex")
	if !ok {
		t.Fatal("no adapter codex")
	}
	return a
}

func TestTable(t *testing.T) {
	want := []string{"claude-code", "codex", "copilot", "opencode", "pi"}
	if got := RuntimeIDs(); !slices.Equal(got, want) {
		t.Errorf("RuntimeIDs = %v, want %v", got, want)
	}
	dirs := map[string]string{
		"codex": "/home/agent/.codex/skills", "claude-code": "/home/agent/.claude/skills", "pi": "/home/agent/.pi/agent/skills",
		"copilot": "/home/agent/.copilot/skills", "opencode": "/home/agent/.config/opencode/skills",
	}
	for _, a := range Adapters() {
		if a.SkillDirectory() != dirs[a.RuntimeID] {
			t.Errorf("%s: skills in %s, want %s", a.RuntimeID, a.SkillDirectory(), dirs[a.RuntimeID])
		}
		for _, e := range a.Environment {
			if name, value, ok := strings.Cut(e, "="); !ok || !ident.EnvName(name) || !ident.Within(value, Home) {
				t.Errorf("%s: environment %q", a.RuntimeID, e)
			}
		}
		if a.NeedsAdoption != (a.RuntimeID == "pi") {
			t.Errorf("%s: NeedsAdoption = %v", a.RuntimeID, a.NeedsAdoption)
		}
	}
	if _, ok := Lookup("cloudflare-os"); ok {
		t.Error("cloudflare-os is a native adapter")
	}
	a := codex(t)
	a.Arguments[0], a.Config.Contents = "x", "y"
	if b := codex(t); b.Arguments[0] == "x" || b.Config.Contents == "y" {
		t.Error("a caller changed the table")
	}
}

func TestDiscover(t *testing.T) {
	f, a := NewFinder(), codex(t)
	first, second := root(t, "codex"), root(t, "codex")
	empty := root(t)
	for _, c := range []struct {
		name  string
		roots []string
		want  string
	}{
		{"first wins", []string{first, second}, first + "/codex"},
		{"next after empty", []string{empty, second}, second + "/codex"},
		{"next after missing", []string{"/nonexistent/dir", second}, second + "/codex"},
	} {
		got, err := f.Discover(a, c.roots)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
	linked := root(t)
	must(t, os.Symlink(first+"/codex", linked+"/codex"))
	if got, err := f.Discover(a, []string{linked}); err != nil || got != first+"/codex" {
		t.Errorf("linked: %q, %v", got, err)
	}
	via := filepath.Join(empty, "via")
	must(t, os.Symlink("../../"+filepath.Base(filepath.Dir(empty))+"/bin", via))
	program(t, empty+"/codex", 0o755)
	if got, err := f.Discover(a, []string{via}); err != nil || got != empty+"/codex" {
		t.Errorf("linked root: %q, %v", got, err)
	}
}

// PATH of the process is never looked at.
func TestPATHIsIgnored(t *testing.T) {
	t.Setenv("PATH", root(t, "codex"))
	if got, err := NewFinder().Discover(codex(t), []string{root(t)}); err == nil {
		t.Errorf("found %q", got)
	}
}

func wantReason(t *testing.T, f Finder, dir, code string) {
	t.Helper()
	got, err := f.Discover(codex(t), []string{dir})
	e, ok := errors.AsType[*NotFoundError](err)
	if !ok || len(e.Roots) != 1 {
		t.Fatalf("Discover(%s) = %q, %v; want %s", dir, got, err, code)
	}
	if e.Roots[0].Code != code || e.Roots[0].Root != dir || !strings.Contains(e.Error(), code) {
		t.Errorf("Discover(%s): %v, want %s", dir, e, code)
	}
}

func TestDiscoverRefusals(t *testing.T) {
	f := NewFinder()
	wantReason(t, f, "relative", ReasonInvalid)
	wantReason(t, f, root(t), ReasonNotFound)
	wantReason(t, f, root(t, "codex")+"/codex", ReasonNotDirectory)

	dir := root(t)
	program(t, dir+"/codex", 0o644)
	wantReason(t, f, dir, ReasonNotExecutable)

	dir = root(t)
	must(t, os.Mkdir(dir+"/codex", 0o755))
	wantReason(t, f, dir, ReasonNotRegular)

	dir = root(t, "codex")
	must(t, os.Chmod(dir+"/codex", 0o775))
	wantReason(t, f, dir, ReasonWritable)

	dir = root(t, "codex")
	must(t, os.Chmod(dir, 0o775))
	wantReason(t, f, dir, ReasonWritable)

	dir = root(t, "codex")
	must(t, os.Chmod(filepath.Dir(dir), 0o757))
	wantReason(t, f, dir, ReasonWritable)

	dir = root(t, "codex") // sticky is fine for an ancestor, not for the root itself
	must(t, os.Chmod(dir, 0o777|os.ModeSticky))
	wantReason(t, f, dir, ReasonWritable)

	dir = root(t)
	must(t, os.Symlink("codex", dir+"/codex"))
	wantReason(t, f, dir, ReasonLinks)

	// A trusted root with a link into a directory that others may write.
	open := root(t, "codex")
	must(t, os.Chmod(open, 0o777))
	dir = root(t)
	must(t, os.Symlink(open+"/codex", dir+"/codex"))
	wantReason(t, f, dir, ReasonWritable)

	// The same one link further: a link kept in that directory decides where the trail goes.
	good := root(t, "codex")
	must(t, os.Symlink(good+"/codex", open+"/hop"))
	dir = root(t)
	must(t, os.Symlink(open+"/hop", dir+"/codex"))
	wantReason(t, f, dir, ReasonWritable)
}

func TestDiscoverOwners(t *testing.T) {
	require.Root(t)
	f := Finder{EUID: 0}
	dir := root(t, "codex")
	must(t, os.Chown(dir+"/codex", 4242, 4242))
	wantReason(t, f, dir, ReasonUntrusted)
	if _, err := (Finder{EUID: 4242}).Discover(codex(t), []string{dir}); err != nil {
		t.Errorf("the service account's own file: %v", err)
	}
	dir = root(t, "codex")
	must(t, os.Chown(dir, 4242, 4242))
	wantReason(t, f, dir, ReasonUntrusted)

	sticky := root(t)
	must(t, os.Chmod(sticky, 0o777|os.ModeSticky))
	must(t, os.Mkdir(sticky+"/bin", 0o755))
	program(t, sticky+"/bin/codex", 0o755)
	if _, err := f.Discover(codex(t), []string{sticky + "/bin"}); err != nil {
		t.Errorf("below a root-owned sticky directory: %v", err)
	}
	must(t, os.Chown(sticky, 4242, 4242)) // the owner of a sticky directory may still rename
	must(t, os.Chmod(sticky, 0o777|os.ModeSticky))
	wantReason(t, Finder{EUID: 4242}, sticky+"/bin", ReasonWritable)

	// Somebody else's link in a sticky directory.
	must(t, os.Chown(sticky, 0, 0))
	must(t, os.Symlink("bin", sticky+"/theirs"))
	must(t, os.Lchown(sticky+"/theirs", 4242, 4242))
	wantReason(t, f, sticky+"/theirs", ReasonUntrusted)
}

func TestDetect(t *testing.T) {
	dir := root(t, "codex")
	must(t, os.Chmod(dir, 0o777)) // detection judges no trust
	program(t, dir+"/pi", 0o600)
	must(t, os.Symlink("codex", dir+"/claude"))
	found := map[string]Detection{}
	for _, d := range Detect([]string{"/nonexistent", dir}) {
		found[d.RuntimeID] = d
	}
	if len(found) != 5 {
		t.Fatalf("detections %v", found)
	}
	for id, exe := range map[string]string{"codex": dir + "/codex", "claude-code": dir + "/claude", "pi": "", "copilot": ""} {
		d := found[id]
		if d.Available != (exe != "") || d.ResolvedExecutable != exe || d.Diagnostic == "" {
			t.Errorf("%s: %+v, want %q", id, d, exe)
		}
	}
	if d := Detect(nil)[0]; d.Available || d.Diagnostic == "" {
		t.Errorf("without roots: %+v", d)
	}
}
