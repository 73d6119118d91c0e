package safefile

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

func ownerDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "own")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestReadOwnerRefuses(t *testing.T) {
	for _, c := range []struct {
		name, code string
		make       func(t *testing.T, path string)
	}{
		{"good", "", func(t *testing.T, p string) { write(t, p, "data", 0o600) }},
		{"at the bound", "", func(t *testing.T, p string) { write(t, p, strings.Repeat("x", 100), 0o600) }},
		{"past the bound", CodeTooLarge, func(t *testing.T, p string) { write(t, p, strings.Repeat("x", 101), 0o600) }},
		{"absent", CodeNotFound, func(*testing.T, string) {}},
		{"empty", CodeEmpty, func(t *testing.T, p string) { write(t, p, "", 0o600) }},
		{"group readable", CodeMode, func(t *testing.T, p string) { write(t, p, "data", 0o640) }},
		{"owner read only", CodeMode, func(t *testing.T, p string) { write(t, p, "data", 0o400) }},
		{"setuid", CodeMode, func(t *testing.T, p string) { write(t, p, "data", 0o600|os.ModeSetuid) }},
		{"symlink", CodeSymlink, func(t *testing.T, p string) {
			write(t, p+".real", "data", 0o600)
			must(t, os.Symlink(p+".real", p))
		}},
		{"dangling symlink", CodeSymlink, func(t *testing.T, p string) { must(t, os.Symlink("/nowhere", p)) }},
		{"two links", CodeLinks, func(t *testing.T, p string) {
			write(t, p, "data", 0o600)
			must(t, os.Link(p, p+".other"))
		}},
		{"directory", CodeNotRegular, func(t *testing.T, p string) { must(t, os.Mkdir(p, 0o600)) }},
		{"fifo", CodeNotRegular, func(t *testing.T, p string) { must(t, unix.Mkfifo(p, 0o600)) }},
		{"parent is a file", CodeNotFound, func(t *testing.T, p string) {
			must(t, os.Remove(filepath.Dir(p)))
			write(t, filepath.Dir(p), "x", 0o600)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(ownerDir(t), "file")
			c.make(t, path)
			data, _, err := ReadOwner(path, 100)
			if code(err) != c.code {
				t.Fatalf("ReadOwner = %q, %v, want code %q", data, err, c.code)
			}
		})
	}
	if _, _, err := ReadOwner("relative", 100); code(err) != CodeNotAbsolute {
		t.Errorf("relative path: %v, want %s", err, CodeNotAbsolute)
	}
}

func TestForeignOwnerIsRefused(t *testing.T) {
	require.Root(t)
	path := filepath.Join(ownerDir(t), "file")
	write(t, path, "data", 0o600)
	must(t, os.Chown(path, 65534, 65534))
	if _, _, err := ReadOwner(path, 100); code(err) != CodeOwner {
		t.Errorf("ReadOwner of a foreign file: %v, want %s", err, CodeOwner)
	}
	must(t, os.Chown(filepath.Dir(path), 65534, 65534))
	if _, _, err := OpenOwnerDir(filepath.Dir(path)); code(err) != CodeOwner {
		t.Errorf("OpenOwnerDir of a foreign directory: %v, want %s", err, CodeOwner)
	}
}

func TestOwnerDir(t *testing.T) {
	base := ownerDir(t)
	write(t, filepath.Join(base, "file"), "x", 0o600)
	must(t, os.Mkdir(filepath.Join(base, "open"), 0o750))
	must(t, os.Symlink(base, filepath.Join(base, "link")))
	for name, want := range map[string]string{
		"": "", "absent": CodeNotFound, "file": CodeNotDirectory, "open": CodeMode, "link": CodeSymlink,
	} {
		f, _, err := OpenOwnerDir(filepath.Join(base, name))
		if code(err) != want {
			t.Errorf("OpenOwnerDir(%q) = %v, want code %q", name, err, want)
		}
		if err == nil {
			f.Close()
		}
	}
	old := unix.Umask(0o277)
	f, _, err := MakeOwnerDir(filepath.Join(base, "new"))
	unix.Umask(old)
	if err != nil {
		t.Fatalf("MakeOwnerDir under umask 0277: %v", err)
	}
	f.Close()
	if _, _, err := MakeOwnerDir(filepath.Join(base, "open")); code(err) != CodeMode {
		t.Errorf("MakeOwnerDir over an open directory: %v, want %s: an existing one is never mended", err, CodeMode)
	}
}

func TestWriteOwnerReplacesWhole(t *testing.T) {
	dir := ownerDir(t)
	path := filepath.Join(dir, "file")
	write(t, filepath.Join(dir, ".file.new"), "left by a crash", 0o600)
	for _, text := range []string{"one", "two, longer"} {
		must(t, WriteOwner(path, []byte(text)))
		got, _, err := ReadOwner(path, 100)
		if err != nil || string(got) != text {
			t.Fatalf("after WriteOwner(%q): %q, %v", text, got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	must(t, err)
	if len(entries) != 1 {
		t.Errorf("WriteOwner left %v behind", entries)
	}
	must(t, os.Chmod(dir, 0o750))
	if err := WriteOwner(path, []byte("x")); code(err) != CodeMode {
		t.Errorf("WriteOwner in an open directory: %v, want %s", err, CodeMode)
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(ownerDir(t), "lock")
	l, err := LockFile(path)
	must(t, err)
	if _, err := LockFile(path); !errors.Is(err, ErrLocked) {
		t.Errorf("second LockFile = %v, want ErrLocked", err)
	}
	must(t, l.Unlock())
	again, err := LockFile(path)
	must(t, err)
	must(t, again.Unlock())
}

func TestCreateOwnerIsExclusive(t *testing.T) {
	path := filepath.Join(ownerDir(t), "file")
	f, err := CreateOwner(path)
	must(t, err)
	defer f.Close()
	if _, err := CreateOwner(path); code(err) != CodeExists {
		t.Errorf("second CreateOwner = %v, want %s", err, CodeExists)
	}
}

func TestCheckPeer(t *testing.T) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(ownerDir(t), "s"), Net: "unix"})
	must(t, err)
	defer l.Close()
	client, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	must(t, err)
	defer client.Close()
	server, err := l.AcceptUnix()
	must(t, err)
	defer server.Close()
	uid, pid, err := CheckPeer(server)
	if err != nil || uid != uint32(os.Geteuid()) || pid != int32(os.Getpid()) {
		t.Errorf("CheckPeer = %d, %d, %v, want %d, %d", uid, pid, err, os.Geteuid(), os.Getpid())
	}
}

func write(t *testing.T, path, data string, mode os.FileMode) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(data), 0o600))
	must(t, os.Chmod(path, mode))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
