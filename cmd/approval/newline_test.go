package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"gloved.dev/cmd/internal/ui"
	alog "gloved.dev/journal/approval"
	"gloved.dev/runtime/gate"
)

// TestDiffShowsMissingNewline: every last line without a newline says so, in new, deleted and changed
// files alike.
func TestDiffShowsMissingNewline(t *testing.T) {
	for _, c := range []struct {
		before, after string
		marks         int
	}{
		{"", "x\n", 0}, {"", "x", 1}, {"x", "", 1}, {"x\n", "x", 1}, {"x", "x\n", 1}, {"a\nx", "b\nx", 1}, {"x", "y", 2}, {"a\n", "b\n", 0},
	} {
		var out bytes.Buffer
		a := newApp(&ui.Streams{Out: &out})
		a.showDiff(image{bytes: []byte(c.before)}, image{bytes: []byte(c.after)})
		if n := strings.Count(out.String(), `\ No newline`); n != c.marks {
			t.Errorf("%q to %q: %d marks\n%s", c.before, c.after, n, out.String())
		}
	}
}

// TestDecisionSurvivesOtherWriters: a decision that another record came before is made again, and a
// refusal is not.
func TestDecisionSurvivesOtherWriters(t *testing.T) {
	moved := &gate.Error{Code: gate.CodeAppendFailed, Detail: alog.CodeHeadMoved}
	for name, c := range map[string]struct {
		answers []error
		tries   int
	}{
		"at once": {[]error{nil}, 1}, "after two": {[]error{moved, moved, nil}, 3},
		"refused": {[]error{moved, &gate.Error{Code: gate.CodeRequestWithdrawn}}, 2},
		"locked":  {[]error{&gate.Error{Code: gate.CodeAppendFailed, Detail: alog.CodeLockTimeout}}, 1},
		"never":   {[]error{moved, moved, moved, moved, moved, moved, moved, moved}, decisionTries},
	} {
		tries := 0
		_, err := decideAgain(context.Background(), func(*gate.Gate, context.Context, gate.Decision) (gate.Decided, error) {
			tries++
			return gate.Decided{}, c.answers[tries-1]
		}, nil, gate.Decision{})
		if tries != c.tries || gate.Code(err) != gate.Code(c.answers[c.tries-1]) {
			t.Errorf("%s: %d tries, %v", name, tries, err)
		}
	}
}
