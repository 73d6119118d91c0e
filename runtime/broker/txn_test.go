package broker

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"gloved.dev/internal/safefile"
)

// at makes the broker call f once, at the nth passing of a step.
func (s *site) at(step Step, nth int, f func() error) {
	s.b.step = func(now Step) error {
		if now == step {
			if nth--; nth == 0 {
				return f()
			}
		}
		return nil
	}
}

// path is the absolute path of a file of the workspace.
func (s *site) path(rel string) string { return filepath.Join(s.ws, rel) }

func TestReq067LaterStartRefuses(t *testing.T) {
	s := newSite(t)
	s.dir("docs")
	s.dir("second")
	s.gate.refuseStart = "files.write.workspace"
	before := s.tree()
	want(t, s.apply(create("manual/x", "1")), CodePlanRefused, "parent-missing")
	want(t, s.apply(create("second/x", "1"), create("docs/x", "2")), CodeStartRefused, "token-mismatch")
	if !maps.Equal(before, s.tree()) || len(s.left()) != 0 {
		t.Fatal("the workspace changed")
	}
	s.gate.refuseStart = "files.write.second"
	want(t, s.apply(create("second/x", "1"), create("docs/x", "2")), CodeStartRefused, "token-mismatch")
	if a, b := s.gate.count(t, "started"), s.gate.count(t, "failed"); a != 1 || b != 1 {
		t.Fatalf("%d started, %d closed as failed", a, b)
	}
}

func TestReq053To059ApprovalFirst(t *testing.T) {
	s := newSite(t)
	s.dir("manual")
	s.dir("docs")
	ops := []op{create("manual/x", "1"), create("docs/x", "2")}
	before := s.tree()
	var keys []string
	for range 3 {
		r := s.apply(ops...)
		want(t, r, CodeApprovalRequired, "")
		keys = r.Pending
	}
	if len(keys) != 1 || s.gate.count(t, "registered") != 1 || s.gate.count(t, "requested") != 1 || s.gate.count(t, "started") != 0 {
		t.Fatalf("pending %v, log %v", keys, s.gate.lines(t))
	}
	if !maps.Equal(before, s.tree()) {
		t.Fatal("the workspace changed")
	}
	s.gate.add(t, "granted", keys[0])
	want(t, s.apply(create("manual/x", "other"), create("docs/x", "2")), CodeApprovalRequired, "")
	applied(t, s.apply(ops...))
	if got, _ := s.content("manual/x"); got != "1" {
		t.Fatalf("manual/x holds %q", got)
	}
}

func TestReq069ReplayOfTheSameState(t *testing.T) {
	s := newSite(t)
	s.dir("docs")
	s.file("docs/a", "x")
	applied(t, s.apply(move("docs/a", "docs/b", "x")))
	// Moved back by hand: the very same payload again, down to the inode.
	if err := os.Rename(s.path("docs/b"), s.path("docs/a")); err != nil {
		t.Fatal(err)
	}
	want(t, s.apply(move("docs/a", "docs/b", "x")), CodeReplay, SpentApplied)
}

func TestReq071And074DriftUnderTheLock(t *testing.T) {
	for _, step := range []Step{StepStarted, StepLocked} {
		s := newSite(t)
		s.file("docs/a", "old")
		s.at(step, 1, func() error { return os.WriteFile(s.path("docs/a"), []byte("foreign"), 0o644) })
		want(t, s.apply(replace("docs/a", "old", "new")), CodeWorkspaceDrift, "preimage-mismatch")
		if got, _ := s.content("docs/a"); got != "foreign" {
			t.Fatalf("docs/a holds %q", got)
		}
		if s.gate.count(t, "failed") != 1 || len(s.left()) != 0 {
			t.Fatalf("log %v, left %v", s.gate.lines(t), s.left())
		}
	}
}

