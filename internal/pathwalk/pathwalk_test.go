package pathwalk

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// base returns a temporary directory whose own path has no links (darwin's /tmp is one).
func base(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestOpenFindsFilesAndDirectories(t *testing.T) {
	dir := base(t)
	file := filepath.Join(dir, "a", "f")
	must(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
	must(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, path := range []string{file, filepath.Join(dir, "a")} {
		f, id, err := Open(path)
		if err != nil {
			t.Fatalf("Open(%q): %v", path, err)
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if id.Ino != st.Ino || id.IsDir() == id.IsRegular() {
			t.Errorf("Open(%q) identity %+v, want inode %d", path, id, st.Ino)
		}
		got, err := FromFile(f)
		if err != nil || got != id {
			t.Errorf("FromFile = %+v, %v; want %+v", got, err, id)
		}
		must(t, f.Close())
		again, err := Identify(path)
		if err != nil || !again.SameObject(id) {
			t.Errorf("Identify(%q) = %+v, %v; want %+v", path, again, err, id)
		}
	}
}

func TestOpenRefusals(t *testing.T) {
	dir := base(t)
	must(t, os.MkdirAll(filepath.Join(dir, "real", "sub"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("file", filepath.Join(dir, "flink")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	tests := []struct{ path, code string }{
		{"", CodeInvalid},
		{"/", CodeInvalid},
		{"relative", CodeInvalid},
		{dir + "/", CodeInvalid},
		{dir + "//real", CodeInvalid},
		{dir + "/./real", CodeInvalid},
		{dir + "/real/..", CodeInvalid},
		{dir + "/re\x00al", CodeInvalid},
		{dir + "/" + strings.Repeat("a", 256), CodeInvalid},
		{"/" + strings.Repeat("a/", MaxPath/2) + "b", CodeInvalid},
		{dir + "/missing", CodeNotFound},
		{dir + "/missing/below", CodeNotFound},
		{dir + "/link", CodeSymlink},
		{dir + "/link/sub", CodeSymlink},
		{dir + "/flink", CodeSymlink},
		{dir + "/dangling", CodeSymlink},
		{dir + "/file/below", CodeNotDirectory},
		{dir + "/fifo", CodeSpecial},
		{dir + "/fifo/below", CodeNotDirectory},
		{"/dev/null", CodeSpecial},
	}
	for _, tt := range tests {
		f, _, err := Open(tt.path)
		if f != nil {
			f.Close()
		}
		if got := Code(err); got != tt.code {
			t.Errorf("Open(%.60q) code %q (%v), want %q", tt.path, got, err, tt.code)
		}
	}
}

func TestSocketIsSpecial(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "pw") // a short name: sun_path is 108 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	dir, err = filepath.EvalSymlinks(dir)
	must(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	defer l.Close()
	if _, _, err := Open(filepath.Join(dir, "s")); Code(err) != CodeSpecial {
		t.Errorf("Open(socket) = %v, want %s", err, CodeSpecial)
	}
}

func TestMissingIsErrNotExist(t *testing.T) {
	_, err := Identify(filepath.Join(base(t), "missing"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("errors.Is(%v, fs.ErrNotExist) = false", err)
	}
	_, err = Identify("relative")
	if errors.Is(err, fs.ErrNotExist) {
		t.Errorf("errors.Is(%v, fs.ErrNotExist) = true for an invalid path", err)
	}
}

func TestReplacedObjectIsAnotherIdentity(t *testing.T) {
	path := filepath.Join(base(t), "d")
	must(t, os.Mkdir(path, 0o700))
	f, before, err := Open(path) // held, so that the inode number cannot be reused
	must(t, err)
	defer f.Close()
	must(t, os.Rename(path, path+".old"))
	must(t, os.Mkdir(path, 0o700))
	after, err := Identify(path)
	must(t, err)
	if before.SameObject(after) {
		t.Errorf("replaced directory kept identity %+v", after)
	}
	must(t, os.Chmod(path, 0o750))
	changed, err := Identify(path)
	must(t, err)
	if after.SameObject(changed) {
		t.Errorf("changed mode kept identity %+v", changed)
	}
}

// A walk must not leak descriptors on any path out.
func TestNoDescriptorLeak(t *testing.T) {
	dir := base(t)
	must(t, os.Symlink(dir, filepath.Join(dir, "link")))
	next := func() int {
		fd, err := unix.Dup(0)
		must(t, err)
		must(t, unix.Close(fd))
		return fd
	}
	before := next()
	for range 50 {
		_, _ = Identify(filepath.Join(dir, "link", "x"))
		_, _ = Identify(filepath.Join(dir, "missing"))
		_, err := Identify(dir)
		must(t, err)
	}
	if after := next(); after != before {
		t.Errorf("lowest free descriptor went from %d to %d", before, after)
	}
}
