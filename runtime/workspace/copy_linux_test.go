package workspace

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
	"gloved.dev/runtime/quota"
)

func options() CopyOptions {
	return CopyOptions{MaxBytes: 1 << 30, UID: -1, GID: -1}
}

func openDirFile(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// destinations are directories on the filesystem of the sources, and on tmpfs.
func destinations(t *testing.T) map[string]string {
	t.Helper()
	other, err := os.MkdirTemp("/dev/shm", "glove-test-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(other) })
	return map[string]string{"same filesystem": tempDir(t), "tmpfs": other}
}

var sizes = []int{0, 1, 4095, 4096, 4097, copyBuffer - 1, copyBuffer, copyBuffer + 1, 3*copyBuffer + 17, rangeChunk + 1}

// makeTree fills dir with one of everything that can be copied.
func makeTree(t testing.TB, dir string) {
	t.Helper()
	for i, n := range sizes {
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(j>>8 ^ j + i)
		}
		must(t, os.WriteFile(fmt.Sprintf("%s/size-%d", dir, n), data, 0o644))
	}
	must(t, os.MkdirAll(dir+"/a/b/c", 0o755))
	for mode := range os.FileMode(8) {
		name := fmt.Sprintf("%s/a/mode-%d", dir, mode)
		must(t, os.WriteFile(name, []byte("m"), 0o600))
		bits := mode<<6 | mode<<3 | mode
		if os.Geteuid() != 0 {
			bits |= 0o400 // a source must be readable
		}
		must(t, os.Chmod(name, bits))
	}
	must(t, os.WriteFile(dir+"/a/special-bits", nil, 0o600))
	must(t, unix.Chmod(dir+"/a/special-bits", 0o7755))
	must(t, os.Mkdir(dir+"/a/sticky", 0o700))
	must(t, unix.Chmod(dir+"/a/sticky", 0o7575))
	must(t, os.Symlink("/etc", dir+"/a/to-etc"))
	must(t, os.Symlink("../../../..", dir+"/a/b/up"))
	must(t, os.Symlink(strings.Repeat("x", 1000), dir+"/a/dangling"))
	must(t, os.Link(dir+"/size-4096", dir+"/a/b/c/hard"))
	must(t, os.WriteFile(dir+"/a/b/c/odd \n\x01\xff name", []byte("o"), 0o640))
	old := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, unix.NsecToTimespec(old.UnixNano())}
		old = old.Add(time.Hour)
		return unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW)
	}))
}

// describe says everything about a tree that a copy must keep.
func describe(t testing.TB, dir string, isCopy bool) map[string]string {
	t.Helper()
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(dir, path)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		mode, text := st.Mode, ""
		switch kind(&st) {
		case unix.S_IFREG:
			data, err := os.ReadFile(path)
			must(t, err)
			text = fmt.Sprintf("%d %x", len(data), data[:min(len(data), 8)])
			for i, b := range data {
				if i%977 == 0 {
					text += string(rune(b))
				}
			}
			if !isCopy {
				mode = mode&^0o7000 | 0o600
			} else if st.Nlink != 1 {
				t.Errorf("%s has %d links", rel, st.Nlink)
			}
		case unix.S_IFDIR:
			if !isCopy {
				mode = mode&^0o7000 | 0o700
			}
		case unix.S_IFLNK:
			text, err = os.Readlink(path)
			must(t, err)
		}
		all[rel] = fmt.Sprintf("%#o %v %s", mode, st.Mtim, text)
		return nil
	}))
	return all
}

func compare(t testing.TB, want, got map[string]string) {
	t.Helper()
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%q: got %.80q, want %.80q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q is too much", name)
		}
	}
}

