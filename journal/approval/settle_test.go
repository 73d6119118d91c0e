package approval

import (
	"os"
	"path/filepath"
	"testing"

	"gloved.dev/journal"
)

// TestReadWaitsForAWriter: half a record is a torn tail, unless a writer with the lock is about to
// write the rest.
func TestReadWaitsForAWriter(t *testing.T) {
	whole := string(knownLog())
	cut := len(whole) - 40
	path := filepath.Join(t.TempDir(), "events.jsonl")
	for name, status := range map[string]func() string{
		"read": func() string { _, err := Open(path, Options{}).Read(); return Code(err) },
		"verify": func() string {
			if v := Verify(path, VerifyOptions{}); v.Status != journal.StatusClean {
				return CodeLogTornTail
			}
			return ""
		},
	} {
		write(t, path, whole[:cut])
		if got := status(); got != CodeLogTornTail {
			t.Fatalf("%s without a writer: %q", name, got)
		}
		write(t, path+".lock", "")
		done := make(chan error, 1)
		go func() {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err == nil {
				_, err = f.WriteString(whole[cut:])
				f.Close()
			}
			done <- err
		}()
		if got := status(); got != "" {
			t.Errorf("%s with a writer at work: %q", name, got)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path + ".lock"); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}
