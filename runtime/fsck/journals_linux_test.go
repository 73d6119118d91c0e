package fsck

import (
	"bytes"
	"os"
	"strconv"
	"testing"
	"time"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

func (w *world) read(rel string) []byte {
	w.t.Helper()
	data, err := os.ReadFile(w.path(rel))
	must(w.t, err)
	return data
}

func (w *world) write(rel string, data []byte) {
	w.t.Helper()
	must(w.t, os.WriteFile(w.path(rel), data, 0o600))
}

const (
	storeFile   = "state/sessions.jsonl"
	receiptFile = "state/receipts.jsonl"
)

// TestTornTails: what was never acknowledged is cut and kept, in both journals,
// and what was is compared all the same.
func TestTornTails(t *testing.T) {
	w := newWorld(t, lasting)
	w.create("s1")
	w.killedGloved("", "s1")
	w.killMonitor("s1")
	store, receipts := w.read(storeFile), w.read(receiptFile)
	w.write(storeFile, append(bytes.Clone(store), `{"alg":"sha2`...))
	w.write(receiptFile, append(bytes.Clone(receipts), `{"alg"`...))
	w.check(JournalTorn, JournalTorn, SessionLost)
	w.repair()
	if !bytes.HasPrefix(w.read(storeFile), store) || !bytes.Equal(w.read(receiptFile), receipts) {
		t.Error("more than the tails was cut")
	}
	if rec := w.record("s1"); rec.State != session.Failed {
		t.Errorf("s1 is %+v", rec)
	}
}

// TestDamagedJournal: a record that does not prove is reported, and nothing that
// depends on the journal is judged or touched.
func TestDamagedJournal(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1")
	w.close()
	for _, file := range []string{storeFile, receiptFile} {
		whole := w.read(file)
		bad := bytes.Clone(whole)
		bad[len(bad)/2] ^= 1
		w.write(file, bad)
		want := []string{JournalDamaged}
		if file == receiptFile {
			want = append(want, ReceiptMissing) // as far as can be proven
		}
		w.check(want...)
		w.repair(want...)
		if !bytes.Equal(w.read(file), bad) {
			t.Errorf("%s was changed", file)
		}
		w.write(file, whole)
	}
	w.check()
}

// TestMissingReceipt: the receipts are an older copy. A receipt is not made up.
func TestMissingReceipt(t *testing.T) {
	w := newWorld(t, "exit 0")
	older := w.read(receiptFile)
	w.ended("s1")
	w.close()
	w.write(receiptFile, older)
	w.check(ReceiptMissing)
	w.repair(ReceiptMissing)
	must(t, os.Remove(w.path(receiptFile)))
	w.check(ReceiptMissing)
	w.repair(ReceiptMissing)
	if _, err := os.Stat(w.path(receiptFile)); err == nil {
		t.Error("receipts that are lost were begun anew")
	}
}

// TestReceiptWithoutSession: the store is an older copy. The receipt stays; the
// directory goes.
func TestReceiptWithoutSession(t *testing.T) {
	w := newWorld(t, "exit 0")
	older := w.read(storeFile)
	w.ended("s1")
	w.close()
	newer := w.read(receiptFile)
	w.write(storeFile, older)
	w.check(ReceiptOrphan, DirectoryOrphan)
	w.repair(ReceiptOrphan)
	if !bytes.Equal(w.read(receiptFile), newer) {
		t.Error("a receipt was touched")
	}
}

// TestFailedWithAReceipt: the two journals contradict each other.
func TestFailedWithAReceipt(t *testing.T) {
	w := newWorld(t, lasting)
	w.start(w.create("s1"))
	live := w.read(storeFile)
	_, err := w.Write(t.Context(), "s1", []byte("\n"))
	must(t, err)
	w.settled("s1")
	w.close()
	w.write(storeFile, live) // before its end was recorded
	s, err := session.Open(w.path(storeFile), session.Options{})
	must(t, err)
	_, err = s.MarkFailed(t.Context(), "wrongly", "s1", session.SupervisorError)
	must(t, err)
	must(t, s.Close())
	w.check(ReceiptUnwanted)
	w.repair(ReceiptUnwanted)
}

// TestUnfinishedRotation: what a rotation was making when it was killed.
func TestUnfinishedRotation(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1")
	w.close()
	w.write("state/.sessions.jsonl.rotate.new", []byte("half"))
	w.write("state/.receipts.jsonl.rotate.new", []byte("half"))
	w.check(RotationUnfinished, RotationUnfinished)
	w.repair()
}

// TestArchivedSessions: sessions and receipts that were archived agree, whether or
// not the archives are at hand.
func TestArchivedSessions(t *testing.T) {
	w := newWorld(t, "exit 0")
	for _, id := range []string{"s1", "s2"} {
		w.ended(id)
		_, err := w.Cleanup(t.Context(), id)
		must(t, err)
	}
	page, err := w.receipts.Page(t.Context(), receipt.Genesis(w.receipts.KeyID()), 10)
	must(t, err)
	must(t, w.receipts.Acknowledge(t.Context(), page.LocalAnchor))
	r, err := w.receipts.Rotate(t.Context(), receipt.RotateOptions{})
	must(t, err)
	s, err := w.store.Rotate(t.Context(), session.RotateOptions{Acknowledged: w.receipts.Acknowledged()})
	must(t, err)
	if r.Archive == nil || s.Archive == nil || s.Sessions != 2 {
		t.Fatalf("rotated %+v and %+v", r, s)
	}
	w.ended("s3")
	w.check()
	for _, name := range []string{r.Archive.Name, s.Archive.Name} {
		must(t, os.Rename(w.path("state/"+name), w.path(name)))
	}
	w.check()
}

// invented puts a running session on record whose monitor and process are the
// test's own.
func (w *world) invented(id string, p session.ProcessIdentity, version int) {
	w.t.Helper()
	rec := w.create(id)
	a := authorize(rec)
	_, err := w.store.ReserveStart(w.t.Context(), "reserve-"+id, a, func(time.Time, session.Record) error { return nil })
	must(w.t, err)
	profile := "5555555555555555555555555555555555555555555555555555555555555555"
	room, err := w.receipts.Reserve(id, rec.ControllerPlanDigest, profile)
	must(w.t, err)
	_, err = w.store.MarkStarting(w.t.Context(), session.StartingRequest{IdempotencyKey: "starting-" + id, SessionID: id,
		AuthorizationID: a.AuthorizationID, ProfileDigest: profile, Monitor: session.Monitor{"protocol": strconv.Itoa(version), "key": profile}, Reservation: room},
		func(time.Time, session.Record) error { return nil })
	must(w.t, err)
	_, err = w.store.MarkRunning(w.t.Context(), session.ProcessRequest{IdempotencyKey: "running-" + id, SessionID: id, Process: p})
	must(w.t, err)
}
