package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	if d := ReadDir(dir); codeOf(d) != CodeFileMissing || d.SHA256 != "" || d.Resolve("a", nil).Autonomy != Manual {
		t.Errorf("an empty folder: %+v", d)
	}
	second, first := filepath.Join(dir, "APPROVALS.md"), filepath.Join(dir, "APPROVAL.md")
	writeFile(t, second, file(`version: "2"`))
	if d := ReadDir(dir); d.Path != second || d.Policy.Version != "2" {
		t.Errorf("APPROVALS.md alone: %+v", d)
	}
	writeFile(t, first, file(`version: "1"`))
	if d := ReadDir(dir); d.Path != first || d.Policy.Version != "1" {
		t.Errorf("both: %+v", d)
	}
	// The first that exists decides, even when it is no policy.
	writeFile(t, first, "nothing")
	if d := ReadDir(dir); codeOf(d) != CodeNoBlock {
		t.Errorf("a broken first one: %+v", d)
	}
}

func TestReadRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	fifo, big, none := filepath.Join(dir, "fifo"), filepath.Join(dir, "big"), filepath.Join(dir, "none")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	writeFile(t, big, strings.Repeat("x", MaxFile+1))
	for path, code := range map[string]string{fifo: CodeUnreadable, dir: CodeUnreadable, big: CodeUnreadable, none: CodeFileMissing} {
		if d := Read(path); codeOf(d) != code || d.SHA256 != "" || d.Policy != nil {
			t.Errorf("%s: %+v, want %s", path, d.Failure, code)
		}
	}
}

// TestReq017OneRead: the digest is that of the bytes that decide, whatever happens to the file
// meanwhile.
func TestReq017OneRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "APPROVAL.md")
	texts := map[Autonomy]string{
		Autonomous: file("version: \"0.1\"\nclasses: {a: {autonomy: autonomous}}"),
		HumanOnly:  file("version: \"0.1\"\nclasses: {a: {autonomy: human-only}}"),
	}
	sums := map[string]Autonomy{}
	for autonomy, text := range texts {
		sum := sha256.Sum256([]byte(text))
		sums[hex.EncodeToString(sum[:])] = autonomy
	}
	writeFile(t, path, texts[Autonomous])
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			text := texts[[]Autonomy{Autonomous, HumanOnly}[i%2]]
			next := filepath.Join(dir, "next")
			err := os.WriteFile(next, []byte(text), 0o600)
			if err == nil {
				err = os.Rename(next, path)
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	seen := map[Autonomy]int{}
	for range 3000 {
		d := Read(path)
		if want, known := sums[d.SHA256]; !known || d.Resolve("a", nil).Autonomy != want {
			t.Fatalf("digest %s decides %s", d.SHA256, d.Resolve("a", nil).Autonomy)
		}
		seen[d.Resolve("a", nil).Autonomy]++
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 {
		t.Errorf("the file never changed under the reader: %v", seen)
	}
	d := Read(path)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if want := sums[d.SHA256]; d.Resolve("a", nil).Autonomy != want {
		t.Error("the file was read again")
	}
}
