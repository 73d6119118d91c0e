package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc"
)

func testApp(out, errs *bytes.Buffer) *app {
	return newApp(&ui.Streams{In: strings.NewReader(""), Out: out, Err: errs, Width: 80})
}

func TestEveryCommandHasAnExampleAndAShortText(t *testing.T) {
	var out, errs bytes.Buffer
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		if command.Short == "" || command.Example == "" {
			t.Errorf("%s: short %q, example %q; both must be there", command.CommandPath(), command.Short, command.Example)
		}
		for _, child := range command.Commands() {
			visit(child)
		}
	}
	visit(testApp(&out, &errs).root())
}

func TestNoFlagHasTwoDefaults(t *testing.T) {
	var out, errs bytes.Buffer
	var visit func(*cobra.Command)
	visit = func(command *cobra.Command) {
		for line := range strings.Lines(command.LocalFlags().FlagUsages()) {
			if strings.Count(line, "(default") > 1 {
				t.Errorf("%s: %s", command.CommandPath(), line)
			}
		}
		for _, child := range command.Commands() {
			visit(child)
		}
	}
	visit(testApp(&out, &errs).root())
}

func TestNoColorWithoutATerminal(t *testing.T) {
	var out, errs bytes.Buffer
	a := testApp(&out, &errs)
	if code := ui.Run(a.root(), a.Streams, nil); code != 0 {
		t.Errorf("glove alone exits %d", code)
	}
	if code := ui.Run(a.root(), a.Streams, []string{"nope"}); code != 2 {
		t.Errorf("glove nope exits %d, want 2", code)
	}
	if strings.Contains(out.String()+errs.String(), "\x1b") {
		t.Errorf("escape sequences in a pipe: %q %q", out.String(), errs.String())
	}
}

func testMethods() []rpc.MethodDescription {
	anchor := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{
		"key_id": {Type: "string"}, "sequence": {Type: "integer"},
	}}
	return []rpc.MethodDescription{
		{Name: "page_receipts", Params: []rpc.ContentDescriptor{
			{Name: "anchor", Required: true, Schema: anchor}, {Name: "limit", Schema: &jsonschema.Schema{Type: "integer"}}}},
		{Name: "health"},
	}
}

func TestComplete(t *testing.T) {
	c := &completer{methods: testMethods(), commands: replCommands}
	tests := []struct{ line, want string }{
		{"", "page_receipts health"},
		{"pa", "page_receipts"},
		{"x", ""},
		{":d", ":describe"},
		{":describe he", "health"},
		{":help he", ""},
		{"nope a", ""},
		{"page_receipts ", "anchor= limit="},
		{"page_receipts li", "limit="},
		{"page_receipts limit=1 ", "anchor="},
		{"page_receipts limit=1", ""},
		{"page_receipts {", `{"anchor": {"limit":`},
		{`page_receipts {"a`, `{"anchor":`},
		{`page_receipts {"anchor":`, ""},
		{`page_receipts {"anchor":{`, `{"anchor":{"key_id": {"anchor":{"sequence":`},
		{`page_receipts {"anchor":{"key_id":"x", "`, `"sequence":`},
		{`page_receipts {"anchor":{"key_id":"{\"","sequence":1}, `, `"limit":`},
		{`page_receipts {"anchor":"lim`, ""},
		{`page_receipts [{"`, ""},
	}
	for _, test := range tests {
		var got []string
		for _, candidate := range c.complete(test.line) {
			got = append(got, candidate.value)
		}
		if joined := strings.Join(got, " "); joined != test.want {
			t.Errorf("complete(%q) = %q, want %q", test.line, joined, test.want)
		}
	}
}

