package repo_test

import (
	"go/ast"
	"go/doc"
	"go/token"
	"maps"
	"slices"
	"strings"
)

func docRules() []rule {
	const full = "// Package a does a thing. Its noun is the thing.\npackage a\n"
	return []rule{{
		name: "one-package-doc",
		why: "A package opens with what it does, its nouns and what it is not for; that takes more than a sentence, " +
			"and two such texts drift apart.",
		check: checkPackageDocs,
		bad:   map[string]string{"rpc/a.go": "// Package rpc does things.\npackage rpc"},
		good: map[string]string{
			"rpc/a.go": full, "rpc/b.go": "package a", "rpc/a_test.go": "package a",
			"cmd/x/main.go": "// Command x does it. It is not for y.\npackage main",
		},
	}, {
		name: "exported-identifiers-documented",
		why: "The doc comment is where units, bounds, errors and ownership are promised; without one each caller " +
			"guesses, and guesses differ.",
		check: checkExported,
		bad:   map[string]string{"rpc/a.go": "package rpc\n\n// T is.\ntype T int\n\nfunc (T) M() {}\n"},
		good: map[string]string{"rpc/a.go": "package rpc\n\n// T is.\ntype T int\n\n// M does.\nfunc (T) M() {}\n" +
			"\n// The codes.\nconst (\n\tA = 1\n\tB = 2\n)\n\nvar C = 3 // see A\n\ntype x int\n\nfunc (x) M() {}\n"},
	}}
}

// checkPackageDocs looks at every package that has a file which is not a test.
func checkPackageDocs(t *tree, _ rule) (found []finding) {
	packages := map[string][]source{}
	for _, f := range t.files {
		if !f.test {
			packages[f.dir] = append(packages[f.dir], f)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		files := packages[dir]
		var texts []*ast.CommentGroup
		for _, f := range files {
			if f.ast.Doc != nil && strings.TrimSpace(f.ast.Doc.Text()) != "" {
				texts = append(texts, f.ast.Doc)
			}
		}
		name := files[0].ast.Name.Name
		if len(texts) != 1 {
			found = append(found, t.at(files[0].ast.Package, "package %s has %d package docs, not one", name, len(texts)))
			continue
		}
		text := texts[0].Text()
		if want := "Package " + name + " "; name != "main" && !strings.HasPrefix(text, want) {
			found = append(found, t.at(texts[0].Pos(), "the doc does not start with %q", want))
		}
		if first := new(doc.Package).Synopsis(text); len(strings.Join(strings.Fields(text), " ")) <= len(first)+1 {
			found = append(found, t.at(texts[0].Pos(), "the doc of %s is one sentence", name))
		}
	}
	return found
}

// checkExported looks at the package-level declarations of packages that others can import.
func checkExported(t *tree, _ rule) (found []finding) {
	for _, f := range t.files {
		if f.test || f.ast.Name.Name == "main" {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !wellKnown(d) {
					found = append(found, t.at(d.Pos(), "%s has no doc comment", d.Name.Name))
				}
			case *ast.GenDecl:
				found = append(found, t.undocumented(d)...)
			}
		}
	}
	return found
}

// wellKnown is true for methods whose name alone says which interface they are for, and whose
// meaning that interface fixes.
func wellKnown(d *ast.FuncDecl) bool {
	return d.Recv != nil && slices.Contains([]string{"Error", "Unwrap", "String"}, d.Name.Name)
}

// exportedReceiver is true for functions and for methods of exported types.
func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.ParenExpr:
			typ = x.X
		case *ast.Ident:
			return x.IsExported()
		default:
			return true
		}
	}
}

// undocumented finds exported names of a declaration that neither have a comment nor stand in a
// group that has one.
func (t *tree) undocumented(d *ast.GenDecl) (found []finding) {
	if d.Tok == token.IMPORT || d.Doc != nil && d.Tok != token.TYPE {
		return nil
	}
	report := func(name *ast.Ident, docs ...*ast.CommentGroup) {
		if name.IsExported() && !slices.ContainsFunc(docs, func(c *ast.CommentGroup) bool { return c != nil }) {
			found = append(found, t.at(name.Pos(), "%s has no doc comment", name.Name))
		}
	}
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			report(s.Name, s.Doc, s.Comment, d.Doc)
		case *ast.ValueSpec:
			for _, name := range s.Names {
				report(name, s.Doc, s.Comment)
			}
		}
	}
	return found
}
