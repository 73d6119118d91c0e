package repo_test

import (
	"go/ast"
	"go/token"
)

func deferRules() []rule {
	const (
		watches = "\tvar err error\n\tdefer func() {\n\t\tif err != nil { println() }\n\t}()\n\treturn err\n}\n"
		decides = "\tdefer func() {\n\t\tif err := g(); err != nil { println() }\n\t}()\n\treturn nil\n}\n"
		named   = "\tdefer func() {\n\t\tif err != nil { println() }\n\t}()\n\treturn nil\n}\n"
	)
	return []rule{{
		name: "failure-defers-watch-results",
		why: "A defer that undoes things when a local err is set never sees the error of an inner \"err :=\" that was " +
			"returned; the undoing is skipped exactly when it matters. Name the result, and every return sets it.",
		check: checkDefers,
		bad:   map[string]string{"runtime/a.go": "package a\nfunc f() error {\n" + watches},
		good: map[string]string{
			"runtime/a.go": "package a\nfunc f() error {\n" + decides,
			"runtime/b.go": "package a\nfunc g() (err error) {\n" + named,
		},
	}}
}

// checkDefers looks at every function, also at those without a name.
func checkDefers(t *tree, _ rule) (found []finding) {
	for _, f := range t.files {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch fn := n.(type) {
			case *ast.FuncDecl:
				found = append(found, t.watching(fn.Type, fn.Body)...)
			case *ast.FuncLit:
				found = append(found, t.watching(fn.Type, fn.Body)...)
			}
			return true
		})
	}
	return found
}

// watching finds the defers of one function that test an err which is not a result of it.
func (t *tree) watching(typ *ast.FuncType, body *ast.BlockStmt) (found []finding) {
	if body == nil || names(typ.Results, "err") {
		return nil
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.FuncLit:
			return false // a function of its own
		case *ast.DeferStmt:
			if lit, ok := x.Call.Fun.(*ast.FuncLit); ok && !names(lit.Type.Params, "err") {
				if pos := testsErr(lit.Body); pos.IsValid() {
					found = append(found, t.at(pos, "a defer tests err, which is not a named result"))
				}
			}
			return false
		}
		return true
	})
	return found
}

// names tells whether a list of parameters or results has that name in it.
func names(list *ast.FieldList, name string) bool {
	if list == nil {
		return false
	}
	for _, field := range list.List {
		for _, id := range field.Names {
			if id.Name == name {
				return true
			}
		}
	}
	return false
}

// testsErr returns where a body compares err with nil, unless it declares an err itself.
func testsErr(body *ast.BlockStmt) (pos token.Pos) {
	declared := false
	ast.Inspect(body, func(n ast.Node) bool {
		switch x := n.(type) {
		case *ast.AssignStmt:
			for _, left := range x.Lhs {
				id, ok := left.(*ast.Ident)
				declared = declared || ok && id.Name == "err" && x.Tok == token.DEFINE
			}
		case *ast.ValueSpec:
			for _, id := range x.Names {
				declared = declared || id.Name == "err"
			}
		case *ast.BinaryExpr:
			left, ok := x.X.(*ast.Ident)
			right, isIdent := x.Y.(*ast.Ident)
			if ok && isIdent && left.Name == "err" && right.Name == "nil" && !declared && !pos.IsValid() {
				pos = x.Pos()
			}
		}
		return true
	})
	return pos
}
