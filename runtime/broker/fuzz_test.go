package broker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// FuzzLeftovers feeds what a hostile writer could leave in a workspace: a journal and a lock. Neither
// may crash a reader, and a journal is accepted only byte for byte as a broker writes it.
func FuzzLeftovers(f *testing.F) {
	s := crashSite(f, f.TempDir())
	var journal, lockText []byte
	s.at(StepJournal, 1, func() (err error) {
		if journal, err = os.ReadFile(filepath.Join(s.ws, TransactionDir, journalName)); err == nil {
			lockText, err = os.ReadFile(s.path(LockName))
		}
		return err
	})
	if _, err := s.b.Apply(f.Context(), proposal(f, kinds()["every"]...)); err != nil {
		f.Fatal(err)
	}
	t, err := openTree(s.ws)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(t.close)
	if _, err := decodeJournal(journal, t); err != nil {
		f.Fatalf("a broker's own journal: %v", err)
	}
	if _, err := decodeLock(lockText); err != nil {
		f.Fatalf("a broker's own lock: %v", err)
	}
	for _, seed := range [][]byte{journal, lockText, []byte("{}"), []byte("null"), journal[:len(journal)/2]} {
		f.Add(seed)
	}
	f.Fuzz(func(t0 *testing.T, data []byte) {
		if l, err := decodeLock(data); err == nil && len(l.Legs) == 0 {
			t0.Fatal("a lock without legs")
		}
		j, err := decodeJournal(data, t)
		if err != nil {
			return
		}
		again, err := j.encode()
		if err != nil || !slices.Equal(again, data) {
			t0.Fatalf("accepted what is not its own form: %v", err)
		}
		for _, e := range j.endpoints() {
			if checkPath(e.Path) != nil {
				t0.Fatalf("accepted the path %q", e.Path)
			}
		}
	})
}
