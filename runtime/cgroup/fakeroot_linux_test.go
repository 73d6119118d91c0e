package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// fakeV2 plays the rules of cgroup v2 on plain directories.
type fakeV2 struct {
	t    *testing.T
	top  string
	self string // our group
	e    *env
}

// newFakeV2 has one process, us, in the group self; controllers are offered at the top.
func newFakeV2(t *testing.T, self, controllers string, namespaced bool) *fakeV2 {
	t.Helper()
	f := &fakeV2{t: t, top: t.TempDir(), self: self, e: realEnv()}
	f.e.proc = t.TempDir()
	f.put(f.e.proc+"/self/mountinfo", "30 23 0:26 / "+f.top+" rw - cgroup2 cgroup2 rw\n")
	f.fill(f.top, controllers)
	if namespaced {
		f.put(f.top+"/cgroup.type", "domain\n")
	}
	for dir := f.top; self != "/" && dir != f.top+self; {
		next, _, _ := strings.Cut(strings.TrimPrefix(f.top+self, dir+"/"), "/")
		dir += "/" + next
		f.fill(dir, controllers)
		f.put(dir+"/cgroup.type", "domain\n")
	}
	f.put(filepath.Join(f.top+self, "cgroup.procs"), "1\n")
	f.put(f.e.proc+"/self/cgroup", "0::"+self+"\n")
	f.e.magic = func(int) (int64, error) { return unix.CGROUP2_SUPER_MAGIC, nil }
	f.e.marked = func(int) bool { return false }
	f.e.mkdir = f.mkdir
	f.e.rmdir = f.rmdir
	f.e.write = f.write
	return f
}

func (f *fakeV2) put(name, text string) {
	f.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeV2) get(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func (f *fakeV2) fill(dir, controllers string) {
	f.put(dir+"/cgroup.controllers", controllers+"\n")
	f.put(dir+"/cgroup.subtree_control", "\n")
	f.put(dir+"/cgroup.procs", "")
}

func fdPath(fd int) string {
	p, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return p
}

func (f *fakeV2) mkdir(fd int, name string) error {
	dir := filepath.Join(fdPath(fd), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return errors.Unwrap(err)
	}
	f.fill(dir, f.get(fdPath(fd)+"/cgroup.subtree_control"))
	f.put(dir+"/cgroup.type", "domain\n")
	return nil
}

func (f *fakeV2) rmdir(fd int, name string) error {
	dir := filepath.Join(fdPath(fd), name)
	if procs, err := os.ReadFile(dir + "/cgroup.procs"); err == nil && len(procs) > 0 {
		return unix.EBUSY
	}
	return os.RemoveAll(dir)
}

func (f *fakeV2) write(fd int, file, value string) error {
	dir := fdPath(fd)
	switch file {
	case "cgroup.procs": // only ever ourselves
		f.put(f.top+f.self+"/cgroup.procs", strings.TrimPrefix(f.get(f.top+f.self+"/cgroup.procs")+"\n", "1\n"))
		f.put(dir+"/cgroup.procs", "1\n")
		f.self = strings.TrimPrefix(dir, f.top)
		f.put(f.e.proc+"/self/cgroup", "0::"+f.self+"\n")
		return nil
	case "cgroup.subtree_control":
		_, notRoot := os.Stat(dir + "/cgroup.type")
		if notRoot == nil && f.get(dir+"/cgroup.procs") != "" {
			return unix.EBUSY
		}
		f.put(dir+"/"+file, f.get(dir+"/"+file)+" "+strings.TrimPrefix(value, "+"))
		return nil
	}
	return unix.ENOENT
}

const everything = "cpu memory pids"

func TestDetectV2Layouts(t *testing.T) {
	for _, tt := range []struct {
		name, self  string
		namespaced  bool
		marked      bool
		base        string
		leafCreated bool
	}{
		{"root of the machine", "/", false, false, "/glove", false},
		{"login session of root", "/user.slice/s.scope", false, false, "/glove", false},
		{"delegated service", "/system.slice/gloved.service", false, true, "/system.slice/gloved.service", true},
		{"container", "/", true, false, "/", true},
		{"in a leaf already", "/x.scope/glove-host-7-abc", false, false, "/x.scope", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFakeV2(t, tt.self, everything, tt.namespaced)
			f.e.marked = func(int) bool { return tt.marked }
			b, err := detectIn(f.e)
			if err != nil {
				t.Fatal(err)
			}
			if b.base() != tt.base {
				t.Errorf("base %s, want %s", b.base(), tt.base)
			}
			if got := strings.Fields(f.get(filepath.Join(f.top+tt.base, "cgroup.subtree_control"))); len(got) != 3 {
				t.Errorf("handed down: %q", got)
			}
			if moved := f.self != tt.self; moved != tt.leafCreated || moved && !hasLeafPrefix(filepath.Base(f.self)) {
				t.Errorf("we are in %s", f.self)
			}
			if err := b.close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(f.top + "/glove"); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the base outlives its last user: %v", err)
			}
		})
	}
}

func TestDetectV2Refusals(t *testing.T) {
	for _, tt := range []struct {
		name, self, controllers string
		change                  func(*fakeV2)
		code, names             string
	}{
		{"no memory at the top", "/", "cpu pids", nil, CodeMissingController, "memory"},
		{"no pids delegated", "/u.scope", "cpu memory", nil, CodeMissingController, "pids"},
		{"mkdir forbidden", "/u.scope", everything, func(f *fakeV2) {
			f.e.mkdir = func(int, string) error { return unix.EACCES }
		}, CodeNotDelegated, "/u.scope/glove-host-"},
		{"read-only", "/u.scope", everything, func(f *fakeV2) {
			f.e.mkdir = func(int, string) error { return unix.EROFS }
		}, CodeNotDelegated, "/u.scope/glove-host-"},
		{"others inside", "/u.scope", everything, func(f *fakeV2) {
			f.put(f.top+"/cgroup.type", "domain\n") // no way to the top
			f.put(f.top+"/u.scope/cgroup.procs", "1\n99\n")
		}, CodeBusy, "/u.scope/cgroup.subtree_control"},
		{"base of another user", "/", everything, func(f *fakeV2) { f.e.euid++ }, CodeNotDelegated, "/glove"},
		{"outside the namespace", "/u.scope", everything, func(f *fakeV2) {
			f.put(f.e.proc+"/self/cgroup", "0::/../x\n")
		}, CodeNoMount, ""},
		{"nothing mounted", "/", everything, func(f *fakeV2) { f.put(f.e.proc+"/self/mountinfo", "") }, CodeNoMount, ""},
		{"something else mounted over", "/", everything, func(f *fakeV2) {
			f.e.magic = func(int) (int64, error) { return unix.TMPFS_MAGIC, nil }
		}, CodeIO, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeV2(t, tt.self, tt.controllers, false)
				if tt.change != nil {
					tt.change(f)
				}
				_, err := detectIn(f.e)
				var typed *Error
				if !errors.As(err, &typed) || typed.Code != tt.code || !strings.Contains(typed.Name, tt.names) {
					t.Fatalf("%v, want %s about %q", err, tt.code, tt.names)
				}
				if needsFix := tt.code == CodeMissingController || tt.code == CodeNotDelegated || tt.code == CodeBusy; needsFix && typed.Fix == "" {
					t.Errorf("no remedy in %v", err)
				}
				if f.self != tt.self {
					t.Errorf("a refusal left us in %s", f.self)
				}
				if left, _ := filepath.Glob(f.top + tt.self + "/glove-host-*"); len(left) > 0 {
					t.Errorf("left behind: %q", left)
				}
			})
		})
	}
}
