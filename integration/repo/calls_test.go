package repo_test

import (
	"go/ast"
	"slices"
)

// A use is a package-level identifier of the standard library, as import path and name.
type use struct{ path, name string }

// uses finds every place where a file names one of banned.
func (t *tree) uses(f source, banned []use) (found []finding) {
	names := imported(f.ast)
	ast.Inspect(f.ast, func(n ast.Node) bool {
		sel, ok := selector(n)
		if ok && slices.Contains(banned, use{names[sel.path], sel.name}) {
			found = append(found, t.at(n.Pos(), "%s.%s", sel.path, sel.name))
		}
		return true
	})
	return found
}

// banning makes the check of a rule against some identifiers, in the files that choose picks.
func banning(choose func(source) bool, banned ...use) func(*tree, rule) []finding {
	return func(t *tree, r rule) (found []finding) {
		for _, f := range t.files {
			if choose(f) && r.binds(f) {
				found = append(found, t.uses(f, banned)...)
			}
		}
		return found
	}
}

func code(f source) bool { return !f.test }

func inLibraries(f source) bool {
	return !f.test && under(f.dir, "rpc", "runtime", "journal", "policy", "internal")
}

func callRules() []rule {
	return slices.Concat(fileRules(), outputRules(), valueRules(), deferRules())
}

func fileRules() []rule {
	return []rule{{
		name: "no-os-create",
		why: "os.Create follows links, truncates what is there and makes files that others may read. An owner's file " +
			"comes from internal/safefile (CreateOwner, WriteOwner); any other from os.OpenFile with O_EXCL and a mode.",
		check: banning(code, use{"os", "Create"}),
		bad:   map[string]string{"cmd/a.go": "package a\nimport \"os\"\nvar _, _ = os.Create(\"x\")"},
		good:  map[string]string{"cmd/a_test.go": "package a\nimport \"os\"\nvar _, _ = os.Create(\"x\")"},
	}, {
		name: "owner-files-read-through-safefile",
		why: "os.ReadFile checks neither owner, mode, links nor size, and reads without a bound. Files that carry authority " +
			"are opened once, by internal/safefile. A package that reads other things is exempt by name.",
		exempt: map[string]string{
			"internal/safefile": "it is the place",
			"integration":       "test tooling; reads the repository",
			"runtime/cgroup":    "reads the kernel's cgroup files",
			"runtime/host":      "reads what the kernel says of the host",
			"runtime/sandbox":   "reads /proc and sysctls of the sandbox it builds",
			"rpc/transcript":    "reads golden transcripts and their policies, which carry no authority, after checking type and size",
		},
		check: banning(code, use{"os", "ReadFile"}),
		bad:   map[string]string{"policy/a.go": "package a\nimport \"os\"\nvar _, _ = os.ReadFile(\"x\")"},
		good:  map[string]string{"runtime/cgroup/a.go": "package a\nimport \"os\"\nvar _, _ = os.ReadFile(\"x\")"},
	}, {
		name: "owner-files-written-through-safefile",
		why: "os.WriteFile writes through links and in place: a crash leaves half a file under the real name. Owner files are " +
			"replaced by internal/safefile: a new file, synced, renamed, its directory synced.",
		exempt: map[string]string{
			"internal/safefile": "it is the place",
			"integration":       "test tooling",
			"runtime/cgroup":    "writes the kernel's cgroup files, where there is nothing to replace",
			"runtime/sandbox":   "writes /proc files and the synthesized /etc of a root nobody else sees yet",
			"rpc/transcript":    "fills the private directory that a transcript is played in",
			"cmd/glove":         "writes documents where the operator says, as a compiler writes its output",
		},
		check: banning(code, use{"os", "WriteFile"}),
		bad:   map[string]string{"policy/a.go": "package a\nimport \"os\"\nvar _ = os.WriteFile(\"x\", nil, 0)"},
		good:  map[string]string{"runtime/cgroup/a.go": "package a\nimport \"os\"\nvar _ = os.WriteFile(\"x\", nil, 0)"},
	}, {
		name:  "no-is-exist",
		why:   "os.IsNotExist and its like do not unwrap; a wrapped error would take the wrong branch. Use errors.Is.",
		check: banning(code, use{"os", "IsNotExist"}, use{"os", "IsExist"}, use{"os", "IsPermission"}),
		bad:   map[string]string{"cmd/a.go": "package a\nimport \"os\"\nvar _ = os.IsNotExist(nil)"},
		good:  map[string]string{"cmd/a.go": "package a\nimport \"os\"\nvar _ = os.ErrNotExist"},
	}}
}

