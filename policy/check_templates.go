package policy

import (
	"fmt"
	"slices"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/policy/harness"
)

func (p *Policy) checkTemplates() *Error {
	p.templates = map[string]int{}
	for i, t := range p.doc.RuntimeTemplates {
		at := fmt.Sprintf("/runtime_templates/%d", i)
		if err := uniqueID(p.templates, t.ID, i, at+"/runtime_template_id"); err != nil {
			return err
		}
		if err := p.checkTemplate(t, at); err != nil {
			return err
		}
	}
	return nil
}

func (p *Policy) checkTemplate(t Template, at string) *Error {
	if !ident.ID(t.RuntimeID) {
		return identifierFault(at+"/runtime_id", t.RuntimeID)
	}
	if !ident.Hex64(t.AdapterDigest) {
		return digestFault(at + "/adapter_command_digest")
	}
	if err := uniqueList(t.AllowedAliases, at+"/allowed_path_aliases"); err != nil {
		return err
	}
	if err := uniqueList(t.AllowedDestinations, at+"/allowed_projection_destinations"); err != nil {
		return err
	}
	for j, alias := range t.AllowedDestinations {
		if !slices.ContainsFunc(p.doc.Destinations, func(d Destination) bool { return d.Alias == alias }) {
			return fault(CodeUnlisted, fmt.Sprintf("%s/allowed_projection_destinations/%d", at, j),
				"define it in library_projection_destinations", "there is no destination %q", alias)
		}
	}
	if err := checkAdoption(t.Adoption, at+"/adoption"); err != nil {
		return err
	}
	if t.Launch == nil {
		return nil
	}
	if err := CheckLaunch(*t.Launch); err != nil {
		err.Pointer = at + "/launch" + err.Pointer
		return err
	}
	if t.Launch.Discovery != "" && t.Launch.Discovery != t.RuntimeID {
		return fault(CodeLaunch, at+"/launch/runtime_discovery", "discover the template's own runtime",
			"discovery of %q does not match runtime %q", t.Launch.Discovery, t.RuntimeID)
	}
	return checkLaunchDigest(t, at+"/adapter_command_digest")
}

func checkLaunchDigest(t Template, at string) *Error {
	want := LaunchDigest(*t.Launch)
	switch t.AdapterDigest {
	case want:
		return nil
	case LegacyLaunchDigest(*t.Launch):
		return fault(CodeDigest, at, "set it to "+want,
			"the digest is of the legacy encoding, which leaves read_only_paths out and so does not protect them")
	}
	return fault(CodeDigest, at, "if the launch is as you want it, set the digest to "+want,
		"the digest is not that of the launch")
}

func checkAdoption(a *Adoption, at string) *Error {
	switch {
	case a == nil:
		return nil
	case !ident.AbsPath(a.ManifestRoot):
		return pathFault(at+"/manifest_root", a.ManifestRoot)
	case !ident.Hex64(a.ManifestDigest):
		return digestFault(at + "/manifest_digest")
	case !ident.Hex64(a.SnapshotDigest):
		return digestFault(at + "/snapshot_digest")
	}
	return nil
}

// CheckLaunch applies the rules of a launch by itself, in their fixed order. The pointer of the error
// is relative to the launch. Its result is nil or the first fault.
func CheckLaunch(l Launch) *Error {
	for _, check := range []func(Launch) *Error{
		checkExecutable, checkLaunchBounds, checkArguments, checkEnvironment, checkReadOnlyPaths, checkSearchPaths,
	} {
		if err := check(l); err != nil {
			return err
		}
	}
	return nil
}

func checkExecutable(l Launch) *Error {
	if l.Discovery == "" {
		if !ident.AbsPath(l.ExecutablePath) {
			return pathFault("/executable_path", l.ExecutablePath)
		}
		if len(l.SearchPaths) != 0 {
			return fault(CodeLaunch, "/executable_search_paths", "name runtime_discovery, or remove the search paths",
				"a pinned executable is not searched for")
		}
		return nil
	}
	if _, ok := harness.Lookup(l.Discovery); !ok {
		return fault(CodeLaunch, "/runtime_discovery", "use one of "+strings.Join(harness.RuntimeIDs(), ", "),
			"%.140q is no native adapter", l.Discovery)
	}
	if l.ExecutablePath != "" {
		return fault(CodeLaunch, "/executable_path", "leave it empty", "the executable is discovered, so none may be pinned")
	}
	if len(l.SearchPaths) == 0 {
		return fault(CodeLaunch, "/executable_search_paths", "list the directories to search; PATH is never used",
			"discovery has nowhere to look")
	}
	return nil
}

