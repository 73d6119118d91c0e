package journal_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
)

// mountsEnv marks the copy of a test that runs in a mount namespace of its own.
const mountsEnv = "GLOVE_JOURNAL_TEST_MOUNTS"

// inMounts runs the test again, alone, in a private mount namespace, and reports
// whether this is that run. What it mounts is gone with it, however it ends.
func inMounts(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mountsEnv) != "" {
		return true
	}
	require.Root(t)
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.Command(exe, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mountsEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		require.Skip(t, "mount namespaces; run the tests where root may make them")
	case strings.Contains(string(out), "--- SKIP"):
		require.Skip(t, string(out))
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// tmpfs mounts one of that size and returns an owner directory on it.
func tmpfs(t *testing.T, size int) string {
	t.Helper()
	at := t.TempDir()
	if err := unix.Mount("tmpfs", at, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, fmt.Sprintf("mode=0700,size=%d", size)); err != nil {
		require.Skip(t, "mounting a tmpfs: "+err.Error())
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	return at
}

// ext4 makes one of that size and returns an owner directory on it.
func ext4(t *testing.T, size int64) string {
	t.Helper()
	mkfs := require.Tool(t, "mkfs.ext4")
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Close()))
	if out, err := exec.Command(mkfs, "-q", "-m", "0", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := t.TempDir()
	if out, err := exec.Command(require.Tool(t, "mount"), "-o", "loop,errors=remount-ro", image, at).CombinedOutput(); err != nil {
		require.Skip(t, "mounting a loop device: "+string(out))
	}
	t.Cleanup(func() {
		if out, err := exec.Command(require.Tool(t, "umount"), at).CombinedOutput(); err != nil {
			t.Errorf("umount: %v: %s", err, out)
		}
	})
	d := filepath.Join(at, "d")
	must(t, os.Mkdir(d, 0o700))
	return d
}

// fill takes every byte that is left of the file system, and gives it back.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	must(t, err)
	for size := 64 << 10; size > 0; {
		_, err := f.Write(make([]byte, size))
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			size /= 2
		}
	}
	must(t, f.Close())
	return func() { must(t, os.Remove(name)) }
}

// disks are the file systems of the tests below.
var disks = map[string]func(*testing.T) string{
	"tmpfs": func(t *testing.T) string { return tmpfs(t, 2<<20) },
	"ext4":  func(t *testing.T) string { return ext4(t, 8<<20) },
}

func onDisks(t *testing.T, run func(t *testing.T, dir string)) {
	if !inMounts(t) {
		return
	}
	for name, disk := range disks {
		t.Run(name, func(t *testing.T) { run(t, disk(t)) })
	}
}

// A disk that is full refuses every append and reservation as want of room, and
// nothing else: what is reserved can still be written, to the last byte, the
// journal is not poisoned, and goes on by itself when there is room again.
func TestDiskFull(t *testing.T) {
	onDisks(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "log.jsonl")
		j := open(t, path, journal.Options{})
		appendN(t, j, 3)
		const reserved = 100 << 10
		res, err := j.Reserve(10, reserved)
		must(t, err)
		empty := fill(t, dir)
		ctx := context.Background()
		refused := 0
		for n := 0; refused < 3; n++ {
			// Small appends fit into what was asked for ahead; then they are refused.
			switch _, err := j.Append(ctx, body{strings.Repeat("x", 3000), n}); {
			case code(err) == journal.CodeCapacity:
				refused++
			case err != nil || n > 1000:
				t.Fatalf("append %d: %v", n, err)
			}
		}
		if _, err := j.Reserve(1, 64<<10); code(err) != journal.CodeCapacity {
			t.Errorf("reserve: %v", err)
		}
		before := j.Head()
		if _, err := j.Rotate(ctx, func(r *journal.Rotation) error {
			return r.Walk(func(e journal.Entry) error {
				var b body
				if err := e.Decode(&b); err != nil {
					return err
				}
				_, err := r.Put(b)
				return err
			})
		}); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("rotate: %v", err)
		}
		if s := j.Stats(); s.Poisoned || s.Head != before || j.Archive() != nil {
			t.Errorf("after the rotation that failed: %+v", s)
		}
		if names, err := filepath.Glob(filepath.Join(dir, "*log*")); err != nil || len(names) != 1 {
			t.Errorf("left behind: %v", names)
		}
		for left := reserved; left > 0; {
			n := min(left, 10<<10)
			left -= n
			if _, err := res.Append(ctx, body{strings.Repeat("r", n-400), 1}); err != nil {
				t.Fatalf("a reserved append: %v", err)
			}
		}
		empty()
		appendN(t, j, 3)
		if _, err := j.Rotate(ctx, keepNothing); err != nil {
			t.Errorf("rotate with room: %v", err)
		}
		must(t, j.Close())
		if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || v.Status != journal.StatusClean {
			t.Errorf("%+v %v", v, err)
		}
	})
}

