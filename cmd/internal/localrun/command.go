package localrun

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
)

// Exit codes of a command that could not be run, as shells have them (POSIX, XCU 2.8.2).
const (
	ExitNotExecutable = 126
	ExitNotFound      = 127
)

// SandboxPath is where commands are looked for inside; the workspace's own node programs
// come last, so that a project cannot take the place of a system command.
var SandboxPath = []string{"/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"}

const (
	nodeBin = "node_modules/.bin"
	envTool = "/usr/bin/env"
)

// A program is a command as the sandbox will execute it.
type program struct {
	Executable string
	Args       []string
	Path       []string // the PATH inside
	ReadOnly   []string // what it needs besides itself, at its own place
	Notes      []string // what the user should know was made readable
	What       string   // the file that was found, on the host
}

// resolver finds out what a command means.
type resolver struct {
	*Request
	mounts []*Mount
	out    program
}

// program resolves the request's command.
//
// A name is looked for in the sandbox's own PATH first, because that is where it would
// be found inside, then in the caller's. A file of the system is executed as it is; one
// below a copied or bound directory from where that appears inside; any other file is
// pinned by itself, and a script together with its package and its interpreter.
func (r *Request) program(mounts []*Mount) (*program, error) {
	v := &resolver{Request: r, mounts: mounts, out: program{Path: slices.Clone(SandboxPath)}}
	if bin, ok := v.inside(v.workspaceBin()); ok {
		v.out.Path = append(v.out.Path, bin)
	}
	found, byPath, err := v.find(r.Argv[0])
	if err != nil {
		return nil, err
	}
	v.out.What = found
	if err := v.decide(r.Argv[0], found, byPath); err != nil {
		return nil, err
	}
	v.out.Args = append(v.out.Args, r.Argv[1:]...)
	return &v.out, nil
}

// Commands lists the commands of the sandbox's PATH that begin with prefix, sorted, for
// completion.
func Commands(prefix string) []string {
	var names []string
	for _, dir := range SandboxPath {
		entries, _ := os.ReadDir(dir) // a directory that is not there has none
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), prefix) && executable(filepath.Join(dir, e.Name())) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (v *resolver) workspaceBin() string {
	for _, m := range v.mounts {
		if m.Alias == "workspace" {
			return filepath.Join(m.Host, nodeBin)
		}
	}
	return ""
}

// inside translates an existing host path to where it appears in the session.
func (v *resolver) inside(path string) (string, bool) {
	if path == "" {
		return "", false
	}
	if _, err := os.Lstat(path); err != nil {
		return "", false
	}
	for _, m := range v.mounts {
		if ident.Within(path, m.Host) {
			rel, _ := filepath.Rel(m.Host, path) // both are absolute
			return filepath.Join(m.Target, rel), true
		}
	}
	return "", false
}

// find looks for the file. byPath says that it was found in the sandbox's PATH.
func (v *resolver) find(name string) (path string, byPath bool, err error) {
	if strings.Contains(name, "/") || name == "." || name == ".." {
		path = v.abs(name)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			return "", false, notFound(name+" does not exist", "")
		case info.IsDir():
			return "", false, notExecutable(name+" is a directory", "")
		case !executable(path):
			return "", false, notExecutable(name+" is not executable", "chmod +x "+name+", or name its interpreter: glove run -- sh "+name)
		}
		return path, false, nil
	}
	for _, dir := range SandboxPath {
		if p := filepath.Join(dir, name); executable(p) {
			return p, true, nil
		}
	}
	if bin := v.workspaceBin(); bin != "" && executable(filepath.Join(bin, name)) {
		return filepath.Join(bin, name), true, nil
	}
	for _, dir := range filepath.SplitList(v.SearchPath) {
		if p := filepath.Join(dir, name); filepath.IsAbs(p) && executable(p) {
			return filepath.Clean(p), false, nil
		}
	}
	next := "it is neither in the sandbox's PATH (" + strings.Join(SandboxPath, ":") + ") nor in yours"
	if p := v.abs(name); executable(p) {
		next = "did you mean ./" + name + "?"
	}
	return "", false, notFound("there is no command "+name, next)
}

