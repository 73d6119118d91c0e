package localrun

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gloved.dev/policy"
)

// maxShebang is how much of a file's first line the kernel reads (BINPRM_BUF_SIZE).
const maxShebang = 256

// A script is what a #! line says. command is what `env` would look for; otherwise
// interpreter is a path.
type script struct {
	interpreter, command string
}

// readScript returns nil for a file that is no script.
func readScript(path string) (*script, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, notExecutable(path+" cannot be read: "+errors.Unwrap(err).Error(), "")
	}
	defer f.Close()
	head := make([]byte, maxShebang)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, notExecutable(path+" cannot be read: "+err.Error(), "")
	}
	line, _, _ := strings.Cut(string(head[:n]), "\n")
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return nil, nil
	}
	words := strings.Fields(rest)
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return nil, notExecutable(path+" has no usable interpreter on its first line", "name its interpreter before it")
	}
	if filepath.Base(words[0]) != "env" {
		return &script{interpreter: filepath.Clean(words[0])}, nil
	}
	words = words[1:]
	for len(words) > 0 && (strings.HasPrefix(words[0], "-") || strings.Contains(words[0], "=")) {
		words = words[1:] // env -S NAME=VALUE command
	}
	if len(words) == 0 {
		return nil, notExecutable(path+" names no interpreter on its first line", "name its interpreter before it")
	}
	return &script{command: words[0]}, nil
}

// packageRoot is the node package a script belongs to, with what it was installed
// together with: the node_modules directory, or for a package that lies elsewhere the
// directory with its package.json. It is "" for a script that is in no package.
func packageRoot(file string) string {
	for dir := filepath.Dir(file); dir != "/"; dir = filepath.Dir(dir) {
		if info, err := os.Stat(filepath.Join(dir, "package.json")); err != nil || !info.Mode().IsRegular() {
			continue
		}
		parent := filepath.Dir(dir)
		if strings.HasPrefix(filepath.Base(parent), "@") {
			parent = filepath.Dir(parent)
		}
		if filepath.Base(parent) == "node_modules" {
			return parent
		}
		return dir
	}
	return ""
}

// treeTooWide reports whether a tree holds more than a program: a home, the root, or
// one of the directories that collect unrelated things.
func treeTooWide(root string) bool {
	if _, restricted := policy.RestrictedHostPath(root); restricted {
		return true
	}
	return slices.Contains([]string{"/", "/opt", "/srv", "/mnt", "/media", "/var", "/tmp", "/var/tmp", "/etc"}, root) ||
		filepath.Base(root) == ".local"
}

// shims are the directories of version managers, and the tool that tells the real file.
var shims = map[string]string{"/.pyenv/shims/": "pyenv", "/.rbenv/shims/": "rbenv", "/.nodenv/shims/": "nodenv",
	"/.asdf/shims/": "asdf", "/mise/shims/": "mise", "/.goenv/shims/": "goenv"}

func shimOf(path string) string {
	for dir, tool := range shims {
		if strings.Contains(path, dir) {
			return tool
		}
	}
	return ""
}