func TestReq072And073HeldLock(t *testing.T) {
	make := map[string]func(string) error{
		"file":      func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"symlink":   func(p string) error { return os.Symlink("/nowhere", p) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
	}
	for name, put := range make {
		for _, step := range []Step{StepPlanned, StepStarted} {
			t.Run(name+"/"+string(step), func(t *testing.T) {
				s := newSite(t)
				s.dir("docs")
				s.at(step, 1, func() error { return put(s.path(LockName)) })
				want(t, s.apply(create("docs/a", "x")), CodeCustodyContended, "")
				if a, b := s.gate.count(t, "started"), s.gate.count(t, "failed"); a != b || step == StepPlanned && a != 0 {
					t.Fatalf("%d started, %d failed", a, b)
				}
				if name == "file" {
					old := time.Now().Add(-48 * time.Hour)
					if err := os.Chtimes(s.path(LockName), old, old); err != nil {
						t.Fatal(err)
					}
				}
				want(t, s.apply(create("docs/a", "x")), CodeCustodyContended, "")
				if _, err := os.Lstat(s.path(LockName)); err != nil {
					t.Fatal("the lock was taken away")
				}
			})
		}
	}
}

func TestReq076To079Custody(t *testing.T) {
	for mode, level := range map[os.FileMode]string{0o755: CustodyExclusive, 0o777: CustodyAdvisory, 0o775: CustodyAdvisory} {
		s := newSite(t)
		s.dir("docs")
		if err := os.Chmod(s.ws, mode); err != nil {
			t.Fatal(err)
		}
		r, err := s.b.Apply(t.Context(), proposal(t, create("docs/a", "x")))
		if err != nil {
			t.Fatal(err)
		}
		if r.Custody.Level != level || !slices.Contains(r.Custody.Notes, "acl-unproven") {
			t.Errorf("mode %v: %+v", mode, r.Custody)
		}
		if len(s.left()) != 0 {
			t.Fatal("the lock stayed")
		}
		s.b.opt.RequireExclusive = true
		before := s.tree()
		refusal := s.apply(create("docs/b", "x"))
		if level == CustodyExclusive {
			applied(t, refusal)
			continue
		}
		want(t, refusal, CodeCustodyInsufficient, "")
		if refusal.Custody == nil || !slices.Contains(refusal.Custody.Notes, ACLUnproven) || !maps.Equal(before, s.tree()) || len(s.left()) != 0 {
			t.Fatalf("%+v", refusal)
		}
	}
	// Somebody else can write a directory that the change touches.
	s := newSite(t)
	s.dir("docs")
	if err := os.Chmod(s.path("docs"), 0o777); err != nil {
		t.Fatal(err)
	}
	r, err := s.b.Apply(t.Context(), proposal(t, create("docs/a", "x")))
	if err != nil || r.Custody.Level != CustodyAdvisory {
		t.Fatalf("%+v %v", r, err)
	}
	if c := judgeCustody([]safefile.Identity{{UID: effectiveUser() + 1, Mode: 0o755}}); c.Level != CustodyAdvisory {
		t.Fatal("another owner is exclusive")
	}
}

func TestReq080To082StagingAndJournal(t *testing.T) {
	s := crashSite(t, t.TempDir())
	s.at(StepJournal, 1, func() error {
		info, err := os.Lstat(s.path(TransactionDir))
		if err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%v %v", info, err)
		}
		root, err := os.Lstat(s.ws)
		if err != nil || root.Sys().(*syscall.Stat_t).Dev != info.Sys().(*syscall.Stat_t).Dev {
			t.Errorf("staging is on another filesystem: %v", err)
		}
		raw, err := os.ReadFile(filepath.Join(s.ws, TransactionDir, journalName))
		if err != nil {
			t.Error(err)
		}
		var j struct {
			Changes []struct {
				Kind      string
				Endpoints []struct {
					Path          string
					Before, After *Image
				}
			}
		}
		if err := json.Unmarshal(raw, &j); err != nil || len(j.Changes) != 4 {
			t.Errorf("%s: %v", raw, err)
		}
		for _, c := range j.Changes {
			for i, e := range c.Endpoints {
				source := c.Kind != KindCreate && i == 0
				target := c.Kind == KindCreate || c.Kind == KindReplace || i == 1
				if (e.Before != nil) != source || (e.After != nil) != target {
					t.Errorf("%s %s: %+v %+v", c.Kind, e.Path, e.Before, e.After)
				}
			}
		}
		return nil
	})
	applied(t, s.apply(kinds()["every"]...))
}

func TestReq083StagingFails(t *testing.T) {
	for _, step := range []Step{StepStaging, StepStaged, StepJournal} {
		s := crashSite(t, t.TempDir())
		before := s.tree()
		s.at(step, 1, func() error { return syscall.ENOSPC })
		want(t, s.apply(kinds()["every"]...), CodeStageFailed, "")
		if !maps.Equal(before, s.tree()) || len(s.left()) != 0 || s.gate.count(t, "failed") != s.gate.count(t, "started") {
			t.Fatalf("step %s: left %v, log %v", step, s.left(), s.gate.lines(t))
		}
	}
}