func TestCopyTree(t *testing.T) {
	src := tempDir(t)
	makeTree(t, src)
	want := describe(t, src, false)
	var total uint64 = 4096 + 8 + 1
	for _, n := range sizes {
		total += uint64(n)
	}
	for name, dst := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			o := options()
			var lastBytes, lastEntries uint64
			calls := 0
			o.Progress = func(b, e uint64) {
				if b < lastBytes || e < lastEntries {
					t.Errorf("progress went back from %d, %d to %d, %d", lastBytes, lastEntries, b, e)
				}
				lastBytes, lastEntries = b, e
				calls++
			}
			stats, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, dst), o)
			must(t, err)
			compare(t, want, describe(t, dst, true))
			if stats.Bytes != total || stats.Entries != uint64(len(want)) || stats.Links != 3 || stats.Directories != 4 ||
				stats.Entries != stats.Files+stats.Directories+stats.Links {
				t.Errorf("stats %+v, want %d bytes, %d entries", stats, total, len(want))
			}
			if lastBytes != total || lastEntries != stats.Entries || calls < 3 {
				t.Errorf("progress ended at %d, %d after %d calls", lastBytes, lastEntries, calls)
			}
			b, e, err := Measure(t.Context(), pin(t, src))
			if err != nil || b != total || e != stats.Entries {
				t.Errorf("Measure: %d, %d, %v", b, e, err)
			}
			if _, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, dst), options()); Code(err) != CodeExists {
				t.Errorf("a second time: %v", err)
			}
		})
	}
}

func TestCopyFile(t *testing.T) {
	dir := tempDir(t)
	must(t, os.WriteFile(dir+"/f", []byte("contents"), 0o751))
	for name, dst := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			o := options()
			o.FileName, o.MaxBytes, o.MaxEntries = "g", 8, 1
			stats, err := CopyTree(t.Context(), pin(t, dir+"/f"), openDirFile(t, dst), o)
			if err != nil || stats.Bytes != 8 || stats.Entries != 1 || stats.Files != 1 {
				t.Fatalf("%+v, %v", stats, err)
			}
			data, err := os.ReadFile(dst + "/g")
			st, _ := os.Stat(dst + "/g")
			if err != nil || string(data) != "contents" || st.Mode() != 0o751 {
				t.Errorf("%q %v %v", data, st, err)
			}
			if b, n, err := Measure(t.Context(), pin(t, dir+"/f")); b != 8 || n != 1 || err != nil {
				t.Errorf("Measure: %d, %d, %v", b, n, err)
			}
			o.FileName, o.MaxBytes = "h", 7
			if _, err := CopyTree(t.Context(), pin(t, dir+"/f"), openDirFile(t, dst), o); Code(err) != CodeTooLarge {
				t.Errorf("one byte too large: %v", err)
			}
		})
	}
	p := pin(t, dir+"/f")
	must(t, os.Rename(dir+"/f", dir+"/moved"))
	must(t, os.WriteFile(dir+"/f", []byte("another"), 0o644))
	o := options()
	o.FileName = "x"
	if _, err := CopyTree(t.Context(), p, openDirFile(t, dir), o); Code(err) != CodeIdentity {
		t.Errorf("a replaced file: %v", err)
	}
	if _, _, err := Measure(t.Context(), p); Code(err) != CodeIdentity {
		t.Errorf("Measure of a replaced file: %v", err)
	}
	must(t, os.Remove(dir+"/f"))
	must(t, unix.Mkfifo(dir+"/f", 0o600))
	if _, err := CopyTree(t.Context(), p, openDirFile(t, dir), o); Code(err) != CodeIdentity {
		t.Errorf("a FIFO in its place: %v", err)
	}
}

func TestCopyOwner(t *testing.T) {
	require.Root(t)
	src := tempDir(t)
	makeTree(t, src)
	dst := tempDir(t)
	o := options()
	o.UID, o.GID = 7001, 7002
	_, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, dst), o)
	must(t, err)
	compare(t, describe(t, src, false), describe(t, dst, true))
	must(t, filepath.WalkDir(dst, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		must(t, unix.Lstat(path, &st))
		if path != dst && (st.Uid != 7001 || st.Gid != 7002) {
			t.Errorf("%s belongs to %d:%d", path, st.Uid, st.Gid)
		}
		return err
	}))
}

