package policy

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy/harness"
)

// GenerateOptions describe one runtime template to generate. Exactly one of Executable and
// SearchPaths is given.
type GenerateOptions struct {
	RuntimeID              string
	TemplateID             string  // "": RuntimeID + "-safe"
	Backend                Backend // "": BackendLinux
	Executable             string  // pinned: an absolute path, made canonical
	SearchPaths            []string
	Arguments              []string
	Environment            []string // NAME=VALUE, sorted here
	ReadOnlyPaths          []string
	PathAliases            []string
	ProjectionDestinations []string
	Env                    Env // the host, or a test's
}

// Generated is one runtime_templates[] entry, ready for a policy.
type Generated struct {
	Template   Template
	JSON       []byte // canonical, without a final newline
	Executable string // what would run today; for a discovered one it is not part of the JSON
	Digest     string // the template's adapter_command_digest
}

// Generate makes a template: it resolves the executable, canonicalizes its path or the search roots,
// sorts the environment, applies every rule of a launch and calculates the digest. It writes nothing
// and executes nothing. Errors are *Error, with pointers into the template.
func Generate(o GenerateOptions) (Generated, error) {
	t := Template{
		ID: o.TemplateID, RuntimeID: o.RuntimeID, Backend: o.Backend,
		AllowedAliases:      slices.Concat([]string{}, o.PathAliases),
		AllowedDestinations: slices.Concat([]string{}, o.ProjectionDestinations),
	}
	if t.ID == "" {
		t.ID = t.RuntimeID + "-safe"
	}
	if t.Backend == "" {
		t.Backend = BackendLinux
	}
	if err := checkGenerated(t, o); err != nil {
		return Generated{}, err
	}
	launch, exe, err := generateLaunch(o)
	if err != nil {
		return Generated{}, err
	}
	if err := CheckLaunch(launch); err != nil {
		err.Pointer = "/launch" + err.Pointer
		return Generated{}, err
	}
	t.Launch, t.AdapterDigest = &launch, LaunchDigest(launch)
	raw, jerr := strictjson.Canonical(t)
	if jerr != nil {
		return Generated{}, jsonFault(jerr)
	}
	return Generated{Template: t, JSON: raw, Executable: exe, Digest: t.AdapterDigest}, nil
}

func checkGenerated(t Template, o GenerateOptions) error {
	switch {
	case !ident.ID(t.RuntimeID):
		return identifierFault("/runtime_id", t.RuntimeID)
	case !ident.ID(t.ID):
		return identifierFault("/runtime_template_id", t.ID)
	case !t.Backend.Known():
		return fault(CodeBackend, "/sandbox_backend", "use "+string(BackendLinux), "unknown backend %q", t.Backend)
	case (o.Executable == "") == (len(o.SearchPaths) == 0):
		return fault(CodeLaunch, "/launch", "give an executable or search paths", "exactly one of the two is needed")
	}
	if err := uniqueList(t.AllowedAliases, "/allowed_path_aliases"); err != nil {
		return err
	}
	if err := uniqueList(t.AllowedDestinations, "/allowed_projection_destinations"); err != nil {
		return err
	}
	return nil
}

// generateLaunch returns the launch and the executable that it means today.
func generateLaunch(o GenerateOptions) (Launch, string, error) {
	l := Launch{
		Arguments:     slices.Concat([]string{}, o.Arguments),
		Environment:   slices.Concat([]string{}, o.Environment),
		ReadOnlyPaths: slices.Concat([]string{}, o.ReadOnlyPaths),
	}
	slices.Sort(l.Environment)
	if o.Executable != "" {
		exe, err := canonicalExecutable(o.Executable)
		l.ExecutablePath = exe
		return l, exe, err
	}
	adapter, ok := harness.Lookup(o.RuntimeID)
	if !ok {
		return l, "", fault(CodeLaunch, "/launch/runtime_discovery", "pin an executable instead",
			"runtime %q is no native adapter and cannot be discovered", o.RuntimeID)
	}
	l.Discovery = o.RuntimeID
	for i, root := range o.SearchPaths {
		at := fmt.Sprintf("/launch/executable_search_paths/%d", i)
		canonical, err := canonicalPath(root, at)
		if err != nil {
			return l, "", err
		}
		l.SearchPaths = append(l.SearchPaths, canonical)
	}
	exe, err := o.Env.orHost().Discover(adapter, slices.Clone(l.SearchPaths))
	if err != nil {
		e := fault(CodeLaunch, "/launch/executable_search_paths",
			"install it where only root or this user can write, or make a protected copy with glove policy stage",
			"no trusted executable was found")
		e.Err = err
		return l, "", e
	}
	return l, exe, nil
}

func canonicalPath(path, at string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", pathFault(at, path)
	}
	canonical, err := filepath.EvalSymlinks(path)
	if err != nil {
		e := fault(CodeHostObject, at, "name something that exists", "it cannot be resolved")
		e.Err = err
		return "", e
	}
	return canonical, nil
}

func canonicalExecutable(path string) (string, error) {
	const at = "/launch/executable_path"
	canonical, err := canonicalPath(path, at)
	if err != nil {
		return "", err
	}
	info, serr := os.Lstat(canonical)
	if serr == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
		return canonical, nil
	}
	e := fault(CodeHostObject, at, "name a program", "it is no regular file with an execute bit")
	if serr == nil && info.Mode()&fs.ModeDir != 0 {
		e.Fix = "name the program itself; a directory is given as a search path"
	}
	e.Err = serr
	return "", e
}
