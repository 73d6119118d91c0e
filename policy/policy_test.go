package policy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/internal/pathwalk"
	"gloved.dev/internal/safefile"
)

func TestExamplesParse(t *testing.T) {
	for _, name := range []string{"codex-safe.json", "cloudflare-os.json", "full.json"} {
		if _, err := Parse(readFile(t, name), (&fakeHost{}).env()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The digest that the specification prints does not cover read_only_paths.
func TestStaleDigestIsExplained(t *testing.T) {
	_, err := Parse(readFile(t, "codex-safe-stale-digest.json"), (&fakeHost{}).env())
	wantFault(t, err, CodeDigest, "/runtime_templates/0/adapter_command_digest")
	for _, part := range []string{"legacy", "e66c0652fedc80fcdfe875761036053f973708ad72207e388c07de41553c4e33"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not mention %s: %v", part, err)
		}
	}
}

type row struct {
	name          string
	change        func(*Document)
	code, pointer string // "" for accepted
}

func runRows(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			d := document(t, "full.json")
			r.change(&d)
			_, err := parse(t, d, &fakeHost{})
			if r.code == "" {
				if err != nil {
					t.Fatalf("refused: %v", err)
				}
				return
			}
			wantFault(t, err, r.code, r.pointer)
		})
	}
}

func list[T any](n int, f func(i int) T) []T {
	out := make([]T, n)
	for i := range out {
		out[i] = f(i)
	}
	return out
}

func ids(n int) []string { return list(n, func(i int) string { return fmt.Sprintf("id-%04d", i) }) }

func templates(n int) []Template {
	return list(n, func(i int) Template {
		return Template{ID: fmt.Sprintf("t-%d", i), RuntimeID: []string{"codex", "other"}[i%2], AdapterDigest: hex64('a'), Backend: BackendLinux}
	})
}

func aliases(n int) []PathAlias {
	return list(n, func(i int) PathAlias {
		return PathAlias{Alias: fmt.Sprintf("a-%d", i), HostPath: fmt.Sprintf("/srv/a%d", i), TargetPath: fmt.Sprintf("/work/a%d", i),
			MaxTTLSecs: 1, Access: []AccessEntry{{AccessRead, MaterializeBind, CreateNever, CleanupRetain, 0}}}
	})
}

func profiles(n int) []Profile {
	return list(n, func(i int) Profile { return Profile{fmt.Sprintf("p-%d", i), uint64(i + 1), 1, 1, 1, 1, 1} })
}

func TestCollectionBounds(t *testing.T) {
	at := func(n int) string { return fmt.Sprintf("%d", n) }
	var rows []row
	add := func(pointer string, low, high int, set func(*Document, int)) {
		for _, n := range []int{low - 1, low, high, high + 1} {
			if n < 0 {
				continue
			}
			r := row{name: pointer + " " + at(n), change: func(d *Document) { set(d, n) }}
			if n < low || n > high {
				r.code, r.pointer = CodeCollection, pointer
			}
			rows = append(rows, r)
		}
	}
	add("/runtime_templates", 1, 64, func(d *Document, n int) { d.RuntimeTemplates = templates(n) })
	add("/path_aliases", 1, 64, func(d *Document, n int) { d.PathAliases = aliases(n) })
	add("/resource_profiles", 1, 64, func(d *Document, n int) { d.ResourceProfiles = profiles(n) })
	add("/library_projection_destinations", 0, 128, func(d *Document, n int) {
		d.RuntimeTemplates = templates(2)
		d.Destinations = list(n, func(i int) Destination { return Destination{fmt.Sprintf("d-%d", i), fmt.Sprintf("/opt/d%d", i)} })
	})
	add("/egress_policy_ids", 0, 128, func(d *Document, n int) { d.EgressPolicyIDs, d.EgressPolicies = ids(n), nil })
	add("/tool_policy_ids", 0, 128, func(d *Document, n int) { d.ToolPolicyIDs = ids(n) })
	add("/secret_handles", 0, 128, func(d *Document, n int) { d.SecretHandles, d.SecretMounts = ids(n), nil })
	add("/egress_policies", 0, 128, func(d *Document, n int) {
		d.EgressPolicyIDs = ids(128)
		d.EgressPolicies = list(n, func(i int) EgressPolicy { return EgressPolicy{fmt.Sprintf("id-%04d", i), []EgressEntry{}} })
	})
	add("/secret_mounts", 0, 128, func(d *Document, n int) {
		d.SecretHandles = ids(128)
		d.SecretMounts = list(n, func(i int) SecretMount {
			return SecretMount{fmt.Sprintf("id-%04d", i), "codex", "/srv/s", fmt.Sprintf("/home/agent/s%d", i)}
		})
	})
	add("/egress_policies/0/targets", 0, 128, func(d *Document, n int) {
		d.EgressPolicies[0].Targets = list(n, func(i int) EgressEntry { return EgressEntry{Host: fmt.Sprintf("h%d", i)} })
	})
	for _, l := range []struct {
		name string
		set  func(*Launch, int)
	}{
		{"arguments", func(l *Launch, n int) { l.Arguments = ids(n) }},
		{"environment", func(l *Launch, n int) {
			l.Environment = list(n, func(i int) string { return fmt.Sprintf("E%04d=", i) })
		}},
		{"read_only_paths", func(l *Launch, n int) {
			l.ReadOnlyPaths = list(n, func(i int) string { return fmt.Sprintf("/r/%d", i) })
		}},
		{"executable_search_paths", func(l *Launch, n int) {
			l.Discovery, l.ExecutablePath = "codex", ""
			l.SearchPaths = list(n, func(i int) string { return fmt.Sprintf("/s/%d", i) })
		}},
	} {
		low := 0
		if l.name == "executable_search_paths" {
			low = 1
		}
		add("/runtime_templates/0/launch/"+l.name, low, 256, func(d *Document, n int) {
			l.set(d.RuntimeTemplates[0].Launch, n)
			redigest(d)
		})
	}
	for i, r := range rows { // an empty search list is a fault of the launch, not of a bound
		if r.pointer == "/runtime_templates/0/launch/executable_search_paths" && strings.HasSuffix(r.name, " 0") {
			rows[i].code = CodeLaunch
		}
	}
	runRows(t, rows)
}

