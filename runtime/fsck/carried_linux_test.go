package fsck

import (
	"testing"

	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

// TestCarriedReceipt: a receipt that a rotation carried forward is in an archive
// and in the journal, and is still one receipt.
func TestCarriedReceipt(t *testing.T) {
	w := newWorld(t, "exit 0")
	w.ended("s1")
	_, err := w.Cleanup(t.Context(), "s1")
	must(t, err)
	page, err := w.receipts.Page(t.Context(), receipt.Genesis(w.receipts.KeyID()), 10)
	must(t, err)
	must(t, w.receipts.Acknowledge(t.Context(), page.LocalAnchor))
	w.ended("s2") // not acknowledged
	r, err := w.receipts.Rotate(t.Context(), receipt.RotateOptions{})
	must(t, err)
	s, err := w.store.Rotate(t.Context(), session.RotateOptions{Acknowledged: w.receipts.Acknowledged()})
	must(t, err)
	if r.Receipts != 1 || r.Kept != 1 || s.Sessions != 1 || s.Kept != 1 {
		t.Fatalf("rotated %+v and %+v", r, s)
	}
	w.check()
}
