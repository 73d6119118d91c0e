package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

// rotating is a receipt producer, a small store, and what rotates them.
type rotating struct {
	*Journals
	t     *testing.T
	clock *clock.Fake
	log   *strings.Builder
	path  string // the store's
	next  int
}

func newRotating(t *testing.T, at int, bounds session.Options) *rotating {
	t.Helper()
	_, config := files(t)
	fake := clock.NewFake(time.Unix(1_700_000_000, 0))
	config.Clock = fake
	producer, err := receipt.New(receipt.Options{KeyPath: config.AuditKey, JournalPath: config.Journal, Clock: fake, MaxBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { producer.Close() })
	bounds.Clock = fake
	path := filepath.Join(filepath.Dir(config.Journal), "s.jsonl")
	store, err := session.Open(path, bounds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log := &strings.Builder{}
	config.RotateAt, config.Logger = at, slog.New(slog.NewTextHandler(log, nil))
	return &rotating{Journals: config.journals(producer, store), t: t, clock: fake, log: log, path: path}
}

// create stores a session, as the component does.
func (r *rotating) create() error {
	r.next++
	id := fmt.Sprint("s", r.next)
	plan := []byte(`{"schema_version":1}`)
	r.full(r.t.Context())
	_, err := r.store.Create(r.t.Context(), session.CreateRequest{
		IdempotencyKey: id, SessionID: id, ControllerPlanDigest: digest.SHA256Hex(plan), Plan: plan,
	}, func(now time.Time) ([]byte, session.PlanInfo, error) {
		return plan, session.PlanInfo{PolicyRevision: 1, ExpiresAtMS: uint64(now.UnixMilli()) + 1000}, nil
	})
	return err
}

func (r *rotating) health() string {
	var h wire.Health
	r.Health(r.t.Context(), &h)
	if len(h.Components) == 0 {
		return ""
	}
	return h.Components[0].Code
}

// TestAutomaticRotation: a store of 60 records takes session after session, for
// as long as what it holds can be put away.
func TestAutomaticRotation(t *testing.T) {
	r := newRotating(t, 75, session.Options{MaxRecords: 60})
	for range 150 {
		if err := r.create(); err != nil {
			t.Fatal(err)
		}
		r.clock.Advance(3 * time.Hour) // a created session stays for a day
	}
	if a := r.store.Archive(); a == nil || a.Number() < 3 || r.health() != "" || !strings.Contains(r.log.String(), "rotated") {
		t.Errorf("archives %+v, health %q, log %s", a, r.health(), r.log)
	}
	if _, err := r.store.Get("s1"); session.CodeOf(err) != session.Archived {
		t.Errorf("the first session: %v", err)
	}
	if _, err := r.store.Get("s150"); err != nil {
		t.Errorf("the last session: %v", err)
	}
}

// What is live is never put away to make room, and never means a rotation that
// gains nothing.
func TestAutomaticRotationIsWorthItsWhile(t *testing.T) {
	r := newRotating(t, 75, session.Options{MaxRecords: 20})
	for n := range 20 {
		if err := r.create(); err != nil {
			t.Fatal(n, err)
		}
	}
	if err := r.create(); session.CodeOf(err) != session.Capacity || r.store.Archive() != nil || r.health() != "journal_nearly_full" {
		t.Errorf("create %v, archive %v, health %q", err, r.store.Archive(), r.health())
	}
	r.at = 0
	r.clock.Advance(48 * time.Hour)
	if err := r.create(); session.CodeOf(err) != session.Capacity || r.store.Archive() != nil {
		t.Errorf("never: %v, %v", err, r.store.Archive())
	}
	r.at = 75
	if err := r.create(); err != nil || r.store.Archive() == nil || r.health() != "" {
		t.Errorf("create %v, archive %v, health %q", err, r.store.Archive(), r.health())
	}
}

// A rotation that fails leaves the old journal in use, is told, and is not tried
// again at every request.
func TestFailedRotation(t *testing.T) {
	r := newRotating(t, 75, session.Options{MaxRecords: 20})
	for range 16 {
		if err := r.create(); err != nil {
			t.Fatal(err)
		}
	}
	r.clock.Advance(48 * time.Hour)
	// Something that is not ours has the archive's name.
	stranger := r.path + ".000001"
	if err := os.WriteFile(stranger, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.create(); err != nil {
			t.Errorf("the old journal is not in use: %v", err)
		}
	}
	if n := strings.Count(r.log.String(), "was not rotated"); n != 1 || r.health() != "journal_rotation_failed" {
		t.Errorf("told %d times, health %q: %s", n, r.health(), r.log)
	}
	r.clock.Advance(retryAfter)
	if err := r.create(); err != nil || strings.Count(r.log.String(), "was not rotated") != 2 {
		t.Errorf("tried again: %v, %s", err, r.log)
	}
	r.clock.Advance(-time.Hour) // a clock that was set back waits for nobody
	if err := os.Remove(stranger); err != nil {
		t.Fatal(err)
	}
	if err := r.create(); err != nil || r.store.Archive() == nil || r.health() != "" {
		t.Errorf("create %v, archive %v, health %q", err, r.store.Archive(), r.health())
	}
}

// Receipts are put away once they are acknowledged, and not before; the chain goes
// on for a controller that pages it from its start.
func TestAutomaticRotationOfReceipts(t *testing.T) {
	r := newRotating(t, 75, session.Options{})
	at := receipt.Genesis(r.producer.KeyID())
	if _, err := r.producer.Page(t.Context(), at, 1); err != nil {
		t.Fatal(err)
	}
	committed := 0
	for range 6 {
		for fill(r.producer.Status().Journal) < 75 {
			committed++
			if _, err := r.producer.CommitChangeApply(t.Context(), fmt.Sprint("s", committed), strings.Repeat("a", 64), []byte(`{"applied":true}`)); err != nil {
				t.Fatal(err)
			}
		}
		before := r.producer.Archive()
		r.full(t.Context())
		if r.producer.Archive() != before {
			t.Error("receipts that nobody acknowledged were put away")
		}
		at = r.producer.Status().Head
		if err := r.producer.Acknowledge(t.Context(), at); err != nil {
			t.Fatal(err)
		}
		r.full(t.Context())
		if after := r.producer.Archive(); after == nil || before != nil && after.Number() != before.Number()+1 {
			t.Errorf("archives %+v, then %+v", before, after)
		}
	}
	n := 0
	for anchor := receipt.Genesis(at.KeyID); ; {
		page, err := r.producer.Page(t.Context(), anchor, 15)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Envelopes {
			n++
			if v.PreviousHMAC != anchor.HeadHMAC || v.Sequence != uint64(n) {
				t.Fatalf("receipt %d does not follow", v.Sequence)
			}
			anchor.Sequence, anchor.HeadHMAC = v.Sequence, v.ThisHMAC
		}
		if !page.HasMore {
			break
		}
	}
	if uint64(n) != at.Sequence || n != committed {
		t.Errorf("%d receipts were paged of %d, the head is %d", n, committed, at.Sequence)
	}
}

func TestRotateJournalsOnTheWire(t *testing.T) {
	r := newRotating(t, 0, session.Options{})
	if err := r.create(); err != nil {
		t.Fatal(err)
	}
	r.clock.Advance(48 * time.Hour)
	if m := r.Methods(); len(m) != 1 || !m[0].OwnerLocal || !m[0].Mutating {
		t.Errorf("the method is not the owner's: %+v", m)
	}
	dry := r.all(context.Background(), true, 0)
	if dry[0].Reason != wire.RotateUnpaged || dry[1].Archived != 1 || dry[1].Archive != "" || r.store.Archive() != nil {
		t.Errorf("dry run: %+v", dry)
	}
	if _, err := r.producer.Page(t.Context(), receipt.Genesis(r.producer.KeyID()), 1); err != nil {
		t.Fatal(err)
	}
	done := r.all(context.Background(), false, 0)
	if done[0].Reason != wire.RotateNothing || done[1].Archive != "s.jsonl.000001" {
		t.Errorf("rotation: %+v", done)
	}
	_, err := r.store.Get("s1")
	for _, owner := range []bool{true, false} {
		told := withArchive(&rpc.Call{Peer: &rpc.Peer{OwnerLocal: owner, Controller: !owner}}, sessionError(err))
		var refusal *rpc.Error
		if !errors.As(told, &refusal) || refusal.Code != rpc.SessionArchived || (refusal.Data["archive"] == "s.jsonl.000001") != owner {
			t.Errorf("owner %v is told %v", owner, told)
		}
		if _, text := public(t, told); strings.Contains(text, ".jsonl") != owner {
			t.Errorf("owner %v is told %s", owner, text)
		}
	}
}
