package policy

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"gloved.dev/internal/strictjson"
)

func TestGenerate(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "codex-1.0")
	if err := os.WriteFile(exe, []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	link := filepath.Join(dir, "codex")
	if err := os.Symlink("codex-1.0", link); err != nil {
		t.Fatal(err)
	}
	g, err := Generate(GenerateOptions{RuntimeID: "codex", Executable: link, Environment: []string{"TERM=dumb", "PATH=/bin"},
		Arguments: []string{"exec"}, PathAliases: []string{"workspace"}, ProjectionDestinations: []string{"libraries"}})
	if err != nil {
		t.Fatal(err)
	}
	want := Launch{ExecutablePath: exe, Arguments: []string{"exec"}, Environment: []string{"PATH=/bin", "TERM=dumb"}}
	if g.Executable != exe || g.Digest != LaunchDigest(want) || g.Template.ID != "codex-safe" || g.Template.Backend != BackendLinux {
		t.Errorf("generated %+v", g)
	}
	var tpl Template
	if err := strictjson.Decode(g.JSON, &tpl, strictjson.Limits{}); err != nil || !strictjson.IsCanonical(g.JSON) {
		t.Fatalf("%s: %v", g.JSON, err)
	}
	d := document(t, "codex-safe.json")
	d.RuntimeTemplates = []Template{tpl}
	if _, err := parse(t, d, &fakeHost{}); err != nil {
		t.Errorf("a policy with the generated template: %v", err)
	}
	again, err := DigestLines(g.JSON)
	if err != nil || len(again) != 1 || again[0].Digest != g.Digest {
		t.Errorf("digest lines %+v, %v", again, err)
	}

	g, err = Generate(GenerateOptions{RuntimeID: "codex", TemplateID: "found", SearchPaths: []string{dir},
		Env: (&fakeHost{exe: exe}).env()})
	if err != nil {
		t.Fatal(err)
	}
	if g.Executable != exe || g.Template.Launch.Discovery != "codex" || g.Template.Launch.ExecutablePath != "" ||
		g.Template.Launch.SearchPaths[0] != dir || bytes.Contains(g.JSON, []byte("codex-1.0")) {
		t.Errorf("discovered %+v", g)
	}

	for _, c := range []struct {
		name          string
		o             GenerateOptions
		code, pointer string
	}{
		{"neither", GenerateOptions{RuntimeID: "codex"}, CodeLaunch, "/launch"},
		{"both", GenerateOptions{RuntimeID: "codex", Executable: exe, SearchPaths: []string{dir}}, CodeLaunch, "/launch"},
		{"bad runtime", GenerateOptions{RuntimeID: "a b", Executable: exe}, CodeIdentifier, "/runtime_id"},
		{"bad template id", GenerateOptions{RuntimeID: "codex", TemplateID: "/", Executable: exe}, CodeIdentifier, "/runtime_template_id"},
		{"bad backend", GenerateOptions{RuntimeID: "codex", Backend: "x", Executable: exe}, CodeBackend, "/sandbox_backend"},
		{"relative", GenerateOptions{RuntimeID: "codex", Executable: "codex"}, CodePath, "/launch/executable_path"},
		{"missing", GenerateOptions{RuntimeID: "codex", Executable: exe + "x"}, CodeHostObject, "/launch/executable_path"},
		{"directory", GenerateOptions{RuntimeID: "codex", Executable: dir}, CodeHostObject, "/launch/executable_path"},
		{"unknown adapter", GenerateOptions{RuntimeID: "vim", SearchPaths: []string{dir}}, CodeLaunch, "/launch/runtime_discovery"},
		{"nothing found", GenerateOptions{RuntimeID: "codex", SearchPaths: []string{dir}, Env: (&fakeHost{}).env()}, CodeLaunch, "/launch/executable_search_paths"},
		{"environment twice", GenerateOptions{RuntimeID: "codex", Executable: exe, Environment: []string{"A=1", "A=2"}}, CodeDuplicate, "/launch/environment/1"},
		{"alias twice", GenerateOptions{RuntimeID: "codex", Executable: exe, PathAliases: []string{"a", "a"}}, CodeDuplicate, "/allowed_path_aliases/1"},
		{"read-only around it", GenerateOptions{RuntimeID: "codex", Executable: exe, ReadOnlyPaths: []string{dir}}, CodeOverlap, "/launch/read_only_paths/0"},
	} {
		_, err := Generate(c.o)
		t.Run(c.name, func(t *testing.T) { wantFault(t, err, c.code, c.pointer) })
	}
}
