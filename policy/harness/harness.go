// Package harness is the closed table of native agent harnesses and the rules by which their
// executables are found.
//
// Nouns:
//
//   - an Adapter is one supported harness: the name of its executable, where below its private home
//     it looks for Agent Skills, and the arguments, environment and configuration that Glove adds;
//   - a Finder looks for an adapter's executable in directories that the owner named, and judges
//     whether everybody who could replace that executable is trusted;
//   - a Detection is what is merely present: it judges no trust and gives no authority.
//
// Neither ever looks at an inherited PATH: whoever can set a variable of the daemon, or write into a
// directory that a package manager left open, would otherwise choose what runs with the owner's
// credentials. Nothing is executed here.
//
// It is not for staging a protected copy of an untrusted installation and not for pinning an
// executable's bytes: the runtime does both. Source of the table and the rules: session-policy
// specification, "Cloudflare OS development template" ff. (adapter table and discovery).
package harness

import "slices"

// Home is the private home directory of every managed session, inside the sandbox.
const Home = "/home/agent"

// Config is a configuration file that Glove writes into an adapter's private home before launch.
type Config struct {
	Directory []string // path components below Home
	Name      string   // file name
	Contents  string   // exact bytes
}

// Adapter is one native harness. Values are copies: changing one changes nothing for others.
type Adapter struct {
	RuntimeID   string   // the plan's runtime_id and the template's runtime_discovery
	Executable  string   // file name looked for in search roots
	SkillRoot   []string // path components of the native skills directory below Home
	Environment []string // NAME=VALUE entries Glove adds, besides HOME
	Arguments   []string // appended after the template's arguments
	Config      *Config  // nil when the harness needs none
	// NeedsAdoption: the harness loads extensions from its home, so that a launch is refused
	// unless the owner adopted a fixed set of them.
	NeedsAdoption bool
}

// SkillDirectory returns the absolute skills directory inside the sandbox.
func (a Adapter) SkillDirectory() string {
	dir := Home
	for _, c := range a.SkillRoot {
		dir += "/" + c
	}
	return dir
}

// table is ordered by runtime id. Adding an entry is a change of the protocol: it widens
// managed_runtime_ids and what a policy may name in runtime_discovery.
var table = []Adapter{
	{
		RuntimeID:  "claude-code",
		Executable: "claude",
		SkillRoot:  []string{".claude", "skills"},
	},
	{
		RuntimeID:   "codex",
		Executable:  "codex",
		SkillRoot:   []string{".codex", "skills"},
		Environment: []string{"CODEX_HOME=" + Home + "/.codex"},
		// Codex would otherwise build its own sandbox inside ours, which cannot nest, and fail its
		// first command.
		Arguments: []string{"--dangerously-bypass-approvals-and-sandbox"},
		Config: &Config{
			Directory: []string{".codex"},
			Name:      "config.toml",
			Contents:  "[projects.\"" + Home + "\"]\ntrust_level = \"trusted\"\n",
		},
	},
	{
		RuntimeID:   "copilot",
		Executable:  "copilot",
		SkillRoot:   []string{".copilot", "skills"},
		Environment: []string{"COPILOT_HOME=" + Home + "/.copilot"},
	},
	{
		RuntimeID:   "opencode",
		Executable:  "opencode",
		SkillRoot:   []string{".config", "opencode", "skills"},
		Environment: []string{"XDG_CONFIG_HOME=" + Home + "/.config"},
	},
	{
		RuntimeID:  "pi",
		Executable: "pi",
		SkillRoot:  []string{".pi", "agent", "skills"},
		Config: &Config{
			Directory: []string{".pi", "agent"},
			Name:      "settings.json",
			Contents:  "{\"packages\":[],\"enableSkillCommands\":true}\n",
		},
		NeedsAdoption: true,
	},
}

// Lookup returns the adapter of a runtime id, or false when the runtime is no native harness.
func Lookup(runtimeID string) (Adapter, bool) {
	for _, a := range table {
		if a.RuntimeID == runtimeID {
			return a.clone(), true
		}
	}
	return Adapter{}, false
}

// Adapters returns the whole table in order of runtime id.
func Adapters() []Adapter {
	out := make([]Adapter, len(table))
	for i, a := range table {
		out[i] = a.clone()
	}
	return out
}

// RuntimeIDs returns the runtime ids of the table, sorted.
func RuntimeIDs() []string {
	out := make([]string, len(table))
	for i, a := range table {
		out[i] = a.RuntimeID
	}
	return out
}

func (a Adapter) clone() Adapter {
	a.SkillRoot = slices.Clone(a.SkillRoot)
	a.Environment = slices.Clone(a.Environment)
	a.Arguments = slices.Clone(a.Arguments)
	if a.Config != nil {
		c := *a.Config
		c.Directory = slices.Clone(c.Directory)
		a.Config = &c
	}
	return a
}
