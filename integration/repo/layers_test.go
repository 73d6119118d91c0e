package repo_test

import (
	"strings"
)

// layers orders the top-level folders; a package may import its own folder and lower layers.
// journal and policy share one and so may not import each other.
var layers = map[string]int{
	"integration": 6, "cmd": 5, "rpc": 4, "runtime": 3, "journal": 2, "policy": 2, "internal": 1,
}

func layerRules() []rule {
	return []rule{{
		name: "imports-only-downwards",
		why: "cmd → rpc → runtime → {journal, policy} → internal. The lower layers are what is trusted to decide; " +
			"they can be read, tested and reused without the layers above only while they do not know them.",
		check: checkLayers,
		bad: map[string]string{
			"journal/a.go": "package journal\nimport _ \"gloved.dev/policy\"",
		},
		good: map[string]string{
			"rpc/service/a.go": "package service\nimport (\n_ \"gloved.dev/rpc\"\n_ \"gloved.dev/policy\"\n_ \"os\"\n)",
			"cmd/glove/a.go":   "package main\nimport _ \"gloved.dev/cmd/internal/daemon\"",
		},
	}, {
		name: "known-layers-only",
		why:  "A package outside the layers would be bound by none of the import rules.",
		check: func(t *tree, _ rule) (found []finding) {
			for _, f := range t.files {
				if _, ok := layers[firstElement(f.dir)]; !ok && !strings.HasPrefix(f.dir, ".ci") {
					found = append(found, t.at(f.ast.Package, "package in %q, which is in no layer", f.dir))
				}
			}
			return found
		},
		bad:  map[string]string{"util/a.go": "package util"},
		good: map[string]string{"internal/ident/a.go": "package ident"},
	}, {
		name: "test-helpers-in-tests-only",
		why: "testing registers flags and pulls in what a privileged binary should not carry; " +
			"internal/require exists to end tests.",
		exempt: map[string]string{
			"internal/require": "it is the helper",
		},
		check: func(t *tree, r rule) (found []finding) {
			for _, f := range t.files {
				if f.test || !r.binds(f) {
					continue
				}
				for _, spec := range f.ast.Imports {
					switch p := importPath(spec); p {
					case "testing", module + "/internal/require", "pgregory.net/rapid":
						found = append(found, t.at(spec.Pos(), "imports %s outside a test", p))
					}
				}
			}
			return found
		},
		bad:  map[string]string{"rpc/a.go": "package rpc\nimport _ \"testing\""},
		good: map[string]string{"rpc/a_test.go": "package rpc\nimport _ \"testing\""},
	}}
}

func checkLayers(t *tree, _ rule) (found []finding) {
	for _, f := range t.files {
		from := firstElement(f.dir)
		for _, spec := range f.ast.Imports {
			rest, ours := strings.CutPrefix(importPath(spec), module+"/")
			if !ours {
				continue
			}
			to := firstElement(rest)
			if from != to && layers[to] >= layers[from] {
				found = append(found, t.at(spec.Pos(), "%s imports %s, which is not below it", f.dir, rest))
			}
		}
	}
	return found
}

func firstElement(p string) string {
	first, _, _ := strings.Cut(p, "/")
	return first
}
