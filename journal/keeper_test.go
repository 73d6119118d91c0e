package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

// keeper is a session store and a receipt journal.
type keeper struct {
	t        *testing.T
	dir      string
	clock    *clock.Fake
	store    *session.Store
	receipts *receipt.Producer
}

var (
	text = []byte(`{"schema_version":1}`)
	ctl  = digest.SHA256Hex(text)
	prof = strings.Repeat("c", 64)
)

func resolves(time.Time, session.Record) error { return nil }

func newKeeper(t *testing.T, dir string) *keeper {
	t.Helper()
	k := &keeper{t: t, dir: dir, clock: clock.NewFake(time.Unix(1_800_000_000, 0))}
	must(t, os.WriteFile(filepath.Join(dir, "key"), []byte(strings.Repeat("ab", 32)+"\n"), 0o600))
	k.open()
	t.Cleanup(func() { k.store.Close(); k.receipts.Close() })
	return k
}

func (k *keeper) open() {
	k.t.Helper()
	var err error
	k.store, err = session.Open(filepath.Join(k.dir, "sessions.jsonl"), session.Options{Clock: k.clock})
	must(k.t, err)
	k.receipts, err = receipt.New(receipt.Options{KeyPath: filepath.Join(k.dir, "key"), JournalPath: filepath.Join(k.dir, "receipts.jsonl"), Clock: k.clock})
	must(k.t, err)
	page, err := k.receipts.Page(k.t.Context(), receipt.Genesis(k.receipts.KeyID()), 1)
	must(k.t, err)
	must(k.t, k.receipts.Acknowledge(k.t.Context(), page.LocalAnchor))
}

func (k *keeper) reopen() {
	k.t.Helper()
	must(k.t, errors.Join(k.store.Close(), k.receipts.Close()))
	k.open()
}

func (k *keeper) ms() uint64 { return uint64(k.clock.Now().UnixMilli()) }

func (k *keeper) create(id string) (session.Record, error) {
	return k.store.Create(k.t.Context(), session.CreateRequest{IdempotencyKey: id, SessionID: id, ControllerPlanDigest: ctl, Plan: text},
		func(time.Time) ([]byte, session.PlanInfo, error) {
			return text, session.PlanInfo{PolicyRevision: 1, ExpiresAtMS: k.ms() + 600_000}, nil
		})
}

func (k *keeper) auth(id string) session.Authorization {
	return session.Authorization{SchemaVersion: 1, AuthorizationID: "auth-" + id, SessionID: id, ControllerPlanDigest: ctl,
		PlanContentDigest: ctl, ApprovedAtMS: k.ms(), ExpiresAtMS: k.ms() + 60_000}
}

type anyRoom struct{}

func (anyRoom) BoundTo(string, string, string) bool { return true }

// to brings a new session to created or running.
func (k *keeper) to(id string, state session.State) {
	k.t.Helper()
	_, err := k.create(id)
	must(k.t, err)
	if state == session.Created {
		return
	}
	_, err = k.store.ReserveStart(k.t.Context(), id+".reserve", k.auth(id), resolves)
	must(k.t, err)
	_, err = k.store.MarkStarting(k.t.Context(), session.StartingRequest{IdempotencyKey: id + ".starting", SessionID: id,
		AuthorizationID: "auth-" + id, ProfileDigest: prof, Reservation: anyRoom{}}, resolves)
	must(k.t, err)
	_, err = k.store.MarkRunning(k.t.Context(), k.process(id+".running", id))
	must(k.t, err)
}

func (k *keeper) process(key, id string) session.ProcessRequest {
	return session.ProcessRequest{IdempotencyKey: key, SessionID: id, Process: session.ProcessIdentity{Schema: 1, PID: 4242,
		BootID: "01234567-89ab-cdef-0123-456789abcdef", StartTicks: 99, CgroupPathDigest: prof}}
}

// end stops a running session and puts its end on record.
func (k *keeper) end(id string, room *receipt.Reservation) {
	k.t.Helper()
	_, err := k.store.MarkStopping(k.t.Context(), k.process(id+".stopping", id))
	must(k.t, err)
	r, err := k.store.Get(id)
	must(k.t, err)
	exit := int64(0)
	v, err := room.CommitResource(k.t.Context(), receipt.Resource{
		SchemaVersion: 1, ProfileDigest: prof, Backend: receipt.BackendLinux, BackendID: receipt.BackendIDCgroupV2,
		ObservationAuthority: receipt.AuthorityLocal, IndependentlyVerified: true,
		ConfiguredLimits: receipt.Limits{CPUTimeMS: 60000, MemoryBytes: 1 << 29, PIDs: 128, WallTimeMS: 120000, DiskBytes: 1 << 30, TerminalOutputBytes: 1 << 24},
		Mechanisms: receipt.Mechanisms{CPUTime: "cgroup_v2", Memory: "cgroup_v2", PIDs: "cgroup_v2", WallTime: "watchdog",
			Disk: "filesystem_quota", TerminalOutput: "byte_counter", SchemaVersion: 1},
		TerminationCause: receipt.CauseExited, ExitCode: &exit, StartedAtMS: r.RunningAtMS, FinishedAtMS: max(r.StoppingAtMS, k.ms()),
	}, nil)
	must(k.t, err)
	reference, _ := v.TerminalReference()
	_, err = k.store.MarkExited(k.t.Context(), id+".exited", reference, k.receipts.Confirm)
	must(k.t, err)
}
