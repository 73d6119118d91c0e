package repo_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"gloved.dev/internal/require"
)

const (
	// inside is set for the commands of documents, so that one that runs the tests does not run
	// the documents again.
	inside = "GLOVE_TEST_DOCUMENTS"
	// oneBlock bounds one block; the first go run may have to compile everything.
	oneBlock = 5 * time.Minute
)

// documents are the Markdown files of the repository.
func documents(t *testing.T, fsys fs.FS) []string {
	t.Helper()
	var names []string
	err := walk(fsys, func(name string) error {
		if path.Ext(name) == ".md" {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestDocumentCommands runs the sh blocks of every document, in order, each with "bash -eu" at the
// root of a copy of the repository, with a home of its own and no input. See CONTRIBUTING.md for
// the tags.
func TestDocumentCommands(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles and runs the commands the documents show; -short leaves that out")
	}
	if os.Getenv(inside) != "" {
		require.Skip(t, "not to be run by a document itself")
	}
	require.Tool(t, "bash")
	root := os.DirFS(top(t))
	for _, name := range documents(t, root) {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			t.Fatal(err)
		}
		found, err := blocks(string(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		t.Run(strings.ReplaceAll(name, "/", "_"), func(t *testing.T) { runBlocks(t, found) })
	}
}

// runBlocks runs those of the blocks that are to be run.
func runBlocks(t *testing.T, found []block) {
	var dir string
	for _, b := range found {
		if b.info != "sh" || b.tagged("norun") {
			continue
		}
		if dir == "" {
			dir = t.TempDir()
			if err := os.CopyFS(filepath.Join(dir, "gloved"), withoutGit{os.DirFS(top(t))}); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(fmt.Sprintf("line_%d", b.line), func(t *testing.T) {
			if b.tagged("sandbox") {
				canSandbox(t, dir)
			}
			if err := runBlock(t.Context(), b, dir); err != nil {
				t.Error(err)
			}
		})
	}
}

// canSandbox ends the test if this host cannot run a managed session, as glove doctor has it.
func canSandbox(t *testing.T, dir string) {
	t.Helper()
	out, err := shell(t.Context(), "go run ./cmd/glove doctor", dir)
	if err != nil {
		require.Skip(t, "a host that can run managed sessions; glove doctor says:\n"+out)
	}
}

// runBlock runs one block and compares how it ends, and what it prints if the document shows that.
func runBlock(ctx context.Context, b block, dir string) error {
	out, err := shell(ctx, b.text, dir)
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		return fmt.Errorf("%sdid not run: %w\n%s", b.text, err, out)
	case b.tagged("fails") && err == nil:
		return fmt.Errorf("%ssucceeded, and the document says that it fails:\n%s", b.text, out)
	case !b.tagged("fails") && err != nil:
		return fmt.Errorf("%s%w:\n%s", b.text, err, out)
	case b.shown != nil && !shows(out, *b.shown):
		return fmt.Errorf("%sprinted\n%s\nand the document shows\n%s", b.text, out, *b.shown)
	}
	return nil
}

// shell runs text in dir/gloved and returns both outputs as one. It ends all that it started.
func shell(ctx context.Context, text, dir string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, oneBlock)
	defer cancel()
	home := filepath.Join(dir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return "", err
	}
	caches, err := exec.CommandContext(ctx, "go", "env", "GOCACHE", "GOMODCACHE").Output()
	if err != nil {
		return "", err
	}
	gocache, gomodcache, _ := strings.Cut(strings.TrimSpace(string(caches)), "\n")
	cmd := exec.CommandContext(ctx, "bash", "-eu", "-o", "pipefail", "-c", text)
	cmd.Dir = filepath.Join(dir, "gloved")
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TERM=dumb", "LANG=C.UTF-8", "TMPDIR=" + os.TempDir(),
		"GOCACHE=" + gocache, "GOMODCACHE=" + gomodcache, "GOFLAGS=" + os.Getenv("GOFLAGS"),
		"GOPROXY=" + os.Getenv("GOPROXY"), "GOSUMDB=" + os.Getenv("GOSUMDB"), inside + "=1",
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cause := ctx.Err(); cause != nil {
		err = cause
	}
	return string(out), err
}

// withoutGit is the tree as somebody who unpacked it would have it.
type withoutGit struct{ fs.FS }

// ReadDir implements fs.ReadDirFS.
func (w withoutGit) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	kept := entries[:0]
	for _, e := range entries {
		if name == "." && e.Name() == ".git" || !e.IsDir() && !e.Type().IsRegular() {
			continue
		}
		kept = append(kept, e)
	}
	return kept, err
}

func TestRunBlock(t *testing.T) {
	require.Tool(t, "bash")
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "gloved"), 0o700); err != nil {
		t.Fatal(err)
	}
	one := "1\n"
	for _, c := range []struct {
		name string
		b    block
		ok   bool
	}{
		{"succeeds", block{text: "true\n"}, true},
		{"fails", block{text: "false\ntrue\n"}, false},
		{"fails in a pipe", block{text: "false | true\n"}, false},
		{"fails as it should", block{text: "exit 3\n", tags: []string{"fails"}}, true},
		{"succeeds and should fail", block{text: "true\n", tags: []string{"fails"}}, false},
		{"shows", block{text: "echo 2\n", shown: &one}, true},
		{"shows something else", block{text: "echo two\n", shown: &one}, false},
		{"has a home of its own", block{text: "test \"$HOME\" = " + dir + "/home\n"}, true},
		{"has no input", block{text: "! read -r line\n"}, true},
		{"has no other variables", block{text: "test -z \"${GLOVE_TEST_REQUIRE-}\"\n"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := runBlock(t.Context(), c.b, dir); (err == nil) != c.ok {
				t.Errorf("got %v, want success: %v", err, c.ok)
			}
		})
	}
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// brokenLinks returns the relative links of the documents that lead nowhere.
func brokenLinks(t *testing.T, fsys fs.FS) (broken []string) {
	for _, name := range documents(t, fsys) {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], ":") {
				continue
			}
			if _, err := fs.Stat(fsys, path.Join(path.Dir(name), m[1])); err != nil {
				broken = append(broken, name+": "+m[1])
			}
		}
	}
	return broken
}

func TestDocumentLinks(t *testing.T) {
	for _, b := range brokenLinks(t, os.DirFS(top(t))) {
		t.Errorf("leads nowhere: %s", b)
	}
	small := fstest.MapFS{"a.md": {Data: []byte("[x](b/c.md) [y](b) [z](gone.md#part)")}, "b/c.md": {Data: []byte("[up](../a.md)")}}
	if got := brokenLinks(t, small); len(got) != 1 || got[0] != "a.md: gone.md" {
		t.Errorf("found %q in a tree with one broken link", got)
	}
}

// TestCommandOfReadme holds continuous integration to the command that the README gives for the
// tests: it runs that one, with the race detector.
func TestCommandOfReadme(t *testing.T) {
	root := os.DirFS(top(t))
	readme, err := fs.ReadFile(root, "README.md")
	if err != nil {
		t.Fatal(err)
	}
	found, err := blocks(string(readme))
	if err != nil {
		t.Fatal(err)
	}
	given := false
	for _, b := range found {
		given = given || b.info == "sh" && strings.Contains("\n"+b.text, "\ngo test ./...\n")
	}
	if !given {
		t.Error("README.md has no sh block with the line: go test ./...")
	}
	script, err := fs.ReadFile(root, ".ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`(?m)go test -race .*\./\.\.\.`).Match(script) {
		t.Error(".ci/run does not run: go test -race ./...")
	}
}
