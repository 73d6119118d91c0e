package repo_test

import (
	"go/ast"
	"slices"
	"strings"
)

func testRules() []rule {
	const short = "package a\nimport \"testing\"\nfunc TestA(t *testing.T) {\n\tif testing.Short() { t.Skip(\"long\") }\n}"
	return []rule{{
		name: "no-sleeping-in-tests",
		why: "A sleep that is long enough on one machine is too short on a loaded one, and wasted everywhere else. " +
			"Wait for the event: a channel, a file descriptor, testing/synctest, or a poll with a deadline on a ticker.",
		check: checkSleeps,
		bad:   map[string]string{"rpc/a_test.go": "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }"},
		good: map[string]string{
			"rpc/a.go":      "package a\nimport \"time\"\nfunc f() { time.Sleep(1) }",
			"rpc/b_test.go": "package a\nimport \"time\"\nfunc f() { for { time.Sleep(time.Hour) } }",
			"rpc/a_test.go": "package a\nimport (\"testing\"\n\"testing/synctest\"\n\"time\")\n" +
				"func f(t *testing.T) { synctest.Test(t, func(*testing.T) { time.Sleep(1) }) }",
		},
	}, {
		name: "skip-through-require",
		why: "A test that skips itself can stay off for ever and nobody sees it. internal/require makes the same skip a " +
			"failure where everything should be there; only -short may skip without it.",
		exempt: map[string]string{
			"internal/require": "it is the helper",
			"integration/vm":   "decides on which host a test runs at all",
		},
		check: checkSkips,
		bad:   map[string]string{"rpc/a_test.go": "package a\nimport \"testing\"\nfunc TestA(t *testing.T) { t.Skip(\"x\") }"},
		good:  map[string]string{"rpc/a_test.go": short},
	}, {
		name: "fuzz-targets-have-seeds",
		why: "Without seeds a fuzz target tests nothing in an ordinary run, and passes; more than one project has kept " +
			"such a target for years.",
		check: checkSeeds,
		bad:   map[string]string{"rpc/a_test.go": "package a\nimport \"testing\"\nfunc FuzzA(f *testing.F) { f.Fuzz(nil) }"},
		good: map[string]string{"rpc/a_test.go": "package a\nimport \"testing\"\nfunc FuzzA(f *testing.F) { f.Add(1); f.Fuzz(nil) }\n" +
			"func FuzzB(f *testing.F) { seed(f); f.Fuzz(nil) }\nfunc seed(f *testing.F) {}"},
	}}
}

// checkSleeps finds time.Sleep in tests, but for what is written inside a synctest bubble, where
// time is not real and a sleep is exact, and for hours of sleep: that is a helper process which is
// there to be ended.
func checkSleeps(t *tree, _ rule) (found []finding) {
	for _, f := range t.files {
		if !f.test {
			continue
		}
		names := imported(f.ast)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := selector(call.Fun)
			if ok && names[sel.path] == "time" && sel.name == "Sleep" && !mentions(call.Args[0], "Hour") {
				found = append(found, t.at(n.Pos(), "time.Sleep"))
			}
			return !ok || names[sel.path] != "testing/synctest"
		})
	}
	return found
}

// selector splits a node of the form package.Name; path then is the name the file uses.
func selector(n ast.Node) (use, bool) {
	sel, ok := n.(*ast.SelectorExpr)
	if !ok {
		return use{}, false
	}
	id, ok := sel.X.(*ast.Ident)
	if !ok {
		return use{}, false
	}
	return use{id.Name, sel.Sel.Name}, true
}

// checkSkips finds calls of Skip, Skipf and SkipNow on a testing value outside an if that asks
// testing.Short.
func checkSkips(t *tree, r rule) (found []finding) {
	for _, f := range t.files {
		if !f.test || !r.binds(f) {
			continue
		}
		names := imported(f.ast)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch x := n.(type) {
			case *ast.IfStmt:
				return !mentions(x.Cond, "Short")
			case *ast.SelectorExpr:
				sel, ok := selector(x)
				if ok && names[sel.path] == "" && strings.HasPrefix(sel.name, "Skip") &&
					slices.Contains([]string{"t", "b", "f", "tb"}, sel.path) {
					found = append(found, t.at(x.Pos(), "%s.%s", sel.path, sel.name))
				}
			}
			return true
		})
	}
	return found
}

// mentions tells whether an expression has a selector of that name in it, such as time.Hour.
func mentions(expr ast.Expr, name string) (yes bool) {
	ast.Inspect(expr, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		yes = yes || ok && sel.Sel.Name == name
		return !yes
	})
	return yes
}

// checkSeeds finds fuzz targets that neither call f.Add nor hand f to a helper that could.
func checkSeeds(t *tree, _ rule) (found []finding) {
	for _, f := range t.files {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || !f.test || fn.Recv != nil || fn.Body == nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			params := fn.Type.Params.List
			if len(params) != 1 || len(params[0].Names) != 1 || !isTestingF(params[0].Type) {
				continue
			}
			if !seeds(fn.Body, params[0].Names[0].Name) {
				found = append(found, t.at(fn.Pos(), "%s adds no seed", fn.Name.Name))
			}
		}
	}
	return found
}

func isTestingF(typ ast.Expr) bool {
	star, ok := typ.(*ast.StarExpr)
	if !ok {
		return false
	}
	sel, ok := star.X.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "F"
}

func seeds(body *ast.BlockStmt, f string) (yes bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return !yes
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "Add" {
			if id, ok := sel.X.(*ast.Ident); ok && id.Name == f {
				yes = true
			}
		}
		for _, arg := range call.Args {
			if id, ok := arg.(*ast.Ident); ok && id.Name == f {
				yes = true
			}
		}
		return !yes
	})
	return yes
}
