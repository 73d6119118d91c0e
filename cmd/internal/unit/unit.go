package unit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"gloved.dev/internal/ident"
)

// Name is the unit's name, the same in every manager.
const Name = "gloved.service"

// MaxBytes bounds a unit file.
const MaxBytes = 64 << 10

const (
	// MinSystemd is the oldest systemd the unit works with: Type=exec is of 240.
	MinSystemd = 240
	// SubgroupSystemd is the first systemd that has DelegateSubgroup=.
	SubgroupSystemd = 254
)

// Subgroup is where DelegateSubgroup= puts gloved: runtime/cgroup recognises a leaf by the
// beginning of its name and takes the group above it for its base.
const Subgroup = "glove-host-main"

// maxPath bounds a path in a unit.
const maxPath = 4096

// A Spec is what a unit is made from.
type Spec struct {
	User    bool     // for a user's manager; else for the system's
	Systemd int      // the version of systemd the unit is for
	Gloved  string   // the program: an absolute path
	Config  string   // its configuration: an absolute path
	Mounts  []string // paths whose file systems gloved needs; of use to the system's manager only
}

// A PathError is a path that a unit cannot hold.
type PathError struct{ Path, Reason string }

func (e *PathError) Error() string {
	return fmt.Sprintf("%q cannot stand in a unit: %s", e.Path, e.Reason)
}

// CheckPath reports whether a path can be written into a unit without an escape: it is
// absolute and normal, at most 4096 bytes of printable ASCII, and has none of the
// characters that systemd gives a meaning (double quote, backslash, dollar, percent).
// Errors are of type [*PathError].
func CheckPath(path string) error {
	switch {
	case !ident.AbsPath(path):
		return &PathError{path, "it is not absolute, or not in its shortest form"}
	case len(path) > maxPath:
		return &PathError{path[:64] + "…", fmt.Sprintf("it is longer than %d bytes", maxPath)}
	}
	for _, r := range path {
		if r < 0x20 || r > 0x7e || strings.ContainsRune(`"\$%`, r) {
			return &PathError{path, fmt.Sprintf("it has the character %q", r)}
		}
	}
	return nil
}

// Text is the whole unit file. Errors are of type [*PathError].
func (s Spec) Text() (string, error) {
	for _, path := range append([]string{s.Gloved, s.Config}, s.Mounts...) {
		if err := CheckPath(path); err != nil {
			return "", err
		}
	}
	body := s.head() + s.unit() + s.service() + s.install()
	return firstLine(body) + body, nil
}

const (
	firstWords  = `# Written by "glove daemon install"; what follows has sha256 `
	configWords = "# Configuration: "
	glovedWords = "# Program: "
)

func firstLine(body string) string {
	sum := sha256.Sum256([]byte(body))
	return firstWords + hex.EncodeToString(sum[:]) + "\n"
}

func (s Spec) systemctl() string {
	if s.User {
		return "systemctl --user"
	}
	return "systemctl"
}

func (s Spec) head() string {
	return "# Changed by hand, it is no longer replaced by glove. To add to it:\n" +
		"#   " + s.systemctl() + " edit " + Name + "\n" +
		configWords + s.Config + "\n" + glovedWords + s.Gloved + "\n\n"
}

func (s Spec) unit() string {
	var text strings.Builder
	text.WriteString("[Unit]\nDescription=gloved, the sandbox for coding agents\n")
	if !s.User && len(s.Mounts) > 0 {
		mounts := slices.Clone(s.Mounts)
		slices.Sort(mounts)
		text.WriteString("RequiresMountsFor=")
		for i, path := range slices.Compact(mounts) {
			if i > 0 {
				text.WriteByte(' ')
			}
			text.WriteString(`"` + path + `"`)
		}
		text.WriteByte('\n')
	}
	text.WriteString("StartLimitIntervalSec=60s\nStartLimitBurst=10\n\n")
	return text.String()
}

const controllers = "cpu memory pids"

func (s Spec) service() string {
	command := fmt.Sprintf(`"%s" --config "%s"`, s.Gloved, s.Config)
	var text strings.Builder
	line := func(lines ...string) {
		for _, l := range lines {
			text.WriteString(l + "\n")
		}
	}
	line("[Service]", "Type=exec")
	if s.Systemd >= SubgroupSystemd {
		line("ExecStart="+command,
			"# Sessions are groups beside gloved's own.",
			"Delegate="+controllers, "DelegateSubgroup="+Subgroup)
	} else {
		manager := ""
		if s.User {
			manager = "--user "
		}
		line(fmt.Sprintf("# systemd before %d cannot start a delegated service anew while its groups are in use.", SubgroupSystemd),
			"ExecStart=/usr/bin/systemd-run "+manager+"--scope --quiet --collect --description=\"gloved and its sessions\" "+
				`--property="Delegate=`+controllers+`" --property=TasksMax=infinity -- `+command)
	}
	line("# Sessions go on when gloved ends.",
		"KillMode=process", "TimeoutStopSec=15s",
		"Restart=on-failure", "RestartSec=2s", "RestartPreventExitStatus=2",
		"OOMPolicy=continue", "TasksMax=infinity",
		"WorkingDirectory=/", "UMask=0077", "LimitCORE=0", "NoNewPrivileges=yes")
	if !s.User {
		line("CapabilityBoundingSet=~" + strings.Join(dropped, " "))
	}
	line("")
	return text.String()
}

// dropped are the capabilities that nothing of gloved's needs. Those that CAP_SYS_ADMIN,
// which it needs, contains anyway are not listed.
var dropped = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_IPC_LOCK", "CAP_LEASE",
	"CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_NET_BROADCAST", "CAP_SYS_BOOT", "CAP_SYS_MODULE",
	"CAP_SYS_PACCT", "CAP_SYS_RAWIO", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
}

func (s Spec) install() string {
	target := "multi-user.target"
	if s.User {
		target = "default.target"
	}
	return "[Install]\nWantedBy=" + target + "\n"
}

// An Origin is whose work a unit file is.
type Origin string

// The origins.
const (
	Ours    Origin = "ours"    // as it was written
	Edited  Origin = "edited"  // written by us and changed since
	Foreign Origin = "foreign" // not written by us
)

// An Inspection is what a unit file tells about itself. Config and Gloved are empty in a
// foreign one.
type Inspection struct {
	Origin         Origin
	Config, Gloved string
}

// Inspect looks at the bytes of a unit file.
func Inspect(data []byte) Inspection {
	text := string(data)
	if !strings.HasPrefix(text, firstWords) {
		return Inspection{Origin: Foreign}
	}
	first, body, _ := strings.Cut(text, "\n")
	found := Inspection{Origin: Edited}
	if first+"\n" == firstLine(body) {
		found.Origin = Ours
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if path, ok := strings.CutPrefix(line, configWords); ok && found.Config == "" && ident.AbsPath(path) {
			found.Config = path
		}
		if path, ok := strings.CutPrefix(line, glovedWords); ok && found.Gloved == "" && ident.AbsPath(path) {
			found.Gloved = path
		}
	}
	return found
}
