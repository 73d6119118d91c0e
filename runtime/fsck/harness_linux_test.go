package fsck

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/internal/digest"
	"gloved.dev/internal/require"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/runtime"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/host"
	"gloved.dev/runtime/monitor"
)

// testUIDs are the host users of these tests' sessions, apart from those of any
// other gloved on the machine.
var testUIDs = monitor.UIDRange{First: 0x70150000, Count: 64}

// Roles of this binary: a gloved that starts sessions, and a repair; both may be
// killed at a crash point.
const (
	glovedRole = "fsck-test-gloved"
	repairRole = "fsck-test-repair"
)

// armed is the file beside the root that names the crash point at which the
// process that first passes it is killed.
const armed = "armed"

func TestMain(m *testing.M) {
	crashpoint.Hook = func(scope string, p crashpoint.Point) error {
		dieAt(filepath.Dir(scope), string(p))
		return nil
	}
	runtime.Main()
	switch os.Args[0] {
	case glovedRole:
		playGloved(os.Args[1], os.Args[2:])
	case repairRole:
		playRepair(os.Args[1])
	}
	if require.Later("it starts itself hundreds of times, which the race detector makes slow") {
		return
	}
	os.Exit(m.Run())
}

// dieAt kills the process if it is armed for this point.
func dieAt(dir, point string) {
	path := filepath.Join(dir, armed)
	if want, err := os.ReadFile(path); err == nil && string(want) == point && os.Remove(path) == nil {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	}
}

// A roleT is the testing.TB of a role: what fails ends it.
type roleT struct{ testing.TB }

func (roleT) Helper()                  {}
func (roleT) Context() context.Context { return context.Background() }
func (roleT) Cleanup(func())           {}
func (roleT) Logf(string, ...any)      {}
func (roleT) Error(args ...any)        { fmt.Fprintln(os.Stderr, args...) }
func (roleT) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(3)
}

// playGloved starts the sessions, each of which was created before, and says so.
func playGloved(dir string, ids []string) {
	w := &world{t: roleT{}, dir: dir}
	w.open()
	for _, id := range ids {
		rec, err := w.store.Get(id)
		must(w.t, err)
		w.start(rec)
		fmt.Println("started", id)
	}
	if len(ids) == 0 { // it settles what there is
		fmt.Println("reconciled")
	}
	select {}
}

func playRepair(dir string) {
	w := &world{t: roleT{}, dir: dir}
	n := 0
	_, err := Repair(context.Background(), w.config(), func(Finding) {
		n++
		dieAt(dir, fmt.Sprint("told ", n))
	})
	must(w.t, err)
	os.Exit(0)
}

// A world is the state of one gloved.
type world struct {
	t        testing.TB
	dir      string
	store    *session.Store
	receipts *receipt.Producer
	*runtime.Executor
	policy *policy.Policy
	digest string // of what sessions run
}