// A session that runs when the disk fills up is put on record to its end, with its
// receipt; new ones are refused with capacity, at every step before they run.
func TestSessionEndsOnAFullDisk(t *testing.T) {
	onDisks(t, func(t *testing.T, dir string) {
		k := newKeeper(t, dir)
		k.to("runs", session.Running)
		k.to("waits", session.Created)
		room, err := k.receipts.Reserve("runs", ctl, prof)
		must(t, err)
		empty := fill(t, dir)
		full := false
		for n := 0; !full; n++ {
			_, err := k.create(fmt.Sprint("n", n))
			full = session.CodeOf(err) == session.Capacity
			if err != nil && !full || n > 1000 {
				t.Fatal(err)
			}
		}
		if _, err := k.store.ReserveStart(t.Context(), "k", k.auth("waits"), resolves); session.CodeOf(err) != session.Capacity {
			t.Errorf("start: %v", err)
		}
		for n := 0; ; n++ { // what was asked for ahead is soon used up
			if _, err := k.receipts.Reserve(fmt.Sprint("new", n), ctl, prof); receipt.CodeOf(err) == receipt.Capacity {
				break
			} else if err != nil || n > 100 {
				t.Fatal(err)
			}
		}
		k.end("runs", room)
		for _, err := range []error{k.store.Check(), func() error { _, err := k.receipts.Check(); return err }()} {
			if err != nil {
				t.Errorf("a full disk poisoned a journal: %v", err)
			}
		}
		empty()
		if _, err := k.create("after"); err != nil {
			t.Errorf("with room again: %v", err)
		}
		k.reopen()
		if r, err := k.store.Get("runs"); err != nil || r.State != session.Exited {
			t.Errorf("%+v %v", r, err)
		}
	})
}

// A file system that became read-only, or whose device answers nothing but EIO,
// poisons the journal at the next write: no record is acknowledged that is not
// there, and what was acknowledged is there afterwards.
func TestDeviceGone(t *testing.T) {
	if !inMounts(t) {
		return
	}
	for name, harm := range map[string]func(t *testing.T, dir string) error{
		// The superblock's own emergency, as after a failed write of metadata.
		"read-only": func(t *testing.T, dir string) error {
			device := mountSource(t, dir)
			return os.WriteFile("/sys/fs/ext4/"+filepath.Base(device)+"/trigger_fs_error", []byte("1"), 0)
		},
		"EIO": func(t *testing.T, dir string) error {
			f, err := os.Open(dir)
			must(t, err)
			defer f.Close()
			flags := uint32(2)                                                                               // EXT4_GOING_FLAGS_NOLOGFLUSH
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), 0x8004587d, uintptr(unsafe.Pointer(&flags))) // EXT4_IOC_SHUTDOWN
			if errno != 0 {
				return errno
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := ext4(t, 8<<20)
			path := filepath.Join(dir, "log.jsonl")
			j := open(t, path, journal.Options{})
			appendN(t, j, 3)
			res, err := j.Reserve(3, 3000)
			must(t, err)
			head := j.Head()
			if err := harm(t, dir); err != nil {
				require.Skip(t, "this kernel's ext4 cannot be told to fail: "+err.Error())
			}
			ctx := context.Background()
			for _, try := range []func() error{
				func() error { _, err := j.Append(ctx, body{"x", 1}); return err },
				func() error { _, err := res.Append(ctx, body{"x", 1}); return err },
				func() error { _, err := j.Rotate(ctx, keepNothing); return err },
				func() error { _, err := j.Reserve(1, 1<<20); return err },
			} {
				if err := try(); err == nil {
					t.Error("something was acknowledged")
				}
			}
			if s := j.Stats(); !s.Poisoned || s.Head != head {
				t.Errorf("%+v", s)
			}
			_ = j.Close() // the device is gone
			if _, err := journal.Open(path, journal.Options{}, nil); err == nil {
				t.Error("it opens for writing")
			}
		})
	}
}

// mountSource is the device that dir is on.
func mountSource(t *testing.T, dir string) string {
	t.Helper()
	out, err := exec.Command(require.Tool(t, "findmnt"), "-n", "-o", "SOURCE", "--target", dir).Output()
	must(t, err)
	return strings.TrimSpace(string(out))
}

// A read-only file system refuses an open, and can still be verified.
func TestReadOnly(t *testing.T) {
	if !inMounts(t) {
		return
	}
	dir := tmpfs(t, 1<<20)
	path := filepath.Join(dir, "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 3)
	rotate(t, j, keepNothing)
	must(t, j.Close())
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if _, err := journal.Open(path, journal.Options{}, nil); code(err) != journal.CodeIO || !errors.Is(err, unix.EROFS) {
		t.Errorf("open: %v", err)
	}
	if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || len(v.Archives) != 1 {
		t.Errorf("verify: %+v %v", v, err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	open(t, path, journal.Options{})
}
