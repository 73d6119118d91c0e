package repo_test

import (
	"bytes"
	"errors"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// allowed are the names at the top of the repository.
var allowed = []string{
	"cmd", "rpc", "runtime", "journal", "policy", "testdata", "integration", "internal", "docs",
	"go.mod", "go.sum", "justfile", "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md",
	".ci", ".golangci.yml", ".gitignore", ".git",
}

// markers are what an unfinished thought leaves in a text. The pattern is put together here so that
// this file does not match it.
var markers = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X|HA` + `CK)\b`)

func textRules() []rule {
	return []rule{{
		name: "top-level-names",
		why: "The top level is the map of the project; what is there is decided once, in ARCHITECTURE.md, " +
			"and a new name needs a reason.",
		check: checkTop,
		bad:   map[string]string{"util/a.txt": ""},
		good:  map[string]string{"cmd/a.txt": "", "go.mod": "", "glove": "", ".gitignore": "/glove"},
	}, {
		name: "no-unfinished-work",
		why: "A marker in the text is a task nobody can find, order or close. What is missing is an issue; " +
			"what is here is finished.",
		check: checkMarkers,
		bad:   map[string]string{"cmd/a.sh": "# TO" + "DO: later"},
		good:  map[string]string{"cmd/a.sh": "# to do this, do that"},
	}}
}

func checkTop(t *tree, _ rule) (found []finding) {
	entries, err := fs.ReadDir(t.fsys, ".")
	if err != nil {
		return []finding{{msg: err.Error()}}
	}
	// What git ignores by name at the top is nobody's but the one's who built it.
	text, err := fs.ReadFile(t.fsys, ".gitignore")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return []finding{{msg: err.Error()}}
	}
	ignored := strings.Fields(string(text))
	for _, e := range entries {
		if !slices.Contains(allowed, e.Name()) && !slices.Contains(ignored, "/"+e.Name()) {
			found = append(found, finding{token.Position{Filename: e.Name()}, "is not a name of the top level"})
		}
	}
	return found
}

// textual are the files that people write.
func textual(name string) bool {
	switch path.Ext(name) {
	case ".go", ".sh", ".md", ".yml", ".yaml", ".mod":
		return true
	}
	base := path.Base(name)
	return base == "justfile" || strings.HasPrefix(name, ".ci/") || under(path.Dir(name), "integration/vm")
}

func checkMarkers(t *tree, _ rule) (found []finding) {
	err := walk(t.fsys, func(name string) error {
		if !textual(name) {
			return nil
		}
		text, err := fs.ReadFile(t.fsys, name)
		if err != nil {
			return err
		}
		for _, at := range markers.FindAllIndex(text, -1) {
			line := 1 + bytes.Count(text[:at[0]], []byte("\n"))
			pos := token.Position{Filename: name, Offset: at[0], Line: line}
			found = append(found, finding{pos, string(text[at[0]:at[1]])})
		}
		return nil
	})
	if err != nil {
		found = append(found, finding{msg: err.Error()})
	}
	return found
}