// newWorld makes state whose sessions run script.
func newWorld(t testing.TB, script string) *world {
	t.Helper()
	require.Root(t)
	if err := host.Usable(host.Checks(t.Context())); err != nil {
		require.Skip(t, "managed sessions cannot run here: "+err.Error())
	}
	w := &world{t: t, dir: t.TempDir()}
	for _, d := range []string{"state", "root", "run"} {
		must(t, os.Mkdir(w.path(d), 0o700))
	}
	var key [32]byte
	_, _ = rand.Read(key[:])
	must(t, os.WriteFile(w.path("key"), []byte(hex.EncodeToString(key[:])+"\n"), 0o600))
	shell, err := filepath.EvalSymlinks("/bin/sh")
	must(t, err)
	launch := policy.Launch{ExecutablePath: shell, Arguments: []string{"-c", script}, Environment: []string{"PATH=/usr/bin:/bin"}}
	if filepath.Base(shell) == "busybox" {
		launch.Arguments = append([]string{"sh"}, launch.Arguments...)
	}
	doc := policy.Document{SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: 3_600_000,
		RuntimeTemplates: []policy.Template{{ID: "test", RuntimeID: "test", AdapterDigest: policy.LaunchDigest(launch),
			Backend: policy.BackendLinux, AllowedAliases: []string{"workspace"}, AllowedDestinations: []string{}, Launch: &launch}},
		PathAliases: []policy.PathAlias{{Alias: "workspace", HostPath: w.path("run"), TargetPath: "/workspace", MaxTTLSecs: 3600,
			Access: []policy.AccessEntry{{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain}}}},
		Destinations: []policy.Destination{}, ResourceProfiles: []policy.Profile{policy.NewProfile("p", limits)},
		EgressPolicyIDs: []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
	raw, err := doc.Canonical()
	must(t, err)
	must(t, os.WriteFile(w.path("policy"), raw, 0o600))
	w.open()
	t.Cleanup(w.end)
	return w
}

var limits = policy.Limits{CPUTimeMS: 20_000, MemoryBytes: 128 << 20, PIDs: 32, WallTimeMS: 300_000, DiskBytes: 16 << 20, TerminalOutputBytes: 1 << 20}

func (w *world) path(rel string) string { return filepath.Join(w.dir, rel) }

func (w *world) config() Config {
	return Config{AuditKey: w.path("key"), Journal: w.path("state/receipts.jsonl"), Store: w.path("state/sessions.jsonl"), Root: w.path("root"),
		Sockets: []string{w.path("run/gloved.sock")}, Notes: []string{w.path("run/gloved.holder")}, UIDRange: testUIDs}
}

// open is a gloved's start and its first talk with a controller.
func (w *world) open() {
	w.t.Helper()
	raw, err := os.ReadFile(w.path("policy"))
	must(w.t, err)
	var doc policy.Document
	must(w.t, strictjson.Decode(raw, &doc, strictjson.Limits{}))
	w.digest = doc.RuntimeTemplates[0].AdapterDigest
	w.policy, err = policy.Parse(raw, policy.Env{})
	must(w.t, err)
	w.store, err = session.Open(w.path("state/sessions.jsonl"), session.Options{})
	must(w.t, err)
	w.receipts, err = receipt.New(receipt.Options{KeyPath: w.path("key"), JournalPath: w.path("state/receipts.jsonl")})
	must(w.t, err)
	w.Executor, err = runtime.New(runtime.Config{Root: w.path("root"), Policy: w.policy, Store: w.store, Receipts: w.receipts,
		Log: slog.New(slog.DiscardHandler), UIDRange: testUIDs, StopGrace: 100 * time.Millisecond})
	must(w.t, err)
	must(w.t, w.Adopt(w.t.Context()))
	page, err := w.receipts.Page(w.t.Context(), receipt.Genesis(w.receipts.KeyID()), 1)
	must(w.t, err)
	must(w.t, w.receipts.Acknowledge(w.t.Context(), page.LocalAnchor))
	must(w.t, w.Reconcile(w.t.Context()))
}

// close is the orderly end of a gloved; its sessions go on.
func (w *world) close() {
	w.t.Helper()
	if w.Executor == nil {
		return
	}
	for _, err := range []error{w.Executor.Close(), w.store.Close(), w.receipts.Close()} {
		if err != nil {
			w.t.Error(err)
		}
	}
	w.Executor = nil
}

// end ends the groups of whatever session is left.
func (w *world) end() {
	w.close()
	host, err := cgroup.Detect()
	must(w.t, err)
	defer host.Close()
	list, err := host.Names(w.prefix())
	must(w.t, err)
	for _, name := range list {
		if err := host.Sweep(context.Background(), name); err != nil {
			w.t.Error(err)
		}
	}
	// Their monitors write their ends; the directory can be removed after that.
	dirs, err := filepath.Glob(filepath.Join(w.path("root"), runtime.DirPrefix+"*"))
	must(w.t, err)
	for _, dir := range dirs {
		if _, err := until(context.Background(), time.Minute, func() (bool, error) {
			alive, err := held(filepath.Join(dir, monitor.LockName))
			return !alive || err != nil, nil
		}); err != nil {
			w.t.Error(err)
		}
	}
}

func (w *world) prefix() string {
	root, id, err := safefile.OpenOwnerDir(w.path("root"))
	must(w.t, err)
	must(w.t, root.Close())
	return runtime.GroupPrefix(id)
}

func (w *world) create(id string) session.Record {
	w.t.Helper()
	raw, err := strictjson.Canonical(policy.PlanV1{SchemaVersion: 1, RuntimeID: "test", RuntimeTemplateID: "test", AdapterDigest: w.digest,
		Backend: policy.BackendLinux, EgressPolicyID: "no-network", ToolPolicyID: "none", PathGrants: []policy.AliasGrant{},
		LibraryProjections: []policy.Projection{}, SecretHandles: []string{}, Limits: limits, PolicyRevision: 1,
		ExpiresAtMS: uint64(time.Now().Add(30 * time.Minute).UnixMilli())})
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
	return rec
}

func authorize(rec session.Record) session.Authorization {
	return session.Authorization{SchemaVersion: 1, AuthorizationID: "auth-" + rec.SessionID, SessionID: rec.SessionID,
		ControllerPlanDigest: rec.ControllerPlanDigest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: rec.CreatedAtMS, ExpiresAtMS: rec.CreatedAtMS + session.MaxAuthorizationMS}
}

func (w *world) start(rec session.Record) session.Record {
	w.t.Helper()
	rec, err := w.Start(w.t.Context(), "start-"+rec.SessionID, authorize(rec), func() error { return nil })
	must(w.t, err)
	return rec
}

// settled waits until a session's end is on record.
func (w *world) settled(id string) session.Record {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	must(w.t, w.Settled(ctx, id))
	w.monitorGone(filepath.Join(w.path("root"), runtime.DirName(id)))
	rec, err := w.store.Get(id)
	must(w.t, err)
	return rec
}

// ended runs a session to its recorded end.
func (w *world) ended(id string) session.Record {
	w.t.Helper()
	w.start(w.create(id))
	return w.settled(id)
}

// record reads what is on record, with no gloved there.
func (w *world) record(id string) session.Record {
	w.t.Helper()
	s, err := session.Open(w.path("state/sessions.jsonl"), session.Options{})
	must(w.t, err)
	defer s.Close()
	rec, err := s.Get(id)
	must(w.t, err)
	return rec
}

// killedGloved starts sessions that were created, in a process of its own, and
// kills it: at point, or when all run.
func (w *world) killedGloved(point string, ids ...string) {
	w.t.Helper()
	w.close()
	if point != "" {
		must(w.t, os.WriteFile(w.path(armed), []byte(point), 0o600))
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{glovedRole, w.dir}, ids...)}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	must(w.t, err)
	must(w.t, cmd.Start())
	for line := 0; line < len(ids); line++ {
		var verb, id string
		if _, err := fmt.Fscanln(out, &verb, &id); err != nil {
			break // it is dead
		}
	}
	if point == "" {
		must(w.t, cmd.Process.Kill())
	}
	_ = cmd.Wait()
	if cmd.ProcessState.ExitCode() >= 0 {
		w.t.Fatalf("gloved was not killed: %s", errs.String())
	}
	w.withoutGround()
}

