package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

// The test binary runs itself again as uid 0 of a new user and mount
// namespace, under an unprivileged user, to push the same cases through there.
const inUserns = "GLOVE_TEST_QUOTA_USERNS"

func TestUserNamespace(t *testing.T) {
	if os.Getenv(inUserns) != "" {
		return
	}
	require.Root(t)
	cmd := exec.Command("/proc/self/exe", "-test.run", "^Test(Tmpfs|Watcher)", "-test.count=1")
	cmd.Env = append(os.Environ(), inUserns+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 54321, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 54321, Size: 1}},
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("in a user namespace: %v\n%s", err, out)
	}
}

func needMounts(t *testing.T) {
	t.Helper()
	if os.Getenv(inUserns) == "" {
		require.Root(t)
	}
}

func newFS(t *testing.T, p Partition, o Options) *FS {
	t.Helper()
	needMounts(t)
	f, err := NewTmpfs(p, o)
	if err != nil {
		t.Fatalf("NewTmpfs(%+v): %v (%v)", p, err, errors.Unwrap(err))
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func create(t *testing.T, dir *os.File, name string) *os.File {
	t.Helper()
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTmpfsSizes(t *testing.T) {
	for _, pages := range []uint64{1, 2, 3, 255, 256, 257, 512, 513, 1 << 20} {
		p := Partition{Alias: "a", Bytes: pages * page, Inodes: 1000 + pages%7}
		u, err := newFS(t, p, Options{Mode: 0o700}).Usage()
		if err != nil || u.TotalBytes != p.Bytes || u.TotalInodes != p.Inodes {
			t.Errorf("%+v: %+v, %v", p, u, err)
		}
		// An empty root costs no page and one inode.
		if u.UsedBytes != 0 || u.UsedInodes != 1 || u.Reason() != "" {
			t.Errorf("%+v is not empty: %+v", p, u)
		}
	}
}

func TestTmpfsRefuses(t *testing.T) {
	needMounts(t)
	for _, c := range []struct {
		p    Partition
		o    Options
		code string
	}{
		{Partition{Bytes: 0, Inodes: 100}, Options{}, CodeSize},
		{Partition{Bytes: page + 1, Inodes: 100}, Options{}, CodeSize},
		{Partition{Bytes: MaxBytes + 1, Inodes: 100}, Options{}, CodeSize},
		{Partition{Bytes: page, Inodes: 0}, Options{}, CodeInodes},
		{Partition{Bytes: page, Inodes: 1}, Options{}, CodeInodes},
		{Partition{Bytes: page, Inodes: MaxInodes + 1}, Options{}, CodeInodes},
		{Partition{Bytes: page, Inodes: 2}, Options{Mode: 0o4755}, CodeKernel},
	} {
		f, err := NewTmpfs(c.p, c.o)
		if !errors.Is(err, &Error{Code: c.code}) {
			t.Errorf("NewTmpfs(%+v, %+v) = %v, %v; want %s", c.p, c.o, f, err, c.code)
		}
	}
	for _, p := range []Partition{{Bytes: page, Inodes: 2}, {Bytes: page, Inodes: MaxInodes}} {
		newFS(t, p, Options{Mode: 0o1777})
	}
}

// Every way of filling the bytes ends with ENOSPC at used == total, so the
// kernel's refusal and our detection are the same moment.
func TestTmpfsFullOfBytes(t *testing.T) {
	for _, step := range []int{1, page - 1, page, page + 1, 1 << 16, 3 << 20} {
		f := newFS(t, Partition{Alias: "a", Bytes: 256 * page, Inodes: 1024}, Options{Mode: 0o700})
		file := create(t, f.Dir(), "x")
		if step == 1 { // leave one page, then go byte by byte
			if err := unix.Fallocate(int(file.Fd()), 0, 0, 255*page); err != nil {
				t.Fatal(err)
			}
			file.Seek(255*page, 0)
		}
		buf := make([]byte, step)
		var total int
		var err error
		for err == nil {
			var n int
			n, err = unix.Write(int(file.Fd()), buf)
			total += max(n, 0)
			if u, _ := f.Usage(); u.UsedBytes < 256*page && u.Reason() != "" {
				t.Fatalf("full too early: %+v", u)
			}
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("write: %v", err)
		}
		if u, err := f.Usage(); err != nil || u.UsedBytes != 256*page || u.Reason() != ReasonBytes {
			t.Errorf("step %d: after ENOSPC at %d: %+v %v", step, total, u, err)
		}
		file.Truncate(0)
		if u, _ := f.Usage(); u.UsedBytes != 0 || u.Reason() != "" {
			t.Errorf("after truncation: %+v", u)
		}
	}
}

func TestTmpfsFullOfInodes(t *testing.T) {
	makers := map[string]func(dir int, name string) error{
		"files": func(dir int, name string) error {
			fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
			if err == nil {
				unix.Close(fd)
			}
			return err
		},
		"directories": func(dir int, name string) error { return unix.Mkdirat(dir, name, 0o700) },
		"symlinks":    func(dir int, name string) error { return unix.Symlinkat("t", dir, name) },
		"fifos":       func(dir int, name string) error { return unix.Mknodat(dir, name, unix.S_IFIFO|0o600, 0) },
		"hard links": func(dir int, name string) error {
			if name == "0" {
				return unix.Mknodat(dir, name, unix.S_IFREG|0o600, 0)
			}
			return unix.Linkat(dir, "0", dir, name, 0)
		},
	}
	for kind, mk := range makers {
		t.Run(kind, func(t *testing.T) {
			f := newFS(t, Partition{Alias: "a", Bytes: 64 * page, Inodes: 20}, Options{Mode: 0o700})
			n := 0
			var err error
			for err == nil && n <= 20 {
				if err = mk(int(f.Dir().Fd()), fmt.Sprint(n)); err == nil {
					n++
				}
			}
			u, _ := f.Usage()
			if !errors.Is(err, unix.ENOSPC) || n != 19 || u.Reason() != ReasonInodes {
				t.Errorf("%d made, then %v; %+v", n, err, u)
			}
		})
	}
}

func TestTmpfsFlagsAndOwner(t *testing.T) {
	for _, noexec := range []bool{false, true} {
		f := newFS(t, Partition{Bytes: page, Inodes: 9}, Options{Mode: 0o1770, NoExec: noexec})
		sub, err := f.Sub("s", 0o1777, 0, 0)
		if err != nil {
			t.Fatal(err, errors.Unwrap(err))
		}
		defer sub.Close()
		for _, file := range []*os.File{f.Mount(), f.Dir(), sub} {
			var st unix.Statfs_t
			if err := unix.Fstatfs(int(file.Fd()), &st); err != nil {
				t.Fatal(err)
			}
			const want = unix.ST_NOSUID | unix.ST_NODEV
			if st.Flags&want != want || (st.Flags&unix.ST_NOEXEC != 0) != noexec {
				t.Errorf("%s: flags %#x, noexec %v", file.Name(), st.Flags, noexec)
			}
		}
		for file, mode := range map[*os.File]uint32{f.Dir(): 0o1770, sub: 0o1777} {
			var st unix.Stat_t
			if err := unix.Fstat(int(file.Fd()), &st); err != nil || st.Mode&0o7777 != mode || st.Uid != 0 {
				t.Errorf("%s: %v %#o uid %d", file.Name(), err, st.Mode, st.Uid)
			}
		}
	}
}

func TestTmpfsForeignOwner(t *testing.T) {
	if os.Getenv(inUserns) != "" {
		return // one id is mapped there
	}
	f := newFS(t, Partition{Bytes: 2 * page, Inodes: 9}, Options{UID: 7001, GID: 7002, Mode: 0o700})
	sub, err := f.Sub("home", 0o750, 7003, 7004)
	if err != nil {
		t.Fatal(err)
	}
	defer sub.Close()
	for file, want := range map[*os.File][2]uint32{f.Dir(): {7001, 7002}, sub: {7003, 7004}} {
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil || st.Uid != want[0] || st.Gid != want[1] {
			t.Errorf("%s: %v, owner %d:%d, want %v", file.Name(), err, st.Uid, st.Gid, want)
		}
	}
}

func TestTmpfsSubNames(t *testing.T) {
	f := newFS(t, Partition{Bytes: page, Inodes: 9}, Options{Mode: 0o700})
	for _, name := range []string{"", ".", "..", "a/b", "/", "x\x00", strings.Repeat("n", 256)} {
		if _, err := f.Sub(name, 0o700, 0, 0); !errors.Is(err, &Error{Code: CodeName}) {
			t.Errorf("Sub(%q): %v", name, err)
		}
	}
	sub, err := f.Sub(strings.Repeat("n", 255), 0o700, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	sub.Close()
	if _, err := f.Sub(strings.Repeat("n", 255), 0o700, 0, 0); !errors.Is(err, unix.EEXIST) {
		t.Errorf("second Sub of the same name: %v", err)
	}
	f.Close()
	if _, err := f.Sub("late", 0o700, 0, 0); !errors.Is(err, &Error{Code: CodeClosed}) {
		t.Errorf("Sub after Close: %v", err)
	}
	if _, err := f.Usage(); !errors.Is(err, &Error{Code: CodeClosed}) {
		t.Errorf("Usage after Close: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// onThread runs fn in a mount namespace of its own, which ends with it.
func onThread(t *testing.T, fn func() error) {
	t.Helper()
	var err error
	onDyingThread(func() {
		if err = unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return
		}
		if err = unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err == nil {
			err = fn()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A partition and its parts work after they were moved to another namespace,
// they share the one quota, and Usage sees it from outside. Both ways of
// cloning are tried; the second is what kernels before 6.15 use.
func TestTmpfsMoved(t *testing.T) {
	ways := map[string]func(f *FS, name string) (*os.File, error){
		"direct": func(f *FS, name string) (*os.File, error) { return f.Sub(name, 0o700, 0, 0) },
		"through a namespace": func(f *FS, name string) (*os.File, error) {
			if err := unix.Mkdirat(int(f.Dir().Fd()), name, 0o700); err != nil {
				return nil, err
			}
			fd, err := cloneThroughNamespace(int(f.Mount().Fd()), name)
			return os.NewFile(uintptr(fd), name), err
		},
	}
	for way, sub := range ways {
		t.Run(way, func(t *testing.T) {
			f := newFS(t, Partition{Bytes: 64 * page, Inodes: 100}, Options{Mode: 0o755})
			before := countMounts(t)
			a, err := sub(f, "a")
			if err != nil {
				t.Fatal(err, errors.Unwrap(err))
			}
			defer a.Close()
			b, err := sub(f, "b")
			if err != nil {
				t.Fatal(err, errors.Unwrap(err))
			}
			defer b.Close()
			onThread(t, func() error {
				for from, to := range map[*os.File]string{f.Mount(): "/mnt", a: "/tmp", b: "/var"} {
					if err := unix.MoveMount(int(from.Fd()), "", unix.AT_FDCWD, to, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
						return fmt.Errorf("%s: %w", to, err)
					}
				}
				for i, name := range []string{"/tmp/x", "/var/y", "/mnt/z"} {
					if err := os.WriteFile(name, make([]byte, (i+1)*page), 0o600); err != nil {
						return err
					}
				}
				if _, err := os.Stat("/mnt/a/x"); err != nil {
					return err
				}
				if _, err := os.Stat("/tmp/../a"); err == nil {
					return errors.New("the part leads to the whole")
				}
				u, err := f.Usage()
				if err != nil || u.UsedBytes != 6*page || u.UsedInodes != 6 {
					return fmt.Errorf("usage %+v, %v", u, err)
				}
				return nil
			})
			if u, err := f.Usage(); err != nil || u.UsedBytes != 6*page {
				t.Errorf("usage after the namespace ended: %+v, %v", u, err)
			}
			if after := countMounts(t); after != before {
				t.Errorf("%d mounts before, %d after", before, after)
			}
		})
	}
}

func countMounts(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(data), "\n")
}

// 200 filesystems come and go without a descriptor or a mount left behind.
func TestTmpfsConservation(t *testing.T) {
	needMounts(t)
	fds := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	mounts, open := countMounts(t), fds()
	for range 200 {
		f, err := NewTmpfs(Partition{Bytes: page, Inodes: 10}, Options{Mode: 0o700})
		if err != nil {
			t.Fatal(err)
		}
		sub, err := f.Sub("s", 0o700, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		sub.Close()
		f.Close()
	}
	if m, o := countMounts(t), fds(); m != mounts || o > open {
		t.Errorf("mounts %d to %d, descriptors %d to %d", mounts, m, open, o)
	}
}
