package policy

import (
	"fmt"
	"slices"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/pathwalk"
	"gloved.dev/policy/harness"
)

// ServicesRoot is where local services appear inside a sandbox; nothing of a policy may cover it.
const ServicesRoot = "/run/glove-services"

var (
	// restrictedRoots are host trees that are never given to a session: kernel interfaces and
	// sockets of the running system.
	restrictedRoots = []string{"/dev", "/proc", "/run", "/sys"}
	// homes are whole home directories, which hold credentials; projects below them are fine.
	homes = []string{"/root", "/var/root", "/home", "/Users"}
	// secretNames are directories that hold credentials, wherever they are.
	secretNames = []string{".aws", ".azure", ".gnupg", ".kube", ".sage", ".ssh"}
	// reservedTargets are sandbox trees that an alias may not be placed in.
	reservedTargets = []string{"/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"}
	// reservedDestinations are sandbox trees that a projection destination may not touch.
	reservedDestinations = []string{"/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp"}
)

// RestrictedHostPath reports whether a host path may never be granted, and why. The path must be
// absolute and normal.
func RestrictedHostPath(path string) (why string, restricted bool) {
	for _, root := range restrictedRoots {
		if ident.Within(path, root) {
			return "it lies within " + root, true
		}
	}
	if slices.Contains(homes, path) {
		return "it is, or holds, whole home directories", true
	}
	parts := strings.Split(path[1:], "/")
	if len(parts) == 2 && (parts[0] == "home" || parts[0] == "Users") {
		return "it is a whole home directory", true
	}
	for _, c := range parts {
		if slices.Contains(secretNames, c) {
			return "it has a component named " + c, true
		}
	}
	return "", false
}

// checkAliases judges the path aliases: first what each says, then each against the others by name,
// then the host objects, which must exist and differ from each other. Comparing identities, and not
// only names, finds one directory reached by two mounts.
func (p *Policy) checkAliases() *Error {
	p.aliases = map[string]int{}
	for i, a := range p.doc.PathAliases {
		at := fmt.Sprintf("/path_aliases/%d", i)
		if !ident.Alias(a.Alias) {
			return fault(CodeIdentifier, at+"/alias", "use 1 to 128 bytes of A-Z a-z 0-9 - _ .", "%.140q is no alias", a.Alias)
		}
		if _, ok := p.aliases[a.Alias]; ok {
			return duplicateFault(at+"/alias", a.Alias)
		}
		p.aliases[a.Alias] = i
		if err := checkAliasPaths(a, at); err != nil {
			return err
		}
		if a.MaxTTLSecs == 0 {
			return fault(CodeNumber, at+"/max_ttl_secs", "give grants a life, in seconds", "it is zero")
		}
		if err := checkAccess(a.Access, at+"/access"); err != nil {
			return err
		}
	}
	if err := p.checkAliasOverlap(); err != nil {
		return err
	}
	return p.checkAliasObjects()
}

func checkAliasPaths(a PathAlias, at string) *Error {
	if !ident.AbsPath(a.HostPath) {
		return pathFault(at+"/host_path", a.HostPath)
	}
	if why, bad := RestrictedHostPath(a.HostPath); bad {
		return fault(CodeRestrictedPath, at+"/host_path", "name a project directory instead", "the host path may not be granted: %s", why)
	}
	if !ident.AbsPath(a.TargetPath) {
		return pathFault(at+"/target_path", a.TargetPath)
	}
	for _, root := range reservedTargets {
		if ident.Within(a.TargetPath, root) {
			return reservedFault(at+"/target_path", root)
		}
	}
	if ident.Overlap(a.TargetPath, ServicesRoot) {
		return reservedFault(at+"/target_path", ServicesRoot)
	}
	return nil
}

func reservedFault(at, root string) *Error {
	return fault(CodeReservedTarget, at, "choose a place such as /workspace", "%s is reserved inside the sandbox", root)
}

func (p *Policy) checkAliasOverlap() *Error {
	list := p.doc.PathAliases
	for i, a := range list {
		for _, b := range list[:i] {
			if ident.Overlap(a.HostPath, b.HostPath) {
				return fault(CodeOverlap, fmt.Sprintf("/path_aliases/%d/host_path", i),
					"give each host path to one alias only", "it overlaps the host path of alias %q", b.Alias)
			}
			if ident.Overlap(a.TargetPath, b.TargetPath) {
				return fault(CodeOverlap, fmt.Sprintf("/path_aliases/%d/target_path", i),
					"give each alias a place of its own", "it overlaps the target of alias %q", b.Alias)
			}
		}
	}
	return nil
}

func (p *Policy) checkAliasObjects() *Error {
	type object struct {
		dev, ino uint64
		mode     uint32
	}
	seen := map[object]string{}
	for i, a := range p.doc.PathAliases {
		at := fmt.Sprintf("/path_aliases/%d/host_path", i)
		id, err := p.env.Identify(a.HostPath)
		if err != nil {
			return objectFault(at, err)
		}
		key := object{id.Dev, id.Ino, id.Mode}
		if other, ok := seen[key]; ok {
			return fault(CodeOverlap, at, "give each object to one alias only",
				"it is the same object as the host path of alias %q, reached by another name", other)
		}
		seen[key] = a.Alias
	}
	return nil
}