// withoutGround waits until what a killed gloved had made ahead is gone, and removes what
// it was just making, which is an orphan's.
func (w *world) withoutGround() {
	w.t.Helper()
	host, err := cgroup.Detect()
	must(w.t, err)
	defer host.Close()
	gone, err := until(w.t.Context(), patience, func() (bool, error) {
		grounds, err := filepath.Glob(filepath.Join(w.path("root"), monitor.GroundPrefix+"*"))
		for _, dir := range grounds {
			if lives, heldErr := held(filepath.Join(dir, monitor.LockName)); heldErr == nil && !lives {
				tail := strings.TrimPrefix(filepath.Base(dir), monitor.GroundPrefix)
				err = errors.Join(err, os.RemoveAll(dir), host.Sweep(w.t.Context(), w.prefix()+tail))
			}
		}
		return len(grounds) == 0, err
	})
	must(w.t, err)
	if !gone {
		w.t.Fatal("the spare of a killed gloved does not go")
	}
}

// killMonitor ends the monitor of a session, and waits until it is gone.
func (w *world) killMonitor(id string) {
	w.t.Helper()
	dir := filepath.Join(w.path("root"), runtime.DirName(id))
	pid := lockOwner(w.t, filepath.Join(dir, monitor.LockName))
	must(w.t, unix.Kill(pid, unix.SIGKILL))
	w.monitorGone(dir)
}