func TestScalarsAndIdentifiers(t *testing.T) {
	long := strings.Repeat("x", 128)
	runRows(t, []row{
		{"schema version 2", func(d *Document) { d.SchemaVersion = 2 }, CodeSchemaVersion, "/schema_version"},
		{"schema version 0", func(d *Document) { d.SchemaVersion = 0 }, CodeSchemaVersion, "/schema_version"},
		{"revision 0", func(d *Document) { d.Revision = 0 }, CodeNumber, "/revision"},
		{"largest revision", func(d *Document) { d.Revision = MaxInteger }, "", ""},
		{"revision too large", func(d *Document) { d.Revision = MaxInteger + 1 }, CodeJSON, "/revision"},
		{"ttl 0", func(d *Document) { d.MaxPlanTTLMS = 0 }, CodeNumber, "/max_plan_ttl_ms"},
		{"exact headroom", func(d *Document) { d.MaxPlanTTLMS = 301_000 }, "", ""},
		{"headroom one short", func(d *Document) { d.MaxPlanTTLMS = 300_999 }, CodeHeadroom, "/resource_profiles/1/wall_time_ms"},
		{"wall time at the edge of numbers", func(d *Document) {
			d.ResourceProfiles[1].WallTimeMS, d.MaxPlanTTLMS = MaxInteger-999, MaxInteger
		}, CodeHeadroom, "/resource_profiles/1/wall_time_ms"},
		{"long template id", func(d *Document) { d.RuntimeTemplates[0].ID = long }, "", ""},
		{"template id too long", func(d *Document) { d.RuntimeTemplates[0].ID = long + "x" }, CodeIdentifier, "/runtime_templates/0/runtime_template_id"},
		{"template id empty", func(d *Document) { d.RuntimeTemplates[0].ID = "" }, CodeIdentifier, "/runtime_templates/0/runtime_template_id"},
		{"template id twice", func(d *Document) { d.RuntimeTemplates[1].ID = "codex-safe" }, CodeDuplicate, "/runtime_templates/1/runtime_template_id"},
		{"runtime id", func(d *Document) { d.RuntimeTemplates[4].RuntimeID = "a b" }, CodeIdentifier, "/runtime_templates/4/runtime_id"},
		{"upper-case digest", func(d *Document) { d.RuntimeTemplates[4].AdapterDigest = hex64('D') }, CodeIdentifier, "/runtime_templates/4/adapter_command_digest"},
		{"wrong digest", func(d *Document) { d.RuntimeTemplates[0].AdapterDigest = hex64('d') }, CodeDigest, "/runtime_templates/0/adapter_command_digest"},
		{"legacy digest", func(d *Document) {
			d.RuntimeTemplates[0].AdapterDigest = LegacyLaunchDigest(*d.RuntimeTemplates[0].Launch)
		}, CodeDigest, "/runtime_templates/0/adapter_command_digest"},
		{"unknown backend", func(d *Document) { d.RuntimeTemplates[4].Backend = "docker" }, CodeBackend, "/runtime_templates/4/sandbox_backend"},
		{"legacy backend", func(d *Document) { d.RuntimeTemplates[4].Backend = BackendMacOS }, "", ""},
		{"alias listed twice", func(d *Document) { d.RuntimeTemplates[4].AllowedAliases = []string{"b", "a", "b"} }, CodeDuplicate, "/runtime_templates/4/allowed_path_aliases/2"},
		{"unknown destination", func(d *Document) { d.RuntimeTemplates[4].AllowedDestinations = []string{"x"} }, CodeUnlisted, "/runtime_templates/4/allowed_projection_destinations/0"},
		{"adoption root", func(d *Document) { d.RuntimeTemplates[2].Adoption.ManifestRoot = "/" }, CodePath, "/runtime_templates/2/adoption/manifest_root"},
		{"adoption manifest", func(d *Document) { d.RuntimeTemplates[2].Adoption.ManifestDigest = "" }, CodeIdentifier, "/runtime_templates/2/adoption/manifest_digest"},
		{"adoption snapshot", func(d *Document) { d.RuntimeTemplates[2].Adoption.SnapshotDigest = "x" }, CodeIdentifier, "/runtime_templates/2/adoption/snapshot_digest"},
		{"colon in an id", func(d *Document) { d.ToolPolicyIDs = []string{"sage:readonly"} }, "", ""},
		{"bad tool id", func(d *Document) { d.ToolPolicyIDs = []string{"ok", "sage/readonly"} }, CodeIdentifier, "/tool_policy_ids/1"},
		{"tool id twice", func(d *Document) { d.ToolPolicyIDs = []string{"a", "a"} }, CodeDuplicate, "/tool_policy_ids/1"},
		{"egress id twice", func(d *Document) { d.EgressPolicyIDs = []string{"vendor", "vendor"} }, CodeDuplicate, "/egress_policy_ids/1"},
		{"unsorted ids", func(d *Document) { d.ToolPolicyIDs = []string{"b", "a"} }, "", ""},
		{"profile id twice", func(d *Document) { d.ResourceProfiles[1].ID = "small" }, CodeDuplicate, "/resource_profiles/1/profile_id"},
		{"profile numbers twice", func(d *Document) {
			d.ResourceProfiles[1] = NewProfile("other", d.ResourceProfiles[0].Limits())
		}, CodeDuplicate, "/resource_profiles/1"},
		{"cpu 0", func(d *Document) { d.ResourceProfiles[0].CPUTimeMS = 0 }, CodeNumber, "/resource_profiles/0"},
		{"memory 0", func(d *Document) { d.ResourceProfiles[0].MemoryBytes = 0 }, CodeNumber, "/resource_profiles/0"},
		{"pids 0", func(d *Document) { d.ResourceProfiles[0].PIDs = 0 }, CodeNumber, "/resource_profiles/0"},
		{"wall 0", func(d *Document) { d.ResourceProfiles[0].WallTimeMS = 0 }, CodeNumber, "/resource_profiles/0"},
		{"disk 0", func(d *Document) { d.ResourceProfiles[0].DiskBytes = 0 }, CodeNumber, "/resource_profiles/0"},
		{"output 0", func(d *Document) { d.ResourceProfiles[0].TerminalOutputBytes = 0 }, CodeNumber, "/resource_profiles/0"},
	})
}