func FuzzScanJSON(f *testing.F) {
	for _, seed := range []string{`{"a":{"b`, `}}]]{{[[`, `"\`, `{"a":"\"","`, "{,,,\"\"\"", `{"a" "b" "c`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		place := scanJSON(text)
		if !strings.HasSuffix(text, place.partial) {
			t.Errorf("scanJSON(%q) says %q is being typed, which is not its end", text, place.partial)
		}
		if opened := strings.Count(text, "{") + strings.Count(text, "["); len(place.path) > opened {
			t.Errorf("scanJSON(%q) is %d deep, where only %d were opened", text, len(place.path), opened)
		}
	})
}

func TestParams(t *testing.T) {
	var out, errs bytes.Buffer
	a := testApp(&out, &errs)
	file := filepath.Join(t.TempDir(), "plan.json")
	if err := os.WriteFile(file, []byte(" {\"x\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		arguments []string
		want      string // "": refused
	}{
		{nil, `{}`},
		{[]string{`{"a":1}`}, `{"a":1}`},
		{[]string{`{"a":`, `1}`}, `{"a": 1}`},
		{[]string{"a=1", "b=x", "c=true", `d="1"`}, `{"a":1,"b":"x","c":true,"d":"1"}`},
		{[]string{"a.b=1", "a.c=2"}, `{"a":{"b":1,"c":2}}`},
		{[]string{"a="}, `{"a":""}`},
		{[]string{"plan=@" + file}, `{"plan":{"x":1}}`},
		{[]string{"@" + file}, `{"x":1}`},
		{[]string{"[1]"}, ""},
		{[]string{`{"a":1,"a":2}`}, ""},
		{[]string{"=1"}, ""},
		{[]string{"@" + file + ".no"}, ""},
	}
	for _, test := range tests {
		got, err := a.params(test.arguments)
		if (err == nil) != (test.want != "") || string(got) != test.want {
			t.Errorf("params(%q) = %s, %v; want %q", test.arguments, got, err, test.want)
		}
	}
}

func TestPointerLine(t *testing.T) {
	text := []byte("{\n  \"a\": [\n    {\"b\": 1},\n    {\n      \"c/d\": 2\n    }\n  ],\n  \"e\": 3\n}\n")
	for pointer, want := range map[string]int{"/a/0/b": 3, "/a/1/c~1d": 5, "/e": 8, "/a/1/missing": 4, "/nowhere": 1} {
		if got := pointerLine(text, pointer); got != want {
			t.Errorf("pointerLine(%s) = %d, want %d", pointer, got, want)
		}
	}
	if got := pointerLine([]byte("no JSON"), "/a"); got != 0 {
		t.Errorf("pointerLine of no JSON = %d, want 0", got)
	}
}

func TestHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "history")
	h, err := openHistory(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"one", "one", " ", "two\nlines", strings.Repeat("x", maxHistoryLine+1)} {
		if _, err := h.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"one", "two lines"}; !slices.Equal(h.lines, want) {
		t.Errorf("remembered %q, want %q", h.lines, want)
	}
	if err := h.save(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the history file: %v, %v; want mode 0600", info, err)
	}
	again, err := openHistory(path)
	if err != nil || !slices.Equal(again.lines, h.lines) {
		t.Errorf("read back %q, %v", again.lines, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	open, err := openHistory(path)
	if err == nil || open.path != "" {
		t.Errorf("a history that others can read is used: %v", err)
	}
}

func TestPrettyJSONIsSafeOnATerminal(t *testing.T) {
	got := prettyJSON([]byte(`{"a":"\u001b[2J","b":"`+"\u0085\u202e"+`"}`), true)
	for _, bad := range []string{"\x1b[2J", "\u0085", "\u202e"} {
		if strings.Contains(got, bad) {
			t.Errorf("%q reaches the terminal in %q", bad, got)
		}
	}
	if !strings.Contains(got, "\x1b[36m\"a\"\x1b[0m") {
		t.Errorf("the member is not coloured: %q", got)
	}
}

// TestJournalPathsAreSafeOnATerminal: whoever names a file may put into its name what moves
// a cursor; no verdict on it, and no next step, hands that to the operator's terminal.
func TestJournalPathsAreSafeOnATerminal(t *testing.T) {
	dir := t.TempDir()
	torn := filepath.Join(dir, "torn\x1b[31m log")
	if err := errors.Join(os.Chmod(dir, 0o700), os.WriteFile(torn, []byte(`{"half`), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"verify", "absent\x1b[31m"}, {"verify", torn}, {"show", torn}, {"repair", torn}, {"repair", "--yes", torn}} {
		var out, errs bytes.Buffer
		a := testApp(&out, &errs)
		ui.Run(a.root(), a.Streams, append([]string{"journal"}, args...))
		said := out.String() + errs.String()
		if said == "" || strings.Contains(said, "\x1b") {
			t.Errorf("%q: said %q", args, said)
		}
		if args[0] == "repair" && !strings.Contains(said, "no record") && !strings.Contains(said, "kept in") {
			t.Errorf("%q repaired nothing: %q", args, said)
		}
	}
}

// TestAbsentLogIsNotClean: a mistyped path passes no check.
func TestAbsentLogIsNotClean(t *testing.T) {
	for _, more := range [][]string{nil, {"--json"}} {
		var out, errs bytes.Buffer
		a := testApp(&out, &errs)
		status := ui.Run(a.root(), a.Streams, append([]string{"journal", "verify", filepath.Join(t.TempDir(), "nope")}, more...))
		if status != exitUnreadable || strings.Contains(out.String(), "clean") || !strings.Contains(out.String()+errs.String(), "no_log") {
			t.Errorf("%q: %d, %q, %q", more, status, out.String(), errs.String())
		}
	}
}
