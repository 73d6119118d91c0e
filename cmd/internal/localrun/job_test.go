package localrun

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/policy"
)

// A host is a tree of files for a request to be about.
type host struct {
	t   *testing.T
	dir string
}

// newHost makes files: the path, ":", and the content; those that begin with #! can be
// executed. The whole lies outside /tmp's own place inside by being named from dir.
func newHost(t *testing.T, files ...string) *host {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{t: t, dir: dir}
	for _, f := range files {
		name, content, _ := strings.Cut(f, ":")
		path := h.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if strings.HasPrefix(content, "#!") || strings.HasPrefix(content, "\x7fELF") {
			mode = 0o755
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

func (h *host) link(to, name string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Symlink(to, h.path(name)); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) request(argv ...string) *Request {
	if err := os.MkdirAll(h.path("project"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	return &Request{Argv: argv, Dir: h.path("project"), Home: h.path("home"), SearchPath: h.path("bin") + ":relative:/usr/bin",
		Getenv: func(string) (string, bool) { return "", false }}
}

func TestPrograms(t *testing.T) {
	h := newHost(t,
		"project/run:#!/bin/sh\n", "project/node_modules/tool/cli.js:#!/usr/bin/env sh\n", "project/plain:x",
		"bin/native:\x7fELF", "bin/alone:#!/bin/sh\n",
		"lib/node_modules/pkg/package.json:{}", "lib/node_modules/pkg/bin/cli:#!/usr/bin/env sh\n",
		"lib/node_modules/@scope/pkg/package.json:{}", "lib/node_modules/@scope/pkg/cli:#!/bin/sh\n",
		"tools/bin/special:\x7fELF", "tools/lib/module:x", "bin/needs:#!/usr/bin/env special\n", "bin/lost:#!/usr/bin/env nowhere-at-all\n",
		"home/.pyenv/shims/python9:#!/bin/sh\n", "bin/bad:#!relative\n",
	)
	h.link("../tool/cli.js", "project/node_modules/.bin/tool")
	h.link("../lib/node_modules/pkg/bin/cli", "bin/pkg")
	h.link("../tools/bin/special", "bin/special")
	sh := realOf(t, "/bin/sh")
	for _, c := range []struct {
		command  string
		exe      string
		args     []string
		readOnly []string
		path     string // is in the PATH inside
	}{
		{command: "sh", exe: envTool, args: []string{"sh"}},
		{command: "/bin/sh", exe: sh},
		{command: "./run", exe: envTool, args: []string{"/workspace/run"}},
		{command: "node_modules/.bin/tool", exe: envTool, args: []string{"/workspace/node_modules/.bin/tool"}},
		{command: "tool", exe: envTool, args: []string{"/workspace/node_modules/.bin/tool"}, path: "/workspace/node_modules/.bin"},
		{command: "native", exe: h.path("bin/native")},
		{command: "alone", exe: h.path("bin/alone")},
		{command: "pkg", exe: envTool, args: []string{h.path("lib/node_modules/pkg/bin/cli")}, readOnly: []string{h.path("lib/node_modules")}},
		{command: h.path("lib/node_modules/@scope/pkg/cli"), exe: envTool, args: []string{h.path("lib/node_modules/@scope/pkg/cli")}, readOnly: []string{h.path("lib/node_modules")}},
		{command: "needs", exe: h.path("bin/needs"), readOnly: []string{h.path("tools")}, path: h.path("tools/bin")},
	} {
		t.Run(c.command, func(t *testing.T) {
			r := h.request(c.command, "--arg")
			mounts, err := r.mounts()
			if err != nil {
				t.Fatal(err)
			}
			p, err := r.program(mounts)
			if err != nil {
				t.Fatal(err)
			}
			if p.Executable != c.exe || !slices.Equal(p.Args, append(slices.Clone(c.args), "--arg")) || !slices.Equal(p.ReadOnly, c.readOnly) {
				t.Errorf("executes %s %q with %q, want %s %q with %q", p.Executable, p.Args, p.ReadOnly, c.exe, c.args, c.readOnly)
			}
			if c.path != "" && !slices.Contains(p.Path, c.path) {
				t.Errorf("PATH %q lacks %s", p.Path, c.path)
			}
		})
	}
	for command, exit := range map[string]int{
		"no-such-command": ExitNotFound, "./missing": ExitNotFound, "./plain": ExitNotExecutable, "./": ExitNotExecutable,
		"lost": ExitNotExecutable, "bad": ExitNotExecutable, h.path("home/.pyenv/shims/python9"): ExitNotExecutable,
	} {
		r := h.request(command)
		mounts, err := r.mounts()
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.program(mounts)
		var failure *ui.Error
		if !errors.As(err, &failure) || failure.Exit != exit {
			t.Errorf("%s: %v, want exit %d", command, err, exit)
		}
	}
}

func realOf(t *testing.T, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		t.Fatal(err)
	}
	return real
}

// TestJobs: what a request comes to is a policy that permits exactly it.
func TestJobs(t *testing.T) {
	h := newHost(t, "project/file:12345", "data/file:x", "more/file:x")
	r := h.request("cat", "file")
	r.Reads = []string{h.path("data") + ":/data"}
	r.Writes = []string{"../more:/more"}
	r.Env = []string{"WANTED"}
	r.Getenv = func(name string) (string, bool) { return "value of " + name, true }
	j, err := NewJob(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := j.Document.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse(raw, policy.Env{})
	if err != nil {
		t.Fatal(err)
	}
	plan, err := policy.DecodePlan(j.Plan)
	if err != nil {
		t.Fatal(err)
	}
	if p.Revision() != 1 || len(plan.PathGrants) != 3 || plan.EgressPolicyID != egressID {
		t.Errorf("revision %d, plan %+v", p.Revision(), plan)
	}
	var seen []string
	for _, a := range j.Document.PathAliases {
		seen = append(seen, a.Alias+" "+string(a.Access[0].Access)+" "+a.TargetPath)
	}
	want := []string{"workspace ephemeral_write /workspace", "read-1 read /data", "write-1 ephemeral_write /more"}
	if !slices.Equal(seen, want) {
		t.Errorf("grants %q, want %q", seen, want)
	}
	env := j.Document.RuntimeTemplates[0].Launch.Environment
	if !slices.Contains(env, "WANTED=value of WANTED") || !slices.IsSorted(env) || len(env) != 6 {
		t.Errorf("environment %q", env)
	}
	if bytes, entries := j.Copied(); bytes != 6 || entries != 2 {
		t.Errorf("%d bytes and %d entries are copied, want 6 and 2", bytes, entries)
	}
}

func TestRefusedRequests(t *testing.T) {
	h := newHost(t, "project/sub/file:x", "home/x:x", "data/file:x")
	for name, change := range map[string]func(*Request){
		"no command":         func(r *Request) { r.Argv = nil },
		"home":               func(r *Request) { r.Dir = h.path("home") },
		"root":               func(r *Request) { r.Dir = "/" },
		"not a directory":    func(r *Request) { r.Workspace = "sub/file" },
		"kernel interface":   func(r *Request) { r.Reads = []string{"/proc"} },
		"credentials":        func(r *Request) { r.Reads = []string{h.path("data/.ssh")} },
		"within the project": func(r *Request) { r.Reads = []string{"sub"} },
		"around the project": func(r *Request) { r.Reads = []string{".."} },
		"twice":              func(r *Request) { r.Reads = []string{"../data:/a", "../data:/b"} },
		"same place":         func(r *Request) { r.Reads = []string{"../data:/a"}; r.Writes = []string{"../home:/a"} },
		"relative place":     func(r *Request) { r.Reads = []string{"../data:a"} },
		"dots in the place":  func(r *Request) { r.Reads = []string{"../data:/a/../b"} },
		"the workspace":      func(r *Request) { r.Reads = []string{"../data:/workspace/data"} },
		"system's place":     func(r *Request) { r.Reads = []string{"../data:/usr/share/data"} },
		"our own place":      func(r *Request) { r.Reads = []string{"../data:/home/agent/data"} },
		"services":           func(r *Request) { r.Reads = []string{"../data:/run/glove-services/x"} },
		"value in --env":     func(r *Request) { r.Env = []string{"A=b"} },
		"unset variable":     func(r *Request) { r.Env = []string{"A"} },
		"the sandbox's own":  func(r *Request) { r.Env = []string{"PATH"} },
		"no variable's name": func(r *Request) { r.Env = []string{"1A"} },
	} {
		r := h.request("true")
		change(r)
		_, err := NewJob(t.Context(), r)
		var failure *ui.Error
		if !errors.As(err, &failure) || failure.Code == "" || failure.Message == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestStateLiesOutside: the audit key is never among what the session is given.
func TestStateLiesOutside(t *testing.T) {
	h := newHost(t, "project/run/x:x")
	if err := os.Chmod(h.path("project/run"), 0o700); err != nil {
		t.Fatal(err)
	}
	j, err := NewJob(t.Context(), h.request("true"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewState(j, h.path("project/run"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(s.Dir, h.path("project")) {
		t.Errorf("the state is in %s", s.Dir)
	}
	if _, err := s.Key(); err != nil {
		t.Error(err)
	}
	for _, found := range Abandoned(h.dir) {
		if found.Dir == s.Dir {
			t.Error("a directory in use is taken for abandoned")
		}
		if err := found.Release(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(s.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
}

// TestStateIsUndisturbed: it is never where another user could put something in its place.
func TestStateIsUndisturbed(t *testing.T) {
	h := newHost(t, "project/x:x", "runtime/x:x")
	j, err := NewJob(t.Context(), h.request("true"))
	if err != nil {
		t.Fatal(err)
	}
	type row struct {
		mode  os.FileMode
		owner int
		taken bool
	}
	rows := []row{{0o700, os.Geteuid(), true}, {0o755, os.Geteuid(), true}, {0o777, os.Geteuid(), false},
		{0o775, os.Geteuid(), false}, {0o777 | os.ModeSticky, os.Geteuid(), true}}
	if os.Geteuid() == 0 {
		rows = append(rows, row{0o700, 65534, false}, row{0o777 | os.ModeSticky, 65534, false})
	}
	for _, r := range rows {
		if err := errors.Join(os.Chown(h.path("runtime"), r.owner, -1), os.Chmod(h.path("runtime"), r.mode)); err != nil {
			t.Fatal(err)
		}
		s, err := NewState(j, h.path("runtime"))
		if err != nil {
			t.Fatal(err)
		}
		if taken := strings.HasPrefix(s.Dir, h.path("runtime")); taken != r.taken {
			t.Errorf("with mode %v and owner %d the state is in %s", r.mode, r.owner, s.Dir)
		}
		if err := s.Remove(); err != nil {
			t.Error(err)
		}
	}
}