func TestReq084ParentSwappedForALink(t *testing.T) {
	s := crashSite(t, t.TempDir())
	outside := t.TempDir()
	s.at(StepJournal, 1, func() error {
		return errors.Join(os.Rename(s.path("docs"), s.path("docs-away")), os.Symlink(outside, s.path("docs")))
	})
	want(t, s.apply(create("docs/new", "x")), CodeCommitUnknown, "")
	if list, _ := os.ReadDir(outside); len(list) != 0 {
		t.Fatalf("outside: %v", list)
	}
}

func TestReq085LyingRenames(t *testing.T) {
	nothing := mover{
		renameNew: func(*os.File, string, *os.File, string) error { return nil },
		exchange:  func(*os.File, string, *os.File, string) error { return nil },
	}
	late := mover{
		renameNew: func(a *os.File, n string, b *os.File, m string) error {
			return errors.Join(renameNew(a, n, b, m), syscall.EIO)
		},
		exchange: func(a *os.File, n string, b *os.File, m string) error {
			return errors.Join(exchange(a, n, b, m), syscall.EIO)
		},
	}
	for kind, ops := range kinds() {
		s := crashSite(t, t.TempDir())
		before := s.tree()
		s.b.mover = nothing
		want(t, s.apply(ops...), CodeCommitNotApplied, "")
		if !maps.Equal(before, s.tree()) {
			t.Fatalf("%s: the workspace changed", kind)
		}
	}
	for kind, ops := range kinds() {
		s := crashSite(t, t.TempDir())
		s.b.mover = late
		r := s.apply(ops[0])
		applied(t, r)
		if s.gate.count(t, "completed") == 0 {
			t.Fatalf("%s: no completion", kind)
		}
	}
}

func TestReq086AllAfter(t *testing.T) {
	s := crashSite(t, t.TempDir())
	applied(t, s.apply(kinds()["every"]...))
	if n := s.gate.count(t, "completed"); n != 2 {
		t.Fatalf("%d completed", n)
	}
	if list := s.left(); len(list) != 0 {
		t.Fatal(list)
	}
	for path, content := range map[string]string{"docs/new": "N", "docs/a": "new a", "second/c": "old c"} {
		if got, _ := s.content(path); got != content {
			t.Errorf("%s holds %q", path, got)
		}
	}
	for _, gone := range []string{"second/b", "docs/c"} {
		if _, ok := s.content(gone); ok {
			t.Errorf("%s is still there", gone)
		}
	}
}

func TestReq087AllBefore(t *testing.T) {
	for kind, ops := range kinds() {
		s := crashSite(t, t.TempDir())
		s.at(StepMoved, len(ops), func() error { return syscall.EIO })
		// An error after the last move changes nothing about what the workspace shows.
		applied(t, s.apply(ops...))
		s = crashSite(t, t.TempDir())
		before := s.tree()
		s.at(StepMoved, 1, func() error { return syscall.EIO })
		r := s.apply(ops...)
		want(t, r, CodeCommitNotApplied, "")
		if r.State != StateBefore || !maps.Equal(before, s.tree()) || len(s.left()) != 0 {
			t.Fatalf("%s: %+v, left %v", kind, r, s.left())
		}
		if a, b := s.gate.count(t, "started"), s.gate.count(t, "failed"); a != b {
			t.Fatalf("%s: %d started, %d failed", kind, a, b)
		}
		// A clean failure may be tried again: the identical proposal, as a new attempt.
		s.b.step = func(Step) error { return nil }
		applied(t, s.apply(ops...))
		if s.gate.count(t, "registered") != 2 {
			t.Fatalf("%s: %d tasks", kind, s.gate.count(t, "registered"))
		}
	}
}

// mixed brings a site to a mixed workspace: the first replacement happened, the old content is gone
// from the staging directory, and the second failed.
func mixed(t *testing.T) *site {
	s := crashSite(t, t.TempDir())
	s.at(StepMoved, 1, func() error {
		return errors.Join(os.Remove(filepath.Join(s.ws, TransactionDir, stagedNew(0))), syscall.EIO)
	})
	r := s.apply(kinds()[KindReplace]...)
	want(t, r, CodeCommitUnknown, "workspace-commit-unknown")
	if r.State != StateMixed || r.Custody == nil {
		t.Fatalf("%+v", r)
	}
	s.b.step = func(Step) error { return nil }
	return s
}

