package repo_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path of the module whose tree is checked.
const module = "gloved.dev"

// A source is one parsed Go file.
type source struct {
	path string // slash-separated, relative to the root of the tree
	dir  string // of path; "." for the root
	test bool   // named *_test.go
	ast  *ast.File
}

// A tree is every Go file of the repository but those that the go command ignores.
type tree struct {
	fset  *token.FileSet
	files []source
	fsys  fs.FS
}

// load parses the Go files below fsys. A file that does not parse is an error: no rule could see it.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{fset: token.NewFileSet(), fsys: fsys}
	err := walk(fsys, func(name string) error {
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(t.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		t.files = append(t.files, source{
			path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), ast: file,
		})
		return nil
	})
	return t, err
}

// walk calls visit for each file of the repository: not for what git or the go command keeps to
// itself, nor for test data, whose contents are inputs.
func walk(fsys fs.FS, visit func(name string) error) error {
	return fs.WalkDir(fsys, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if entry.IsDir() {
			if name != "." && (base == ".git" || base == "testdata" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		return visit(name)
	})
}

// repository loads the tree this test belongs to.
func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := load(os.DirFS(top(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 10 {
		t.Fatalf("found only %d Go files; is this the root: %s", len(tr.files), top(t))
	}
	return tr
}

// top is the root of the repository.
func top(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A finding is one place that breaks a rule.
type finding struct {
	pos token.Position
	msg string
}

func (f finding) String() string { return fmt.Sprintf("%s: %s", f.pos, f.msg) }

// at makes a finding at a node.
func (t *tree) at(pos token.Pos, format string, args ...any) finding {
	return finding{t.fset.Position(pos), fmt.Sprintf(format, args...)}
}

// imported maps the names by which a file knows its imports to their paths.
func imported(file *ast.File) map[string]string {
	names := map[string]string{}
	for _, spec := range file.Imports {
		p := importPath(spec)
		name := path.Base(p)
		if strings.HasPrefix(name, "v") && isNumber(name[1:]) { // a major version, as in rand/v2
			name = path.Base(path.Dir(p))
		}
		if spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

func importPath(spec *ast.ImportSpec) string {
	p, err := strconv.Unquote(spec.Path.Value)
	if err != nil {
		return spec.Path.Value // the parser has checked it; a rule will not match it
	}
	return p
}

func isNumber(s string) bool {
	_, err := strconv.Atoi(s)
	return err == nil
}

// under tells whether dir is one of roots or below one.
func under(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return dir == root || strings.HasPrefix(dir, root+"/")
	})
}
