package runtime

import (
	"fmt"
	"os"
	"testing"
)

// TestSweepBoundsTheRoot: a root with more names than are looked at is an error,
// not a sweep of some of them.
func TestSweepBoundsTheRoot(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "exit 0")
	must(t, w.sweepDirs(nil))
	for i := range maxRootEntries {
		must(t, os.WriteFile(w.path(fmt.Sprintf("root/%d", i)), nil, 0o600))
	}
	if err := w.sweepDirs(nil); err == nil {
		t.Error("a root past its bound was swept") // the lock file is the one too many
	}
	must(t, os.Remove(w.path("root/0")))
	must(t, w.sweepDirs(nil))
}