func TestCopySparse(t *testing.T) {
	src := tempDir(t)
	const size = 64 << 20
	f, err := os.Create(src + "/holes")
	must(t, err)
	must(t, f.Truncate(size))
	for _, off := range []int64{0, 5 << 20, 40<<20 + 5} {
		_, err := f.WriteAt([]byte("data"), off)
		must(t, err)
	}
	must(t, f.Close())
	must(t, os.WriteFile(src+"/all-hole", nil, 0o600))
	must(t, os.Truncate(src+"/all-hole", 1<<20))
	for name, dst := range destinations(t) {
		t.Run(name, func(t *testing.T) {
			stats, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, dst), options())
			if err != nil || stats.Bytes != size+1<<20 {
				t.Fatalf("%+v, %v", stats, err)
			}
			a, err := os.ReadFile(src + "/holes")
			must(t, err)
			b, err := os.ReadFile(dst + "/holes")
			must(t, err)
			if !bytes.Equal(a, b) {
				t.Error("contents differ")
			}
			var st unix.Stat_t
			must(t, unix.Stat(dst+"/holes", &st))
			if st.Blocks*512 > 1<<20 {
				t.Errorf("the copy has %d blocks", st.Blocks)
			}
		})
	}
}

// Every bound, and one past it.
func TestCopyBounds(t *testing.T) {
	src := tempDir(t)
	must(t, os.MkdirAll(src+"/1/2/3", 0o755))
	must(t, os.WriteFile(src+"/1/2/3/4", []byte("12345"), 0o600))
	must(t, os.WriteFile(src+"/x", []byte("123"), 0o600)) // 5 entries, depth 4, 8 bytes
	for _, c := range []struct {
		name string
		set  func(*CopyOptions)
		code string
	}{
		{"bytes", func(o *CopyOptions) { o.MaxBytes = 8 }, ""},
		{"a byte less", func(o *CopyOptions) { o.MaxBytes = 7 }, CodeTooLarge},
		{"no bytes", func(o *CopyOptions) { o.MaxBytes = 0 }, CodeOptions},
		{"entries", func(o *CopyOptions) { o.MaxEntries = 5 }, ""},
		{"an entry less", func(o *CopyOptions) { o.MaxEntries = 4 }, CodeTooMany},
		{"most entries", func(o *CopyOptions) { o.MaxEntries = MaxEntries }, ""},
		{"past the most", func(o *CopyOptions) { o.MaxEntries = MaxEntries + 1 }, CodeOptions},
		{"negative entries", func(o *CopyOptions) { o.MaxEntries = -1 }, CodeOptions},
		{"depth", func(o *CopyOptions) { o.MaxDepth = 4 }, ""},
		{"a level less", func(o *CopyOptions) { o.MaxDepth = 3 }, CodeTooDeep},
		{"deepest", func(o *CopyOptions) { o.MaxDepth = MaxDepth }, ""},
		{"past the deepest", func(o *CopyOptions) { o.MaxDepth = MaxDepth + 1 }, CodeOptions},
		{"file name for a directory", func(o *CopyOptions) { o.FileName = "x" }, CodeOptions},
		{"owner", func(o *CopyOptions) { o.UID = -2 }, CodeOptions},
		{"skipping makes room", func(o *CopyOptions) {
			o.MaxEntries, o.MaxBytes = 1, 3
			o.Skip = func(rel string, dir bool) bool { return rel == "1" && dir }
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options()
			c.set(&o)
			_, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, tempDir(t)), o)
			if Code(err) != c.code || (err == nil) != (c.code == "") {
				t.Errorf("got %v, want %q", err, c.code)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00"} {
		o := options()
		o.FileName = name
		if _, err := CopyTree(t.Context(), pin(t, src+"/x"), openDirFile(t, tempDir(t)), o); Code(err) != CodeOptions {
			t.Errorf("file name %q: %v", name, err)
		}
	}
	deep := tempDir(t)
	must(t, os.MkdirAll(deep+strings.Repeat("/d", MaxDepth), 0o755))
	if _, err := CopyTree(t.Context(), pin(t, deep), openDirFile(t, tempDir(t)), options()); err != nil {
		t.Errorf("depth %d: %v", MaxDepth, err)
	}
	must(t, os.WriteFile(deep+strings.Repeat("/d", MaxDepth)+"/f", nil, 0o600))
	if _, err := CopyTree(t.Context(), pin(t, deep), openDirFile(t, tempDir(t)), options()); Code(err) != CodeTooDeep {
		t.Errorf("depth %d: %v", MaxDepth+1, err)
	}
	if _, _, err := Measure(t.Context(), pin(t, deep)); Code(err) != CodeTooDeep {
		t.Errorf("Measure of depth %d: %v", MaxDepth+1, err)
	}
}

func TestCopyRefusesSpecial(t *testing.T) {
	for kind, mode := range map[string]uint32{"fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "character device": unix.S_IFCHR, "block device": unix.S_IFBLK} {
		t.Run(kind, func(t *testing.T) {
			if mode == unix.S_IFCHR || mode == unix.S_IFBLK {
				require.Root(t)
			}
			src := tempDir(t)
			must(t, os.Mkdir(src+"/in", 0o755))
			must(t, unix.Mknod(src+"/in/it", mode|0o600, int(unix.Mkdev(1, 3))))
			_, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, tempDir(t)), options())
			var e *Error
			if !errors.As(err, &e) || e.Code != CodeSpecial || e.Rel != "in/it" || strings.Contains(err.Error(), src) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCopyIntoItself(t *testing.T) {
	src := tempDir(t)
	must(t, os.MkdirAll(src+"/a/dst", 0o755))
	for _, dst := range []string{src, src + "/a", src + "/a/dst"} {
		if _, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, dst), options()); Code(err) != CodeRecursive && Code(err) != CodeExists {
			t.Errorf("to %s: %v", dst, err)
		}
	}
	f := openDirFile(t, src+"/a")
	must(t, os.WriteFile(src+"/file", nil, 0o600))
	if _, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, src+"/file"), options()); Code(err) != CodeNotDirectory {
		t.Errorf("to a file: %v", err)
	}
	p := pin(t, src)
	p.Close()
	if _, err := CopyTree(t.Context(), p, f, options()); Code(err) != CodeClosed {
		t.Errorf("from a closed source: %v", err)
	}
}

