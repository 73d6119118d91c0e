//go:build linux

package run

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunBesideAnotherGloved has a gloved beside glove, and first in the PATH, that would
// fail at once: glove run takes gloved's role itself.
func TestRunBesideAnotherGloved(t *testing.T) {
	usable(t)
	dir := t.TempDir()
	must(t, os.Link(glove(), filepath.Join(dir, "glove")))
	broken := filepath.Join(dir, "gloved")
	must(t, os.WriteFile(broken, []byte("#!/bin/sh\necho another build >&2\nexit 1\n"), 0o700))
	cmd := exec.Command(filepath.Join(dir, "glove"), "run", "--no-workspace", "--", "/bin/echo", "same build")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "same build") || strings.Contains(string(out), "another build") {
		t.Errorf("glove run beside another gloved: %v\n%s", err, out)
	}
	cmd = exec.Command(filepath.Join(dir, "glove"), "run", "--gloved", broken, "--no-workspace", "--", "/bin/echo", "same build")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "another build") {
		t.Errorf("glove run with a gloved that fails: %v\n%s", err, out)
	}
}

// TestGlovedOfAnotherBuild asks a gloved of another build: glove says which builds they
// are and what to do, once, and asks all the same; of its own build it says nothing.
func TestGlovedOfAnotherBuild(t *testing.T) {
	readSources(t)
	other := filepath.Join(t.TempDir(), "gloved")
	build := exec.Command("go", "build", "-o", other, "-ldflags", "-X gloved.dev/cmd/internal/version.Version=0.0.9", "gloved.dev/cmd/gloved")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	ask := func(gloved string) (string, string) {
		t.Helper()
		cmd := exec.Command(glove(), "rpc", "--gloved", gloved, "health")
		cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+t.TempDir())
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("glove rpc health of %s: %v\n%s", gloved, err, errs.String())
		}
		return string(out), errs.String()
	}
	out, errs := ask(other)
	if !strings.Contains(out, "status") || strings.Count(errs, "is gloved 0.0.9") != 1 || !strings.Contains(errs, "this is glove 0.") || !strings.Contains(errs, "restarted") {
		t.Errorf("of another build glove says %q, and prints %q", errs, out)
	}
	if _, errs := ask(filepath.Join(bin, "gloved")); strings.Contains(errs, "is gloved") {
		t.Errorf("of the same build glove says %q", errs)
	}
}
