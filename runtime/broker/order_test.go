package broker

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gloved.dev/internal/digest"
	alog "gloved.dev/journal/approval"
)

const twoClasses = "classes:\n  files.write.workspace:\n    autonomy: autonomous\n    allow_irreversible: true\n" +
	"  policy.edit.design:\n    autonomy: autonomous\n    allow_irreversible: true\n" +
	"protected_paths:\n  - path: design/\n    class: policy.edit.design\n"

// TestReq066StartsComeFirst: at no step before the first move has a byte of the tree changed, and
// from the first step that touches the workspace on, every leg's start is in the log.
func TestReq066StartsComeFirst(t *testing.T) {
	g := newGatedSite(t, twoClasses)
	g.dir("design")
	g.file("design/a", "old")
	before := g.tree()
	moved := slices.Index(Steps(), StepMoved)
	seen := map[Step]bool{}
	g.b.step = func(now Step) error {
		at := slices.Index(Steps(), now)
		seen[now] = true
		if at >= slices.Index(Steps(), StepStarted) {
			if n := g.events()[alog.ExecutionStarted]; n != 2 {
				t.Errorf("at %s %d of 2 legs are started", now, n)
			}
		}
		if at < moved && !maps.Equal(before, g.tree()) {
			t.Errorf("at %s the tree has changed", now)
		}
		return nil
	}
	applied(t, g.apply(create("docs/x", "1"), replace("design/a", "old", "new")))
	for _, step := range Steps() {
		if !seen[step] {
			t.Errorf("the apply never came to %s", step)
		}
	}
}

// TestReq094NothingElseIsWritten: of everything around the workspace only the log and the payload
// store change, whether an apply asks, fails or succeeds.
func TestReq094NothingElseIsWritten(t *testing.T) {
	g := newGatedSite(t, flooredPolicy)
	before := outside(t, g.root)
	want(t, g.apply(create("docs/x", "1")), CodeApprovalRequired, "")
	g.attest(policyText(twoClasses))
	before["APPROVAL.md"] = outside(t, g.root)["APPROVAL.md"]
	g.at(StepJournal, 1, func() error { return os.ErrInvalid })
	if r := g.apply(create("docs/x", "1")); r == nil {
		t.Fatal("it applied")
	}
	g.b.step = func(Step) error { return nil }
	applied(t, g.apply(create("docs/y", "2")))
	if after := outside(t, g.root); !maps.Equal(before, after) {
		t.Errorf("around the workspace there was\n%v\nand is\n%v", before, after)
	}
}

// outside digests every file below root that is not in the workspace, the log or the payload store.
func outside(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case rel == "ws" || rel == ".approval/log" || rel == ".approval/payloads":
			return fs.SkipDir
		case !d.Type().IsRegular():
			out[rel] = d.Type().String()
			return nil
		}
		data, err := os.ReadFile(path)
		out[rel] = digest.SHA256Hex(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(slices.Collect(maps.Keys(out)), " "), "APPROVAL.md") {
		t.Fatalf("the policy is not among %v", out)
	}
	return out
}
