// Package version says which release our programs are. It is not for negotiating the
// protocol, whose version is wire.ProtocolVersion.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// Version is the release, as in CHANGELOG.md.
const Version = "0.1.0"

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
