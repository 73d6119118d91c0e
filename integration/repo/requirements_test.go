package repo_test

import (
	"go/ast"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const requirements = "docs/approval-requirements.md"

var (
	requirementRow = regexp.MustCompile(`^\| ([0-9]+) \| ([^|]+) \| (.+) \|$`)
	namedTest      = regexp.MustCompile("`([a-z/]+)` (Test[A-Za-z0-9_]+)")
)

// TestRequirementsTable holds the table of the broker's requirements to the tree: every number has
// one row, each test it names exists where it says, and a row without a test says why.
func TestRequirementsTable(t *testing.T) {
	text, err := os.ReadFile(top(t) + "/" + requirements)
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, f := range repository(t).files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				there[f.dir+" "+fn.Name.Name] = f.test
			}
		}
	}
	next := 1
	for line := range strings.SplitSeq(string(text), "\n") {
		row := requirementRow.FindStringSubmatch(line)
		if row == nil {
			continue
		}
		if row[1] != strconv.Itoa(next) {
			t.Fatalf("row %s stands where %d belongs", row[1], next)
		}
		next++
		tests := namedTest.FindAllStringSubmatch(row[3], -1)
		if len(tests) == 0 && !strings.HasPrefix(row[3], "**not covered**: ") {
			t.Errorf("row %s names no test and does not say why", row[1])
		}
		for _, test := range tests {
			if !there[test[1]+" "+test[2]] {
				t.Errorf("row %s names %s of %s, which does not exist", row[1], test[2], test[1])
			}
		}
	}
	if next != 135 {
		t.Errorf("%d rows, want the 134 requirements", next-1)
	}
}
