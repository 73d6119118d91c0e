package escape

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/require"
)

// The least number of rows, and of rows whose control reached its target, without which the suite
// would prove too little. A user without privilege reaches fewer things outside, too.
const (
	leastAttempts = 60
	leastAsRoot   = 60
	leastAsUser   = 30
)

// The variables by which the unprivileged run of this test learns what to attack.
const factsVariable = "GLOVE_ESCAPE_FACTS"

// TestEscape makes every attempt in every mode this host allows and holds each to a refusal, and
// each control to a success.
func TestEscape(t *testing.T) {
	if text := os.Getenv(factsVariable); text != "" {
		reportAnswers(t, parseFacts(text))
		return
	}
	unix.Umask(0o022)
	usable(t)
	objects := hostObjects(t)
	s := newStage(t, objects)
	tb := &table{t: t, root: os.Geteuid() == 0, controls: s.controls(), answers: map[string]map[string]string{}}
	if !tb.root {
		tb.modes = []string{"user"}
		tb.answers["user"] = s.attack()
	} else {
		tb.modes = []string{"root", "user"}
		tb.answers["root"] = s.attack()
		t.Run("user", func(t *testing.T) { tb.answers["user"] = unprivileged(t, objects) })
	}
	tb.judge()
}

// reportAnswers is the test as an unprivileged user's gloved runs it.
func reportAnswers(t *testing.T, objects *facts) {
	for name, word := range newStage(t, objects).attack() {
		fmt.Printf("%s\t%s\n", name, word)
	}
}

// unprivileged runs the test as anyUser, with control groups of its own.
func unprivileged(t *testing.T, objects *facts) map[string]string {
	raw, err := json.Marshal(objects)
	must(t, err)
	out := asUser(t, "TestEscape", factsVariable+"="+string(raw))
	if strings.Contains(out, "--- SKIP") {
		t.Log(out)
		require.Environment(t, require.UserNamespaces)
	}
	return parseAnswers(out)
}

// A table is what came out of it all.
type table struct {
	t        *testing.T
	root     bool
	modes    []string
	controls map[string]string
	answers  map[string]map[string]string
}

// judge logs the table and fails the test for every row that does not hold.
func (tb *table) judge() {
	t := tb.t
	var text strings.Builder
	reached, lacking, escaped := 0, 0, 0
	rows := attempts()
	fmt.Fprintf(&text, "%-64s %-18s %s\n", "attempt", "outside", strings.Join(tb.modes, " / "))
	for _, a := range rows {
		outside := tb.controls[a.name]
		switch {
		case a.works(outside):
			reached++
		case oneOf(outside, a.lacking):
			lacking++
			outside += " (lacking)"
		case !tb.root:
			outside += " (needs root)"
		default:
			t.Errorf("%s: the control answers %s; it proves nothing", a.name, outside)
		}
		var inside []string
		for _, mode := range tb.modes {
			word := tb.answers[mode][a.name]
			inside = append(inside, word)
			if !oneOf(word, a.refused) {
				escaped++
				t.Errorf("%s: as %s the session's answer is %q, a refusal would be %s", a.name, mode, word, a.refused)
			}
		}
		fmt.Fprintf(&text, "%-64s %-18s %s\n", a.name, outside, strings.Join(inside, " / "))
	}
	least := leastAsRoot
	if !tb.root {
		least = leastAsUser
	}
	if len(rows) < leastAttempts || reached < least {
		t.Errorf("%d attempts with %d controls that reach their target; at least %d and %d are wanted", len(rows), reached, leastAttempts, least)
	}
	t.Logf("\n%s%d attempts in %d modes (%s): %d not refused; outside %d reach their target, %d are not on this machine",
		&text, len(rows), len(tb.modes), strings.Join(tb.modes, ", "), escaped, reached, lacking)
}
