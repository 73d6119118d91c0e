package escape

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/require"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime"
	"gloved.dev/runtime/host"
	"gloved.dev/runtime/monitor"
)

// A world is one gloved's worth of state, without the protocol in front of it.
type world struct {
	t        testing.TB
	dir      string
	doc      policy.Document
	policy   *policy.Policy
	store    *session.Store
	receipts *receipt.Producer
	*runtime.Executor
	n int
}

// launched is what a world's sessions run.
type launched struct {
	argv   []string
	limits policy.Limits
	read   string   // a host directory for the grant "granted", or empty
	env    []string // besides PATH and TERM
}

// roomy are limits that no attempt is meant to meet.
var roomy = policy.Limits{CPUTimeMS: 400_000, MemoryBytes: 512 << 20, PIDs: 512, WallTimeMS: 900_000,
	DiskBytes: 96 << 20, TerminalOutputBytes: 8 << 20}

// worldDir makes the directory a world lives in. It is made first, so that what runs can be told
// where it is. The path is short: sockets lie below it.
func worldDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "glove-esc-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	for _, d := range []string{"state", "root", "work"} {
		must(t, os.Mkdir(filepath.Join(dir, d), 0o700))
	}
	return dir
}

func usable(t testing.TB) {
	t.Helper()
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
}

func newWorld(t testing.TB, dir string, l launched) *world {
	t.Helper()
	w := &world{t: t, dir: dir}
	var key [32]byte
	_, _ = rand.Read(key[:])
	must(t, os.WriteFile(w.path(keyFile), []byte(hex.EncodeToString(key[:])+"\n"), 0o600))
	w.doc = document(dir, l)
	raw, err := w.doc.Canonical()
	must(t, err)
	w.policy, err = policy.Parse(raw, policy.Env{})
	must(t, err)
	w.store, err = session.Open(w.path(storeFile), session.Options{})
	must(t, err)
	w.receipts, err = receipt.New(receipt.Options{KeyPath: w.path(keyFile), JournalPath: w.path(journalFile)})
	must(t, err)
	w.Executor, err = runtime.New(runtime.Config{Root: w.path("root"), Policy: w.policy, Store: w.store, Receipts: w.receipts,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)), StopGrace: 300 * time.Millisecond})
	must(t, err)
	t.Cleanup(w.close)
	must(t, w.Adopt(t.Context()))
	page, err := w.receipts.Page(t.Context(), receipt.Genesis(w.receipts.KeyID()), 1000)
	must(t, err)
	must(t, w.receipts.Acknowledge(t.Context(), page.LocalAnchor))
	must(t, w.Reconcile(t.Context()))
	return w
}

// Names below a world's directory.
const (
	keyFile     = "state/key"
	storeFile   = "state/sessions.jsonl"
	journalFile = "state/receipts.jsonl"
)

func document(dir string, l launched) policy.Document {
	launch := policy.Launch{ExecutablePath: l.argv[0], Arguments: append([]string{}, l.argv[1:]...),
		Environment: append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm-256color"}, l.env...)}
	copied := policy.PathAlias{Alias: "workspace", HostPath: filepath.Join(dir, "work"), TargetPath: "/workspace", MaxTTLSecs: 3600,
		Access: []policy.AccessEntry{{Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy,
			Create: policy.CreateEmptyDirectory, Cleanup: policy.CleanupRemove, MaxBytes: 32 << 20}}}
	aliases, names := []policy.PathAlias{copied}, []string{"workspace"}
	if l.read != "" {
		aliases = append([]policy.PathAlias{{Alias: "granted", HostPath: l.read, TargetPath: "/granted", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind,
				Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}}, aliases...)
		names = []string{"granted", "workspace"}
	}
	return policy.Document{
		SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "test", RuntimeID: "test", AdapterDigest: policy.LaunchDigest(launch),
			Backend: policy.BackendLinux, AllowedAliases: names, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: aliases, Destinations: []policy.Destination{}, ResourceProfiles: []policy.Profile{policy.NewProfile("p", l.limits)},
		EgressPolicyIDs: []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{},
	}
}

func (w *world) path(rel string) string { return filepath.Join(w.dir, rel) }

func (w *world) close() {
	w.t.Helper()
	for _, err := range []error{w.Executor.Close(), w.store.Close(), w.receipts.Close()} {
		if err != nil {
			w.t.Error(err)
		}
	}
}

// sessionDir is where the session of that id has its files, for a world in dir.
func sessionDir(dir, id string) string {
	return filepath.Join(dir, "root", fmt.Sprintf("glove-sessionfs-s%d-%s", len(id), id))
}

// grants asks for everything the policy offers.
func (w *world) grants() []policy.AliasGrant {
	var out []policy.AliasGrant
	for _, a := range w.doc.PathAliases {
		e := a.Access[0]
		out = append(out, policy.AliasGrant{Alias: a.Alias, Access: e.Access, Materialization: e.Materialization,
			MaxBytes: e.MaxBytes, TTLSecs: 600, Cleanup: e.Cleanup})
	}
	return out
}

// start takes a new session to running.
func (w *world) start() session.Record {
	w.t.Helper()
	w.n++
	id := fmt.Sprintf("s%d", w.n)
	expires := uint64(time.Now().Add(30 * time.Minute).UnixMilli())
	plan := policy.PlanV1{SchemaVersion: 1, RuntimeID: "test", RuntimeTemplateID: "test", AdapterDigest: w.doc.RuntimeTemplates[0].AdapterDigest,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: w.grants(),
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: w.doc.ResourceProfiles[0].Limits(), PolicyRevision: 1,
		ExpiresAtMS: expires}
	raw, err := strictjson.Canonical(plan)
	must(w.t, err)
	rec, err := w.store.Create(w.t.Context(), session.CreateRequest{IdempotencyKey: "create-" + id, SessionID: id,
		ControllerPlanDigest: digest.Blake3Hex(raw), Plan: raw}, func(now time.Time) ([]byte, session.PlanInfo, error) {
		p, err := policy.DecodePlan(raw)
		if err != nil {
			return nil, session.PlanInfo{}, err
		}
		a, err := w.policy.Validate(p, now, nil)
		return a.Canonical, session.PlanInfo{PolicyRevision: 1, ExpiresAtMS: p.ExpiresAtMS}, err
	})
	must(w.t, err)
	now := uint64(time.Now().UnixMilli())
	started, err := w.Start(w.t.Context(), "start-"+id, session.Authorization{SchemaVersion: 1, AuthorizationID: "auth-" + id,
		SessionID: id, ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: max(now, rec.CreatedAtMS), ExpiresAtMS: now + 100_000}, func() error { return nil })
	must(w.t, err)
	return started
}

// run takes a session from nothing to its recorded end.
func (w *world) run() (output string, rec session.Record) {
	w.t.Helper()
	return w.finish(w.start().SessionID)
}

func (w *world) finish(id string) (output string, rec session.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 15*time.Minute)
	defer cancel()
	var out strings.Builder
	for c := (monitor.Chunk{}); !c.EOF; {
		var err error
		c, err = w.Read(ctx, id, c.Next, 64<<10, 10*time.Second)
		must(w.t, err)
		out.Write(c.Data)
	}
	must(w.t, w.Settled(ctx, id))
	rec, err := w.store.Get(id)
	must(w.t, err)
	return strings.ReplaceAll(out.String(), "\r\n", "\n"), rec
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimRight(string(p), "\n"))
	return len(p), nil
}
