package runtime

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/digest"
	"gloved.dev/internal/require"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime/host"
	"gloved.dev/runtime/monitor"
)

// testUIDs are the host users of these tests' sessions, apart from those of any
// other gloved on the machine.
var testUIDs = monitor.UIDRange{First: 0x70110000, Count: 256}

func TestMain(m *testing.M) {
	crashpoint.Hook = crash
	Main()
	if os.Args[0] == glovedRole {
		playGloved(os.Args[1:])
	}
	if require.Later("it starts itself hundreds of times, which the race detector makes slow") {
		return
	}
	os.Exit(m.Run())
}

// A world is one gloved's worth of state, without the protocol.
type world struct {
	t        testing.TB
	dir      string
	doc      policy.Document
	policy   *policy.Policy
	store    *session.Store
	receipts *receipt.Producer
	*Executor
	opened    bool
	quickNext bool // create grants the workspace by itself
}

var generous = policy.Limits{CPUTimeMS: 20_000, MemoryBytes: 256 << 20, PIDs: 64, WallTimeMS: 60_000,
	DiskBytes: 64 << 20, TerminalOutputBytes: 8 << 20}

// newWorld makes state whose policy runs argv under limits.
func newWorld(t testing.TB, limits policy.Limits, argv ...string) *world {
	t.Helper()
	return newWorldAt(t, t.TempDir(), limits, argv...)
}

// newWorldAt is newWorld in a given, fresh directory.
func newWorldAt(t testing.TB, dir string, limits policy.Limits, argv ...string) *world {
	t.Helper()
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
	w := &world{t: t, dir: dir}
	for _, d := range []string{"state", "root", "work"} {
		must(t, os.Mkdir(filepath.Join(w.dir, d), 0o700))
	}
	var key [32]byte
	_, _ = rand.Read(key[:])
	must(t, os.WriteFile(w.path("state/key"), []byte(hex.EncodeToString(key[:])+"\n"), 0o600))
	executable, arguments := program(t, argv)
	launch := policy.Launch{ExecutablePath: executable, Arguments: arguments,
		Environment: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm-256color"}}
	w.doc = policy.Document{
		SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "test", RuntimeID: "test", AdapterDigest: policy.LaunchDigest(launch),
			Backend: policy.BackendLinux, AllowedAliases: []string{"workspace"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "workspace", HostPath: w.path("work"), TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{
				{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain},
				{Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy, Create: policy.CreateEmptyDirectory, Cleanup: policy.CleanupRemove, MaxBytes: 16 << 20},
			}}},
		Destinations: []policy.Destination{}, ResourceProfiles: []policy.Profile{policy.NewProfile("p", limits)},
		EgressPolicyIDs: []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{},
	}
	raw, err := w.doc.Canonical()
	must(t, err)
	must(t, os.WriteFile(w.path("policy.json"), raw, 0o600))
	w.open()
	t.Cleanup(w.close)
	return w
}

// load takes the policy that newWorld wrote.
func (w *world) load() {
	raw, err := os.ReadFile(w.path("policy.json"))
	must(w.t, err)
	must(w.t, strictjson.Decode(raw, &w.doc, strictjson.Limits{}))
}

// grant is a plan's grant of the workspace: "read", or "copy" with its size.
func (w *world) grant(kind string) policy.AliasGrant {
	if kind == "read" {
		return policy.AliasGrant{Alias: "workspace", Access: policy.AccessRead, Materialization: policy.MaterializeBind, TTLSecs: 60, Cleanup: policy.CleanupRetain}
	}
	return policy.AliasGrant{Alias: "workspace", Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy,
		MaxBytes: 2 << 20, TTLSecs: 60, Cleanup: policy.CleanupRemove}
}

func (w *world) path(rel string) string { return filepath.Join(w.dir, rel) }

// open is a gloved's start; close is its end. Sessions go on in between.
func (w *world) open() {
	w.t.Helper()
	raw, err := w.doc.Canonical()
	must(w.t, err)
	w.policy, err = policy.Parse(raw, policy.Env{})
	must(w.t, err)
	w.store, err = session.Open(w.path("state/sessions.jsonl"), session.Options{})
	must(w.t, err)
	w.receipts, err = receipt.New(receipt.Options{KeyPath: w.path("state/key"), JournalPath: w.path("state/receipts.jsonl")})
	must(w.t, err)
	w.Executor, err = New(Config{Root: w.path("root"), Policy: w.policy, Store: w.store, Receipts: w.receipts,
		Log: slog.New(slog.NewTextHandler(testWriter{w.t}, nil)), StopGrace: 500 * time.Millisecond, UIDRange: testUIDs})
	must(w.t, err)
	w.opened = true
	must(w.t, w.Adopt(w.t.Context()))
}