func outputRules() []rule {
	return []rule{{
		name: "no-printing-in-libraries",
		why: "Standard output is the protocol: one stray line breaks the frames of a controller. And what a library " +
			"prints nobody can route, redact or test; return an error, or use the logger passed in.",
		check: func(t *tree, r rule) (found []finding) {
			found = banning(inLibraries, use{"fmt", "Print"}, use{"fmt", "Printf"}, use{"fmt", "Println"},
				use{"log", "Print"}, use{"log", "Printf"}, use{"log", "Println"},
				use{"log", "Fatal"}, use{"log", "Fatalf"}, use{"log", "Fatalln"},
				use{"log", "Panic"}, use{"log", "Panicf"}, use{"log", "Panicln"})(t, r)
			for _, f := range t.files {
				if inLibraries(f) {
					found = append(found, t.builtinPrints(f)...)
				}
			}
			return found
		},
		bad:  map[string]string{"rpc/a.go": "package a\nfunc f() { println(1) }"},
		good: map[string]string{"cmd/a.go": "package a\nimport \"fmt\"\nfunc f() { fmt.Println(1) }"},
	}, {
		name: "no-exit-in-libraries",
		why: "os.Exit runs no deferred function: what a caller holds (a mount, a cgroup, a lock) would stay. Only the roles " +
			"that are a process of their own, below runtime, end one.",
		check: banning(func(f source) bool { return inLibraries(f) && !under(f.dir, "runtime") }, use{"os", "Exit"}),
		bad:   map[string]string{"journal/a.go": "package a\nimport \"os\"\nfunc f() { os.Exit(1) }"},
		good:  map[string]string{"runtime/sandbox/a.go": "package a\nimport \"os\"\nfunc f() { os.Exit(1) }"},
	}}
}

// builtinPrints finds print and println, the built-in ones.
func (t *tree) builtinPrints(f source) (found []finding) {
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if id, ok := call.Fun.(*ast.Ident); ok && (id.Name == "print" || id.Name == "println") {
				found = append(found, t.at(call.Pos(), "%s", id.Name))
			}
		}
		return true
	})
	return found
}

func valueRules() []rule {
	return []rule{{
		name: "strict-json-only",
		why: "encoding/json matches names in any case, keeps the last of two equal names and loses integers beyond 2^53: " +
			"two readers of one document could disagree on what was authorized. Decode with internal/strictjson.",
		exempt: map[string]string{
			"internal/strictjson": "it is the strict decoder",
			"rpc/transcript":      "a test tool: finds the frame to compare with, and decides nothing",
			"integration":         "test tooling",
			// The jsonrpc2 library wants encoding/json; both hand it text that they wrote
			// themselves, after their own strict reading of the peer's.
			"internal/frame/stream.go": "feeds the jsonrpc2 library envelopes of its own making",
			"rpc/client/stream.go":     "feeds the jsonrpc2 library envelopes of its own making",
		},
		check: banning(code, use{"encoding/json", "Unmarshal"}, use{"encoding/json", "NewDecoder"}),
		bad:   map[string]string{"policy/a.go": "package a\nimport \"encoding/json\"\nvar _ = json.Unmarshal"},
		good:  map[string]string{"rpc/a.go": "package a\nimport \"encoding/json\"\nvar _ json.RawMessage"},
	}, {
		name: "randomness-from-crypto-rand",
		why:  "Ids, secrets and nonces must not be guessable, and one import of math/rand is easily reached for twice.",
		check: func(t *tree, r rule) (found []finding) {
			for _, f := range t.files {
				for _, spec := range f.ast.Imports {
					if p := importPath(spec); !f.test && (p == "math/rand" || p == "math/rand/v2") {
						found = append(found, t.at(spec.Pos(), "imports %s", p))
					}
				}
			}
			return found
		},
		bad:  map[string]string{"rpc/a.go": "package a\nimport _ \"math/rand/v2\""},
		good: map[string]string{"rpc/a_test.go": "package a\nimport _ \"math/rand/v2\""},
	}, {
		name: "time-from-a-clock",
		why: "What is written into a journal, or compared with an expiry, comes from an injected internal/clock, so that a " +
			"test can stand at the bound and one past it.",
		check: banning(func(f source) bool { return !f.test && under(f.dir, "journal", "policy") },
			use{"time", "Now"}, use{"time", "Since"}, use{"time", "Until"}),
		bad:  map[string]string{"journal/a.go": "package a\nimport \"time\"\nvar _ = time.Now()"},
		good: map[string]string{"cmd/a.go": "package a\nimport \"time\"\nvar _ = time.Now()"},
	}}
}
