package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/require"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/host"
)

// bin is where gloved was built.
var bin string

func TestMain(m *testing.M) { os.Exit(runAll(m)) }

func runAll(m *testing.M) int {
	if role := os.Getenv(roleVariable); role != "" {
		return play(role)
	}
	dir, err := os.MkdirTemp("", "glove-bench-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-trimpath", "-o", dir, "gloved.dev/cmd/gloved")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as releases are built: no dynamic loader
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	bin = dir
	return m.Run()
}

// A daemon is a gloved of its own, with a socket, and a client of it.
type daemon struct {
	b    *testing.B
	dir  string
	doc  policy.Document
	cmd  *exec.Cmd
	said bytes.Buffer
	*client.Client
	ended chan wire.SessionEndedParams
	gone  chan error // how gloved ended
	n     int
}

var limits = policy.Limits{CPUTimeMS: 600_000, MemoryBytes: 256 << 20, PIDs: 64, WallTimeMS: 600_000,
	DiskBytes: 64 << 20, TerminalOutputBytes: 1 << 40}

// serve starts a gloved whose templates are the commands given, by name.
func serve(b *testing.B, commands map[string][]string) *daemon {
	b.Helper()
	if err := host.Usable(host.Checks(b.Context())); err != nil {
		require.Skip(b, "managed sessions cannot run here: "+err.Error())
	}
	d := &daemon{b: b, dir: filepath.Join(resolved(b, b.TempDir()), "state"),
		ended: make(chan wire.SessionEndedParams, 64), gone: make(chan error, 1)}
	must(b, os.Mkdir(d.dir, 0o700))
	for _, name := range []string{"run", "root", "work"} {
		must(b, os.Mkdir(d.path(name), 0o700))
	}
	var key [32]byte
	_, _ = rand.Read(key[:])
	must(b, os.WriteFile(d.path("key"), []byte(hex.EncodeToString(key[:])+"\n"), 0o600))
	d.writePolicy(commands)
	d.cmd = exec.Command(filepath.Join(bin, "gloved"), "--runtime-dir", d.path("run"), "--audit-key", d.path("key"),
		"--journal", d.path("receipts.jsonl"), "--session-policy", d.path("policy.json"),
		"--session-store", d.path("sessions.jsonl"), "--materialization-root", d.path("root"))
	d.cmd.Stderr = &d.said
	must(b, d.cmd.Start())
	go func() { d.gone <- d.cmd.Wait() }()
	b.Cleanup(d.stop)
	d.connect()
	d.trust()
	return d
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

func (d *daemon) writePolicy(commands map[string][]string) {
	d.doc = policy.Document{SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000, RuntimeTemplates: []policy.Template{},
		PathAliases: []policy.PathAlias{{Alias: "workspace", HostPath: d.path("work"), TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind,
				Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}},
		Destinations:     []policy.Destination{},
		ResourceProfiles: []policy.Profile{policy.NewProfile("p", limits)},
		EgressPolicyIDs:  []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
	for name, argv := range commands {
		launch := policy.Launch{ExecutablePath: resolved(d.b, argv[0]), Arguments: append([]string{}, argv[1:]...),
			Environment: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}
		d.doc.RuntimeTemplates = append(d.doc.RuntimeTemplates, policy.Template{ID: name, RuntimeID: name,
			AdapterDigest: policy.LaunchDigest(launch), Backend: policy.BackendLinux,
			AllowedAliases: []string{"workspace"}, AllowedDestinations: []string{}, Launch: &launch})
	}
	raw, err := d.doc.Canonical()
	must(d.b, err)
	must(d.b, os.WriteFile(d.path("policy.json"), raw, 0o600))
}

// connect waits for the socket to answer.
func (d *daemon) connect() {
	d.b.Helper()
	give := time.Now().Add(20 * time.Second)
	for {
		c, err := client.DialRuntimeDir(d.b.Context(), d.path("run"), client.Options{OnNote: d.note})
		if err == nil {
			d.Client = c
			return
		}
		if time.Now().After(give) {
			d.b.Fatalf("gloved does not answer: %v", err)
		}
		select {
		case err := <-d.gone:
			d.gone <- err
			d.b.Fatal("gloved did not come up")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (d *daemon) note(n client.Note) {
	if n.Method != wire.NotifySessionEnded {
		return
	}
	var p wire.SessionEndedParams
	if strictjson.Decode(n.Params, &p, strictjson.Limits{}) == nil {
		d.ended <- p
	}
}

// trust is a controller's first talk, without which nothing starts.
func (d *daemon) trust() {
	d.b.Helper()
	page, err := d.PageReceipts(d.b.Context(), wire.Anchor{KeyID: d.Hello().Capabilities.ReceiptAudit.KeyID,
		HeadHMAC: strings.Repeat("0", 64)}, 10)
	must(d.b, err)
	_, err = d.AcknowledgeReceipts(d.b.Context(), "trust", page.LocalAnchor)
	must(d.b, err)
}

func (d *daemon) stop() {
	if d.Client != nil {
		_ = d.Close() // it may have gone with its gloved
	}
	_ = d.cmd.Process.Signal(os.Interrupt)
	if err := <-d.gone; err != nil {
		d.b.Errorf("gloved ended with %v; it said\n%s", err, d.said.String())
	}
}

// create makes a session of a command and returns what lets it start.
func (d *daemon) create(command string) (wire.StartAuthorization, error) {
	d.n++
	id := fmt.Sprintf("%s-%d", command, d.n)
	now := time.Now()
	plan := policy.PlanV1{SchemaVersion: 1, RuntimeID: command, RuntimeTemplateID: command,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: limits, PolicyRevision: 1,
		ExpiresAtMS: uint64(now.Add(30 * time.Minute).UnixMilli())}
	for _, t := range d.doc.RuntimeTemplates {
		if t.ID == command {
			plan.AdapterDigest = t.AdapterDigest
		}
	}
	raw, err := strictjson.Canonical(plan)
	if err != nil {
		return wire.StartAuthorization{}, err
	}
	rec, err := d.CreateSession(context.Background(), "create-"+id, &wire.CreateSessionParams{SessionID: id,
		ControllerPlanDigest: digest.Blake3Hex(raw), Plan: raw})
	if err != nil {
		return wire.StartAuthorization{}, err
	}
	return wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "auth-" + id, SessionID: id,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: max(now.UnixMilli(), rec.CreatedAtMS), ExpiresAtMS: now.UnixMilli() + 100_000}, nil
}

func (d *daemon) start(a wire.StartAuthorization) error {
	_, err := d.StartSession(context.Background(), "start-"+a.SessionID, a)
	return err
}

// follow asks to be told of the session's end.
func (d *daemon) follow(id string) error {
	_, err := d.Attach(context.Background(), &wire.AttachParams{SessionID: id, MaxBytes: wire.MaxAttachBytes, Follow: true})
	return err
}

// await waits until the end of the session is on record.
func (d *daemon) await(id string) error {
	for {
		select {
		case e := <-d.ended:
			if e.SessionID != id {
				continue
			}
			if e.State != "exited" || e.TerminationCause != "exited" || e.ExitCode == nil || *e.ExitCode != 0 {
				return fmt.Errorf("session %s ended as %+v", id, e)
			}
			return nil
		case <-time.After(2 * time.Minute):
			return errors.New("the session does not end")
		}
	}
}

// forget lets go of what an ended session holds.
func (d *daemon) forget(id string) error {
	return d.Call(context.Background(), wire.MethodCleanupSession, &wire.SessionParams{SessionID: id}, nil,
		client.WithKey("forget-"+id))
}

// output is what an ended session printed.
func (d *daemon) output(id string) ([]byte, error) {
	r, err := d.Attach(context.Background(), &wire.AttachParams{SessionID: id, MaxBytes: wire.MaxAttachBytes})
	if err != nil {
		return nil, err
	}
	return r.Data, nil
}

func resolved(b *testing.B, path string) string {
	b.Helper()
	p, err := filepath.EvalSymlinks(path)
	must(b, err)
	return p
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}