// close is the orderly end of a gloved; closing twice is harmless.
func (w *world) close() {
	w.t.Helper()
	if !w.opened {
		return
	}
	w.opened = false
	for _, err := range []error{w.Executor.Close(), w.store.Close(), w.receipts.Close()} {
		if err != nil {
			w.t.Error(err)
		}
	}
}

// trust is a controller's first talk: page from the start and acknowledge.
func (w *world) trust() {
	w.t.Helper()
	page, err := w.receipts.Page(w.t.Context(), receipt.Genesis(w.receipts.KeyID()), 1000)
	must(w.t, err)
	must(w.t, w.receipts.Acknowledge(w.t.Context(), page.LocalAnchor))
	must(w.t, w.Reconcile(w.t.Context()))
}

// create stores a session for a plan with those grants.
func (w *world) create(grants ...policy.AliasGrant) session.Record {
	w.t.Helper()
	existing, err := w.store.List()
	must(w.t, err)
	last := 0
	for _, r := range existing { // the newest is never archived here
		last = max(last, number(r.SessionID))
	}
	id := fmt.Sprintf("s%d", last+1)
	if w.quickNext {
		grants = append(grants, w.grant("read"))
	}
	plan := policy.PlanV1{SchemaVersion: 1, RuntimeID: "test", RuntimeTemplateID: "test", AdapterDigest: w.doc.RuntimeTemplates[0].AdapterDigest,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: append([]policy.AliasGrant{}, grants...),
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: w.doc.ResourceProfiles[0].Limits(), PolicyRevision: 1,
		ExpiresAtMS: uint64(time.Now().Add(30 * time.Minute).UnixMilli())}
	raw, err := strictjson.Canonical(plan)
	must(w.t, err)
	var rec session.Record
	rec, err = w.store.Create(w.t.Context(), session.CreateRequest{IdempotencyKey: "create-" + id, SessionID: id,
		ControllerPlanDigest: digest.Blake3Hex(raw), Plan: raw}, func(now time.Time) ([]byte, session.PlanInfo, error) {
		p, err := policy.DecodePlan(raw)
		if err != nil {
			return nil, session.PlanInfo{}, err
		}
		a, err := w.policy.Validate(p, now, nil)
		return a.Canonical, session.PlanInfo{PolicyRevision: 1, ExpiresAtMS: p.ExpiresAtMS}, err
	})
	must(w.t, err)
	return rec
}

// number is that of a session that create has named; 0 for any other.
func number(id string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "s"))
	if err != nil {
		return 0
	}
	return n
}

func (w *world) authorize(rec session.Record) session.Authorization {
	// A function of the record, so that whoever retries sends the same.
	return session.Authorization{SchemaVersion: 1, AuthorizationID: "auth-" + rec.SessionID, SessionID: rec.SessionID,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: rec.CreatedAtMS, ExpiresAtMS: rec.CreatedAtMS + session.MaxAuthorizationMS}
}

func admitted() error { return nil }

func (w *world) start(rec session.Record) (session.Record, error) {
	return w.Start(w.t.Context(), "start-"+rec.SessionID, w.authorize(rec), admitted)
}

// run takes a session from its creation to its recorded end.
func (w *world) run(grants ...policy.AliasGrant) (output string, rec session.Record) {
	w.t.Helper()
	started, err := w.start(w.create(grants...))
	must(w.t, err)
	return w.finish(started.SessionID)
}

func (w *world) finish(id string) (output string, rec session.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	output = w.readAll(ctx, id)
	must(w.t, w.Settled(ctx, id))
	rec, err := w.store.Get(id)
	must(w.t, err)
	return output, rec
}

func (w *world) readAll(ctx context.Context, id string) string {
	w.t.Helper()
	var out strings.Builder
	for cursor := uint64(0); ; {
		c, err := w.Read(ctx, id, cursor, 64<<10, 10*time.Second)
		must(w.t, err)
		out.Write(c.Data)
		if cursor = c.Next; c.EOF {
			return out.String()
		}
	}
}

func (w *world) envelope(rec session.Record) receipt.Envelope {
	w.t.Helper()
	env, err := w.receipts.Lookup(rec.SessionID, rec.ControllerPlanDigest, rec.ProfileDigest)
	must(w.t, err)
	if env == nil {
		w.t.Fatalf("session %s has no receipt", rec.SessionID)
	}
	return *env
}

// program is what a policy says to run argv: the file behind its links. One file
// with many names (busybox, in the VM) does not see by which it was called, and
// takes the name as its first argument instead.
func program(t testing.TB, argv []string) (executable string, arguments []string) {
	t.Helper()
	executable = realPath(t, argv[0])
	if filepath.Base(executable) == "busybox" {
		return executable, append([]string{filepath.Base(argv[0])}, argv[1:]...)
	}
	return executable, append([]string{}, argv[1:]...)
}

func realPath(t testing.TB, path string) string {
	t.Helper()
	real, err := filepath.EvalSymlinks(path)
	must(t, err)
	return real
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
