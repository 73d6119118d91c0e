package broker

import (
	"errors"
	"regexp"
	"runtime"
	"slices"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

// Versions of the instance manifest.
const (
	ManifestV1 = "approval.codex.instance.v1"
	ManifestV2 = "approval.codex.instance.v2"
)

// MaxManifest bounds a manifest's text, in bytes.
const MaxManifest = 64 << 10

// A Manifest is the operator's file that fixes an instance. Version 2 names programs of this
// project; version 1 is that of the existing installations, of which this project shares
// everything but the Node programs.
type Manifest struct {
	SchemaVersion  string     `json:"schema_version"`
	InstanceID     string     `json:"instance_id"`
	Platform       string     `json:"platform"`
	CodexVersion   string     `json:"codex_version"`
	NodeVersion    string     `json:"node_version,omitempty"` // version 1 only
	PackageVersion string     `json:"package_version"`
	Paths          Paths      `json:"paths"`
	Principals     Principals `json:"principals"`
	Invocation     Invocation `json:"invocation"`
	Components     Components `json:"components"`
}

// Paths are absolute and in their shortest form.
type Paths struct {
	InstallRoot      string `json:"install_root"`
	PackageRoot      string `json:"package_root,omitempty"` // version 1 only
	Workspace        string `json:"workspace"`
	Primary          string `json:"primary"`
	Policy           string `json:"policy"`
	Log              string `json:"log"`
	Manifest         string `json:"manifest"`
	CodexExecutable  string `json:"codex_executable"`
	NodeExecutable   string `json:"node_executable,omitempty"` // version 1 only
	MCPExecutable    string `json:"mcp_executable"`
	BrokerExecutable string `json:"broker_executable"`
	RunnerExecutable string `json:"runner_executable"`
}

// Principals are the users of the system that the three parts run as.
type Principals struct {
	Codex  string `json:"codex"`
	Broker string `json:"broker"`
	Runner string `json:"runner"`
}

// Invocation is how the agent starts the tool server.
type Invocation struct {
	Command string   `json:"command"`
	Args    []string `json:"args"`
}

// Components say whether the parts came with the package. They decide nothing.
type Components struct {
	Broker string `json:"broker"`
	Runner string `json:"runner"`
}

// CodeManifestInvalid and CodeManifestDrift are the codes of a ManifestError.
const (
	CodeManifestInvalid = "manifest-invalid"
	CodeManifestDrift   = "manifest-path-drift"
)

// A ManifestError is why a manifest is not accepted.
type ManifestError struct {
	Code    string
	Message string
	Err     error
}

// Error gives code and message.
func (e *ManifestError) Error() string { return e.Code + ": " + e.Message }

// Unwrap returns the cause.
func (e *ManifestError) Unwrap() error { return e.Err }

var (
	instanceID = regexp.MustCompile(`^[a-z][a-z0-9-]{0,62}$`)
	principal  = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
)

// Actor is who acts in the log: the instance, whatever the environment says.
func (m *Manifest) Actor() string { return "agent:codex-" + m.InstanceID }

// ParseManifest reads a manifest and checks what it says against itself. Errors are
// *ManifestError.
func ParseManifest(data []byte) (*Manifest, error) {
	var m Manifest
	if err := strictjson.Decode(data, &m, strictjson.Limits{MaxBytes: MaxManifest, MaxDepth: 8}); err != nil {
		return nil, &ManifestError{Code: CodeManifestInvalid, Message: "the manifest is not as its schema says: " + err.Error(), Err: err}
	}
	for _, check := range []func() string{m.checkVersion, m.checkPaths, m.checkRoots, m.checkInvocation} {
		if why := check(); why != "" {
			return nil, &ManifestError{Code: CodeManifestInvalid, Message: why}
		}
	}
	return &m, nil
}

func (m *Manifest) checkVersion() string {
	v1 := m.SchemaVersion == ManifestV1
	switch {
	case !v1 && m.SchemaVersion != ManifestV2:
		return "schema_version must be " + ManifestV2 + " or " + ManifestV1
	case v1 && m.Platform != "darwin":
		return "platform must be darwin in version 1"
	case m.Platform != "darwin" && m.Platform != "linux":
		return "platform must be linux or darwin"
	case !instanceID.MatchString(m.InstanceID):
		return "instance_id must be a lowercase letter and up to 62 of a-z, 0-9 and -"
	case m.CodexVersion == "" || m.PackageVersion == "":
		return "codex_version and package_version must not be empty"
	case v1 != (m.NodeVersion != "") || v1 != (m.Paths.NodeExecutable != "") || v1 != (m.Paths.PackageRoot != ""):
		return "node_version, paths.node_executable and paths.package_root belong to version 1, and must be there in it"
	}
	for _, p := range []string{m.Principals.Codex, m.Principals.Broker, m.Principals.Runner} {
		if !principal.MatchString(p) {
			return "principals must be user names"
		}
	}
	return ""
}

// named is one path with the member it stands in.
type named struct{ name, path string }

// executables are the programs of an instance.
func (p *Paths) executables() []named {
	list := []named{
		{"codex_executable", p.CodexExecutable}, {"mcp_executable", p.MCPExecutable},
		{"broker_executable", p.BrokerExecutable}, {"runner_executable", p.RunnerExecutable},
	}
	if p.NodeExecutable != "" {
		list = append(list, named{"node_executable", p.NodeExecutable})
	}
	return list
}

func (p *Paths) all() []named {
	list := []named{
		{"install_root", p.InstallRoot}, {"workspace", p.Workspace}, {"primary", p.Primary},
		{"policy", p.Policy}, {"log", p.Log}, {"manifest", p.Manifest},
	}
	if p.PackageRoot != "" {
		list = append(list, named{"package_root", p.PackageRoot})
	}
	return append(list, p.executables()...)
}

func (m *Manifest) checkPaths() string {
	for _, n := range m.Paths.all() {
		if !ident.AbsPath(n.path) {
			return "paths." + n.name + " must be absolute and in its shortest form"
		}
	}
	return ""
}

func (m *Manifest) checkRoots() string {
	p := &m.Paths
	roots := []named{{"install_root", p.InstallRoot}, {"workspace", p.Workspace}, {"primary", p.Primary}}
	for i, a := range roots {
		for _, b := range roots[i+1:] {
			if ident.Overlap(a.path, b.path) {
				return "paths." + a.name + " and paths." + b.name + " must not contain each other"
			}
		}
	}
	for _, n := range p.executables() {
		if n.path == p.InstallRoot || !ident.Within(n.path, p.InstallRoot) {
			return "paths." + n.name + " must lie below paths.install_root"
		}
	}
	return ""
}

func (m *Manifest) checkInvocation() string {
	want := []string{"codex", "serve", "--manifest", m.Paths.Manifest}
	switch {
	case m.Invocation.Command != m.Paths.MCPExecutable:
		return "invocation.command must be paths.mcp_executable"
	case !slices.Equal(m.Invocation.Args, want):
		return "invocation.args must be codex serve --manifest and paths.manifest"
	}
	return ""
}

// LoadManifest reads the manifest at path, which must be absolute and the very path the manifest
// gives for itself: an instance is where the operator installed it, not where a copy of its file
// turned up. The file must be regular and reached without a symbolic link. Errors are
// *ManifestError.
func LoadManifest(path string) (*Manifest, error) {
	data, err := readBounded(path, MaxManifest)
	if err != nil {
		return nil, &ManifestError{Code: CodeManifestInvalid, Message: "the manifest cannot be read: " + err.Error(), Err: err}
	}
	m, err := ParseManifest(data)
	if err != nil {
		return nil, err
	}
	if m.Paths.Manifest != path {
		return nil, &ManifestError{Code: CodeManifestDrift, Message: "the manifest names another path for itself"}
	}
	return m, nil
}

// RunsHere reports whether the manifest is for this system.
func (m *Manifest) RunsHere() error {
	if m.Platform != runtime.GOOS {
		return refuse(CodeInstallationInvalid, "platform", "the manifest is for %s and this is %s", m.Platform, runtime.GOOS)
	}
	return nil
}

var errTooLarge = errors.New("it is larger than allowed")
