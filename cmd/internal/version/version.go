// Package version says which release our programs are. It is not for negotiating the
// protocol, whose version is wire.ProtocolVersion.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the release, as in CHANGELOG.md. It is a variable for the linker only: a
// packager names builds of their own with -ldflags "-X
// gloved.dev/cmd/internal/version.Version=…", and tests make one that is another.
var Version = "0.1.0"

// Info is what `version --json` prints.
type Info struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // the commit, where the build knows it
	Modified bool   `json:"modified,omitzero"`  // the build had uncommitted changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Get is the running program's.
func Get() Info {
	info := Info{Version: Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return info
	}
	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			info.Revision = setting.Value
		case "vcs.modified":
			info.Modified = setting.Value == "true"
		}
	}
	return info
}

// Build tells builds apart, as programs name themselves to each other: the release and,
// where it is known, the commit as the build metadata of Semantic Versioning.
func (i Info) Build() string {
	if i.Revision == "" {
		return i.Version
	}
	build := i.Version + "+" + i.Revision[:min(12, len(i.Revision))]
	if i.Modified {
		build += ".modified"
	}
	return build
}

// String is the version as one line, without the program's name.
func (i Info) String() string {
	parts := []string{i.Version}
	if i.Revision != "" {
		revision := i.Revision[:min(12, len(i.Revision))]
		if i.Modified {
			revision += "+"
		}
		parts = append(parts, "("+revision+")")
	}
	return strings.Join(append(parts, i.Go, i.Platform), " ")
}
