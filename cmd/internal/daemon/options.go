package daemon

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/runtime/monitor"
)

// Options are what a gloved was told to be. Every path is absolute and lexically normal,
// and no two are the same.
type Options struct {
	Stdio   bool
	Verbose bool

	RuntimeDir          string
	AuditKey            string
	Journal             string
	SessionPolicy       string
	SessionStore        string
	MaterializationRoot string
	LibraryBundleRoot   string
	PathExposurePolicy  string
	PathExposureJournal string
	ApplyTrustPolicy    string
	ApplyJournal        string

	// SessionUIDs is where a root gloved's sessions get their host users from; the zero
	// value means the built-in range.
	SessionUIDs monitor.UIDRange

	// RotateAt is how full a journal is, in percent of its bound, when gloved puts
	// away what has ended; 0 is never.
	RotateAt int

	// RemoteBackend and AppleContainer report that the configuration file has these
	// members. Neither can be given as a flag.
	RemoteBackend  bool
	AppleContainer bool
}

// DefaultRotateAt is RotateAt where nothing is said, and MaxRotateAt its bound: above
// it a burst of sessions would be refused before the journal is looked at again.
const (
	DefaultRotateAt = 75
	MaxRotateAt     = 95
)

// UsageError is a command line or configuration that cannot be meant.
type UsageError struct {
	Message string
	Next    string
}

func (e *UsageError) Error() string { return e.Message }

func usage(next, format string, args ...any) *UsageError {
	return &UsageError{Message: fmt.Sprintf(format, args...), Next: next}
}

// action is what a command line asks for.
type action uint8

const (
	actServe action = iota
	actHelp
	actVersion
)

// flag is one path option: its name, its place in Options, and what help says of it.
type flag struct {
	name  string
	value func(*Options) *string
	help  string
}

// flags are the path options in the order of the specification's activation table.
var flags = []flag{
	{"--runtime-dir", func(o *Options) *string { return &o.RuntimeDir }, "owner-only directory of the sockets, the lock and the bootstrap secret"},
	{"--audit-key", func(o *Options) *string { return &o.AuditKey }, "receipt audit key: 64 hex digits in a 0600 file"},
	{"--journal", func(o *Options) *string { return &o.Journal }, "receipt journal; created when first needed"},
	{"--session-policy", func(o *Options) *string { return &o.SessionPolicy }, "session policy; adds validate_plan"},
	{"--session-store", func(o *Options) *string { return &o.SessionStore }, "session store; adds create_session, session_status, list_sessions"},
	{"--materialization-root", func(o *Options) *string { return &o.MaterializationRoot }, "owner-only directory for copies; adds the session lifecycle"},
	{"--library-bundle-root", func(o *Options) *string { return &o.LibraryBundleRoot }, "owner-only directory of bundles; admits library projections"},
	{"--path-exposure-policy", func(o *Options) *string { return &o.PathExposurePolicy }, "exposure policy; only together with its journal"},
	{"--path-exposure-journal", func(o *Options) *string { return &o.PathExposureJournal }, "exposure journal"},
	{"--apply-trust-policy", func(o *Options) *string { return &o.ApplyTrustPolicy }, "apply trust policy; only together with its journal"},
	{"--apply-journal", func(o *Options) *string { return &o.ApplyJournal }, "apply journal"},
}

// parse reads a command line. It is not a flag library's parser because here an option
// given twice, one that is abbreviated and a stray word must all be refused.
func parse(args []string) (Options, action, error) {
	options := Options{RotateAt: DefaultRotateAt}
	var config string
	seen := map[string]bool{}
	for len(args) > 0 {
		name, value, joined := strings.Cut(args[0], "=")
		args = args[1:]
		switch name {
		case "--help", "-h":
			return options, actHelp, nil
		case "--version", "-V":
			return options, actVersion, nil
		}
		if seen[name] {
			return options, actServe, usage("", "%s is given twice", name)
		}
		seen[name] = true
		if name == "--stdio" || name == "--verbose" {
			if joined {
				return options, actServe, usage("", "%s takes no value", name)
			}
			options.Stdio = options.Stdio || name == "--stdio"
			options.Verbose = options.Verbose || name == "--verbose"
			continue
		}
		if name == "--session-uids" {
			if value, args, joined = operand(value, args, joined); !joined {
				return options, actServe, usage("", "%s needs FIRST:COUNT after it", name)
			}
			var err error
			if options.SessionUIDs, err = parseUIDs(value); err != nil {
				return options, actServe, err
			}
			continue
		}
		if name == "--rotate-at" {
			if value, args, joined = operand(value, args, joined); !joined {
				return options, actServe, usage("", "%s needs PERCENT, or never, after it", name)
			}
			var err error
			if options.RotateAt, err = parseRotateAt(value); err != nil {
				return options, actServe, err
			}
			continue
		}
		target, err := pathTarget(&options, &config, name)
		if err != nil {
			return options, actServe, err
		}
		if !joined {
			if len(args) == 0 {
				return options, actServe, usage("", "%s needs a path after it", name)
			}
			value, args = args[0], args[1:]
		}
		if err := checkPath(name, value); err != nil {
			return options, actServe, err
		}
		*target = value
	}
	return finishOptions(options, config, seen)
}

