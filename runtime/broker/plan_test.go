package broker

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

// refusedUntouched applies, wants the refusal, and checks that neither workspace nor log changed.
func (s *site) refusedUntouched(t *testing.T, code, detail string, ops ...op) {
	t.Helper()
	before := s.tree()
	want(t, s.apply(ops...), code, detail)
	if !maps.Equal(before, s.tree()) {
		t.Fatal("the workspace changed")
	}
	if n := len(s.gate.lines(t)); n != 0 {
		t.Fatalf("%d lines were logged", n)
	}
	if got := s.left(); len(got) != 0 {
		t.Fatalf("left behind: %v", got)
	}
}

func TestReq025PathText(t *testing.T) {
	for _, path := range []string{
		"", "/etc/passwd", "/", "..", "../x", "a/../b", ".", "./a", "a/.", "a//b", "a/", `a\b`, "a\nb", "a\x7fb", "a\u0085b",
		"e\u0301", "\u212b", "a\u202eb", "a\u200bb", strings.Repeat("a/", 512) + "b", strings.Repeat("a", 256), "\u1112\u1161",
	} {
		s := newSite(t)
		s.refusedUntouched(t, CodePlanRefused, "path-invalid", create(path, "x"))
	}
	for _, path := range []string{"é", "日本", "a b", "한글", strings.Repeat("a", 255)} {
		applied(t, newSite(t).apply(create(path, "x")))
	}
}

func TestReq026SymlinkParent(t *testing.T) {
	s := newSite(t)
	outside := t.TempDir()
	s.dir("real")
	for name, to := range map[string]string{"in": "real", "out": outside, "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(s.ws, name)); err != nil {
			t.Fatal(err)
		}
		s.refusedUntouched(t, CodePlanRefused, "parent-not-directory", create(name+"/x", "x"))
	}
	if list, _ := os.ReadDir(outside); len(list) != 0 {
		t.Fatalf("outside: %v", list)
	}
}