// decide fills in how the file is executed.
func (v *resolver) decide(name, found string, byPath bool) error {
	real, err := filepath.EvalSymlinks(found)
	if err != nil {
		return ui.Failf("command_unusable", "%s: %w", found, err)
	}
	script, err := readScript(real)
	if err != nil {
		return err
	}
	if inner, ok := v.inside(lexical(found)); ok {
		if _, ok := v.inside(real); ok || inSystem(real) {
			// The whole tree is there, links and all.
			v.out.Executable, v.out.Args = envTool, []string{inner}
			return v.interpreter(script, real)
		}
	}
	if inner, ok := v.inside(real); ok {
		v.out.Executable, v.out.Args = envTool, []string{inner}
		return v.interpreter(script, real)
	}
	if inSystem(real) {
		return v.system(name, real, byPath, script)
	}
	return v.foreign(found, real, script)
}

// lexical resolves the directory of a path, but not its last component.
func lexical(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}

// system runs a program that every session sees. Its canonical file is pinned, unless
// the name it is called by is one of several that the file goes by (sh, unxz, a busybox
// applet): such a program reads argv[0], so it is started by that name.
func (v *resolver) system(name, real string, byPath bool, script *script) error {
	if byPath && !sameName(filepath.Base(name), filepath.Base(real)) && !strings.Contains(name, "=") {
		v.out.Executable, v.out.Args = envTool, []string{name}
	} else {
		v.out.Executable = real
	}
	return v.interpreter(script, real)
}

// sameName reports whether a file's name is the command's, or that and a version.
func sameName(command, file string) bool {
	rest, ok := strings.CutPrefix(file, command)
	return ok && strings.Trim(rest, "0123456789.-") == ""
}

// foreign runs a program from elsewhere on the host: a file pinned by itself, or a script
// with its package.
func (v *resolver) foreign(found, real string, script *script) error {
	if shim := shimOf(found); shim != "" {
		return notExecutable(found+" is a shim: it looks its program up elsewhere when it runs, and finds nothing inside",
			"name the real program: glove run -- \"$("+shim+" which "+filepath.Base(found)+")\"")
	}
	if err := v.placeable(real); err != nil {
		return err
	}
	if script == nil {
		v.out.Executable = real
		v.note(real)
		return nil
	}
	root := packageRoot(real)
	if root == "" {
		v.out.Executable = real
		v.note(real)
		return v.interpreter(script, real)
	}
	if err := v.openTree(root, "the package of "+filepath.Base(found)); err != nil {
		return err
	}
	v.out.Executable, v.out.Args = envTool, []string{real}
	return v.interpreter(script, real)
}

// placeable refuses a program at a place that the sandbox keeps for itself.
func (v *resolver) placeable(real string) error {
	for _, kept := range []string{"/etc", "/dev", "/proc", "/sys", "/run"} {
		if ident.Within(real, kept) {
			return notExecutable(real+" cannot appear inside: the sandbox has its own "+kept,
				"copy it to the project, or to /usr/local/bin")
		}
	}
	for _, m := range v.mounts {
		if ident.Overlap(real, m.Target) {
			return notExecutable(fmt.Sprintf("%s cannot appear inside: %s %s is there", real, m.Flag, m.Source), "give that another place: "+m.Flag+" "+m.Source+":/data")
		}
	}
	if v.Root {
		if info, err := os.Stat(real); err == nil && info.Mode()&0o005 != 0o005 {
			return notExecutable(fmt.Sprintf("%s has mode %04o, and as root each session runs as a user of its own", real, info.Mode().Perm()), "chmod o+rx "+real)
		}
	}
	return nil
}

