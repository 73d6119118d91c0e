package safefile

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestHandover(t *testing.T) {
	path := filepath.Join(ownerDir(t), "lock")
	take := func() (*Lock, error) { return LockFile(path) }
	held, err := Handover(take)
	must(t, err)
	if _, err := Handover(take); !errors.Is(err, ErrLocked) {
		t.Errorf("while it is held: %v, want ErrLocked", err)
	}
	// The holder goes while it is being waited for.
	tries := 0
	next, err := Handover(func() (*Lock, error) {
		if tries++; tries == 3 {
			must(t, held.Unlock())
		}
		return take()
	})
	must(t, err)
	must(t, next.Unlock())
	if tries < 3 {
		t.Errorf("taken at try %d, while it was held", tries)
	}
}
