package vm_test

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !so() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it never happened: %s", what)
		}
	}
}

// TestServiceInside runs where systemd is at hand.
func TestServiceInside(t *testing.T) {
	inGuest(t)
	kind := os.Getenv(insideVariable)
	if kind == "" {
		t.Skip("TestService takes it there")
	}
	h := newHost(t)
	h.glove(0, "daemon", "install", "--config", h.config)
	h.glove(3, "daemon", "status")
	h.outlive(keeper{
		start: func() { h.glove(0, "daemon", "start") },
		again: func() { h.glove(0, "daemon", "restart") },
		stop:  func() { h.glove(0, "daemon", "stop"); h.glove(3, "daemon", "status") },
		pid: func() int {
			var status struct {
				PID int `json:"pid"`
			}
			out, _ := exec.CommandContext(t.Context(), serviceBin+"/glove", "daemon", "status", "--json").Output() // its text says
			fine(t, json.Unmarshal(out, &status))
			return status.PID
		},
		revives: true,
	})
	h.naive()
	h.glove(0, "daemon", "uninstall")
	h.glove(3, "daemon", "status")
}

// naive shows what the unit for a systemd without DelegateSubgroup= is for: there, the
// plain unit does not start again while a session of its lives.
func (h *host) naive() {
	h.t.Helper()
	version, err := exec.CommandContext(h.t.Context(), "systemctl", "--version").Output()
	fine(h.t, err)
	fields := strings.Fields(string(version))
	if len(fields) < 2 || fields[1] >= "254" {
		return // the unit in use is the plain one
	}
	h.glove(0, "daemon", "install", "--config", h.config, "--systemd", "254")
	h.glove(0, "daemon", "restart")
	group := h.begin(h.controller(), "naive")
	h.glove(1, "daemon", "restart")
	if read(h.t, filepath.Join(group, "cgroup.procs")) == "" {
		h.t.Error("the session ended with gloved")
	}
	h.glove(3, "daemon", "status")
	// Without a gloved there is nobody else to end it.
	fine(h.t, os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0))
	h.glove(0, "daemon", "install", "--config", h.config)
	h.glove(0, "daemon", "start")
}

// outliveWithout plays the systemd that has DelegateSubgroup=: gloved starts in the one
// group below its unit's that may hold it, again and again, and nothing else is killed.
func outliveWithout(t *testing.T) {
	h := newHost(t)
	const group = "/sys/fs/cgroup/gloved.service/glove-host-main"
	fine(t, os.MkdirAll(group, 0o755))
	var gloved *exec.Cmd
	start := func() {
		gloved = exec.CommandContext(t.Context(), "/bin/busybox", "sh", "-c", `echo $$ >`+group+`/cgroup.procs && exec "$@"`, "sh",
			serviceBin+"/gloved", "--config", h.config)
		gloved.Stderr = t.Output()
		fine(t, gloved.Start())
	}
	stop := func() {
		fine(t, gloved.Process.Signal(syscall.SIGTERM))
		fine(t, gloved.Wait())
	}
	h.outlive(keeper{
		start: start,
		again: func() { stop(); start() },
		stop:  stop,
		pid:   func() int { return gloved.Process.Pid },
	})
	stop()
}

// A keeper is whoever starts and ends gloved.
type keeper struct {
	start, again, stop func()
	pid                func() int
	revives            bool // starts a gloved that was killed
}

// A host has a gloved whose policy runs one program, which waits for a line.
type host struct {
	t           *testing.T
	dir, config string
	plan        policy.PlanV1
	groups      []string // of its sessions
}

var hostLimits = policy.Limits{CPUTimeMS: 60_000, MemoryBytes: 96 << 20, PIDs: 37, WallTimeMS: 600_000, DiskBytes: 16 << 20, TerminalOutputBytes: 1 << 20}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{t: t, dir: t.TempDir()}
	h.config = h.path("config.json")
	fine(t, os.Chmod(h.dir, 0o700))
	fine(t, os.Mkdir(h.path("root"), 0o700))
	fine(t, os.Mkdir(h.path("work"), 0o700))
	program, err := filepath.EvalSymlinks("/bin/busybox")
	fine(t, err)
	launch := policy.Launch{ExecutablePath: program, Arguments: []string{"sh", "-c", "read line; exit 9"}, Environment: []string{"PATH=/usr/bin"}}
	doc := policy.Document{SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "t", RuntimeID: "t", AdapterDigest: policy.LaunchDigest(launch), Backend: policy.BackendLinux,
			AllowedAliases: []string{"work"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "work", HostPath: h.path("work"), TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}},
		Destinations: []policy.Destination{}, ResourceProfiles: []policy.Profile{policy.NewProfile("p", hostLimits)},
		EgressPolicyIDs: []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
	raw, err := doc.Canonical()
	fine(t, err)
	config, err := json.Marshal(map[string]any{"schema_version": 1, "persistent_service": true, "runtime_directory": h.path("run"),
		"audit_key": h.path("audit.key"), "receipt_journal": h.path("receipts.jsonl"), "session_policy": h.path("policy.json"),
		"session_store": h.path("sessions.jsonl"), "materialization_root": h.path("root")})
	fine(t, err)
	for name, data := range map[string][]byte{"audit.key": []byte(strings.Repeat("5a", 32) + "\n"), "policy.json": raw, "config.json": config} {
		fine(t, os.WriteFile(h.path(name), data, 0o600))
	}
	h.plan = policy.PlanV1{SchemaVersion: 1, RuntimeID: "t", RuntimeTemplateID: "t", AdapterDigest: doc.RuntimeTemplates[0].AdapterDigest,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: hostLimits, PolicyRevision: 1}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// glove runs a command that must end with that status.