// A full filesystem is told as such, in bytes, in inodes, and at every size.
func TestCopyNoSpace(t *testing.T) {
	require.Root(t)
	src := tempDir(t)
	makeTree(t, src)
	for _, p := range []quota.Partition{
		{Bytes: 4096, Inodes: 1000}, {Bytes: 1 << 20, Inodes: 1000}, {Bytes: 8 << 20, Inodes: 1000},
		{Bytes: 64 << 20, Inodes: 2}, {Bytes: 64 << 20, Inodes: 5}, {Bytes: 64 << 20, Inodes: 20},
	} {
		f, err := quota.NewTmpfs(p, quota.Options{Mode: 0o700})
		must(t, err)
		if _, err := CopyTree(t.Context(), pin(t, src), f.Dir(), options()); Code(err) != CodeNoSpace || !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%+v: %v", p, err)
		}
		f.Close()
	}
	f, err := quota.NewTmpfs(quota.Partition{Bytes: 64 << 20, Inodes: 1000}, quota.Options{Mode: 0o700})
	must(t, err)
	defer f.Close()
	if _, err := CopyTree(t.Context(), pin(t, src), f.Dir(), options()); err != nil {
		t.Error(err)
	}
}

// A source that changes under the copy is found out.
func TestCopyChanged(t *testing.T) {
	const size = 20 << 20
	for name, change := range map[string]func(t *testing.T, file string){
		"grown":  func(t *testing.T, f string) { must(t, os.Truncate(f, size+1)) },
		"shrunk": func(t *testing.T, f string) { must(t, os.Truncate(f, 1)) },
		"written": func(t *testing.T, f string) {
			h, err := os.OpenFile(f, os.O_WRONLY, 0)
			must(t, err)
			_, err = h.WriteAt([]byte("x"), 3)
			must(t, errors.Join(err, h.Close()))
		},
		"mode":       func(t *testing.T, f string) { must(t, os.Chmod(f, 0o640)) },
		"new entry":  func(t *testing.T, f string) { must(t, os.WriteFile(filepath.Dir(f)+"/z", nil, 0o600)) },
		"entry gone": func(t *testing.T, f string) { must(t, os.Remove(filepath.Dir(f)+"/other")) },
	} {
		t.Run(name, func(t *testing.T) {
			src := tempDir(t)
			must(t, os.Mkdir(src+"/d", 0o755))
			must(t, os.WriteFile(src+"/d/other", nil, 0o600))
			must(t, os.WriteFile(src+"/d/file", make([]byte, size), 0o600))
			old := time.Now().Add(-time.Hour)
			must(t, os.Chtimes(src+"/d/file", old, old))
			must(t, os.Chtimes(src+"/d", old, old))
			o := options()
			done := false
			o.Progress = func(b, _ uint64) {
				if b > 0 && b < size && !done {
					done = true
					change(t, src+"/d/file")
				}
			}
			_, err := CopyTree(t.Context(), pin(t, src), openDirFile(t, tempDir(t)), o)
			if !done {
				t.Fatal("nothing was changed")
			}
			if Code(err) != CodeChanged {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestCopyCanceled(t *testing.T) {
	src := tempDir(t)
	must(t, os.WriteFile(src+"/f", make([]byte, 40<<20), 0o600))
	reason := errors.New("reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := options()
	o.Progress = func(uint64, uint64) { cancel(reason) }
	stats, err := CopyTree(ctx, pin(t, src), openDirFile(t, tempDir(t)), o)
	if Code(err) != CodeCanceled || !errors.Is(err, reason) || stats.Bytes >= 40<<20 {
		t.Errorf("%+v, %v", stats, err)
	}
	if _, _, err := Measure(ctx, pin(t, src)); Code(err) != CodeCanceled {
		t.Errorf("Measure: %v", err)
	}
}

// No descriptor is left behind, whatever happens.
func TestCopyDescriptors(t *testing.T) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(list)
	}
	src := tempDir(t)
	makeTree(t, src)
	before := count()
	for entries := 1; entries <= 30; entries++ {
		p, err := OpenPinned(src)
		must(t, err)
		dst, err := os.Open(t.TempDir())
		must(t, err)
		o := options()
		o.MaxEntries = entries
		_, _ = CopyTree(t.Context(), p, dst, o)
		must(t, errors.Join(p.Close(), dst.Close()))
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestParseDirents(t *testing.T) {
	rec := func(size int, kind byte, name string) []byte {
		p := make([]byte, max(size, direntHeader+len(name)))
		p[16], p[17], p[18] = byte(size), byte(size>>8), kind
		copy(p[direntHeader:], name)
		return p[:max(size, direntHeader)]
	}
	good := append(rec(24, 4, "."), append(rec(24, 4, ".."), append(rec(24, 8, "file"), rec(24, 10, "ln")...)...)...)
	all, err := parse(nil, good, 2)
	if err != nil || fmt.Sprint(all) != fmt.Sprint([]entry{{"file", unix.S_IFREG}, {"ln", unix.S_IFLNK}}) {
		t.Errorf("%v, %v", all, err)
	}
	if _, err := parse(nil, good, 1); Code(err) != CodeTooMany {
		t.Errorf("one past the limit: %v", err)
	}
	for _, bad := range [][]byte{good[:10], good[:20], rec(0, 8, ""), rec(18, 8, ""), rec(25, 8, "x")[:24]} {
		if all, err := parse(nil, bad, 9); Code(err) != CodeIO {
			t.Errorf("%x: %v, %v", bad, all, err)
		}
	}
}
