package unit

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/require"
)

var update = flag.Bool("update", false, "write the golden units anew")

// forms are the units we write: for whom, and for which systemd.
var forms = map[string]Spec{
	"user-254":   {User: true, Systemd: 254, Gloved: "/home/ada/bin/gloved", Config: "/home/ada/.config/glove/config.json", Mounts: []string{"/home/ada"}},
	"user-253":   {User: true, Systemd: 253, Gloved: "/home/ada/bin/gloved", Config: "/home/ada/.config/glove/config.json"},
	"system-254": {Systemd: 257, Gloved: "/usr/local/bin/gloved", Config: "/etc/glove/config.json", Mounts: []string{"/var/lib/glove store", "/etc/glove", "/var/lib/glove store"}},
	"system-253": {Systemd: 240, Gloved: "/usr/local/my programs/gloved", Config: "/etc/glove/config.json"},
}

func text(t *testing.T, s Spec) string {
	t.Helper()
	got, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestGolden(t *testing.T) {
	for name, spec := range forms {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".service")
			got := text(t, spec)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the unit is\n%s\nwant (go test -update writes it anew)\n%s", got, want)
			}
		})
	}
}

// What breaks sandboxes, or kills sessions with gloved, is in no unit.
func TestNothingThatBreaksSessions(t *testing.T) {
	for name, spec := range forms {
		for line := range strings.Lines(text(t, spec)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			switch key {
			case "SystemCallFilter", "SystemCallArchitectures", "RestrictNamespaces", "MemoryDenyWriteExecute", "RestrictSUIDSGID",
				"LockPersonality", "RestrictRealtime", "RestrictAddressFamilies", "ProtectHostname", "ProtectClock", "ProtectProc",
				"ProcSubset", "ProtectKernelTunables", "ProtectKernelLogs", "ProtectKernelModules", "ProtectControlGroups",
				"PrivateDevices", "PrivateUsers", "PrivateTmp", "PrivateMounts", "ProtectSystem", "ProtectHome",
				"RuntimeDirectory", "MemoryMax", "RootDirectory":
				t.Errorf("%s: %s", name, line)
			case "KillMode":
				if value != "process" {
					t.Errorf("%s: %s", name, line)
				}
			}
		}
	}
}

func TestCheckPath(t *testing.T) {
	for path, good := range map[string]bool{
		"/a": true, "/a b/c": true, "/a'b": true, "/-": true, "/a;b#c": true, "/" + strings.Repeat("x", maxPath-1): true,
		"/" + strings.Repeat("x", maxPath): false, "": false, "a": false, "/": false, "/a/../b": false, "/a/": false,
		`/a"b`: false, `/a\b`: false, "/a$b": false, "/a%b": false, "/a\nb": false, "/a\tb": false, "/ä": false, "/a\x7f": false,
	} {
		err := CheckPath(path)
		var wrong *PathError
		if (err == nil) != good || err != nil && !errors.As(err, &wrong) {
			t.Errorf("CheckPath(%.40q) = %v", path, err)
		}
		spec := forms["system-254"]
		spec.Config = path
		if _, err := spec.Text(); (err == nil) != good {
			t.Errorf("a unit with %.40q: %v", path, err)
		}
	}
}

func TestInspect(t *testing.T) {
	spec := forms["user-254"]
	ours := text(t, spec)
	if got := Inspect([]byte(ours)); got != (Inspection{Ours, spec.Config, spec.Gloved}) {
		t.Errorf("our own: %+v", got)
	}
	edited := strings.Replace(ours, "RestartSec=2s", "RestartSec=3s", 1)
	if got := Inspect([]byte(edited)); got != (Inspection{Edited, spec.Config, spec.Gloved}) {
		t.Errorf("an edited one: %+v", got)
	}
	if got := Inspect([]byte(ours + "\n")); got.Origin != Edited {
		t.Errorf("a longer one: %+v", got)
	}
	for _, other := range []string{"", "\n", "[Service]\nExecStart=/x\n" + ours, configWords + "/x\n", firstWords} {
		want := Foreign
		if strings.HasPrefix(other, firstWords) {
			want = Edited
		}
		if got := Inspect([]byte(other)); got != (Inspection{Origin: want}) {
			t.Errorf("%q: %+v", other, got)
		}
	}
}

