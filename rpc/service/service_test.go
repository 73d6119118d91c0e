package service

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/ident"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

const hostPath = "/host/secret/path"

// public is what of an error goes over the wire.
func public(t *testing.T, err error) (*rpc.Error, string) {
	t.Helper()
	var out *rpc.Error
	if !errors.As(err, &out) {
		return nil, ""
	}
	data, jsonErr := json.Marshal(out.Data)
	if jsonErr != nil {
		t.Fatal(jsonErr)
	}
	return out, out.Message + string(data)
}

func TestStoreRefusalsOnTheWire(t *testing.T) {
	want := map[session.Code]rpc.Code{
		session.InvalidRequest: rpc.InvalidParams, session.InvalidPlan: rpc.InvalidPlan,
		session.InvalidAuthorization: rpc.InvalidAuthorization, session.InvalidState: rpc.InvalidSessionState,
		session.IdempotencyConflict: rpc.IdempotencyConflict, session.SessionConflict: rpc.SessionConflict,
		session.NotFound: rpc.SessionNotFound, session.Archived: rpc.SessionArchived, session.Capacity: rpc.SessionCapacity, session.Storage: rpc.SessionStorageFailed,
	}
	for code, wanted := range want {
		got, text := public(t, sessionError(&session.Error{Code: code, Reason: "a public reason", Err: errors.New(hostPath)}))
		if got == nil || got.Code != wanted {
			t.Errorf("%s became %v, want %s", code, got, wanted)
			continue
		}
		if strings.Contains(text, hostPath) {
			t.Errorf("%s shows the peer its cause: %s", code, text)
		}
		if got.Cause == nil || !strings.Contains(got.Cause.Error(), hostPath) {
			t.Errorf("%s keeps its cause from the operator's log", code)
		}
	}
	storage, text := public(t, sessionError(&session.Error{Code: session.Storage, Reason: "write " + hostPath}))
	if storage == nil || strings.Contains(text, hostPath) {
		t.Errorf("the store's own trouble goes out: %s", text)
	}
}

func TestEveryInvalidPlanHasAReasonOfTheClosedSet(t *testing.T) {
	closed := policy.Reasons()
	for _, err := range []error{
		sessionError(&session.Error{Code: session.InvalidPlan, Err: errors.New(hostPath)}),
		planError(errors.New(hostPath), policy.ReasonSchema),
		planError(&policy.LaunchError{Code: policy.LaunchExecutable, Detail: hostPath}, policy.ReasonRuntime),
	} {
		got, text := public(t, err)
		if got == nil || got.Code != rpc.InvalidPlan {
			t.Errorf("%v is no invalid_plan", err)
			continue
		}
		reason, _ := got.Data["reason"].(string)
		if !slices.Contains(closed, policy.Reason(reason)) || strings.Contains(text, hostPath) {
			t.Errorf("invalid_plan goes out as %s with reason %q", text, reason)
		}
	}
	for _, reason := range closed {
		refusal := &policy.PlanError{Reason: reason, Pointer: "/x", Message: "short", PolicyPointer: "/path_aliases/0",
			Detail: hostPath, Err: errors.New(hostPath)}
		wrapped := fmt.Errorf("store: %w", &session.Error{Code: session.InvalidPlan, Err: refusal})
		got, text := public(t, sessionError(wrapped))
		if got == nil || got.Data["reason"] != string(reason) || got.Data["pointer"] != "/x" || got.Message != "short" {
			t.Errorf("%s became %v %s", reason, got, text)
		}
		if strings.Contains(text, hostPath) || strings.Contains(text, "path_aliases") {
			t.Errorf("%s tells the peer of the owner's policy: %s", reason, text)
		}
	}
}

func TestReceiptRefusalsOnTheWire(t *testing.T) {
	for code, wanted := range map[receipt.Code]rpc.Code{
		receipt.InvalidRequest: rpc.InvalidParams, receipt.ReconciliationFailed: rpc.AuditReconciliationFailed,
		receipt.ReconciliationRequired: rpc.AuditReconciliationRequired,
		receipt.Storage:                rpc.AuditReconciliationFailed, receipt.Capacity: rpc.AuditReconciliationFailed,
	} {
		got, text := public(t, receiptError(&receipt.Error{Code: code, Reason: "public", Err: errors.New(hostPath)}))
		if got == nil || got.Code != wanted || strings.Contains(text, hostPath) {
			t.Errorf("%s became %v %s, want %s", code, got, text, wanted)
		}
	}
	early := &receipt.Error{Code: receipt.ReconciliationFailed, Err: receipt.ErrNotPaged}
	if got, text := public(t, receiptError(early)); got == nil || got.Code != rpc.AuditReconciliationFailed || !strings.Contains(text, "page the receipts") {
		t.Errorf("an acknowledgement before a page became %v %s", got, text)
	}
	strange := &receipt.Error{Code: receipt.Ambiguous, Reason: hostPath}
	if got, _ := public(t, receiptError(strange)); got != nil {
		t.Errorf("an unexpected refusal is public: %v", got)
	}
}

