package codex

import (
	"os"
	"strings"
	"testing"
)

// TestReq069And075RealProgramsRace starts two real programs on one proposal, again and again: one
// applies it, the other is refused, and the log has one start for each leg.
func TestReq069And075RealProgramsRace(t *testing.T) {
	rounds := 50
	if testing.Short() {
		rounds = 5
	}
	i := newInstance(t)
	path := i.ws + "/docs/raced"
	for round := range rounds {
		change := proposal(t, create("docs/raced", strings.Repeat("x", round+1)), replace("docs/keep.txt", keepText(round), keepText(round+1)))
		done := make(chan result, 2)
		for range 2 {
			go func() { done <- i.codex(change, "apply", "--json", "-") }()
		}
		a, b := <-done, <-done
		if a.exit != 0 {
			a, b = b, a
		}
		if a.exit != 0 || b.exit != 1 {
			t.Fatalf("round %d: %+v and %+v", round, a, b)
		}
		switch code := b.code(t); code {
		case "plan-refused", "replay", "start-refused", "custody-contended", "workspace-drift", "register-refused", "request-refused":
		default:
			t.Fatalf("round %d: the loser met %s", round, code)
		}
		i.must(os.Remove(path))
	}
	log, err := os.ReadFile(i.log)
	i.must(err)
	if n := strings.Count(string(log), `"execution.started"`); n != rounds {
		t.Fatalf("%d starts in %d rounds", n, rounds)
	}
	if n := strings.Count(string(log), `"execution.completed"`); n != rounds {
		t.Fatalf("%d completions in %d rounds", n, rounds)
	}
	i.ok("log", "verify", "--log", i.log, "--policy", i.policy)
}

// keepText is what keep.txt holds before a round.
func keepText(round int) string { return "keep" + strings.Repeat("!", round) }