func TestPathAliases(t *testing.T) {
	host := func(p string) func(*Document) { return func(d *Document) { d.PathAliases[0].HostPath = p } }
	target := func(p string) func(*Document) { return func(d *Document) { d.PathAliases[0].TargetPath = p } }
	const h, g = "/path_aliases/0/host_path", "/path_aliases/0/target_path"
	rows := []row{
		{"alias of 128", func(d *Document) { d.PathAliases[0].Alias = strings.Repeat("x", 128) }, "", ""},
		{"alias of 129", func(d *Document) { d.PathAliases[0].Alias = strings.Repeat("x", 129) }, CodeIdentifier, "/path_aliases/0/alias"},
		{"alias with colon", func(d *Document) { d.PathAliases[0].Alias = "a:b" }, CodeIdentifier, "/path_aliases/0/alias"},
		{"alias twice", func(d *Document) { d.PathAliases[1].Alias = "workspace" }, CodeDuplicate, "/path_aliases/1/alias"},
		{"ttl 0", func(d *Document) { d.PathAliases[0].MaxTTLSecs = 0 }, CodeNumber, "/path_aliases/0/max_ttl_secs"},
		{"ttl 1", func(d *Document) { d.PathAliases[0].MaxTTLSecs = 1 }, "", ""},
		{"overlapping hosts", func(d *Document) { d.PathAliases[1].HostPath = "/srv/work/project/sub" }, CodeOverlap, "/path_aliases/1/host_path"},
		{"overlapping hosts, other way", func(d *Document) { d.PathAliases[1].HostPath = "/srv/work" }, CodeOverlap, "/path_aliases/1/host_path"},
		{"hosts alike by letters only", func(d *Document) { d.PathAliases[1].HostPath = "/srv/work/project2" }, "", ""},
		{"overlapping targets", func(d *Document) { d.PathAliases[1].TargetPath = "/workspace/in" }, CodeOverlap, "/path_aliases/1/target_path"},
		{"same targets", func(d *Document) { d.PathAliases[1].TargetPath = "/workspace" }, CodeOverlap, "/path_aliases/1/target_path"},
		{"4096 byte path", host("/" + strings.Repeat("a/", 2047) + "b"), "", ""},
		{"4097 byte path", host("/" + strings.Repeat("a/", 2047) + "bc"), CodePath, h},
	}
	for _, p := range []string{"", "/", "srv", "/srv/", "/srv//x", "/srv/./x", "/srv/../x"} {
		rows = append(rows, row{"host " + p, host(p), CodePath, h}, row{"target " + p, target(p), CodePath, g})
	}
	for _, p := range []string{
		"/dev", "/dev/shm", "/proc/1", "/run", "/run/user/0", "/sys/fs", "/root", "/var/root", "/home", "/home/ann", "/Users", "/Users/ann",
		"/srv/.ssh", "/home/ann/.aws/x", "/srv/x/.azure", "/srv/.gnupg/a/b", "/srv/.kube", "/srv/.sage/x",
	} {
		rows = append(rows, row{"restricted " + p, host(p), CodeRestrictedPath, h})
	}
	for _, p := range []string{"/home/ann/project", "/root/project", "/Users/ann/x", "/devel", "/srv/.sshx", "/var/run"} {
		rows = append(rows, row{"fine " + p, host(p), "", ""})
	}
	for _, p := range []string{"/bin", "/dev/x", "/etc/ssl", "/lib", "/lib64/a", "/proc", "/sbin", "/sys", "/usr/local", "/run", "/run/glove-services", "/run/glove-services/local"} {
		rows = append(rows, row{"reserved " + p, target(p), CodeReservedTarget, g})
	}
	for _, p := range []string{"/opt/x", "/binary", "/run/other", "/workspace/a/b", "/home/agent/x"} {
		rows = append(rows, row{"target fine " + p, target(p), "", ""})
	}
	runRows(t, rows)
}