// operand takes an option's value from the next argument unless it was joined by "=".
func operand(value string, args []string, joined bool) (string, []string, bool) {
	if joined || len(args) == 0 {
		return value, args, joined
	}
	return args[0], args[1:], true
}

// parseUIDs reads FIRST:COUNT.
func parseUIDs(text string) (monitor.UIDRange, error) {
	first, count, ok := strings.Cut(text, ":")
	a, err1 := strconv.ParseUint(first, 10, 32)
	b, err2 := strconv.ParseUint(count, 10, 32)
	r := monitor.UIDRange{First: uint32(a), Count: uint32(b)}
	if !ok || err1 != nil || err2 != nil {
		return monitor.UIDRange{}, usage("for example --session-uids 1879052288:16384", "--session-uids takes FIRST:COUNT, got %q", clip(text))
	}
	return r, checkUIDs("--session-uids", r)
}

// parseRotateAt reads PERCENT or never.
func parseRotateAt(text string) (int, error) {
	if text == "never" {
		return 0, nil
	}
	percent, err := strconv.Atoi(text)
	if err != nil {
		percent = -1
	}
	return percent, checkRotateAt("--rotate-at", percent, text)
}

func checkRotateAt(name string, percent int, text string) error {
	if percent < 0 || percent > MaxRotateAt {
		return usage(fmt.Sprintf("%d is the default; 0 is never", DefaultRotateAt), "%s is a percentage from 0 to %d, got %q", name, MaxRotateAt, clip(text))
	}
	return nil
}

func checkUIDs(name string, r monitor.UIDRange) error {
	if r != (monitor.UIDRange{}) && !r.Valid() {
		return usage(fmt.Sprintf("choose a range that nobody else uses, from %d on and below 2^31", monitor.MinUID),
			"%s: %d:%d is no range of host users for sessions", name, r.First, r.Count)
	}
	return nil
}

func pathTarget(options *Options, config *string, name string) (*string, error) {
	if name == "--config" {
		return config, nil
	}
	for _, f := range flags {
		if f.name == name {
			return f.value(options), nil
		}
	}
	if !strings.HasPrefix(name, "-") {
		return nil, usage("gloved --help", "gloved takes options only; %q is not one", clip(name))
	}
	return nil, usage("gloved --help", "there is no option %s", clip(name))
}

func clip(text string) string {
	if len(text) > 60 {
		return text[:60] + "…"
	}
	return text
}

func checkPath(name, path string) error {
	if ident.AbsPath(path) {
		return nil
	}
	next := "write the whole path, from / on"
	if filepath.IsAbs(path) && path != "/" {
		next = "write it as " + filepath.Clean(path)
	}
	return usage(next, "%s needs an absolute path without . , .. or doubled slashes, got %q", name, clip(path))
}

func finishOptions(options Options, config string, seen map[string]bool) (Options, action, error) {
	if config != "" {
		for name := range seen {
			if name != "--config" && name != "--stdio" && name != "--verbose" {
				return options, actServe, usage("put everything in the file, or everything on the command line",
					"%s cannot be given together with --config", name)
			}
		}
		fromFile, err := loadConfig(config)
		if err != nil {
			return options, actServe, err
		}
		fromFile.Stdio, fromFile.Verbose = options.Stdio, options.Verbose
		options = fromFile
	}
	return options, actServe, options.check(config)
}

