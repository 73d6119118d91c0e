package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// old fills the store with sessions that nobody can start any more, and one that
// somebody can, and the journal with receipts; it returns the chain's head.
func (s *state) old(t *testing.T, sessions, receipts int) receipt.Anchor {
	t.Helper()
	past := clock.NewFake(time.Now().Add(-72 * time.Hour))
	store, err := session.Open(s.vars["STORE"], session.Options{Clock: past})
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(`{"schema_version":1}`)
	for n := range sessions + 1 {
		id, life := fmt.Sprint("old-", n), time.Minute
		if n == sessions {
			id, life = "young", 100*time.Hour
		}
		_, err := store.Create(t.Context(), session.CreateRequest{IdempotencyKey: id, SessionID: id,
			ControllerPlanDigest: digest.SHA256Hex(text), Plan: text}, func(now time.Time) ([]byte, session.PlanInfo, error) {
			return text, session.PlanInfo{PolicyRevision: 7, ExpiresAtMS: uint64(now.Add(life).UnixMilli())}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := receipt.New(receipt.Options{KeyPath: s.vars["AUDIT_KEY"], JournalPath: s.vars["JOURNAL"]})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := p.Page(t.Context(), receipt.Genesis(p.KeyID()), 1); err != nil {
		t.Fatal(err)
	}
	for n := range receipts {
		if _, err := p.CommitChangeApply(t.Context(), fmt.Sprint("old-", n), digest.SHA256Hex(text), []byte(`{"applied":true}`)); err != nil {
			t.Fatal(err)
		}
	}
	return p.Status().Head
}

// ask runs glove and returns what it printed and its exit code.
func (s *state) ask(t *testing.T, args ...string) (string, int) {
	t.Helper()
	out, err := exec.CommandContext(within(t, time.Minute), glove(), args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if exit != nil {
		return string(out), exit.ExitCode()
	}
	return string(out), 0
}

// says runs glove, which must end with the code and print each of the texts.
func (s *state) says(t *testing.T, code int, args []string, texts ...string) string {
	t.Helper()
	out, got := s.ask(t, args...)
	if got != code {
		t.Errorf("glove %s: exit code %d, want %d; it said\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, text := range texts {
		if !strings.Contains(out, text) {
			t.Errorf("glove %s does not say %q but\n%s", strings.Join(args, " "), text, out)
		}
	}
	return out
}

// config writes the configuration that says what full says.
func (s *state) config(t *testing.T, more string) string {
	t.Helper()
	path := filepath.Join(s.dir, "config.json")
	text := fmt.Sprintf(`{"schema_version":1,"persistent_service":false,"runtime_directory":%q,"audit_key":%q,"receipt_journal":%q,"session_policy":%q,"session_store":%q%s}`,
		s.vars["RUNTIME"], s.vars["AUDIT_KEY"], s.vars["JOURNAL"], s.vars["POLICY"], s.vars["STORE"], more)
	if err := safefile.WriteOwner(path, []byte(text+"\n")); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRotateRunning: a running gloved rotates when its owner asks, and for a
// controller the chain of receipts goes on as if nothing had happened.
func TestRotateRunning(t *testing.T) {
	s := newState(t)
	head := s.old(t, 8, 20)
	dir := s.resident(t)
	ctx := within(t, time.Minute)
	controller, err := client.SpawnStdio(ctx, append([]string{gloved(), "--stdio", "--runtime-dir", dir}, s.full()...), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, controller)
	owner, err := client.DialRuntimeDir(ctx, dir, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer closed(t, owner)
	if _, err := controller.RotateJournals(ctx, "k", false); !errors.Is(err, rpc.MethodNotFound) {
		t.Errorf("a controller rotates: %v", err)
	}
	at := wire.Anchor{KeyID: head.KeyID, Sequence: int64(head.Sequence), HeadHMAC: head.HeadHMAC}
	if _, err := controller.PageReceipts(ctx, wire.Anchor{KeyID: at.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := controller.AcknowledgeReceipts(ctx, "first", at); err != nil {
		t.Fatal(err)
	}
	rotate := []string{"journal", "rotate", "--runtime-dir", dir}
	s.says(t, 0, append(rotate, "--dry-run"), "would archive 20 receipts", "would archive 8 sessions", "1 session and")
	s.says(t, 0, rotate, "receipts.jsonl.000001", "archived 8 sessions", ".000001")
	s.says(t, 0, rotate, "receipts: nothing to archive, 0 receipts stay", "sessions: nothing to archive, 1 session stay")
	s.says(t, 2, append(rotate, "--acknowledged", "1:"+strings.Repeat("0", 64)), "leave --acknowledged out")

	_, err = controller.SessionStatus(ctx, "old-3")
	told := func(err error) (*rpc.Error, bool) {
		var refusal *rpc.Error
		return refusal, errors.As(err, &refusal)
	}
	if refusal, ok := told(err); !ok || refusal.Code != rpc.SessionArchived || refusal.Data["archive"] != nil {
		t.Errorf("a controller is told %v", err)
	}
	_, err = owner.SessionStatus(ctx, "old-3")
	if refusal, ok := told(err); !ok || refusal.Code != rpc.SessionArchived || refusal.Data["archive"] != filepath.Base(s.vars["STORE"])+".000001" {
		t.Errorf("the owner is told %v", err)
	}
	if _, err := controller.CreateSession(ctx, "old-3", &wire.CreateSessionParams{SessionID: "old-3",
		ControllerPlanDigest: strings.Repeat("a", 64), Plan: []byte(plan())}); !errors.Is(err, rpc.SessionArchived) {
		t.Errorf("an archived session is created again: %v", err)
	}
	if young, err := controller.SessionStatus(ctx, "young"); err != nil || young.State != "created" {
		t.Errorf("what is live: %+v, %v", young, err)
	}
	// The whole chain is paged, from its start and from the middle of the archive.
	got := 0
	for anchor, more := (wire.Anchor{KeyID: head.KeyID, HeadHMAC: strings.Repeat("0", 64)}), true; more; {
		page, err := controller.PageReceipts(ctx, anchor, 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range page.Envelopes {
			var e receipt.Envelope
			if err := json.Unmarshal(raw, &e); err != nil || e.PreviousHMAC != anchor.HeadHMAC {
				t.Fatalf("receipt %d: %v, follows %s and not %s", e.Sequence, err, e.PreviousHMAC, anchor.HeadHMAC)
			}
			anchor = wire.Anchor{KeyID: e.KeyID, Sequence: int64(e.Sequence), HeadHMAC: e.ThisHMAC}
			got++
		}
		more = page.HasMore
	}
	if got != 20 {
		t.Errorf("%d receipts were paged, want 20", got)
	}
	if _, err := controller.AcknowledgeReceipts(ctx, "again", at); err != nil {
		t.Errorf("the head from before the rotation: %v", err)
	}
	for _, file := range []string{s.vars["STORE"], s.vars["JOURNAL"]} {
		s.says(t, 0, []string{"journal", "verify", file}, "clean", "archive "+filepath.Base(file)+".000001")
	}
	s.says(t, 0, []string{"status", "--runtime-dir", dir}, "receipts", "20, head "+head.HeadHMAC[:16])
	s.says(t, 1, []string{"sessions", "show", "--runtime-dir", dir, "old-3"}, "session_archived", "journal show "+filepath.Base(s.vars["STORE"])+".000001")
}

// TestRotateOffline: without a gloved its owner rotates, under its lock, and says
// what was acknowledged.
func TestRotateOffline(t *testing.T) {
	s := newState(t)
	head := s.old(t, 5, 9)
	config := s.config(t, "")
	rotate := []string{"journal", "rotate", "--config", config}
	s.says(t, 0, append(rotate, "--dry-run"), "receipts: nothing to archive, 9 receipts stay", "would archive 5 sessions")
	s.says(t, 1, append(rotate, "--acknowledged", "9:"+strings.Repeat("0", 64)), "not a prefix")
	s.says(t, 2, append(rotate, "--acknowledged", "9"), "SEQ:HMAC")
	out := s.says(t, 0, append(rotate, "--json", "--acknowledged", fmt.Sprintf("9:%s", head.HeadHMAC)))
	var done wire.RotateJournalsResult
	if err := json.Unmarshal([]byte(out), &done); err != nil || len(done.Journals) != 2 ||
		done.Journals[0].Archived != 9 || done.Journals[1].Archived != 5 || done.Journals[1].Kept != 1 {
		t.Errorf("%v: %s", err, out)
	}
	s.says(t, 0, []string{"status", "--config", config}, "1 archive")
	// An archive that is kept elsewhere is missed by who verifies, and says so.
	archive := s.vars["STORE"] + ".000001"
	if err := os.Rename(archive, archive+"-away"); err != nil {
		t.Fatal(err)
	}
	s.says(t, 1, []string{"journal", "verify", s.vars["STORE"]}, "archive-missing", "put "+filepath.Base(archive)+" back")
	if err := os.Rename(s.vars["JOURNAL"]+".000001", s.vars["JOURNAL"]+"-away"); err != nil {
		t.Fatal(err)
	}
	s.says(t, 0, []string{"status", "--config", config}, "9, head "+head.HeadHMAC[:16])
	s.says(t, 0, []string{"sessions", "list", "--config", config}, "young")

	// While a gloved serves one connection and has no socket, nobody can be asked.
	c, err := client.SpawnStdio(within(t, time.Minute), []string{gloved(), "--stdio", "--config", config}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.says(t, 1, rotate, "in_use", "rotates by itself")
	closed(t, c)
}

// TestRotateByItself: a gloved rotates what is full to the configured part before
// it stores the next session.
func TestRotateByItself(t *testing.T) {
	s := newState(t)
	s.old(t, 200, 0)
	config := s.config(t, `,"rotate_at":1`) // 1 % of 10,000 records
	c, err := client.SpawnStdio(within(t, time.Minute), []string{gloved(), "--stdio", "--config", config}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateSession(within(t, time.Minute), "k", &wire.CreateSessionParams{SessionID: "new",
		ControllerPlanDigest: strings.Repeat("a", 64), Plan: []byte(plan())}); err != nil {
		t.Fatal(err)
	}
	closed(t, c)
	s.says(t, 0, []string{"journal", "verify", s.vars["STORE"]}, "archive "+filepath.Base(s.vars["STORE"])+".000001: 201 records proven")
	s.config(t, `,"rotate_at":96`)
	s.says(t, 1, []string{"status", "--config", config}, "percentage from 0 to 95")
}
