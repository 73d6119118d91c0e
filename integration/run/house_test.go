//go:build linux

package run

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// A house is a resident gloved whose policy runs one program, and its controller.
type house struct {
	t      *testing.T
	dir    string
	client *client.Client
	plan   policy.PlanV1

	progress chan wire.SessionProgressParams // the latest, of any session

	gloved *exec.Cmd
}

var houseLimits = policy.Limits{CPUTimeMS: 60_000, MemoryBytes: 256 << 20, PIDs: 64, WallTimeMS: 600_000, DiskBytes: 64 << 20, TerminalOutputBytes: 8 << 20}

func newHouse(t *testing.T, argv ...string) *house {
	t.Helper()
	usable(t)
	h := &house{t: t, dir: t.TempDir(), progress: make(chan wire.SessionProgressParams, 1)}
	must(t, os.Chmod(h.dir, 0o700))
	must(t, os.Mkdir(h.path("root"), 0o700))
	must(t, os.Mkdir(h.path("work"), 0o700))
	var key [32]byte
	_, _ = rand.Read(key[:])
	h.write("audit.key", []byte(hex.EncodeToString(key[:])+"\n"))
	program, err := filepath.EvalSymlinks(argv[0])
	must(t, err)
	launch := policy.Launch{ExecutablePath: program, Arguments: append([]string{}, argv[1:]...),
		Environment: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "PS1=inside$ ", "TERM=xterm-256color"}}
	doc := policy.Document{SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "t", RuntimeID: "t", AdapterDigest: policy.LaunchDigest(launch), Backend: policy.BackendLinux,
			AllowedAliases: []string{"work"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "work", HostPath: h.path("work"), TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain},
				{Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy, Create: policy.CreateEmptyDirectory, Cleanup: policy.CleanupRemove, MaxBytes: 16 << 20}}}},
		Destinations: []policy.Destination{}, ResourceProfiles: []policy.Profile{policy.NewProfile("p", houseLimits)},
		EgressPolicyIDs: []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
	raw, err := doc.Canonical()
	must(t, err)
	h.write("policy.json", raw)
	config, err := json.Marshal(map[string]any{"schema_version": 1, "persistent_service": false, "runtime_directory": h.path("run"),
		"audit_key": h.path("audit.key"), "receipt_journal": h.path("receipts.jsonl"), "session_policy": h.path("policy.json"),
		"session_store": h.path("sessions.jsonl"), "materialization_root": h.path("root")})
	must(t, err)
	h.write("config.json", config)
	h.plan = policy.PlanV1{SchemaVersion: 1, RuntimeID: "t", RuntimeTemplateID: "t", AdapterDigest: doc.RuntimeTemplates[0].AdapterDigest,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: houseLimits, PolicyRevision: 1}
	h.serve()
	h.trust()
	return h
}

func (h *house) path(name string) string { return filepath.Join(h.dir, name) }

func (h *house) write(name string, data []byte) { must(h.t, os.WriteFile(h.path(name), data, 0o600)) }

// serve starts gloved and connects to it.
func (h *house) serve() {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(bin, "gloved"), "--config", h.path("config.json"))
	log, err := os.Create(h.path("log"))
	must(h.t, err)
	cmd.Stderr = log
	must(h.t, cmd.Start())
	must(h.t, log.Close())
	h.gloved = cmd
	h.t.Cleanup(func() {
		if h.gloved != cmd {
			return // it was killed
		}
		_ = cmd.Process.Signal(os.Interrupt) // its end is Wait's to tell
		if err := cmd.Wait(); err != nil {
			h.t.Errorf("gloved: %v", err)
		}
	})
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for h.client == nil {
		h.client, err = client.DialRuntimeDir(h.t.Context(), h.path("run"), client.Options{OnNote: h.note})
		if err == nil {
			break
		}
		h.client = nil
		select {
		case <-tick.C:
		case <-deadline:
			h.t.Fatalf("gloved does not answer: %v", err)
		}
	}
	controller := h.client
	h.t.Cleanup(func() {
		if h.client != controller {
			return // its gloved was killed
		}
		h.empty()
		must(h.t, h.client.Close())
	})
}

// kill ends gloved at once.
func (h *house) kill() {
	h.t.Helper()
	must(h.t, h.gloved.Process.Kill())
	_ = h.gloved.Wait() // it was killed
	_ = h.client.Close()
	h.gloved, h.client = nil, nil
}

// trust is a controller's acknowledgement, which gloved waits for.
func (h *house) trust() {
	h.t.Helper()
	ctx := h.t.Context()
	page, err := h.client.PageReceipts(ctx, wire.Anchor{KeyID: h.client.Hello().Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 1)
	must(h.t, err)
	_, err = h.client.AcknowledgeReceipts(ctx, "ack", page.LocalAnchor)
	must(h.t, err)
}

// note keeps the latest progress.
func (h *house) note(n client.Note) {
	var p wire.SessionProgressParams
	if n.Method != wire.NotifySessionProgress || strictjson.Decode(n.Params, &p, strictjson.Limits{}) != nil {
		return
	}
	select {
	case <-h.progress:
	default:
	}
	h.progress <- p
}

// empty stops what a failed test left running: sessions outlive their gloved.
func (h *house) empty() {
	ctx := context.WithoutCancel(h.t.Context())
	list, err := h.client.ListSessions(ctx, &wire.ListSessionsParams{})
	must(h.t, err)
	for _, s := range list.Sessions {
		if s.State == "running" || s.State == "stopping" {
			if _, err := h.client.StopSession(ctx, "empty-"+s.SessionID, s.SessionID); err != nil {
				h.t.Error(err)
			}
		}
	}
}

// create makes a session of that id.
func (h *house) create(id string) *wire.Session {
	h.t.Helper()
	ctx := h.t.Context()
	plan := h.plan
	plan.ExpiresAtMS = uint64(time.Now().Add(30 * time.Minute).UnixMilli())
	raw, err := strictjson.Canonical(plan)
	must(h.t, err)
	rec, err := h.client.CreateSession(ctx, "create-"+id, &wire.CreateSessionParams{SessionID: id, ControllerPlanDigest: policy.ControllerDigest(raw), Plan: raw})
	must(h.t, err)
	return rec
}

// start runs a session of that id.
func (h *house) start(id string) {
	h.t.Helper()
	ctx, rec := h.t.Context(), h.create(id)
	now := max(time.Now().UnixMilli(), rec.CreatedAtMS)
	_, err := h.client.StartSession(ctx, "start-"+id, wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "a-" + id, SessionID: id,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest, ApprovedAtMS: now, ExpiresAtMS: now + 60_000})
	must(h.t, err)
}

// glove runs a command line against the house.
func (h *house) glove(args ...string) (out, errs string, status int) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), glove(), append(args, "--runtime-dir", h.path("run"))...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		status = cmd.ProcessState.ExitCode()
	}
	return stdout.String(), stderr.String(), status
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
