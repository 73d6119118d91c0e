package broker

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Codes of a Finding.
const (
	FindManifest        = "manifest-invalid"
	FindManifestDrift   = CodeManifestDrift
	FindPlatform        = "platform"
	FindMissing         = "missing"
	FindSymlink         = "symlinked-path"
	FindNotExecutable   = "not-executable"
	FindPrincipalRoot   = "principal-root"
	FindPrincipalsEqual = "principals-equal"
	FindPrincipal       = "principal-unknown"
	FindWritable        = "writable-ancestor"
	FindWorkspace       = "workspace-writable"
	FindAuthority       = "authority-writable"
)

// A Finding is one thing that keeps an installation from being what its manifest claims.
type Finding struct {
	Code    string `json:"code"`
	Name    string `json:"name,omitempty"` // the manifest's member
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
}

// A Diagnosis is what Doctor found. Notes are what it cannot find out.
type Diagnosis struct {
	OK       bool      `json:"ok"`
	Findings []Finding `json:"findings"`
	Notes    []string  `json:"notes"`
}

// Doctor examines an installation by owners, modes and names only. It runs no program of the
// manifest: a program that an agent could have replaced would run as whoever asks. What it cannot
// examine is a finding.
func Doctor(manifest string) *Diagnosis {
	d := &Diagnosis{Findings: []Finding{}, Notes: []string{ACLUnproven}}
	m, err := LoadManifest(manifest)
	if err != nil {
		code := FindManifest
		if e, ok := errors.AsType[*ManifestError](err); ok {
			code = e.Code
		}
		d.add(code, "manifest", manifest, err.Error())
		return d
	}
	if err := m.RunsHere(); err != nil {
		d.add(FindPlatform, "platform", "", err.Error())
	}
	codex := d.principals(&m.Principals)
	for _, n := range m.Paths.all() {
		d.reachable(n)
	}
	for _, n := range m.Paths.executables() {
		d.executable(n)
		d.rootOnly(n)
	}
	d.rootOnly(named{"install_root", m.Paths.InstallRoot})
	d.rootOnly(named{"manifest", m.Paths.Manifest})
	if codex != nil {
		d.codexCannotWrite(codex, m)
	}
	d.OK = len(d.Findings) == 0
	return d
}

func (d *Diagnosis) add(code, name, path, message string) {
	d.Findings = append(d.Findings, Finding{Code: code, Name: name, Path: path, Message: message})
}

// account is a principal as the system knows it.
type account struct {
	uid    uint32
	groups []uint32
}

// principals checks the three users and returns the agent's.
func (d *Diagnosis) principals(p *Principals) *account {
	var codex *account
	seen := map[uint32]string{}
	for _, n := range []named{{"codex", p.Codex}, {"broker", p.Broker}, {"runner", p.Runner}} {
		a, err := lookup(n.path)
		if err != nil {
			d.add(FindPrincipal, n.name, "", "the system knows no user "+n.path)
			continue
		}
		if a.uid == 0 {
			d.add(FindPrincipalRoot, n.name, "", "the user is root, whom no mode stops")
		}
		if other, ok := seen[a.uid]; ok {
			d.add(FindPrincipalsEqual, n.name, "", "the user is the same as that of "+other)
		}
		seen[a.uid] = n.name
		if n.name == "codex" {
			codex = a
		}
	}
	return codex
}

func lookup(name string) (*account, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	a := &account{uid: uint32(uid)}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, err
	}
	for _, id := range append(ids, u.Gid) {
		gid, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, err
		}
		a.groups = append(a.groups, uint32(gid))
	}
	return a, nil
}

// canWrite judges by owner and mode whether the account may write the object.
func (a *account) canWrite(st *unix.Stat_t) bool {
	switch {
	case a.uid == 0:
		return true
	case st.Uid == a.uid:
		return true // an owner can change the mode
	case slices.Contains(a.groups, st.Gid):
		return st.Mode&0o020 != 0
	}
	return st.Mode&0o002 != 0
}

// chain lists a path and everything above it, the path last.
func chain(p string) []string {
	list := []string{p}
	for p != "/" {
		p = path.Dir(p)
		list = append(list, p)
	}
	slices.Reverse(list)
	return list
}

// reachable finds missing objects and symbolic links on the way.
func (d *Diagnosis) reachable(n named) {
	for _, p := range chain(n.path) {
		var st unix.Stat_t
		err := unix.Lstat(p, &st)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			d.add(FindMissing, n.name, p, "it does not exist")
			return
		case err != nil:
			d.add(FindMissing, n.name, p, "it cannot be examined: "+err.Error())
			return
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			d.add(FindSymlink, n.name, p, "it is a symbolic link; name what it points to")
			return
		}
	}
}

func (d *Diagnosis) executable(n named) {
	var st unix.Stat_t
	if unix.Lstat(n.path, &st) == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0) {
		d.add(FindNotExecutable, n.name, n.path, "it is no executable file")
	}
}

// rootOnly wants everything on the way to an installed object to be root's and nobody else's to
// write.
func (d *Diagnosis) rootOnly(n named) {
	for _, p := range chain(n.path) {
		var st unix.Stat_t
		if unix.Lstat(p, &st) != nil {
			return // reachable says so
		}
		if st.Uid != 0 || st.Mode&0o022 != 0 {
			d.add(FindWritable, n.name, p, "somebody other than root can write it, and with it what lies below")
			return
		}
	}
}

// codexCannotWrite wants the agent's user kept from the workspace and from what decides.
func (d *Diagnosis) codexCannotWrite(a *account, m *Manifest) {
	var st unix.Stat_t
	if unix.Lstat(m.Paths.Workspace, &st) == nil && a.canWrite(&st) {
		d.add(FindWorkspace, "workspace", m.Paths.Workspace, "the agent's user can write it without asking")
	}
	for _, n := range []named{{"policy", m.Paths.Policy}, {"log", m.Paths.Log}, {"primary", m.Paths.Primary}} {
		for _, p := range chain(n.path) {
			if unix.Lstat(p, &st) == nil && a.canWrite(&st) {
				d.add(FindAuthority, n.name, p, "the agent's user can write it, and with it what decides about the agent")
				break
			}
		}
	}
}

// EffectivePrincipal reports whether this process runs as the user name.
func EffectivePrincipal(name string) bool {
	a, err := lookup(name)
	return err == nil && a.uid == uint32(os.Geteuid())
}
