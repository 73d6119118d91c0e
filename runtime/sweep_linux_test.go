package runtime

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/runtime/monitor"
)

// TestSweepBoundsTheRoot: a root with more names than are looked at is an error,
// not a sweep of some of them.
func TestSweepBoundsTheRoot(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "exit 0")
	w.spares.Close() // which has a name there too
	must(t, w.sweepDirs(t.Context(), nil))
	for i := range maxRootEntries {
		must(t, os.WriteFile(w.path(fmt.Sprintf("root/%d", i)), nil, 0o600))
	}
	if err := w.sweepDirs(t.Context(), nil); err == nil {
		t.Error("a root past its bound was swept") // the lock file is the one too many
	}
	must(t, os.Remove(w.path("root/0")))
	must(t, w.sweepDirs(t.Context(), nil))
}

// TestSweepWaitsForALostStart: the monitor of a start that lost its gloved still has names
// and resources of its session; its directory stays as long as it does.
func TestSweepWaitsForALostStart(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "exit 0")
	w.spares.Close() // which would be waited for too
	dir := w.dir + "/root/" + dirName("lost")
	must(t, os.Mkdir(dir, 0o700))
	lock, err := safefile.LockFile(filepath.Join(dir, monitor.LockName)) // as a monitor has it
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	must(t, w.sweepDirs(ctx, nil))
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the directory of a live monitor: %v", err)
	}
	must(t, lock.Unlock())
	must(t, w.sweepDirs(t.Context(), nil))
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a monitor that is gone: %v", err)
	}
}
