package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gloved.dev/journal/session"
)

// legal is the state machine as a table: operation, from, to.
var legal = map[string]map[session.State]session.State{
	"reserve":  {session.Created: session.Preparing},
	"starting": {session.Preparing: session.Starting},
	"running":  {session.Starting: session.Running},
	"stopping": {session.Running: session.Stopping},
	"exited":   {session.Running: session.Exited, session.Stopping: session.Exited},
	"failed":   {session.Starting: session.Failed, session.Running: session.Failed, session.Stopping: session.Failed},
	"expired":  {session.Starting: session.Failed},
}

// Random operations on a few sessions: exactly the table's transitions happen,
// each key keeps its first answer, and a reopened store is the same store.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRig(t, session.Options{})
		states := map[string]session.State{}
		answers := map[string]session.Record{}
		redo := map[string]func() (session.Record, error){}
		key := 0
		call := func(rt *rapid.T, op, id string) {
			key++
			k := fmt.Sprint("k", key)
			rec, _ := r.s.Get(id)
			var do func() (session.Record, error)
			switch op {
			case "create":
				do = func() (session.Record, error) { return r.create(k, id) }
			case "reserve":
				a := r.auth(id)
				do = func() (session.Record, error) { return r.s.ReserveStart(ctx, k, a, resolves) }
			case "starting":
				do = func() (session.Record, error) { return r.s.MarkStarting(ctx, r.starting(k, id), resolves) }
			case "running":
				do = func() (session.Record, error) { return r.s.MarkRunning(ctx, r.request(k, id)) }
			case "stopping":
				do = func() (session.Record, error) { return r.s.MarkStopping(ctx, r.request(k, id)) }
			case "exited":
				x := terminal(id, max(rec.RunningAtMS, 1), r.ms()+1)
				do = func() (session.Record, error) { return r.s.MarkExited(ctx, k, x, confirmed) }
			case "failed":
				do = func() (session.Record, error) { return r.s.MarkFailed(ctx, k, id, session.SupervisorError) }
			case "expired":
				do = func() (session.Record, error) { return r.s.MarkFailed(ctx, k, id, session.AuthorizationExpired) }
			}
			got, err := do()
			from, exists := states[id]
			switch {
			case op == "create" && exists:
				if session.CodeOf(err) != session.SessionConflict {
					rt.Fatalf("create again: %v", err)
				}
			case op == "create":
				if err != nil {
					rt.Fatal(err)
				}
				states[id] = session.Created
			case !exists:
				if session.CodeOf(err) != session.NotFound {
					rt.Fatalf("%s of nothing: %v", op, err)
				}
			default:
				to, ok := legal[op][from]
				if (err == nil) != ok || !ok && session.CodeOf(err) != session.InvalidState {
					rt.Fatalf("%s from %s: %v", op, from, err)
				}
				if ok {
					states[id] = to
				}
			}
			if err == nil {
				if got.State != states[id] {
					rt.Fatalf("%s led to %s", op, got.State)
				}
				answers[k], redo[k] = got, do
			}
		}
		ids := []string{"a", "b", "c"}
		actions := map[string]func(*rapid.T){
			"advance": func(*rapid.T) { r.clock.Advance(time.Millisecond) },
			"reopen":  func(*rapid.T) { r.reopen() },
			"retry": func(rt *rapid.T) {
				for k, do := range redo {
					got, err := do()
					if diff := cmp.Diff(answers[k], got); err != nil || diff != "" {
						rt.Fatal(err, diff)
					}
					return
				}
			},
			"": func(rt *rapid.T) {
				for id, want := range states {
					if got, err := r.s.Get(id); err != nil || got.State != want {
						rt.Fatalf("%s is %s, want %s (%v)", id, got.State, want, err)
					}
				}
			},
		}
		for _, op := range []string{"create", "reserve", "starting", "running", "stopping", "exited", "failed", "expired"} {
			actions[op] = func(rt *rapid.T) { call(rt, op, rapid.SampledFrom(ids).Draw(rt, "id")) }
		}
		rt.Repeat(actions)
		if err := r.s.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}
