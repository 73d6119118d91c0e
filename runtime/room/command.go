package room

import (
	"os"
	"path/filepath"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/runtime/sandbox"
)

// A program is a command as the room will execute it.
type program struct {
	path string // absolute, inside and outside
	// bring is what must come along read-only so that it can run: a prefix, the file alone, or
	// nothing where the runtime set has it.
	bring string
}

// resolve finds a command. The search path is the room's, not the caller's.
func resolve(name string, o *Options) (*program, error) {
	fail := func(why string) error {
		return fault(CodeUnresolvable, nil, "the command %s", why)
	}
	if name == "" || strings.ContainsRune(name, 0) {
		return nil, fail("has no name")
	}
	if !strings.ContainsRune(name, '/') {
		for dir := range strings.SplitSeq(roomPath, ":") {
			if full := filepath.Join(dir, name); executable(full) {
				return placed(full, o)
			}
		}
		return nil, fail("is not on the room's search path")
	}
	if !ident.AbsPath(name) {
		return nil, fail("must be a name or an absolute path")
	}
	if !executable(name) {
		return nil, fail("is no executable file")
	}
	return placed(name, o)
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// placed decides what a program brings along. Its prefix is the folder above its bin, unless that
// would show more than an installation: then it is the file alone.
func placed(path string, o *Options) (*program, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fault(CodeUnresolvable, err, "the command cannot be reached")
	}
	if within(path, sandbox.DefaultSystemPaths()) && within(real, sandbox.DefaultSystemPaths()) || ident.Within(real, o.Canonical) {
		return &program{path: path}, nil
	}
	prefix := filepath.Dir(real)
	if filepath.Base(prefix) == "bin" {
		prefix = filepath.Dir(prefix)
	}
	if !o.showable(prefix) {
		prefix = real
	}
	for _, d := range o.denied() {
		if ident.Within(real, d) {
			return nil, fault(CodeUnresolvable, nil, "the command lies where the room must not read")
		}
	}
	return &program{path: real, bring: prefix}, nil
}

// broad are folders that are never one program's installation.
var broad = []string{"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/mnt", "/opt", "/proc", "/root", "/run", "/srv",
	"/sys", "/tmp", "/usr", "/var", "/var/tmp", "/Users"}

// homes hold people's own files, beside what they installed there.
var homes = []string{"/home", "/root", "/Users"}

func (o *Options) showable(prefix string) bool {
	if !ident.AbsPath(prefix) {
		return false
	}
	keep := append([]string{o.Canonical, o.InstallRoot}, o.denied()...)
	if home := o.Getenv("HOME"); ident.AbsPath(home) {
		keep = append(keep, home)
	}
	for _, k := range keep {
		if ident.Overlap(prefix, k) {
			return false
		}
	}
	for _, h := range homes { // whoever's: with the caller's HOME alone, root's room would show a user's
		if ident.Within(prefix, h) {
			return false
		}
	}
	for _, b := range broad {
		if ident.Within(b, prefix) {
			return false
		}
	}
	return true
}

func within(path string, roots []string) bool {
	for _, r := range roots {
		if ident.Within(path, r) {
			return true
		}
	}
	return false
}