func (h *host) glove(want int, args ...string) {
	h.t.Helper()
	out, err := exec.CommandContext(h.t.Context(), serviceBin+"/glove", args...).CombinedOutput()
	h.t.Logf("glove %s: %s", strings.Join(args, " "), out)
	status := 0
	if err != nil {
		status = err.(*exec.ExitError).ExitCode() //nolint:errorlint,forcetypeassert // a panic says as much
	}
	if status != want {
		h.t.Fatalf("glove %s: exit status %d, want %d", strings.Join(args, " "), status, want)
	}
}

// controller connects to gloved and takes what receipts there are.
func (h *host) controller() *client.Client {
	h.t.Helper()
	var c *client.Client
	eventually(h.t, "gloved answers", func() bool {
		var err error
		c, err = client.DialRuntimeDir(h.t.Context(), h.path("run"), client.Options{})
		return err == nil
	})
	h.t.Cleanup(func() { _ = c.Close() }) // its gloved may be gone
	page, err := c.PageReceipts(h.t.Context(), wire.Anchor{KeyID: c.Hello().Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 1)
	fine(h.t, err)
	_, err = c.AcknowledgeReceipts(h.t.Context(), "ack-"+itoa(int(page.LocalAnchor.Sequence)), page.LocalAnchor)
	fine(h.t, err)
	return c
}

// begin starts a session and returns its control group.
func (h *host) begin(c *client.Client, id string) string {
	h.t.Helper()
	plan := h.plan
	plan.ExpiresAtMS = uint64(time.Now().Add(30 * time.Minute).UnixMilli())
	raw, err := strictjson.Canonical(plan)
	fine(h.t, err)
	rec, err := c.CreateSession(h.t.Context(), "create-"+id, &wire.CreateSessionParams{SessionID: id, ControllerPlanDigest: policy.ControllerDigest(raw), Plan: raw})
	fine(h.t, err)
	now := max(time.Now().UnixMilli(), rec.CreatedAtMS)
	_, err = c.StartSession(h.t.Context(), "start-"+id, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "a-" + id, SessionID: id,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest, ApprovedAtMS: now, ExpiresAtMS: now + 60_000})
	fine(h.t, err)
	var groups []string // of no session before, and with a session's limits: a spare has one too
	fine(h.t, filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.HasPrefix(entry.Name(), "glove-session-") && !slices.Contains(h.groups, path) {
			if limit, err := os.ReadFile(filepath.Join(path, "memory.max")); err == nil && strings.TrimSpace(string(limit)) == itoa(int(hostLimits.MemoryBytes)) {
				groups = append(groups, path)
			}
		}
		return nil // groups come and go
	}))
	if len(groups) != 1 {
		h.t.Fatalf("the session %s has the control groups %q", id, groups)
	}
	h.groups = append(h.groups, groups[0])
	return groups[0]
}

// holds makes sure that a session runs under its limits.
func (h *host) holds(c *client.Client, id, group string) {
	h.t.Helper()
	rec, err := c.SessionStatus(h.t.Context(), id)
	fine(h.t, err)
	if rec.State != "running" {
		h.t.Errorf("%s is %s", id, rec.State)
	}
	for file, want := range map[string]string{"memory.max": itoa(int(hostLimits.MemoryBytes)), "pids.max": itoa(int(hostLimits.PIDs)), "memory.swap.max": "0"} {
		got, err := os.ReadFile(filepath.Join(group, file))
		if os.IsNotExist(err) && file == "memory.swap.max" {
			continue
		}
		if err != nil || strings.TrimSpace(string(got)) != want {
			h.t.Errorf("%s of %s is %q, %v; want %s", file, group, got, err, want)
		}
	}
	if read(h.t, filepath.Join(group, "cgroup.procs")) == "" {
		h.t.Errorf("nothing is in %s", group)
	}
}

// ends lets a session end by itself.
func (h *host) ends(c *client.Client, id string) {
	h.t.Helper()
	_, err := c.WriteStdin(h.t.Context(), id, []byte("\n"))
	fine(h.t, err)
	eventually(h.t, id+" ends", func() bool {
		rec, err := c.SessionStatus(h.t.Context(), id)
		fine(h.t, err)
		return rec.State == "exited"
	})
}

// outlive starts a session before each thing that may happen to gloved: it runs on under
// its limits, is adopted, and ends as it would have; and a new one starts.
func (h *host) outlive(k keeper) {
	k.start()
	c := h.controller()
	first := h.begin(c, "first")
	h.holds(c, "first", first)

	before := k.pid()
	k.again()
	if k.pid() == before {
		h.t.Error("after a restart it is the same process")
	}
	c = h.controller()
	h.holds(c, "first", first)
	second := h.begin(c, "second")
	h.holds(c, "second", second)

	k.stop()
	if read(h.t, filepath.Join(second, "cgroup.procs")) == "" {
		h.t.Error("the session ended with gloved")
	}
	k.start()
	c = h.controller()
	h.holds(c, "first", first)
	h.holds(c, "second", second)
	h.ends(c, "first")

	if k.revives {
		before = k.pid()
		fine(h.t, syscall.Kill(before, syscall.SIGKILL))
		eventually(h.t, "gloved is started again by itself", func() bool { now := k.pid(); return now != 0 && now != before })
		c = h.controller()
		h.holds(c, "second", second)
	}
	third := h.begin(c, "third")
	h.holds(c, "third", third)
	h.ends(c, "second")
	h.ends(c, "third")
}
