package ui

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestExitCode(t *testing.T) {
	for _, test := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{Fail("c", "m", ""), 1},
		{Usage("x"), 2},
		{&Error{Code: "c", Exit: 4}, 4},
		{fmt.Errorf("wrapped: %w", Usage("x")), 2},
		{&Silent{Exit: 3}, 3},
	} {
		if got := ExitCode(test.err); got != test.want {
			t.Errorf("ExitCode(%v) = %d, want %d", test.err, got, test.want)
		}
	}
}

func TestReport(t *testing.T) {
	failure := &Error{Code: "c", Message: "m\x1b[2J", Detail: []string{"d"}, Next: "one\ntwo"}
	var out, errs bytes.Buffer
	s := &Streams{Out: &out, Err: &errs}
	s.Report("p", failure, false)
	if want := "p: c: m\\u001b[2J\n  d\n  next: one\n        two\n"; errs.String() != want || out.Len() != 0 {
		t.Errorf("for people: %q and %q, want %q on standard error", errs.String(), out.String(), want)
	}
	errs.Reset()
	s.Report("p", failure, true)
	for _, part := range []string{`"ok": false`, `"code": "c"`, `"next": "one\ntwo"`} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("for programs: %s lacks %s", out.String(), part)
		}
	}
	if errs.Len() != 0 {
		t.Errorf("for programs something is said on standard error: %q", errs.String())
	}
	out.Reset()
	s.Report("p", &Silent{Exit: 3}, true)
	if out.Len()+errs.Len() != 0 {
		t.Error("a silent end says something")
	}
}

// A code may come from a peer: nothing of a failure reaches the terminal as control.
func TestReportShowsNoControls(t *testing.T) {
	var errs bytes.Buffer
	s := &Streams{Out: &bytes.Buffer{}, Err: &errs}
	s.Report("p", &Error{Code: "c\x1b[31m", Message: "m\u009b", Detail: []string{"\x07"}, Next: "\x1b]0;x"}, false)
	if want := `p: c\u001b[31m: m\u009b` + "\n" + `  \u0007` + "\n" + `  next: \u001b]0;x` + "\n"; errs.String() != want {
		t.Errorf("got %q, want %q", errs.String(), want)
	}
}

func TestColorAllowed(t *testing.T) {
	for _, test := range []struct {
		noColor, terminal string
		want              bool
	}{{"", "xterm", true}, {"1", "xterm", false}, {"0", "xterm", false}, {"", "dumb", false}} {
		got := ColorAllowed(func(name string) string {
			return map[string]string{"NO_COLOR": test.noColor, "TERM": test.terminal}[name]
		})
		if got != test.want {
			t.Errorf("NO_COLOR=%q TERM=%q: colour %v, want %v", test.noColor, test.terminal, got, test.want)
		}
	}
}

func TestTable(t *testing.T) {
	table := &Table{Head: []string{"A", "LONGER"}}
	table.Row("one\ntwo", "x")
	table.Row("é", "y\x07")
	table.Paint(1, Green)
	var out bytes.Buffer
	table.Write(&out, "  ", false)
	want := "  A    LONGER\n  one  x\n  two\n  é    y\\u0007\n"
	if out.String() != want {
		t.Errorf("table:\n%q\nwant\n%q", out.String(), want)
	}
	out.Reset()
	table.Write(&out, "", true)
	if !strings.Contains(out.String(), "\x1b[32my") {
		t.Errorf("the cell is not coloured: %q", out.String())
	}
}

func TestJSONSaysEmptyListsAndKeepsOrder(t *testing.T) {
	var out bytes.Buffer
	s := &Streams{Out: &out}
	if err := s.JSON(struct {
		B []string `json:"b"`
		A string   `json:"a"`
	}{A: "<&>"}); err != nil {
		t.Fatal(err)
	}
	if want := "{\n  \"b\": [],\n  \"a\": \"<&>\"\n}\n"; out.String() != want {
		t.Errorf("JSON = %q, want %q", out.String(), want)
	}
}

// TestHelpForNothing: asking for the help of a command that is not there is a mistake, at
// every level, and one of a command that is there is not.
func TestHelpForNothing(t *testing.T) {
	tree := func(streams *Streams) *cobra.Command {
		root := &cobra.Command{Use: "tool", Short: "a tool", Args: cobra.ArbitraryArgs, RunE: func(*cobra.Command, []string) error { return nil }}
		group := &cobra.Command{Use: "group", Short: "a group"}
		group.AddCommand(&cobra.Command{Use: "leaf ARG", Short: "a leaf", Args: cobra.ExactArgs(1), RunE: root.RunE})
		root.AddCommand(group)
		Prepare(root, streams)
		return root
	}
	for line, want := range map[string]int{
		"--help": 0, "group --help": 0, "group leaf -h": 0, "group leaf any --help": 0,
		"nothing --help": ExitUsage, "group nothing -h": ExitUsage, "group -h nothing": 0,
	} {
		var out, complaint bytes.Buffer
		streams := &Streams{In: strings.NewReader(""), Out: &out, Err: &complaint}
		if got := Run(tree(streams), streams, strings.Fields(line)); got != want {
			t.Errorf("%q: exit %d, want %d; said %q", line, got, want, complaint.String())
		}
		if (complaint.Len() > 0) != (want != 0) {
			t.Errorf("%q: standard error %q", line, complaint.String())
		}
	}
}

// TestMissingArgumentsAreNamed: what is missing has the name that the help gives it.
func TestMissingArgumentsAreNamed(t *testing.T) {
	for _, c := range []struct {
		use  string
		args cobra.PositionalArgs
		line []string
		want string
	}{
		{"show ID", cobra.ExactArgs(1), nil, "x show needs ID"},
		{"copy FROM TO", cobra.ExactArgs(2), []string{"a"}, "x copy needs TO"},
		{"copy FROM TO [flags]", cobra.ExactArgs(2), nil, "x copy needs FROM and TO"},
		{"show ID", cobra.ExactArgs(1), []string{"a", "b"}, `x show takes no more than ID: what is "b"?`},
		{"check FILE...", cobra.MinimumNArgs(1), nil, "x check needs FILE"},
	} {
		root := &cobra.Command{Use: "x"}
		root.AddCommand(&cobra.Command{Use: c.use, Args: c.args, Run: func(*cobra.Command, []string) {}})
		var out, errs bytes.Buffer
		streams := &Streams{Out: &out, Err: &errs}
		Prepare(root, streams)
		if status := Run(root, streams, append(strings.Fields(c.use)[:1], c.line...)); status != ExitUsage || !strings.Contains(errs.String(), c.want) {
			t.Errorf("%s %q: %d, %q; want %q", c.use, c.line, status, errs.String(), c.want)
		}
	}
}