func (w *world) monitorGone(dir string) {
	w.t.Helper()
	gone, err := until(w.t.Context(), time.Minute, func() (bool, error) {
		alive, err := held(filepath.Join(dir, monitor.LockName))
		return !alive, err
	})
	must(w.t, err)
	if !gone {
		w.t.Fatal("the monitor does not go")
	}
}

// lockOwner finds the process that holds a lock. The kernel's list may miss one
// while others come and go.
func lockOwner(t testing.TB, path string) (pid int) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	found, err := until(t.Context(), time.Minute, func() (bool, error) {
		raw, err := os.ReadFile("/proc/locks")
		for line := range strings.Lines(string(raw)) {
			f := strings.Fields(line)
			if len(f) > 5 && f[1] == "FLOCK" && strings.HasSuffix(f[5], fmt.Sprintf(":%d", st.Ino)) {
				pid, err = strconv.Atoi(f[4])
				return true, err
			}
		}
		return false, err
	})
	must(t, err)
	if !found {
		t.Fatalf("nobody holds %s", path)
	}
	return pid
}

// tree is everything in the world's directories and its control groups: names,
// kinds, sizes and contents.
func (w *world) tree() []string {
	w.t.Helper()
	var out []string
	must(w.t, filepath.WalkDir(w.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%s %v", path, info.Mode())
		if info.Mode().IsRegular() && filepath.Base(path) != monitor.LogName {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + digest.SHA256Hex(data)
		}
		out = append(out, line)
		return nil
	}))
	host, err := cgroup.Detect()
	must(w.t, err)
	defer host.Close()
	list, err := host.Names(w.prefix())
	must(w.t, err)
	return append(out, list...)
}

// check compares and requires exactly these codes, in any order, and that
// comparing has changed nothing.
func (w *world) check(want ...string) []Finding {
	w.t.Helper()
	w.close()
	before := w.tree()
	found, err := Check(w.t.Context(), w.config())
	must(w.t, err)
	if after := w.tree(); !slices.Equal(before, after) {
		w.t.Errorf("comparing changed\n%s\ninto\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
	}
	expect(w.t, "found", found, want)
	return found
}

// repair repairs and requires that exactly these codes are left, now and when it
// is done again.
func (w *world) repair(left ...string) Report {
	w.t.Helper()
	report, err := Repair(w.t.Context(), w.config(), nil)
	must(w.t, err)
	expect(w.t, "left", report.Left, left)
	for _, f := range report.Repaired {
		if f.Done == "" {
			w.t.Errorf("%s was repaired and does not say how", f.Code)
		}
	}
	w.check(left...)
	again, err := Repair(w.t.Context(), w.config(), nil)
	must(w.t, err)
	if len(again.Repaired) > 0 {
		w.t.Errorf("a second run repaired %+v", again.Repaired)
	}
	return report
}

func expect(t testing.TB, what string, found []Finding, want []string) {
	t.Helper()
	got := []string{}
	for _, f := range found {
		if f.Code == "" || f.Subject == "" || f.Detail == "" || f.Repair == "" {
			t.Errorf("an incomplete finding: %+v", f)
		}
		got = append(got, f.Code)
	}
	want = append([]string{}, want...)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s %v, want %v: %+v", what, got, want, found)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
