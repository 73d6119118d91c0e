package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/rpc/service"
	"gloved.dev/rpc/transport"
)

func TestParse(t *testing.T) {
	base := []string{"--audit-key", "/k", "--journal=/j"}
	tests := []struct {
		name   string
		args   []string
		reason string // "": accepted
	}{
		{"stdio", append([]string{"--stdio"}, base...), ""},
		{"resident", append([]string{"--runtime-dir", "/r"}, base...), ""},
		{"stdio beside a resident one", append([]string{"--stdio", "--runtime-dir", "/r"}, base...), ""},
		{"nothing", nil, "--audit-key is missing"},
		{"neither form", base, "neither --stdio nor --runtime-dir"},
		{"twice", append([]string{"--stdio", "--journal", "/x"}, base...), "--journal is given twice"},
		{"unknown", []string{"--stido"}, "there is no option --stido"},
		{"abbreviated", []string{"--audit", "/k"}, "there is no option --audit"},
		{"one dash", []string{"-stdio"}, "there is no option -stdio"},
		{"a stray word", append([]string{"serve"}, base...), "options only"},
		{"after --", append(base, "--", "x"), "there is no option --"},
		{"relative", []string{"--journal", "j"}, "needs an absolute path"},
		{"the root", []string{"--journal", "/"}, "needs an absolute path"},
		{"not normal", []string{"--journal", "/a/../j"}, "needs an absolute path"},
		{"trailing slash", []string{"--journal", "/a/"}, "needs an absolute path"},
		{"empty", []string{"--journal="}, "needs an absolute path"},
		{"no value", []string{"--journal"}, "needs a path"},
		{"a value for a switch", []string{"--stdio=1"}, "takes no value"},
		{"one path for two", []string{"--stdio", "--audit-key", "/k", "--journal", "/k"}, "name the same path"},
		{"store without policy", append([]string{"--stdio", "--session-store", "/s"}, base...), "--session-store needs --session-policy"},
		{"root without store", append([]string{"--stdio", "--session-policy", "/p", "--materialization-root", "/m"}, base...), "--materialization-root needs --session-store"},
		{"bundles without store", append([]string{"--stdio", "--library-bundle-root", "/b"}, base...), "--library-bundle-root needs --session-store"},
		{"half of exposures", append([]string{"--stdio", "--path-exposure-journal", "/e"}, base...), "--path-exposure-journal needs --path-exposure-policy"},
		{"session users", append([]string{"--stdio", "--session-uids", "200000:100"}, base...), ""},
		{"session users joined", append([]string{"--stdio", "--session-uids=200000:100"}, base...), ""},
		{"session users absent", append(base, "--session-uids"), "needs FIRST:COUNT"},
		{"session users, no count", append([]string{"--session-uids", "200000"}, base...), "takes FIRST:COUNT"},
		{"session users among people's", append([]string{"--session-uids", "1000:100"}, base...), "no range of host users"},
		{"session users past the end", append([]string{"--session-uids", "2147483647:2"}, base...), "no range of host users"},
		{"rotation at", append([]string{"--stdio", "--rotate-at", "50"}, base...), ""},
		{"rotation never", append([]string{"--stdio", "--rotate-at=never"}, base...), ""},
		{"rotation too late", append([]string{"--stdio", "--rotate-at", "96"}, base...), "percentage from 0 to 95"},
		{"rotation at nothing", append([]string{"--stdio", "--rotate-at", "half"}, base...), "percentage from 0 to 95"},
		{"rotation absent", append(base, "--rotate-at"), "needs PERCENT"},
		{"config and more", []string{"--config", "/c", "--journal", "/j"}, "--journal cannot be given together with --config"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, _, err := parse(test.args)
			if test.reason == "" {
				if err != nil {
					t.Errorf("parse(%q) = %v", test.args, err)
				}
				return
			}
			var wrong *UsageError
			if !errors.As(err, &wrong) || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("parse(%q) = %v, want a UsageError with %q", test.args, err, test.reason)
			}
		})
	}
}

func TestHelpAndVersionWinOverMistakes(t *testing.T) {
	for args, want := range map[string]action{"--help": actHelp, "-h": actHelp, "--stdio --help": actHelp, "-V": actVersion, "--version": actVersion} {
		if _, got, err := parse(strings.Fields(args)); got != want || err != nil {
			t.Errorf("parse(%s) = %v, %v; want %v", args, got, err, want)
		}
	}
}

func TestStateDir(t *testing.T) {
	if got := (Options{Journal: "/state/r.jsonl"}).stateDir(); got != "/state" {
		t.Errorf("without a runtime directory the lock is in %s", got)
	}
	if got := (Options{Journal: "/state/r.jsonl", RuntimeDir: "/run/x"}).stateDir(); got != "/run/x" {
		t.Errorf("with a runtime directory the lock is in %s", got)
	}
}

func TestReport(t *testing.T) {
	for _, test := range []struct {
		err  error
		exit int
		text string
	}{
		{nil, 0, ""},
		{usage("do this", "wrong"), 2, "gloved: usage: wrong\n  next: do this\n"},
		{&service.UnavailableError{Option: "--x", Why: "y"}, 2, "gloved: option_unavailable: --x cannot be used: y\n  next: leave it out\n"},
		{&startError{code: "c", err: errors.New("e")}, 1, "gloved: c: e\n"},
		{errors.New("e"), 1, "gloved: failed: e\n"},
	} {
		var out bytes.Buffer
		if exit := report(&out, test.err); exit != test.exit || out.String() != test.text {
			t.Errorf("report(%v) = %d and %q, want %d and %q", test.err, exit, out.String(), test.exit, test.text)
		}
	}
}

// The holder's note is a courtesy: that it is gone already is no failure.
func TestNoteThatIsGoneIsNoFailure(t *testing.T) {
	held := announced{io.NopCloser(nil), filepath.Join(t.TempDir(), holderName)}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
}

func TestSocketAdvice(t *testing.T) {
	for code, advised := range map[string]bool{transport.CodeSocketForeign: true, transport.CodeSocketInUse: true, transport.CodeSecret: false} {
		if got := socketAdvice(fmt.Errorf("x: %w", &transport.Error{Code: code})); (got != "") != advised {
			t.Errorf("%s: advice %q", code, got)
		}
	}
}

// What asks for a component is never ignored: an empty path is refused like a relative one.
func TestConfigRefusesEmptyPaths(t *testing.T) {
	const base = `"schema_version":1,"persistent_service":false,"runtime_directory":"/r","audit_key":"/k","receipt_journal":"/j"`
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // an owner directory
		t.Fatal(err)
	}
	for document, want := range map[string]string{
		"{" + base + "}":                           "",
		"{" + base + `,"session_policy":""}`:       "/session_policy is not an absolute",
		"{" + base + `,"session_policy":"x"}`:      "/session_policy is not an absolute",
		strings.Replace("{"+base+"}", "/r", "", 1): "/runtime_directory is not an absolute",
		strings.Replace("{"+base+"}", "/j", "", 1): "/receipt_journal is not an absolute",
	} {
		path := filepath.Join(dir, "config.json")
		if err := os.WriteFile(path, []byte(document), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := loadConfig(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", document, err, want)
		}
	}
}

func TestHelpNamesEveryOption(t *testing.T) {
	var out bytes.Buffer
	writeHelp(&out)
	for _, f := range flags {
		if !strings.Contains(out.String(), f.name+" PATH") {
			t.Errorf("the help lacks %s", f.name)
		}
	}
}