func TestReq088To092And101Mixed(t *testing.T) {
	s := mixed(t)
	if a, b := s.gate.count(t, "started"), s.gate.count(t, "indeterminate"); a != 2 || b != 2 || s.gate.count(t, "failed")+s.gate.count(t, "completed") != 0 {
		t.Fatalf("log %v", s.gate.lines(t))
	}
	if len(s.left()) != 2 {
		t.Fatalf("left %v", s.left())
	}
	want(t, s.apply(create("docs/unrelated", "x")), CodeCustodyContended, "workspace-commit-unknown")
	if err := os.Remove(s.path(LockName)); err != nil {
		t.Fatal(err)
	}
	want(t, s.apply(kinds()[KindReplace]...), CodeCustodyContended, "workspace-commit-unknown")
	if n := s.gate.count(t, "started"); n != 2 {
		t.Fatalf("%d starts", n)
	}
	if pre, err := os.ReadFile(filepath.Join(s.ws, TransactionDir, stagedPre(0))); err != nil || string(pre) != "old a" {
		t.Fatalf("the preimage: %q %v", pre, err)
	}
}

func TestReq089ForeignBytes(t *testing.T) {
	s := crashSite(t, t.TempDir())
	s.at(StepMoved, 2, func() error { return os.WriteFile(s.path("docs/a"), []byte("foreign"), 0o644) })
	want(t, s.apply(kinds()[KindReplace]...), CodeCommitUnknown, "")
	if got, _ := s.content("docs/a"); got != "foreign" {
		t.Fatalf("foreign bytes became %q", got)
	}
}

func TestReq095To098Recover(t *testing.T) {
	s := mixed(t)
	snapshot := func() map[string]string {
		found := map[string]string{}
		for _, root := range []string{s.ws, s.gate.path} {
			_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
				if info, err := d.Info(); err == nil {
					data, _ := os.ReadFile(path)
					found[path] = info.ModTime().String() + info.Mode().String() + string(data)
				}
				return nil
			})
		}
		return found
	}
	before := snapshot()
	r, err := s.b.Recover(t.Context())
	if err != nil || r.State != StateMixed || r.OK || r.Journal != Valid || r.Lock != Left || len(r.Actions) != 2 {
		t.Fatalf("%+v %v", r, err)
	}
	if !maps.Equal(before, snapshot()) {
		t.Fatal("recover changed something")
	}
	journal := filepath.Join(s.ws, TransactionDir, journalName)
	good, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}
	edits := map[string]string{
		"cut":   string(good[:len(good)/2]),
		"empty": "",
		"digit": string(good[:len(good)-4]) + "0" + string(good[len(good)-3:]),
		"path":  string(replaceOnce(good, `"docs/a"`, `"../../a"`)),
		"state": string(replaceOnce(good, sum("old a"), sum("other"))),
	}
	for name, text := range edits {
		if err := os.WriteFile(journal, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := s.b.Recover(t.Context())
		if err != nil || r.Journal != Unreadable || r.OK {
			t.Errorf("%s: %+v %v", name, r, err)
		}
		want(t, s.apply(create("docs/u", "x")), CodeCustodyContended, "journal-unreadable")
	}
}

func replaceOnce(data []byte, old, now string) []byte {
	i := slices.Index([]byte(string(data)), old[0])
	for ; i+len(old) <= len(data); i++ {
		if string(data[i:i+len(old)]) == old {
			return append(append(slices.Clone(data[:i]), now...), data[i+len(old):]...)
		}
	}
	return data
}

// TestReq102ReleaseAfterReconciliation: with the last leg reconciled, the journal and preimages go to
// the gate's home, and the workspace is free.
func TestReq102ReleaseAfterReconciliation(t *testing.T) {
	s := mixed(t)
	var keys []string
	for _, l := range s.gate.lines(t) {
		if l.Event == "started" {
			keys = append(keys, l.Key)
		}
	}
	s.gate.add(t, "reconciled", keys[0])
	want(t, s.refusal(s.b.Release(t.Context())), CodeCustodyContended, "workspace-commit-unknown")
	s.gate.add(t, "reconciled", keys[1])
	if err := s.b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(s.left()) != 0 {
		t.Fatalf("left %v", s.left())
	}
	kept, err := filepath.Glob(filepath.Join(s.root, "evidence", "*", "*"))
	if err != nil || len(kept) != 4 { // journal, two preimages, the second new content
		t.Fatalf("evidence: %v %v", kept, err)
	}
	applied(t, s.apply(create("docs/next", "x")))
}
