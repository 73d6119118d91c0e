package broker

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// TestModel draws workspaces, proposals and failures, and compares every outcome with a model of
// what a set of operations does: ok means exactly after, commit-not-applied exactly before, and what
// the log says is what the workspace shows.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := newSite(t)
		for _, d := range []string{"docs", "second"} {
			s.dir(d)
		}
		names := []string{"docs/a", "docs/b", "docs/c", "second/d", "second/e", "f"}
		state := map[string]string{}
		for _, n := range names {
			if rapid.Bool().Draw(r, "there "+n) {
				state[n] = rapid.StringMatching(`[a-z]{0,8}`).Draw(r, "content "+n)
				s.file(n, state[n])
			}
		}
		for round := range rapid.IntRange(1, 3).Draw(r, "rounds") {
			ops, after := drawProposal(r, names, state)
			if len(ops) == 0 {
				return
			}
			fault := rapid.SampledFrom([]string{"none", "step", "rename"}).Draw(r, "fault")
			s.b.step, s.b.mover = func(Step) error { return nil }, mover{renameNew, exchange}
			nth := rapid.IntRange(1, len(ops)).Draw(r, "nth")
			switch fault {
			case "step":
				s.at(rapid.SampledFrom([]Step{StepStaged, StepJournal, StepMoved, StepSynced}).Draw(r, "step"), nth, func() error { return errors.New("injected") })
			case "rename":
				s.b.mover = failingMover(nth, rapid.Bool().Draw(r, "late"))
			}
			refusal := s.apply(ops...)
			want := state
			switch {
			case refusal == nil:
				want = after
			case refusal.Code == CodeCommitNotApplied || refusal.Code == CodeStageFailed:
				if fault == "none" {
					r.Fatalf("round %d refused without a fault: %v", round, refusal)
				}
			default:
				r.Fatalf("round %d: %v", round, refusal)
			}
			if got := s.files(names); !maps.Equal(got, want) {
				r.Fatalf("round %d (%v): the workspace is %v, want %v", round, refusal, got, want)
			}
			if left := s.left(); len(left) != 0 {
				r.Fatalf("left %v", left)
			}
			state = want
		}
		if a, b := s.gate.count(t, "started"), s.gate.count(t, "completed")+s.gate.count(t, "failed"); a != b {
			r.Fatalf("%d starts, %d outcomes", a, b)
		}
	})
}

// files reads the named files.
func (s *site) files(names []string) map[string]string {
	found := map[string]string{}
	for _, n := range names {
		if c, ok := s.content(n); ok {
			found[n] = c
		}
	}
	return found
}

// failingMover fails its nth call, before or after it took effect.
func failingMover(nth int, late bool) mover {
	fail := func(do func() error) error {
		if nth--; nth != 0 {
			return do()
		}
		if late {
			return errors.Join(do(), errors.New("injected after"))
		}
		return errors.New("injected before")
	}
	return mover{
		renameNew: func(a *os.File, n string, b *os.File, m string) error {
			return fail(func() error { return renameNew(a, n, b, m) })
		},
		exchange: func(a *os.File, n string, b *os.File, m string) error {
			return fail(func() error { return exchange(a, n, b, m) })
		},
	}
}

// drawProposal draws operations that fit the state, and what they make of it.
func drawProposal(r *rapid.T, names []string, state map[string]string) (ops []op, after map[string]string) {
	after = maps.Clone(state)
	free := map[string]bool{}
	for _, n := range names {
		if _, there := state[n]; !there {
			free[n] = true
		}
	}
	for i, n := range names {
		content, there := state[n]
		fresh := fmt.Sprintf("fresh %d", i) + content
		switch kind := rapid.SampledFrom([]string{"", KindCreate, KindReplace, KindDelete, KindMove}).Draw(r, "kind "+n); {
		case !there && kind == KindCreate && free[n]:
			ops, after[n] = append(ops, create(n, fresh)), fresh
			free[n] = false
		case there && kind == KindReplace:
			ops, after[n] = append(ops, replace(n, content, fresh)), fresh
		case there && kind == KindDelete:
			ops = append(ops, remove(n, content))
			delete(after, n)
		case there && kind == KindMove:
			for _, to := range names {
				if free[to] {
					ops, free[to] = append(ops, move(n, to, content)), false
					delete(after, n)
					after[to] = content
					break
				}
			}
		}
	}
	return ops, after
}