// A receipt journal that is not as its writer left it shows in health.
func TestHealthShowsAChangedReceiptJournal(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // an owner directory
		t.Fatal(err)
	}
	key, path := filepath.Join(dir, "key"), filepath.Join(dir, "receipts.jsonl")
	if err := os.WriteFile(key, []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	producer, err := receipt.New(receipt.Options{KeyPath: key, JournalPath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	component := NewReceipts(producer)
	components := func() []wire.ComponentHealth {
		var h wire.Health
		component.Health(t.Context(), &h)
		return h.Components
	}
	if got := components(); got != nil {
		t.Errorf("before the first page: %v, want nothing", got)
	}
	if _, err := producer.Page(t.Context(), receipt.Genesis(producer.KeyID()), 1); err != nil {
		t.Fatal(err)
	}
	if got := components(); len(got) != 1 || got[0] != (wire.ComponentHealth{Name: "receipts", Status: wire.StatusReady}) {
		t.Errorf("after a page: %v, want receipts ready", got)
	}
	if err := os.Truncate(path, 1); err != nil {
		t.Fatal(err)
	}
	want := wire.ComponentHealth{Name: "receipts", Status: wire.StatusDegraded, Code: string(rpc.AuditReconciliationFailed)}
	if got := components(); len(got) != 1 || got[0] != want {
		t.Errorf("after a change: %v, want %v", got, want)
	}
}

func TestRecordOnTheWire(t *testing.T) {
	code := int64(3)
	record := session.Record{SessionID: "s", State: session.Exited, ProfileDigest: "p", RunningAtMS: 5, FinishedAtMS: 9,
		CreatedAtMS: 1, ExpiresAtMS: 99, PolicyRevision: 7,
		Terminal: &session.TerminalReference{Sequence: 4, ReceiptDigest: "d", TerminationCause: "exited", ExitCode: &code}}
	got := sessionRecord(record)
	if got.ExitCode == nil || *got.ExitCode != 3 || got.TerminationCause != "exited" || got.Receipt == nil ||
		*got.Receipt != (wire.ReceiptRef{Sequence: 4, Digest: "d"}) || got.StartedAtMS != 5 || got.FinishedAtMS != 9 {
		t.Errorf("an exited session looks like %+v", got)
	}
	failed := sessionRecord(session.Record{State: session.Failed, FailureCode: session.LaunchFailed})
	if failed.FailureCode != session.LaunchFailed || failed.Receipt != nil || failed.ExitCode != nil {
		t.Errorf("a failed session looks like %+v", failed)
	}
	if number(1<<60) != ident.MaxInt {
		t.Error("a number past 2^53-1 goes out")
	}
}

// files makes an owner directory with a key in it.
func files(t *testing.T) (dir string, config Config) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("ab", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, Config{AuditKey: key, Journal: filepath.Join(dir, "r.jsonl"), Clock: clock.NewFake(time.Unix(1_700_000_000, 0))}
}

func TestBuildRefusesWhatNothingServes(t *testing.T) {
	for option, set := range map[string]func(*Config){
		"--path-exposure-policy":  func(c *Config) { c.PathExposurePolicy = "/x" },
		"--path-exposure-journal": func(c *Config) { c.PathExposureJournal = "/x" },
		"--library-bundle-root":   func(c *Config) { c.LibraryBundleRoot = "/x" },
		"--apply-trust-policy":    func(c *Config) { c.ApplyTrustPolicy = "/x" },
		"--apply-journal":         func(c *Config) { c.ApplyJournal = "/x" },
		"remote_backend":          func(c *Config) { c.RemoteBackend = true },
		"apple_container":         func(c *Config) { c.AppleContainer = true },
	} {
		_, config := files(t)
		set(&config)
		_, err := Build(config)
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || unavailable.Option != option {
			t.Errorf("Build with %s = %v, want an UnavailableError for it", option, err)
		}
	}
}

// closer notes that it was closed, and whether the note it depends on was open then.
type closer struct{ closed bool }

func (c *closer) Close() error {
	c.closed = true
	return nil
}

func TestBuildHoldsTheLockOverEverythingDurable(t *testing.T) {
	dir, config := files(t)
	held := &closer{}
	config.Hold = func() (io.Closer, error) {
		if _, err := os.Lstat(config.Journal); err == nil {
			t.Error("the journal was opened before the lock was taken")
		}
		return held, nil
	}
	assembly, err := Build(config)
	if err != nil {
		t.Fatal(err)
	}
	if got := assembly.Registry.Methods(true); !slices.Contains(got, wire.MethodPageReceipts) || slices.Contains(got, wire.MethodValidatePlan) {
		t.Errorf("the base service has %v", got)
	}
	if held.closed {
		t.Error("the lock was given back while the assembly is open")
	}
	if err := assembly.Close(); err != nil || !held.closed {
		t.Errorf("Close: %v, lock given back: %v", err, held.closed)
	}
	// A lock that is not to be had ends it, and nothing durable was made.
	taken := errors.New("taken")
	config.Hold = func() (io.Closer, error) { return nil, taken }
	if _, err := Build(config); !errors.Is(err, taken) {
		t.Errorf("Build without the lock = %v, want Hold's error", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the state directory: %v (%v), want the key alone", entries, err)
	}
}

func TestBuildGivesBackTheLockWhenALaterStepFails(t *testing.T) {
	_, config := files(t)
	held := &closer{}
	config.Hold = func() (io.Closer, error) { return held, nil }
	config.SessionStore = filepath.Join(filepath.Dir(config.Journal), "s.jsonl")
	_, err := Build(config)
	var failed *BuildError
	if !errors.As(err, &failed) || failed.Option != "--session-store" || !held.closed {
		t.Errorf("Build of a store without a policy = %v, lock given back: %v", err, held.closed)
	}
}
