package workspace

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

func left(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	return fmt.Sprint(list)
}

func TestRemoveTree(t *testing.T) {
	base, outside := tempDir(t), tempDir(t)
	dir := openDirFile(t, base)
	must(t, os.WriteFile(outside+"/kept", nil, 0o600))
	for name, make := range map[string]func(path string){
		"absent": func(string) {},
		"file":   func(p string) { must(t, os.WriteFile(p, nil, 0o400)) },
		"link":   func(p string) { must(t, os.Symlink(outside, p)) },
		"fifo":   func(p string) { must(t, unix.Mkfifo(p, 0)) },
		"empty":  func(p string) { must(t, os.Mkdir(p, 0o700)) },
		"tree": func(p string) {
			must(t, os.Mkdir(p, 0o700))
			makeTree(t, p)
			must(t, os.Symlink(outside, p+"/a/out"))
			must(t, unix.Mkfifo(p+"/a/fifo", 0))
		},
		"wide": func(p string) {
			must(t, os.Mkdir(p, 0o700))
			for i := range 3000 {
				must(t, os.WriteFile(fmt.Sprintf("%s/a-rather-long-name-%d", p, i), nil, 0o600))
			}
		},
		"locked": func(p string) {
			must(t, os.MkdirAll(p+"/a/b", 0o700))
			must(t, os.Chmod(p+"/a/b", 0))
			must(t, os.Chmod(p+"/a", 0o400))
			must(t, os.Chmod(p, 0))
		},
		"deep": func(p string) { makeDeep(t, p, 3000) },
	} {
		t.Run(name, func(t *testing.T) {
			make(base + "/it")
			if err := RemoveTree(dir, "it"); err != nil {
				t.Errorf("RemoveTree: %v", err)
			}
			if got := left(t, base); got != "[]" {
				t.Errorf("left: %s", got)
			}
			if _, err := os.Stat(outside + "/kept"); err != nil {
				t.Error(err)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", "/", "a\x00"} {
		if err := RemoveTree(dir, name); Code(err) != CodeOptions {
			t.Errorf("RemoveTree(%q): %v", name, err)
		}
	}
}

// makeDeep makes a chain of directories far beyond PATH_MAX, a file in each.
func makeDeep(t *testing.T, path string, levels int) {
	t.Helper()
	must(t, os.Mkdir(path, 0o700))
	fd, err := unix.Open(path, openDir, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "dir", 0o700))
		file, err := unix.Openat(fd, "file", openNew, 0o600)
		must(t, err)
		must(t, unix.Close(file))
		next, err := unix.Openat(fd, "dir", openDir, 0)
		must(t, err)
		must(t, unix.Close(fd))
		fd = next
	}
	must(t, unix.Close(fd))
}

// inNamespace runs fn on a thread with a mount namespace of its own, which
// ends with the thread.
func inNamespace(t *testing.T, fn func() error) {
	t.Helper()
	done := make(chan error)
	var start func()
	start = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread would not die
			defer runtime.UnlockOSThread()
			inner := make(chan struct{})
			go func() { defer close(inner); start() }()
			<-inner
			return
		}
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, "")
		}
		if err == nil {
			err = fn()
		}
		done <- err
	}
	go start()
	must(t, <-done)
}

// Neither a copy nor a removal crosses into another filesystem, not even one
// that is a bind mount of the same.
func TestMountsInTheTree(t *testing.T) {
	require.Root(t)
	base, dst := tempDir(t), tempDir(t)
	must(t, os.MkdirAll(base+"/tree/a/mounted", 0o755))
	must(t, os.MkdirAll(base+"/other", 0o755))
	must(t, os.WriteFile(base+"/other/kept", nil, 0o600))
	inNamespace(t, func() error {
		if err := unix.Mount(base+"/other", base+"/tree/a/mounted", "", unix.MS_BIND, ""); err != nil {
			return err
		}
		p, err := OpenPinned(base + "/tree")
		if err != nil {
			return err
		}
		defer p.Close()
		to, dir := openDirFile(t, dst), openDirFile(t, base)
		if _, err := CopyTree(t.Context(), p, to, options()); Code(err) != CodeMount {
			t.Errorf("CopyTree: %v", err)
		}
		if _, _, err := Measure(t.Context(), p); Code(err) != CodeMount {
			t.Errorf("Measure: %v", err)
		}
		if err := RemoveTree(dir, "tree"); Code(err) != CodeMount {
			t.Errorf("RemoveTree: %v", err)
		}
		if _, err := os.Stat(base + "/other/kept"); err != nil {
			t.Error(err)
		}
		return nil
	})
}

const unprivileged = "GLOVE_TEST_WORKSPACE_UNPRIVILEGED"

// The tests again as a user without any privilege, who also meets what may not
// be read.
func TestAsUnprivilegedUser(t *testing.T) {
	if os.Getenv(unprivileged) != "" {
		return
	}
	require.Root(t)
	dir, err := os.MkdirTemp("/dev/shm", "glove-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o777))
	exe, err := os.Executable()
	must(t, err)
	data, err := os.ReadFile(exe)
	must(t, err)
	must(t, os.WriteFile(dir+"/test", data, 0o755)) // the build directory is private
	cmd := exec.Command(dir+"/test", "-test.short", "-test.count=1")
	cmd.Dir = dir
	cmd.Env = []string{unprivileged + "=1", "TMPDIR=" + dir, "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("as uid 54321: %v\n%s", err, out)
	}
}

func TestCopyDenied(t *testing.T) {
	if os.Getenv(unprivileged) == "" {
		return // TestAsUnprivilegedUser runs it
	}
	for _, name := range []string{"file", "directory"} {
		src := tempDir(t)
		if name == "file" {
			must(t, os.WriteFile(src+"/it", nil, 0))
		} else {
			must(t, os.Mkdir(src+"/it", 0))
		}
		if _, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, tempDir(t)), options()); Code(err) != CodeDenied || !strings.Contains(err.Error(), `"it"`) {
			t.Errorf("%s: %v", name, err)
		}
		o := options()
		o.UID = 0
		src = tempDir(t)
		must(t, os.WriteFile(src+"/it", nil, 0o600))
		if _, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, tempDir(t)), o); Code(err) != CodeDenied {
			t.Errorf("giving a copy away: %v", err)
		}
	}
}

// TestUnlockHeld is the way that kernels before 6.6 need; it must not reach
// through a link.
func TestUnlockHeld(t *testing.T) {
	base := t.TempDir()
	for _, name := range []string{"locked", "target"} {
		if err := os.Mkdir(filepath.Join(base, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("target", filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(base)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unlockHeld(int(dir.Fd()), "locked"); err != nil {
		t.Errorf("a locked directory: %v", err)
	}
	if err := unlockHeld(int(dir.Fd()), "link"); err == nil {
		t.Error("a link was followed")
	}
	for name, want := range map[string]os.FileMode{"locked": 0o700, "target": 0} {
		info, err := os.Stat(filepath.Join(base, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v, want %v", name, info.Mode().Perm(), err, want)
		}
	}
	if err := os.Chmod(filepath.Join(base, "target"), 0o700); err != nil {
		t.Fatal(err)
	}
}