func FuzzInspect(f *testing.F) {
	for _, spec := range forms {
		if got, err := spec.Text(); err == nil {
			f.Add([]byte(got))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		found := Inspect(data)
		if found.Origin == Foreign && (found.Config != "" || found.Gloved != "") {
			t.Errorf("a foreign unit is believed: %+v", found)
		}
	})
}

// analyze runs systemd-analyze on a unit, which names programs that exist.
func analyze(t *testing.T, spec Spec, args ...string) (string, error) {
	t.Helper()
	require.Tool(t, "systemd-analyze")
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	spec.Gloved, spec.Mounts = program, []string{"/" + filepath.Base(t.TempDir())}
	path := filepath.Join(t.TempDir(), Name)
	if err := os.WriteFile(path, []byte(text(t, spec)), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemd-analyze", append(args, path)...)
	cmd.Env = append(os.Environ(), "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=", "LC_ALL=C", "XDG_RUNTIME_DIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// installed is the version of systemd-analyze.
func installed(t *testing.T) int {
	t.Helper()
	require.Tool(t, "systemd-analyze")
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(out))
	version := 0
	if len(fields) > 1 {
		for _, r := range fields[1] {
			if r < '0' || r > '9' {
				break
			}
			version = version*10 + int(r-'0')
		}
	}
	if version == 0 {
		t.Fatalf("systemd-analyze --version says %q", out)
	}
	return version
}

// systemd itself finds no fault with the units that are for it: no unknown option, no value
// it ignores.
func TestSystemdVerifies(t *testing.T) {
	version := installed(t)
	for name, spec := range forms {
		t.Run(name, func(t *testing.T) {
			args := []string{"verify", "--man=no"}
			if spec.User {
				args = append(args, "--user")
			}
			out, err := analyze(t, spec, args...)
			for line := range strings.Lines(out) {
				newer := spec.Systemd >= SubgroupSystemd && version < SubgroupSystemd
				if newer && strings.Contains(line, "'DelegateSubgroup'") {
					continue // the one thing that this systemd is too old for
				}
				if strings.Contains(line, Name) {
					t.Errorf("systemd-analyze verify: %s", line)
				}
			}
			if err != nil {
				t.Errorf("systemd-analyze verify: %v\n%s", err, out)
			}
		})
	}
	t.Run("a fault is found", func(t *testing.T) {
		spec := forms["system-253"]
		spec.Gloved = "/x"
		path := filepath.Join(t.TempDir(), Name)
		bad := strings.Replace(text(t, spec), "KillMode=process", "KillMode=none-such", 1)
		if err := os.WriteFile(path, []byte(bad), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _ := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", path).CombinedOutput()
		if !strings.Contains(string(out), "none-such") {
			t.Errorf("a wrong value goes unnoticed: %s", out)
		}
	})
}

// systemd's own judgement of what confines the service. The bound is where it is: most of
// its points are for options that sandboxes cannot be built under (see the package doc).
func TestSystemdSecurity(t *testing.T) {
	if version := installed(t); version < 250 {
		require.Skip(t, "systemd-analyze security --offline is of 250")
	}
	for name, spec := range forms {
		t.Run(name, func(t *testing.T) {
			bound := "--threshold=90"
			if spec.User {
				bound = "--threshold=95" // a user's manager has no capabilities to take away
			}
			out, err := analyze(t, spec, "security", "--offline=true", bound, "--no-pager")
			if err != nil {
				t.Errorf("systemd-analyze security: %v\n%s", err, out)
			}
			t.Log(out[max(0, strings.LastIndex(strings.TrimSpace(out), "\n")):])
		})
	}
}