// TestReq027And029NotAPlainFile meets links, FIFOs, sockets' kin and directories as files, for each
// kind that starts from one.
func TestReq027And029NotAPlainFile(t *testing.T) {
	s := newSite(t)
	s.file("target", "x")
	s.dir("dir")
	for name, to := range map[string]string{"link": "target", "dangling": "nowhere"} {
		if err := os.Symlink(to, filepath.Join(s.ws, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(s.ws, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, detail := range map[string]string{"link": "symlink", "dangling": "symlink", "fifo": "not-a-file", "dir": "not-a-file"} {
		began := time.Now()
		s.refusedUntouched(t, CodePlanRefused, detail, replace(name, "x", "y"))
		s.refusedUntouched(t, CodePlanRefused, detail, remove(name, "x"))
		s.refusedUntouched(t, CodePlanRefused, detail, move(name, "free", "x"))
		s.refusedUntouched(t, CodePlanRefused, "destination-exists", create(name, "y"))
		s.refusedUntouched(t, CodePlanRefused, "destination-exists", move("target", name, "x"))
		if d := time.Since(began); d > 10*time.Second {
			t.Fatalf("%s took %v", name, d)
		}
	}
}

func TestReq028Hardlink(t *testing.T) {
	s := newSite(t)
	s.file("a", "x")
	if err := os.Link(filepath.Join(s.ws, "a"), filepath.Join(s.root, "other")); err != nil {
		t.Fatal(err)
	}
	s.refusedUntouched(t, CodePlanRefused, "hardlink", replace("a", "x", "y"))
	s.refusedUntouched(t, CodePlanRefused, "hardlink", remove("a", "x"))
}

func TestReq030To033SourcesAndDestinations(t *testing.T) {
	s := newSite(t)
	s.file("a", "x")
	s.file("empty", "")
	s.dir("dir")
	for _, o := range []op{replace("no", "x", "y"), remove("no", "x"), move("no", "to", "x")} {
		s.refusedUntouched(t, CodePlanRefused, "source-missing", o)
	}
	for _, path := range []string{"a", "empty", "dir"} {
		s.refusedUntouched(t, CodePlanRefused, "destination-exists", create(path, "y"))
	}
	s.refusedUntouched(t, CodePlanRefused, "destination-exists", move("a", "empty", "x"))
	s.refusedUntouched(t, CodePlanRefused, "parent-missing", create("new/dir/x", "y"))
	s.refusedUntouched(t, CodePlanRefused, "parent-not-directory", create("a/x", "y"))
	for _, o := range []op{replace("a", "wrong", "y"), remove("a", "wrong"), move("a", "to", "wrong")} {
		s.refusedUntouched(t, CodePlanRefused, "preimage-mismatch", o)
	}
}

func TestReq034Alias(t *testing.T) {
	s := newSite(t)
	s.file("README.md", "x")
	s.file("e\u0301", "decomposed")
	s.dir("Docs")
	s.dir("docs")
	s.refusedUntouched(t, CodePlanRefused, "alias", create("readme.md", "y"))
	s.refusedUntouched(t, CodePlanRefused, "alias", create("é", "y"))
	s.refusedUntouched(t, CodePlanRefused, "alias", create("docs/x", "y"))
	s.refusedUntouched(t, CodePlanRefused, "alias", create("one", "y"), create("ONE", "y"))
	s.file("APPROVAL.md", "p")
	s.refusedUntouched(t, CodePlanRefused, "alias", create("approval.md", "y"))
}

func TestReq035TouchingEndpoints(t *testing.T) {
	s := newSite(t)
	s.file("a", "x")
	s.file("b", "y")
	s.refusedUntouched(t, CodePlanRefused, "duplicate-endpoint", replace("a", "x", "1"), replace("a", "x", "2"))
	s.refusedUntouched(t, CodePlanRefused, "duplicate-endpoint", move("a", "c", "x"), create("a", "z"))
	s.refusedUntouched(t, CodePlanRefused, "duplicate-endpoint", move("a", "b", "x"), replace("b", "y", "z"))
	s.refusedUntouched(t, CodePlanRefused, "duplicate-endpoint", move("a", "b", "x"), move("b", "a", "y"))
	s.refusedUntouched(t, CodePlanRefused, "nested-endpoint", create("d", "1"), create("d/x", "2"))
	s.refusedUntouched(t, CodePlanRefused, "nested-endpoint", create("D", "1"), create("d/x/y", "2"))
}

func TestReq036Base64(t *testing.T) {
	for _, text := range []string{"TQ", "TR==", "TQ==\n", "_-8=", "TQ===", " TQ==", "TQ=", "====", "é"} {
		s := newSite(t)
		s.refusedUntouched(t, CodePlanRefused, "base64-invalid", op{"kind": "create", "path": "a", "after_base64": text})
	}
}

func TestReq037ImageLimits(t *testing.T) {
	s := newSite(t)
	big := strings.Repeat("x", MaxImage)
	s.refusedUntouched(t, CodePlanRefused, "image-too-large", create("a", big+"y"))
	s.file("large", big+"y")
	s.refusedUntouched(t, CodePlanRefused, "image-too-large", remove("large", big+"y"))
	var ops []op
	for i := range 8 {
		ops = append(ops, create(fmt.Sprintf("f%d", i), big))
	}
	s.refusedUntouched(t, CodePlanRefused, "images-too-large", append(ops, create("one", "x"))...)
	s.file("pre", "p")
	s.refusedUntouched(t, CodePlanRefused, "images-too-large", append(slices.Clone(ops), remove("pre", "p"))...)
	applied(t, s.apply(ops...))
}

func TestReq038DirectoryLimit(t *testing.T) {
	s := newSite(t)
	s.dir("d")
	for i := range MaxEntries {
		if err := os.WriteFile(filepath.Join(s.ws, "d", fmt.Sprintf("n%d", i)), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	empty := op{"kind": "delete", "path": "d/n0", "expected_before_sha256": sum("")}
	if err := os.WriteFile(filepath.Join(s.ws, "d", "more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.refusedUntouched(t, CodePlanRefused, "directory-too-large", empty)
	if err := os.Remove(filepath.Join(s.ws, "d", "more")); err != nil {
		t.Fatal(err)
	}
	applied(t, s.apply(empty))
}

// TestReq039And040HumanOnlyFirst refuses a class left to people before anything of its path is
// looked at: what is there is a FIFO, a missing file or has a wrong preimage, and none of that is
// said.
func TestReq039And040HumanOnlyFirst(t *testing.T) {
	s := newSite(t)
	s.file("people/a", "x")
	if err := unix.Mkfifo(filepath.Join(s.ws, "people", "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []op{remove("people/a", "wrong"), remove("people/fifo", "x"), remove("people/no", "x"), move("elsewhere", "people/b", "x")} {
		s.refusedUntouched(t, CodePlanRefused, "class-human-only", create("ok", "x"), o)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(s.ws, "people", "a"), &st); err != nil {
		t.Fatal(err)
	}
}

func TestReq041ReservedNames(t *testing.T) {
	s := newSite(t)
	s.file("a", "x")
	for _, path := range []string{TransactionDir, TransactionDir + "/journal.json", LockName, ".Approval-Codex-Lock", strings.ToUpper(TransactionDir) + "/x"} {
		s.refusedUntouched(t, CodeReservedPath, "", create(path, "y"))
		s.refusedUntouched(t, CodeReservedPath, "", move("a", path, "x"))
		s.refusedUntouched(t, CodeReservedPath, "", remove(path, "x"))
	}
	s.dir("sub")
	applied(t, s.apply(create("sub/"+LockName, "y"))) // only the root's names are the broker's
}

func TestReq042NoOp(t *testing.T) {
	s := newSite(t)
	s.file("a", "x")
	s.refusedUntouched(t, CodeNoOpOperation, "", replace("a", "x", "x"))
	s.refusedUntouched(t, CodeNoOpOperation, "", move("a", "a", "x"))
}

func TestReq044RootThroughLink(t *testing.T) {
	s := newSite(t)
	link := filepath.Join(s.root, "link")
	if err := os.Symlink(s.ws, link); err != nil {
		t.Fatal(err)
	}
	b, err := New(Options{Instance: "test", Workspace: link, Evidence: filepath.Join(s.root, "e"), Gate: s.gate})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.Apply(t.Context(), proposal(t, create("a", "x")))
	want(t, s.refusal(err), CodeInstallationInvalid, "workspace-symlink")
}

func TestPlanRefusesWhatReplacementWouldLose(t *testing.T) {
	s := newSite(t)
	s.file("setuid", "x")
	if err := os.Chmod(filepath.Join(s.ws, "setuid"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	s.refusedUntouched(t, CodePlanRefused, "special-mode", replace("setuid", "x", "y"))
	s.file("tagged", "x")
	if err := unix.Setxattr(filepath.Join(s.ws, "tagged"), "user.note", []byte("1"), 0); err != nil {
		require.Skip(t, "the filesystem of the temporary directory has no user extended attributes")
	}
	s.refusedUntouched(t, CodePlanRefused, "extended-attributes", replace("tagged", "x", "y"))
}

func TestPlanRefusesForeignOwner(t *testing.T) {
	require.Root(t)
	s := newSite(t)
	s.file("theirs", "x")
	if err := os.Chown(filepath.Join(s.ws, "theirs"), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	s.refusedUntouched(t, CodePlanRefused, "foreign-owner", remove("theirs", "x"))
}

// TestReq045To046OneActionPerClass counts legs: one for each distinct class, both ends of a move
// included.
func TestReq045To046OneActionPerClass(t *testing.T) {
	s := newSite(t)
	s.file("second/a", "x")
	s.dir("docs")
	applied(t, s.apply(create("docs/one", "1"), create("docs/two", "2"), move("second/a", "docs/a", "x")))
	if n := s.gate.count(t, "started"); n != 2 {
		t.Fatalf("%d legs", n)
	}
}

// TestReq049To051PayloadIdentity: the payload is the same for the same state, whatever else happens in
// the directory, and another one for one byte more.
func TestReq049To051PayloadIdentity(t *testing.T) {
	s := newSite(t)
	s.file("docs/a", "x")
	hash := func(ops ...op) string {
		p, err := s.b.Plan(t.Context(), proposal(t, ops...))
		if err != nil {
			t.Fatal(err)
		}
		return p.PayloadHash
	}
	first := hash(replace("docs/a", "x", "y"))
	s.file("docs/unrelated", "z")
	if err := os.Chtimes(filepath.Join(s.ws, "docs/a"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if hash(replace("docs/a", "x", "y")) != first {
		t.Error("unrelated activity changed the payload")
	}
	if hash(replace("docs/a", "x", "yy")) == first {
		t.Error("other content has the same payload")
	}
	if err := os.Chmod(filepath.Join(s.ws, "docs/a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if hash(replace("docs/a", "x", "y")) == first {
		t.Error("another mode has the same payload")
	}
	if len(s.gate.lines(t)) != 0 || len(s.left()) != 0 {
		t.Error("planning wrote something")
	}
}

func TestReq093Modes(t *testing.T) {
	s := newSite(t)
	s.file("script", "old")
	if err := os.Chmod(filepath.Join(s.ws, "script"), 0o755); err != nil {
		t.Fatal(err)
	}
	applied(t, s.apply(replace("script", "old", "new"), create("fresh", "x")))
	for name, mode := range map[string]os.FileMode{"script": 0o755, "fresh": os.FileMode(0o644 &^ umask())} {
		info, err := os.Stat(filepath.Join(s.ws, name))
		if err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
	applied(t, s.apply(move("script", "moved", "new")))
	if info, err := os.Stat(filepath.Join(s.ws, "moved")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("moved: %v %v", info, err)
	}
}