// interpreter makes what a script names on its first line available.
func (v *resolver) interpreter(s *script, file string) error {
	if s == nil {
		return nil
	}
	if s.command != "" {
		return v.envInterpreter(s.command, file)
	}
	if !executable(s.interpreter) {
		return notExecutable(file+" asks for the interpreter "+s.interpreter+", which is not there", "name another interpreter before it")
	}
	real, err := filepath.EvalSymlinks(s.interpreter)
	if err != nil {
		return notExecutable(file+" asks for the interpreter "+s.interpreter+", which cannot be resolved", "")
	}
	if inSystem(s.interpreter) && inSystem(real) {
		return nil
	}
	if _, ok := v.inside(s.interpreter); ok {
		return notExecutable(file+" names its interpreter by its place outside, "+s.interpreter,
			"name it yourself: glove run -- "+s.interpreter+" "+file)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(s.interpreter))
	if err != nil || dir != filepath.Dir(s.interpreter) {
		return notExecutable(file+" names its interpreter through a symbolic link, "+s.interpreter,
			"name the real one yourself: glove run -- "+real+" "+file)
	}
	return v.openTree(toolRoot(s.interpreter, real), "its interpreter")
}

// envInterpreter finds what #!/usr/bin/env would find.
func (v *resolver) envInterpreter(command, file string) error {
	for _, dir := range SandboxPath {
		p := filepath.Join(dir, command)
		if !executable(p) {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if err == nil && inSystem(real) {
			return nil
		}
	}
	for _, dir := range filepath.SplitList(v.SearchPath) {
		p := filepath.Join(dir, command)
		if !filepath.IsAbs(p) || !executable(p) || shimOf(p) != "" {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil || inSystem(real) {
			continue
		}
		place := lexical(p)
		root := toolRoot(place, real)
		if err := v.openTree(root, command+", its interpreter"); err != nil {
			return err
		}
		if !ident.Within(place, root) {
			place = real
		}
		if filepath.Base(place) != command {
			continue // env could not find it by that name
		}
		v.out.Path = append([]string{filepath.Dir(place)}, v.out.Path...)
		return nil
	}
	return notExecutable(file+" is a "+command+" script, and there is no "+command+" the sandbox could use",
		"install "+command+" below /usr or /usr/local, or name the program's own binary")
}

// toolRoot is what an interpreter needs: its installation, where that looks like one
// (PREFIX/bin/NAME with PREFIX/lib), or the file alone.
func toolRoot(place, real string) string {
	prefix := filepath.Dir(filepath.Dir(real))
	info, err := os.Stat(filepath.Join(prefix, "lib"))
	_, restricted := "", false
	if ident.AbsPath(prefix) {
		restricted = treeTooWide(prefix)
	}
	if err == nil && info.IsDir() && ident.AbsPath(prefix) && !restricted && filepath.Base(filepath.Dir(real)) == "bin" {
		return prefix
	}
	return real
}

// openTree makes a host tree readable at its own place.
func (v *resolver) openTree(root, why string) error {
	if treeTooWide(root) {
		return notExecutable(why+" would make all of "+root+" readable", "copy the program to a directory of its own")
	}
	for _, have := range v.out.ReadOnly {
		if ident.Within(root, have) {
			return nil
		}
	}
	for _, m := range v.mounts {
		if ident.Overlap(root, m.Target) {
			return notExecutable(fmt.Sprintf("%s cannot appear inside: %s %s is there", root, m.Flag, m.Source),
				"give that another place: "+m.Flag+" "+m.Source+":/data")
		}
	}
	v.out.ReadOnly = slices.DeleteFunc(v.out.ReadOnly, func(have string) bool { return ident.Within(have, root) })
	v.out.ReadOnly = append(v.out.ReadOnly, root)
	v.out.Notes = append(v.out.Notes, root+" is readable inside: "+why)
	return nil
}

func (v *resolver) note(file string) {
	v.out.Notes = append(v.out.Notes, file+" alone is there inside, without what lies beside it")
}

func notFound(message, next string) error {
	return &ui.Error{Code: "command_not_found", Message: message, Next: next, Exit: ExitNotFound}
}

func notExecutable(message, next string) error {
	return &ui.Error{Code: "command_not_executable", Message: message, Next: next, Exit: ExitNotExecutable}
}