// Every combination of the four closed values and a quota is judged by a table written down here a
// second time.
func TestAccessTable(t *testing.T) {
	legal := map[string]bool{}
	for _, line := range []string{
		"read bind never retain 0",
		"read snapshot never retain 0", "read snapshot never remove 0", "read snapshot empty_directory retain 0", "read snapshot empty_directory remove 0",
		"read copy never retain 0", "read copy never remove 0", "read copy empty_directory retain 0", "read copy empty_directory remove 0",
		"read git_worktree git_worktree retain 0", "read git_worktree git_worktree remove 0",
		"ephemeral_write snapshot never remove 1", "ephemeral_write snapshot empty_directory remove 1",
		"ephemeral_write copy never remove 1", "ephemeral_write copy empty_directory remove 1",
		"ephemeral_write git_worktree git_worktree remove 1",
		"retained_write snapshot never retain 1", "retained_write snapshot empty_directory retain 1",
		"retained_write copy never retain 1", "retained_write copy empty_directory retain 1",
		"retained_write git_worktree git_worktree retain 1",
		"direct_write bind never retain 0",
	} {
		legal[line] = true
	}
	accepted := 0
	for _, a := range []Access{AccessRead, AccessEphemeralWrite, AccessRetainedWrite, AccessDirectWrite} {
		for _, m := range []Materialization{MaterializeBind, MaterializeSnapshot, MaterializeGitWorktree, MaterializeCopy} {
			for _, c := range []CreatePolicy{CreateNever, CreateEmptyDirectory, CreateGitWorktree} {
				for _, u := range []CleanupPolicy{CleanupRetain, CleanupRemove} {
					for _, b := range []uint64{0, 1} {
						line := fmt.Sprintf("%s %s %s %s %d", a, m, c, u, b)
						why := AccessEntry{a, m, c, u, b}.fault()
						if legal[line] != (why == "") {
							t.Errorf("%s: fault %q, legal %v", line, why, legal[line])
						}
						if why == "" {
							accepted++
						}
					}
				}
			}
		}
	}
	if accepted != len(legal) {
		t.Errorf("%d combinations accepted, want %d", accepted, len(legal))
	}
	entry := func(f func(*AccessEntry)) func(*Document) {
		return func(d *Document) { f(&d.PathAliases[0].Access[0]) }
	}
	runRows(t, []row{
		{"illegal", entry(func(e *AccessEntry) { e.Cleanup = CleanupRemove }), CodeAccessRule, "/path_aliases/0/access/0"},
		{"unknown access", entry(func(e *AccessEntry) { e.Access = "write" }), CodeAccessKind, "/path_aliases/0/access/0/access"},
		{"unknown materialization", entry(func(e *AccessEntry) { e.Materialization = "link" }), CodeAccessKind, "/path_aliases/0/access/0/materialization"},
		{"unknown create", entry(func(e *AccessEntry) { e.Create = "always" }), CodeAccessKind, "/path_aliases/0/access/0/create_policy"},
		{"unknown cleanup", entry(func(e *AccessEntry) { e.Cleanup = "" }), CodeAccessKind, "/path_aliases/0/access/0/cleanup_policy"},
		{"no access", func(d *Document) { d.PathAliases[0].Access = nil }, CodeCollection, "/path_aliases/0/access"},
		{"kind twice", func(d *Document) { d.PathAliases[0].Access[3] = d.PathAliases[0].Access[0] }, CodeDuplicate, "/path_aliases/0/access/3/access"},
	})
}

