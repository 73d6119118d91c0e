package workspace

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// place is a name in a directory. The attacker holds the directory, for a path
// through a name that is being swapped would lead the attacker itself outside,
// and then the swap would bring what is there into the tree.
type place struct {
	dir  *os.File
	name string
}

// attack swaps the two places of each pair, as fast as it can and until the
// test ends, and counts the swaps.
func attack(t *testing.T, pairs ...[2]place) *atomic.Int64 {
	t.Helper()
	var swaps atomic.Int64
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			for _, p := range pairs {
				a, b := p[0], p[1]
				if unix.Renameat2(int(a.dir.Fd()), a.name, int(b.dir.Fd()), b.name, unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				}
			}
		}
	}()
	t.Cleanup(func() { stop.Store(true); <-done })
	return &swaps
}

// raceDir is a directory in memory, where a swap costs a microsecond.
func raceDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "glove-race-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

const secret = "what lies outside"

// Trap G4: an attacker swaps directories and files of the source with links
// that lead out, all the time. Whatever the copy makes of that, nothing from
// outside is ever in it.
func TestCopyRace(t *testing.T) {
	tries := 10_000
	if testing.Short() {
		tries = 500
	}
	outside, src, base := raceDir(t), raceDir(t), raceDir(t)
	must(t, os.MkdirAll(outside+"/deep", 0o755))
	must(t, os.WriteFile(outside+"/f", []byte(secret), 0o600))
	must(t, os.WriteFile(outside+"/deep/f", []byte(secret), 0o600))
	must(t, os.MkdirAll(src+"/d/deep", 0o755))
	must(t, os.WriteFile(src+"/d/f", []byte("inside"), 0o600))
	must(t, os.WriteFile(src+"/d/deep/f", []byte("inside"), 0o600))
	must(t, os.WriteFile(src+"/file", []byte("inside"), 0o600))
	must(t, os.Symlink(outside, src+"/dlink"))
	must(t, os.Symlink(outside+"/deep", src+"/deeplink"))
	must(t, os.Symlink(outside+"/f", src+"/flink"))
	top, inner := openDirFile(t, src), openDirFile(t, src+"/d")
	swaps := attack(t, [2]place{{top, "d"}, {top, "dlink"}}, [2]place{{top, "file"}, {top, "flink"}},
		[2]place{{inner, "deep"}, {top, "deeplink"}})
	p, parent := pin(t, src), openDirFile(t, base)
	whole, refused := 0, 0
	for i := range tries {
		must(t, os.Mkdir(base+"/copy", 0o700))
		dst, err := os.Open(base + "/copy")
		must(t, err)
		switch _, err := CopyTree(t.Context(), p, dst, options()); Code(err) {
		case "":
			whole++
		case CodeChanged:
			refused++
		default:
			t.Fatalf("try %d: %v", i, err)
		}
		must(t, dst.Close())
		noSecret(t, base+"/copy")
		must(t, RemoveTree(parent, "copy"))
	}
	t.Logf("%d copies whole, %d refused, %d swaps", whole, refused, swaps.Load())
	if swaps.Load() < int64(tries) || refused == 0 {
		t.Error("there was no race")
	}
}

func noSecret(t *testing.T, dir string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), secret) {
			t.Fatalf("%s came from outside", path)
		}
		return err
	}))
}

// The same against removal: what is outside stays.
func TestRemoveRace(t *testing.T) {
	tries := 2000
	if testing.Short() {
		tries = 200
	}
	outside, base := raceDir(t), raceDir(t)
	must(t, os.MkdirAll(outside+"/deep", 0o755))
	must(t, os.WriteFile(outside+"/f", []byte(secret), 0o600))
	must(t, os.WriteFile(outside+"/deep/f", []byte(secret), 0o600))
	must(t, os.Symlink(outside, base+"/link"))
	dir := openDirFile(t, base)
	swaps := attack(t, [2]place{{dir, "tree"}, {dir, "link"}}, [2]place{{dir, "tree"}, {dir, "other"}})
	for range tries {
		if err := os.MkdirAll(base+"/tree/a/deep", 0o700); err == nil {
			_ = os.WriteFile(base+"/tree/a/mine", nil, 0o600)
			_ = os.Mkdir(base+"/other", 0o700)
		}
		if err := RemoveTree(dir, "tree"); err != nil && Code(err) != CodeChanged {
			t.Fatal(err)
		}
		for _, name := range []string{"link", "other"} {
			if err := RemoveTree(dir, name); err != nil && Code(err) != CodeChanged {
				t.Fatal(err)
			}
		}
		if _, err := os.Stat(outside + "/deep/f"); err != nil {
			t.Fatal("something outside was removed")
		}
		if _, err := os.Stat(outside + "/f"); err != nil {
			t.Fatal("something outside was removed")
		}
		if err := os.Symlink(outside, base+"/link"); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	t.Logf("%d swaps", swaps.Load())
}