func objectFault(at string, err error) *Error {
	e := fault(CodeHostObject, at, "name an existing directory or regular file", "the host path cannot be used")
	switch pathwalk.Code(err) {
	case pathwalk.CodeSymlink:
		e.Fix = "write the real path: no component may be a symbolic link"
	case pathwalk.CodeNotFound:
		e.Fix = "create it, or correct the path"
	case pathwalk.CodeDenied:
		e.Fix = "let this user search every directory on the way"
	}
	e.Err = err
	return e
}

// checkAccess judges the allowed uses of one alias against the table of combinations that exist.
func checkAccess(list []AccessEntry, at string) *Error {
	if len(list) == 0 {
		return fault(CodeCollection, at, "list at least one use", "the alias allows no access")
	}
	seen := map[Access]bool{}
	for j, e := range list {
		here := fmt.Sprintf("%s/%d", at, j)
		if seen[e.Access] {
			return fault(CodeDuplicate, here+"/access", "keep one entry a kind of access", "%q occurs twice", e.Access)
		}
		seen[e.Access] = true
		if why := e.fault(); why != "" {
			return fault(CodeAccessRule, here, "see the access table of the session-policy specification", "%s", why)
		}
	}
	return nil
}

// fault says which rule of the access table an entry breaks, or "".
func (e AccessEntry) fault() string {
	if (e.Materialization == MaterializeGitWorktree) != (e.Create == CreateGitWorktree) {
		return "git_worktree is a materialization and a create policy together, or neither"
	}
	if e.Materialization == MaterializeBind && e.Create != CreateNever {
		return "a bind creates nothing: create_policy must be never"
	}
	if e.Access.Quota() != (e.MaxBytes > 0) {
		if e.Access.Quota() {
			return "a write needs a quota: max_bytes must not be 0"
		}
		return "max_bytes must be 0: only ephemeral and retained writes have a quota"
	}
	bind := e.Materialization == MaterializeBind
	switch e.Access {
	case AccessRead:
		if bind && e.Cleanup != CleanupRetain {
			return "a read bind is retained: cleanup_policy must be retain"
		}
	case AccessEphemeralWrite:
		if bind || e.Cleanup != CleanupRemove {
			return "an ephemeral write works on a removed copy: no bind, and cleanup_policy must be remove"
		}
	case AccessRetainedWrite:
		if bind || e.Cleanup != CleanupRetain {
			return "a retained write works on a kept copy: no bind, and cleanup_policy must be retain"
		}
	case AccessDirectWrite:
		if !bind || e.Cleanup != CleanupRetain {
			return "a direct write is a retained bind"
		}
	}
	return ""
}

func (p *Policy) checkDestinations() *Error {
	seen := map[string]int{}
	for i, d := range p.doc.Destinations {
		at := fmt.Sprintf("/library_projection_destinations/%d", i)
		if err := uniqueID(seen, d.Alias, i, at+"/alias"); err != nil {
			return err
		}
		if !ident.AbsPath(d.TargetPath) {
			return pathFault(at+"/target_path", d.TargetPath)
		}
		for _, root := range reservedDestinations {
			if ident.Overlap(d.TargetPath, root) {
				return reservedFault(at+"/target_path", root)
			}
		}
		for _, other := range p.doc.Destinations[:i] {
			if ident.Overlap(d.TargetPath, other.TargetPath) {
				return fault(CodeOverlap, at+"/target_path", "give each destination a place of its own",
					"it overlaps destination %q", other.Alias)
			}
		}
	}
	return nil
}

func (p *Policy) checkSecretMounts() *Error {
	handles := map[string]int{}
	type place struct{ runtime, target string }
	places := map[place]bool{}
	for i, m := range p.doc.SecretMounts {
		at := fmt.Sprintf("/secret_mounts/%d", i)
		if !ident.Secret(m.Handle) {
			return fault(CodeIdentifier, at+"/handle", "use an identifier of at most 120 bytes", "%.140q is no secret handle", m.Handle)
		}
		if err := uniqueID(handles, m.Handle, i, at+"/handle"); err != nil {
			return err
		}
		if !slices.Contains(p.doc.SecretHandles, m.Handle) {
			return fault(CodeUnlisted, at+"/handle", "add it to secret_handles", "%q is not listed in secret_handles", m.Handle)
		}
		if !slices.ContainsFunc(p.doc.RuntimeTemplates, func(t Template) bool { return t.RuntimeID == m.RuntimeID }) {
			return fault(CodeUnlisted, at+"/runtime_id", "name the runtime of a template", "no template has runtime %.140q", m.RuntimeID)
		}
		if !ident.AbsPath(m.SourcePath) {
			return pathFault(at+"/source_path", m.SourcePath)
		}
		if !ident.AbsPath(m.TargetPath) || m.TargetPath == harness.Home || !ident.Within(m.TargetPath, harness.Home) {
			return fault(CodePath, at+"/target_path", "name a file below "+harness.Home, "the target is not below the private home")
		}
		if places[place{m.RuntimeID, m.TargetPath}] {
			return fault(CodeDuplicate, at+"/target_path", "give each secret a file of its own", "another secret of this runtime has the same target")
		}
		places[place{m.RuntimeID, m.TargetPath}] = true
	}
	return nil
}