func TestDestinationsAndEgressAndSecrets(t *testing.T) {
	dest := func(p string) func(*Document) { return func(d *Document) { d.Destinations[0].TargetPath = p } }
	host := func(h string) func(*Document) { return func(d *Document) { d.EgressPolicies[0].Targets[0].Host = h } }
	mount := func(f func(*SecretMount)) func(*Document) { return func(d *Document) { f(&d.SecretMounts[0]) } }
	const dp, ep = "/library_projection_destinations/0/target_path", "/egress_policies/0/targets/0"
	rows := []row{
		{"destination twice", func(d *Document) { d.Destinations[1].Alias = "libraries" }, CodeDuplicate, "/library_projection_destinations/1/alias"},
		{"destination alias", func(d *Document) { d.Destinations[1].Alias = "" }, CodeIdentifier, "/library_projection_destinations/1/alias"},
		{"destination relative", dest("opt"), CodePath, dp},
		{"destinations overlap", func(d *Document) { d.Destinations[1].TargetPath = "/opt/sage/library-bundles/x" }, CodeOverlap, "/library_projection_destinations/1/target_path"},
		{"host of 253", host(strings.Repeat("a", 253)), "", ""},
		{"host of 254", host(strings.Repeat("a", 254)), CodeEgressHost, ep + "/host"},
		{"empty host", host(""), CodeEgressHost, ep + "/host"},
		{"blank in host", host("a b"), CodeEgressHost, ep + "/host"},
		{"DEL in host", host("a\x7f"), CodeEgressHost, ep + "/host"},
		{"port 0", func(d *Document) { d.EgressPolicies[0].Targets[0].Port = new(uint16(0)) }, CodeNumber, ep + "/port"},
		{"port 65535", func(d *Document) { d.EgressPolicies[0].Targets[0].Port = new(uint16(65535)) }, "", ""},
		{"same endpoint", func(d *Document) {
			d.EgressPolicies[0].Targets[1] = EgressEntry{Host: "api.example.com", Port: new(uint16(443))}
		}, CodeDuplicate, "/egress_policies/0/targets/1"},
		{"same endpoint in capitals", func(d *Document) {
			d.EgressPolicies[0].Targets[1] = EgressEntry{Host: "API.example.com."}
		}, CodeDuplicate, "/egress_policies/0/targets/1"},
		{"same host, other port", func(d *Document) {
			d.EgressPolicies[0].Targets[1] = EgressEntry{Host: "api.example.com", Port: new(uint16(444))}
		}, "", ""},
		{"egress unlisted", func(d *Document) { d.EgressPolicies[0].PolicyID = "x" }, CodeUnlisted, "/egress_policies/0/policy_id"},
		{"egress twice", func(d *Document) { d.EgressPolicies = append(d.EgressPolicies, d.EgressPolicies[0]) }, CodeDuplicate, "/egress_policies/1/policy_id"},
		{"handle of 120", func(d *Document) {
			d.SecretHandles[0] = strings.Repeat("s", 120)
			d.SecretMounts[0].Handle = d.SecretHandles[0]
		}, "", ""},
		{"handle of 121", func(d *Document) {
			d.SecretHandles[0] = strings.Repeat("s", 121)
			d.SecretMounts[0].Handle = d.SecretHandles[0]
		}, CodeIdentifier, "/secret_mounts/0/handle"},
		{"handle unlisted", mount(func(m *SecretMount) { m.Handle = "x" }), CodeUnlisted, "/secret_mounts/0/handle"},
		{"handle twice", func(d *Document) { d.SecretMounts = append(d.SecretMounts, d.SecretMounts[0]) }, CodeDuplicate, "/secret_mounts/1/handle"},
		{"no such runtime", mount(func(m *SecretMount) { m.RuntimeID = "x" }), CodeUnlisted, "/secret_mounts/0/runtime_id"},
		{"source relative", mount(func(m *SecretMount) { m.SourcePath = "x" }), CodePath, "/secret_mounts/0/source_path"},
		{"target is home", mount(func(m *SecretMount) { m.TargetPath = "/home/agent" }), CodePath, "/secret_mounts/0/target_path"},
		{"target beside home", mount(func(m *SecretMount) { m.TargetPath = "/home/agentx/y" }), CodePath, "/secret_mounts/0/target_path"},
		{"target not normal", mount(func(m *SecretMount) { m.TargetPath = "/home/agent/../x" }), CodePath, "/secret_mounts/0/target_path"},
		{"target twice", func(d *Document) {
			d.SecretMounts = append(d.SecretMounts, SecretMount{"spare", "codex", "/srv/s", d.SecretMounts[0].TargetPath})
		}, CodeDuplicate, "/secret_mounts/1/target_path"},
		{"target twice, other runtime", func(d *Document) {
			d.SecretMounts = append(d.SecretMounts, SecretMount{"spare", "pi", "/srv/s", d.SecretMounts[0].TargetPath})
		}, "", ""},
	}
	for _, p := range []string{"/dev", "/proc/x", "/run/x", "/sys", "/tmp", "/tmp/x", "/var/tmp", "/var", "/run/glove-services/x"} {
		rows = append(rows, row{"destination reserved " + p, dest(p), CodeReservedTarget, dp})
	}
	runRows(t, rows)
}