// check applies the rules between options.
func (o Options) check(config string) error {
	spell := speller(config)
	if o.AuditKey == "" || o.Journal == "" {
		missing := "--audit-key"
		if o.AuditKey != "" {
			missing = "--journal"
		}
		return usage("gloved --stdio --audit-key /abs/audit.key --journal /abs/receipts.jsonl",
			"%s is missing: every gloved serves receipts, for which it needs --audit-key and --journal", spell(missing))
	}
	if !o.Stdio && o.RuntimeDir == "" {
		return usage("add --stdio to serve one connection on standard input and output, or --runtime-dir DIR to stay resident with a socket",
			"neither --stdio nor --runtime-dir is given")
	}
	for _, rule := range []struct{ name, needs string }{
		{"--session-store", "--session-policy"},
		{"--materialization-root", "--session-store"},
		{"--library-bundle-root", "--session-store"},
		{"--path-exposure-policy", "--path-exposure-journal"},
		{"--path-exposure-journal", "--path-exposure-policy"},
		{"--apply-trust-policy", "--apply-journal"},
		{"--apply-journal", "--apply-trust-policy"},
	} {
		if o.given(rule.name) && !o.given(rule.needs) {
			return usage("add "+spell(rule.needs), "%s needs %s too", spell(rule.name), spell(rule.needs))
		}
	}
	if o.RemoteBackend && !o.given("--session-store") {
		return usage("add session_policy and session_store", "remote_backend needs session_policy and session_store too")
	}
	if o.RemoteBackend && (o.given("--materialization-root") || o.AppleContainer) {
		return usage("", "remote_backend excludes materialization_root and apple_container")
	}
	if o.AppleContainer && !o.given("--materialization-root") {
		return usage("add session_store and materialization_root", "apple_container needs session_store and materialization_root too")
	}
	return o.checkDistinct(spell)
}

func (o Options) checkDistinct(spell func(string) string) error {
	users := map[string]string{}
	for _, f := range flags {
		path := *f.value(&o)
		if path == "" {
			continue
		}
		if other, taken := users[path]; taken {
			return usage("give each its own path", "%s and %s name the same path", spell(other), spell(f.name))
		}
		users[path] = f.name
	}
	return nil
}

func (o Options) given(name string) bool {
	at := slices.IndexFunc(flags, func(f flag) bool { return f.name == name })
	return at >= 0 && *flags[at].value(&o) != ""
}

// speller names options as the user wrote them: flags, or members of the file.
func speller(config string) func(string) string {
	if config == "" {
		return func(name string) string { return name }
	}
	return func(name string) string {
		switch name {
		case "--runtime-dir":
			return "runtime_directory"
		case "--journal":
			return "receipt_journal"
		}
		return strings.ReplaceAll(strings.TrimPrefix(name, "--"), "-", "_")
	}
}

const helpHead = `gloved runs coding agents in a sandbox on your machine, for a controller that may
only name what your policy allows. It serves exactly what it was built with: every
option below adds a component, and with it that component's methods.

Usage:
  gloved --stdio       [options]   serve one connection on standard input and output
  gloved --runtime-dir DIR [options]   stay, and serve a Unix socket in DIR
  gloved [--stdio] --config FILE       the same options from one strict JSON file

Options:
`

const helpTail = `  --session-uids FIRST:COUNT    host users for the sessions of a gloved that runs as root
  --rotate-at PERCENT           how full a journal is put away at: 0 to 95, or never (75)
  --config FILE                 all of the above from a 0600 JSON file
  --stdio                       serve standard input and output; exit when it ends
  --verbose                     log more to standard error
  -V, --version                 print the version
  -h, --help                    print this

All paths are absolute, and no two the same. Files are 0600, directories 0700, both
yours. Exit codes: 0 ended as asked, 1 could not run, 2 wrong options.

Example:
  umask 077; mkdir -p ~/.local/state/glove
  openssl rand -hex 32 > ~/.local/state/glove/audit.key
  gloved --stdio --audit-key ~/.local/state/glove/audit.key \
                 --journal ~/.local/state/glove/receipts.jsonl

To talk to one by hand: glove rpc
`

func writeHelp(out io.Writer) {
	var text strings.Builder
	text.WriteString(helpHead)
	for _, f := range flags {
		fmt.Fprintf(&text, "  %-29s %s\n", f.name+" PATH", f.help)
	}
	text.WriteString(helpTail)
	_, _ = io.WriteString(out, text.String())
}
