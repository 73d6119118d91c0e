package approval

import (
	"slices"
	"strings"
)

// Classes that follow from a path of the workspace.
const (
	ClassPolicyEdit = "policy.edit"
	ClassWorkspace  = "files.write.workspace"
)

// A PathClass says which class a path of the workspace has, and why.
type PathClass struct {
	Path      string `json:"path"`
	Class     string `json:"class"`
	Protected bool   `json:"protected"`
	// Entry is the built-in rule or the protected_paths entry that decided.
	Entry   string `json:"entry,omitzero"`
	BuiltIn bool   `json:"built_in"`
}

// protectedNames are files that steer agents or the gate itself, anywhere.
var protectedNames = []string{"APPROVAL.md", "APPROVALS.md", "CLAUDE.md", "AGENTS.md", ".npmrc"}

// ClassOf returns the class of writing path, which is relative to the
// workspace. Nothing is looked up in a file system, and letters compare by case:
// whoever writes on a file system that folds case must also refuse aliases of
// existing names. A nil policy (one that failed) leaves the built-in rules.
func (p *Policy) ClassOf(path string) PathClass {
	segments := split(path)
	built := builtIn(segments)
	out := PathClass{Path: path, Class: ClassWorkspace}
	if built != "" {
		out = PathClass{Path: path, Class: ClassPolicyEdit, Protected: true, Entry: built, BuiltIn: true}
	}
	if p == nil {
		return out
	}
	var chosen *Route
	for i, r := range p.Protected {
		if r.matches(segments) && (chosen == nil || p.stricter(r, *chosen)) {
			chosen = &p.Protected[i]
		}
	}
	switch {
	case chosen == nil:
	case built == "":
		out.Class, out.Protected, out.Entry = chosen.Class, true, chosen.Path
	case chosen.Class != ClassPolicyEdit && !p.laxer(chosen.Class, ClassPolicyEdit):
		out.Class, out.Entry, out.BuiltIn = chosen.Class, chosen.Path, false
	}
	return out
}

// stricter reports whether route a decides over b, both matching: the stricter
// class, so that no entry takes away what another gives; then the longer path,
// then the smaller name.
func (p *Policy) stricter(a, b Route) bool {
	switch {
	case p.laxer(b.Class, a.Class):
		return true
	case p.laxer(a.Class, b.Class):
		return false
	}
	if la, lb := len(split(a.Path)), len(split(b.Path)); la != lb {
		return la > lb
	}
	return a.Class < b.Class
}

// laxer reports whether class a asks for less than b when nothing can be taken
// back, which is how the broker writes, or else when it can.
func (p *Policy) laxer(a, b string) bool {
	no := false
	ra, rb := p.Resolve(a, &no), p.Resolve(b, &no)
	if ra.Autonomy != rb.Autonomy {
		return rb.Autonomy.StricterThan(ra.Autonomy)
	}
	return p.Resolve(b, nil).Autonomy.StricterThan(p.Resolve(a, nil).Autonomy)
}

// split divides a path at slashes and backslashes; empty segments and "." say
// nothing, ".." stays.
func split(path string) []string {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' })
	return slices.DeleteFunc(parts, func(s string) bool { return s == "." })
}

// builtIn names the built-in rule that protects the path, or "".
func builtIn(segments []string) string {
	if len(segments) == 0 {
		return ""
	}
	if last := segments[len(segments)-1]; slices.Contains(protectedNames, last) {
		return last
	}
	for i, s := range segments {
		next := ""
		if i+1 < len(segments) {
			next = segments[i+1]
		}
		switch {
		case s == ".approval":
			return ".approval/"
		case s == ".claude" && strings.HasPrefix(next, "settings"):
			return ".claude/settings*"
		case s == ".github" && next == "workflows":
			return ".github/workflows/"
		}
	}
	return ""
}

// matches: a folder's segments anywhere in a row, a file's at the end.
func (r Route) matches(segments []string) bool {
	want := split(r.Path)
	if len(want) == 0 || slices.Contains(want, "..") || len(want) > len(segments) {
		return false
	}
	if !strings.HasSuffix(r.Path, "/") {
		return slices.Equal(segments[len(segments)-len(want):], want)
	}
	for i := 0; i+len(want) <= len(segments); i++ {
		if slices.Equal(segments[i:i+len(want)], want) {
			return true
		}
	}
	return false
}

// routeFloor refuses a policy that routes a built-in protected path to a class
// it treats less strictly than policy.edit: a policy may add protection to the
// gate's own organs, never take any away. A wider entry, such as a folder that
// happens to hold an AGENTS.md, is no fault: ClassOf keeps the stricter class.
func (d *decoder) routeFloor(v value, p *Policy) {
	for _, r := range p.Protected {
		if builtIn(split(r.Path)) == "" || !p.laxer(r.Class, ClassPolicyEdit) {
			continue
		}
		d.fail(v, "protected_paths", "%s is protected by itself and may not be routed to %s, which is less strict than %s",
			r.Path, r.Class, ClassPolicyEdit)
		d.failed.Code = CodeRouteFloor
		return
	}
}
