package repo_test

import (
	"cmp"
	"maps"
	"slices"
	"testing"
	"testing/fstest"
)

// A rule is a check over the tree, with the reason it exists; a rule without one would be followed
// by nobody and removed by nobody.
type rule struct {
	name string
	why  string
	// exempt names files, or folders with all below them, that the rule does not bind, and why.
	exempt map[string]string
	check  func(*tree, rule) []finding
	// bad breaks the rule, good does not; both are small trees, path to text.
	bad, good map[string]string
}

// binds tells whether the rule applies to a file.
func (r rule) binds(f source) bool {
	return !under(f.path, slices.Collect(maps.Keys(r.exempt))...)
}

// rules gathers the families, each in a file of its own.
func rules() []rule {
	return slices.Concat(layerRules(), callRules(), docRules(), textRules(), testRules())
}

// TestRules holds the repository to every rule.
func TestRules(t *testing.T) {
	tr := repository(t)
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			found := r.check(tr, r)
			slices.SortFunc(found, func(a, b finding) int {
				return cmp.Or(cmp.Compare(a.pos.Filename, b.pos.Filename), cmp.Compare(a.pos.Offset, b.pos.Offset))
			})
			for _, f := range found {
				t.Error(f)
			}
			if len(found) > 0 {
				t.Logf("why this rule: %s", r.why)
			}
		})
	}
}

// TestRulesFind holds every rule to finding something in a tree that breaks it, and nothing in one
// that does not.
func TestRulesFind(t *testing.T) {
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			if r.why == "" || len(r.bad) == 0 || len(r.good) == 0 {
				t.Fatal("a rule needs a reason, a tree that breaks it and one that does not")
			}
			for dir, why := range r.exempt {
				if why == "" {
					t.Errorf("%s is exempt without a reason", dir)
				}
			}
			if found := r.check(small(t, r.bad), r); len(found) == 0 {
				t.Error("found nothing in the tree that breaks the rule")
			}
			for _, f := range r.check(small(t, r.good), r) {
				t.Errorf("in the good tree: %v", f)
			}
		})
	}
}

// small loads a tree given as a map.
func small(t *testing.T, files map[string]string) *tree {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}
