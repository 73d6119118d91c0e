package runtime

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/runtime/monitor"
)

// TestMonitorOfARemovedDirectoryGoes: when a session's files were removed under
// it, its monitor must not wait for ever for room to write its end.
func TestMonitorOfARemovedDirectoryGoes(t *testing.T) {
	w := newWorld(t, generous, "/bin/sh", "-c", "sleep 0.3")
	w.trust()
	rec, err := w.start(w.create())
	must(t, err)
	dir := filepath.Join(w.path("root"), dirName(rec.SessionID))
	lock, err := os.Open(filepath.Join(dir, monitor.LockName))
	must(t, err)
	defer lock.Close()
	must(t, os.RemoveAll(dir))
	must(t, w.Executor.Close()) // nobody is left to tell it that it may go
	// The lock is the monitor's for as long as it lives.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); <-tick.C {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return
		} else if !errors.Is(err, unix.EWOULDBLOCK) {
			t.Fatal(err)
		}
	}
	t.Error("the monitor is still there")
}