func checkLaunchBounds(l Launch) *Error {
	for _, c := range []struct {
		name string
		n    int
	}{
		{"arguments", len(l.Arguments)},
		{"environment", len(l.Environment)},
		{"read_only_paths", len(l.ReadOnlyPaths)},
		{"executable_search_paths", len(l.SearchPaths)},
	} {
		if c.n > MaxLaunchEntries {
			return fault(CodeCollection, "/"+c.name, "shorten the list",
				"the list has %d entries; at most %d are allowed", c.n, MaxLaunchEntries)
		}
	}
	return nil
}

func checkArguments(l Launch) *Error {
	for i, a := range l.Arguments {
		if !ident.ArgString(a) {
			return fault(CodeLaunch, fmt.Sprintf("/arguments/%d", i), "use 1 to 65536 bytes without NUL", "it is no argument")
		}
	}
	return nil
}

// checkEnvironment demands one spelling for one environment (entries strictly ascending as whole
// strings, each name once), because the digest covers the list as it is written.
func checkEnvironment(l Launch) *Error {
	names := map[string]bool{}
	for i, entry := range l.Environment {
		at := fmt.Sprintf("/environment/%d", i)
		name, _, ok := strings.Cut(entry, "=")
		if !ok || !ident.ArgString(entry) || !ident.EnvName(name) {
			return fault(CodeLaunch, at, "write NAME=VALUE with a name of letters, digits and _", "it is no environment entry")
		}
		if names[name] {
			return duplicateFault(at, name)
		}
		names[name] = true
		if i > 0 && entry <= l.Environment[i-1] {
			return fault(CodeLaunch, at, "sort the entries by bytes", "the environment is not in ascending order")
		}
	}
	return nil
}

func checkReadOnlyPaths(l Launch) *Error {
	if err := disjointPaths(l.ReadOnlyPaths, "/read_only_paths"); err != nil {
		return err
	}
	if l.ExecutablePath == "" {
		return nil
	}
	for i, ro := range l.ReadOnlyPaths {
		if ident.Overlap(ro, l.ExecutablePath) && !snapshotCovers(ro, l.ExecutablePath) {
			return fault(CodeOverlap, fmt.Sprintf("/read_only_paths/%d", i),
				"name only what the executable needs besides itself, or stage the package with glove policy stage",
				"it overlaps the pinned executable, which is not part of a staged snapshot")
		}
	}
	return nil
}

func checkSearchPaths(l Launch) *Error {
	return disjointPaths(l.SearchPaths, "/executable_search_paths")
}

func disjointPaths(paths []string, at string) *Error {
	for i, a := range paths {
		here := fmt.Sprintf("%s/%d", at, i)
		if !ident.AbsPath(a) {
			return pathFault(here, a)
		}
		for _, b := range paths[:i] {
			if ident.Overlap(a, b) {
				return fault(CodeOverlap, here, "keep only the paths that hold none of the others", "it overlaps %q", b)
			}
		}
	}
	return nil
}

// snapshotCovers reports whether exe lies in a staged snapshot, DIR/snapshots/DIGEST/payload/root-N/,
// and the read-only path is that payload, one of its roots or something below. Only then may a
// read-only path hold the executable: a snapshot's content is what its name digests, while any other
// tree around a pinned executable could bring in files that no digest covers.
func snapshotCovers(ro, exe string) bool {
	parts := strings.Split(exe, "/")
	for i := 1; i+4 < len(parts); i++ {
		if parts[i] != "snapshots" || !ident.Hex64(parts[i+1]) || parts[i+2] != "payload" || !rootName(parts[i+3]) {
			continue
		}
		payload := strings.Join(parts[:i+3], "/")
		if ident.Within(ro, payload) && ident.Within(exe, ro) {
			return true
		}
	}
	return false
}

// rootName reports whether s is root-N with N in its shortest decimal form.
func rootName(s string) bool {
	n, ok := strings.CutPrefix(s, "root-")
	if !ok || n == "" || len(n) > 3 || len(n) > 1 && n[0] == '0' {
		return false
	}
	return !strings.ContainsFunc(n, func(r rune) bool { return r < '0' || r > '9' })
}