func TestLaunchRules(t *testing.T) {
	l := func(f func(*Launch)) func(*Document) {
		return func(d *Document) {
			d.RuntimeTemplates[0].Launch = &Launch{ExecutablePath: "/opt/x/bin/exe"}
			f(d.RuntimeTemplates[0].Launch)
			redigest(d)
		}
	}
	const at = "/runtime_templates/0/launch"
	snap := "/srv/h/snapshots/" + hex64('a') + "/payload"
	covers := func(ro, exe string) func(*Document) {
		return l(func(x *Launch) { x.ExecutablePath, x.ReadOnlyPaths = exe, []string{ro} })
	}
	runRows(t, []row{
		{"pinned", l(func(*Launch) {}), "", ""},
		{"no launch", func(d *Document) { d.RuntimeTemplates[0].Launch = nil }, "", ""},
		{"relative executable", l(func(x *Launch) { x.ExecutablePath = "bin/x" }), CodePath, at + "/executable_path"},
		{"executable /", l(func(x *Launch) { x.ExecutablePath = "/" }), CodePath, at + "/executable_path"},
		{"no executable", l(func(x *Launch) { x.ExecutablePath = "" }), CodePath, at + "/executable_path"},
		{"search path without discovery", l(func(x *Launch) { x.SearchPaths = []string{"/s"} }), CodeLaunch, at + "/executable_search_paths"},
		{"unknown adapter", l(func(x *Launch) { x.Discovery = "vim" }), CodeLaunch, at + "/runtime_discovery"},
		{"discovery and executable", l(func(x *Launch) { x.Discovery, x.SearchPaths = "codex", []string{"/s"} }), CodeLaunch, at + "/executable_path"},
		{"discovery of another runtime", l(func(x *Launch) { x.Discovery, x.ExecutablePath, x.SearchPaths = "pi", "", []string{"/s"} }), CodeLaunch, at + "/runtime_discovery"},
		{"discovery", l(func(x *Launch) { x.Discovery, x.ExecutablePath, x.SearchPaths = "codex", "", []string{"/s"} }), "", ""},
		{"overlapping search paths", l(func(x *Launch) {
			x.Discovery, x.ExecutablePath, x.SearchPaths = "codex", "", []string{"/s", "/s/t"}
		}), CodeOverlap, at + "/executable_search_paths/1"},
		{"relative search path", l(func(x *Launch) { x.Discovery, x.ExecutablePath, x.SearchPaths = "codex", "", []string{"s"} }), CodePath, at + "/executable_search_paths/0"},
		{"longest argument", l(func(x *Launch) { x.Arguments = []string{strings.Repeat("a", 65536)} }), "", ""},
		{"argument too long", l(func(x *Launch) { x.Arguments = []string{strings.Repeat("a", 65537)} }), CodeLaunch, at + "/arguments/0"},
		{"empty argument", l(func(x *Launch) { x.Arguments = []string{"a", ""} }), CodeLaunch, at + "/arguments/1"},
		{"argument twice", l(func(x *Launch) { x.Arguments = []string{"a", "a"} }), "", ""},
		{"no =", l(func(x *Launch) { x.Environment = []string{"A"} }), CodeLaunch, at + "/environment/0"},
		{"no name", l(func(x *Launch) { x.Environment = []string{"=A"} }), CodeLaunch, at + "/environment/0"},
		{"digit first", l(func(x *Launch) { x.Environment = []string{"1A=x"} }), CodeLaunch, at + "/environment/0"},
		{"empty value", l(func(x *Launch) { x.Environment = []string{"A="} }), "", ""},
		{"name twice", l(func(x *Launch) { x.Environment = []string{"A=1", "A=2"} }), CodeDuplicate, at + "/environment/1"},
		{"unsorted", l(func(x *Launch) { x.Environment = []string{"B=1", "A=2"} }), CodeLaunch, at + "/environment/1"},
		// "A=" sorts after "A1=", because "=" is above the digits.
		{"sorted by whole entries", l(func(x *Launch) { x.Environment = []string{"A1=x", "A=x"} }), "", ""},
		{"sorted by names only", l(func(x *Launch) { x.Environment = []string{"A=x", "A1=x"} }), CodeLaunch, at + "/environment/1"},
		{"overlapping read-only", l(func(x *Launch) { x.ReadOnlyPaths = []string{"/r/a", "/r"} }), CodeOverlap, at + "/read_only_paths/1"},
		{"read-only twice", l(func(x *Launch) { x.ReadOnlyPaths = []string{"/r", "/r"} }), CodeOverlap, at + "/read_only_paths/1"},
		{"read-only /", l(func(x *Launch) { x.ReadOnlyPaths = []string{"/"} }), CodePath, at + "/read_only_paths/0"},
		{"read-only around executable", covers("/opt/x", "/opt/x/bin/exe"), CodeOverlap, at + "/read_only_paths/0"},
		{"read-only is executable", covers("/opt/x", "/opt/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"read-only below executable", covers("/opt/x/y", "/opt/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"snapshot root", covers(snap+"/root-0", snap+"/root-0/bin/x"), "", ""},
		{"snapshot part", covers(snap+"/root-63/lib", snap+"/root-63/lib/x"), "", ""},
		{"snapshot payload", covers(snap, snap+"/root-0/x"), "", ""},
		{"around the snapshot", covers("/srv/h/snapshots/"+hex64('a'), snap+"/root-0/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"around all snapshots", covers("/srv/h", snap+"/root-0/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"snapshot with odd digest", covers("/srv/h/snapshots/abc/payload/root-0", "/srv/h/snapshots/abc/payload/root-0/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"snapshot with odd root", covers(snap+"/root-00", snap+"/root-00/x"), CodeOverlap, at + "/read_only_paths/0"},
		{"snapshot root as executable", covers(snap+"/root-0", snap+"/root-0"), CodeOverlap, at + "/read_only_paths/0"},
		{"below the executable in a snapshot", covers(snap+"/root-0/x/y", snap+"/root-0/x"), CodeOverlap, at + "/read_only_paths/0"},
	})
}

func TestHostObjects(t *testing.T) {
	d := document(t, "full.json")
	same := pathwalk.Identity{Dev: 7, Ino: 7, Mode: 0o40755}
	for _, c := range []struct {
		name          string
		host          fakeHost
		code, pointer string
	}{
		{"same object twice", fakeHost{objects: map[string]pathwalk.Identity{"/srv/work/project": same, "/srv/work/inputs": same}},
			CodeOverlap, "/path_aliases/1/host_path"},
		{"missing", fakeHost{errs: map[string]error{"/srv/work/project": &pathwalk.Error{Code: pathwalk.CodeNotFound}}},
			CodeHostObject, "/path_aliases/0/host_path"},
		{"link", fakeHost{errs: map[string]error{"/srv/work/inputs": &pathwalk.Error{Code: pathwalk.CodeSymlink}}},
			CodeHostObject, "/path_aliases/1/host_path"},
	} {
		_, err := parse(t, d, &c.host)
		t.Run(c.name, func(t *testing.T) { wantFault(t, err, c.code, c.pointer) })
	}
}

// With two faults at once, the earlier stage is the one reported.
func TestOrderOfFaults(t *testing.T) {
	breaks := []struct {
		name, code string
		change     func(*Document)
	}{
		{"JSON", CodeJSON, func(d *Document) { d.Revision = MaxInteger + 2 }},
		{"schema version", CodeSchemaVersion, func(d *Document) { d.SchemaVersion = 9 }},
		{"collections", CodeCollection, func(d *Document) { d.ToolPolicyIDs = ids(129) }},
		{"backend", CodeBackend, func(d *Document) { d.RuntimeTemplates[4].Backend = "x" }},
		{"access kind", CodeAccessKind, func(d *Document) { d.PathAliases[1].Access[0].Access = "x" }},
		{"alias", CodeRestrictedPath, func(d *Document) { d.PathAliases[1].HostPath = "/proc/x" }},
		{"destination", CodeReservedTarget, func(d *Document) { d.Destinations[1].TargetPath = "/tmp" }},
		{"profile", CodeNumber, func(d *Document) { d.ResourceProfiles[0].CPUTimeMS = 0 }},
		{"egress", CodeEgressHost, func(d *Document) { d.EgressPolicies[0].Targets[0].Host = "" }},
		{"secret", CodePath, func(d *Document) { d.SecretMounts[0].TargetPath = "/x" }},
		{"template", CodeIdentifier, func(d *Document) { d.RuntimeTemplates[0].RuntimeID = "/" }},
		{"headroom", CodeHeadroom, func(d *Document) { d.MaxPlanTTLMS = 1 }},
	}
	for i, first := range breaks {
		for _, second := range breaks[i+1:] {
			d := document(t, "full.json")
			second.change(&d)
			first.change(&d)
			_, err := parse(t, d, &fakeHost{})
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Code != first.code {
				t.Errorf("%s and %s: got %v, want %s", first.name, second.name, err, first.code)
			}
		}
	}
}

func TestStrictJSON(t *testing.T) {
	good := string(readFile(t, "full.json"))
	for _, c := range []struct{ name, old, new, pointer string }{
		{"unknown member", `"revision": 3`, `"revision": 3, "extra": 1`, "/extra"},
		{"wrong case", `"revision": 3`, `"Revision": 3`, "/Revision"},
		{"duplicate", `"revision": 3`, `"revision": 3, "revision": 3`, "/revision"},
		{"string for number", `"revision": 3`, `"revision": "3"`, "/revision"},
		{"fraction", `"revision": 3`, `"revision": 3.5`, "/revision"},
		{"null list", `"tool_policy_ids": [`, `"tool_policy_ids": null, "x": [`, "/x"},
		{"absent launch member", `"arguments": [],`, ``, "/runtime_templates/0/launch/arguments"},
		{"port too large", `"port": 8443`, `"port": 65536`, "/egress_policies/0/targets/1/port"},
		{"null port", `"port": 8443`, `"port": null`, "/egress_policies/0/targets/1/port"},
		{"null launch", `"adoption": {`, `"launch": null, "x": {`, ""},
		{"trailing", "\n}\n", "\n}{}", ""},
	} {
		text := strings.Replace(good, c.old, c.new, 1)
		if text == good {
			t.Fatalf("%s: nothing was replaced", c.name)
		}
		_, err := Parse([]byte(text), (&fakeHost{}).env())
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Code != CodeJSON || c.pointer != "" && e.Pointer != c.pointer {
			t.Errorf("%s: got %v, want %s at %q", c.name, err, CodeJSON, c.pointer)
		}
	}
	if _, err := Parse(bytes.Repeat([]byte("["), MaxDocument), Env{}); err == nil {
		t.Error("1 MiB of [ was accepted")
	}
	padded := append(readFile(t, "full.json"), bytes.Repeat([]byte(" "), MaxDocument)...)
	if _, err := Parse(padded[:MaxDocument], (&fakeHost{}).env()); err != nil {
		t.Errorf("a document of exactly 1 MiB: %v", err)
	}
	if _, err := Parse(padded[:MaxDocument+1], (&fakeHost{}).env()); err == nil {
		t.Error("a document of 1 MiB and a byte was accepted")
	}
}

// Every required member, at every place, is required.
func TestAbsentMembers(t *testing.T) {
	d := document(t, "codex-safe.json")
	full, err := d.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"schema_version", "revision", "max_plan_ttl_ms", "egress_policy_ids", "tool_policy_ids", "secret_handles",
		"path_aliases", "resource_profiles", "library_projection_destinations", "runtime_templates",
		"runtime_id", "adapter_command_digest", "sandbox_backend", "allowed_path_aliases", "arguments", "environment",
		"alias", "host_path", "max_ttl_secs", "access", "materialization", "create_policy", "cleanup_policy", "max_bytes",
		"profile_id", "cpu_time_ms", "memory_bytes", "pids", "wall_time_ms", "disk_bytes", "terminal_output_bytes",
	} {
		if !bytes.Contains(full, []byte(`"`+name+`":`)) {
			t.Fatalf("the example has no member %s", name)
		}
		text := bytes.Replace(full, []byte(`"`+name+`":`), []byte(`"x":`), 1)
		if _, err := Parse(text, (&fakeHost{}).env()); err == nil {
			t.Errorf("a policy without %s was accepted", name)
		}
	}
	for _, opt := range []string{"egress_policies", "secret_mounts", "adoption"} {
		if bytes.Contains(full, []byte(opt)) {
			t.Errorf("%s is in the minimal example", opt)
		}
	}
}

func TestLoad(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	d := document(t, "codex-safe.json")
	d.PathAliases[0].HostPath = work
	data, err := d.Canonical()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "policy.json")
	if err := safefile.WriteOwner(path, data); err != nil {
		t.Fatal(err)
	}
	p, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if p.Revision() != 7 {
		t.Errorf("revision %d, want 7", p.Revision())
	}
	if ids := p.RuntimeIDs(BackendLinux); len(ids) != 1 || ids[0] != "codex" {
		t.Errorf("RuntimeIDs = %v", ids)
	}
	_, err = Load(filepath.Join(dir, "missing"))
	wantFault(t, err, CodeFile, "")
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	_, err = Load(path)
	wantFault(t, err, CodeFile, "")
	if e, ok := errors.AsType[*safefile.Error](err); !ok || e.Code != safefile.CodeMode {
		t.Errorf("the cause is %v, want a mode error", err)
	}
	_, err = Load("policy.json")
	wantFault(t, err, CodeFile, "")
}

// What a policy hands out must not be a way to change it.
func TestDocumentIsACopy(t *testing.T) {
	p := mustParse(t, document(t, "full.json"))
	d := p.Document()
	d.RuntimeTemplates[0].Launch.Arguments = append(d.RuntimeTemplates[0].Launch.Arguments, "x")
	d.RuntimeTemplates[0].Launch.Environment[0] = "X=1"
	d.PathAliases[0].Access[0].MaxBytes = 9
	d.ToolPolicyIDs[0] = "x"
	d.EgressPolicies[0].Targets[0].Host = "x"
	tpl, ok := p.Template("codex-safe")
	if !ok {
		t.Fatal("no template codex-safe")
	}
	tpl.Launch.Environment[0] = "Y=1"
	again, want := p.Document(), document(t, "full.json")
	a, errA := again.Canonical()
	b, errB := want.Canonical()
	if errA != nil || errB != nil || !bytes.Equal(a, b) {
		t.Errorf("the policy changed through its copy:\n%s\n%s", a, b)
	}
	if _, ok := p.Template("none"); ok {
		t.Error("Template found what is not there")
	}
}

// Each way of being no strict JSON has its own remedy.
func TestJSONFixes(t *testing.T) {
	for document, want := range map[string]string{
		`{"schema_version":1,"revison":1}`:     "spelling",
		`{"revision":1,"revision":1}`:          "keep one",
		`{"schema_version":1}`:                 "add the member",
		`{"revision":9007199254740992}`:        "9007199254740991",
		"// policy\n{}":                        "no comments",
		`{} {}`:                                "after its closing brace",
		`{"schema_version":"1","revision":1}`:  "of the type",
		`{"runtime_templates":[{"launch":{}}]`: "no comments",
	} {
		_, err := Parse([]byte(document), (&fakeHost{}).env())
		var fault *Error
		if !errors.As(err, &fault) {
			t.Errorf("%s: %v, want a fault", document, err)
			continue
		}
		if !strings.Contains(fault.Fix, want) {
			t.Errorf("%s: %v, fix %q; want one with %q", document, err, fault.Fix, want)
		}
	}
}
