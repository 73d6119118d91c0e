package session_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"gloved.dev/journal"
	"gloved.dev/journal/session"
)

func (r *rig) rotate(o session.RotateOptions) session.Rotated {
	r.t.Helper()
	out, err := r.s.Rotate(ctx, o)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestRotate: what is live goes on as if nothing had happened, through a restart
// too; what is not answers that it is archived, whatever is asked of it.
func TestRotate(t *testing.T) {
	r := newRig(t, session.Options{})
	states := map[string]session.State{
		"c1": session.Created, "p1": session.Preparing, "st1": session.Starting,
		"r1": session.Running, "sp1": session.Stopping, "e1": session.Exited, "e2": session.Exited, "e3": session.Exited,
	}
	before := map[string]session.Record{}
	for id, state := range states {
		before[id] = r.to(id, state)
	}
	failed := r.to("f1", session.Running)
	if _, err := r.s.MarkFailed(ctx, "f1.failed", failed.SessionID, session.SupervisorError); err != nil {
		t.Fatal(err)
	}
	reserved := r.s.Stats()
	o := session.RotateOptions{Acknowledged: 1, Keep: func(rec session.Record) bool { return rec.SessionID == "e3" }}
	dry := o
	dry.DryRun = true
	plan := r.rotate(dry)
	if plan.Archive != nil || plan.Sessions != 3 || plan.Kept != 6 || r.s.Archive() != nil || r.s.Stats().Head != reserved.Head {
		t.Errorf("dry run: %+v", plan)
	}
	done := r.rotate(o)
	if done.Archive == nil || done.Archive.Head() != reserved.Head || done.Sessions != 3 || done.KeptRecords >= plan.Records || done.KeptBytes > plan.KeptBytes+2000 {
		t.Errorf("rotation: %+v, planned %+v", done, plan)
	}
	name := filepath.Base(r.path) + ".000001"
	for range 2 {
		for id, want := range before {
			got, err := r.s.Get(id)
			if id == "e1" || id == "e2" {
				r.gone(id, name, err)
				continue
			}
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(session.Record{}, "Sequence"), cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%s: %v %s", id, err, diff)
			}
		}
		_, err := r.s.Get("f1")
		r.gone("f1", name, err)
		_, err = r.create("e1.create", "e1") // a replay
		r.gone("e1", name, err)
		_, err = r.create("another", "e1") // a new session of that name
		r.gone("e1", name, err)
		_, err = r.s.ReserveStart(ctx, "e1.reserve", r.auth("e1"), resolves)
		r.gone("e1", name, err)
		_, err = r.s.MarkFailed(ctx, "k", "f1", session.SupervisorError)
		r.gone("f1", name, err)
		// Replays of what was carried answer as they did.
		if rec, err := r.create("r1.create", "r1"); err != nil || rec.State != session.Created {
			t.Errorf("replay: %+v %v", rec, err)
		}
		_, err = r.create("r1.create", "other")
		want(t, session.IdempotencyConflict, session.Record{}, err)
		list, err := r.s.List()
		if err != nil || len(list) != 6 {
			t.Errorf("list: %d, %v", len(list), err)
		}
		if s := r.s.Stats(); s.ReservedRecords != reserved.ReservedRecords {
			t.Errorf("reserved %d, was %d", s.ReservedRecords, reserved.ReservedRecords)
		}
		r.reopen()
	}
	// Lives go on to their ends, and a second rotation remembers the first.
	if _, err := r.s.MarkStopping(ctx, r.request("r1.stopping", "r1")); err != nil {
		t.Fatal(err)
	}
	ended := terminal("r1", before["r1"].RunningAtMS, r.ms()+5)
	ended.Sequence = 2
	if _, err := r.s.MarkExited(ctx, "r1.exited", ended, confirmed); err != nil {
		t.Fatal(err)
	}
	if out := r.rotate(session.RotateOptions{Acknowledged: 1}); out.Sessions != 1 { // e3: the receipt of r1 is not acknowledged
		t.Errorf("second: %+v", out)
	}
	if out := r.rotate(session.RotateOptions{Acknowledged: 2}); out.Sessions != 1 {
		t.Errorf("third: %+v", out)
	}
	r.reopen()
	for id, n := range map[string]string{"e1": "1", "f1": "1", "e3": "2", "r1": "3"} {
		_, err := r.s.Get(id)
		r.gone(id, filepath.Base(r.path)+".00000"+n, err)
	}
	if v, err := journal.VerifyFile(r.path, journal.VerifyOptions{}); err != nil || len(v.Archives) != 3 {
		t.Errorf("%+v %v", v, err)
	}
	if out := r.rotate(session.RotateOptions{Acknowledged: 2}); !out.Nothing || out.Archive != nil {
		t.Errorf("nothing to do: %+v", out)
	}
}

func (r *rig) gone(id, archive string, err error) {
	r.t.Helper()
	var where *session.ArchivedError
	if session.CodeOf(err) != session.Archived || !errors.As(err, &where) || where.SessionID != id || where.Archive != archive {
		r.t.Errorf("%s: %v, want archived in %s", id, err, archive)
	}
}

// A created session whose plan ended can never start, but a clock that is wrong
// by hours must not archive one that can.
func TestRotateKeepsWhatCanStart(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("s1", session.Created)
	r.clock.Advance(20 * time.Hour)
	if out := r.rotate(session.RotateOptions{}); !out.Nothing {
		t.Errorf("%+v", out)
	}
	r.clock.Advance(-40 * time.Hour) // and backwards
	if out := r.rotate(session.RotateOptions{}); !out.Nothing {
		t.Errorf("%+v", out)
	}
	r.clock.Advance(70 * time.Hour)
	if out := r.rotate(session.RotateOptions{}); out.Sessions != 1 || out.Archive == nil {
		t.Errorf("%+v", out)
	}
	r.clock.Advance(-70 * time.Hour)
	_, err := r.s.ReserveStart(ctx, "k", r.auth("s1"), resolves)
	r.gone("s1", filepath.Base(r.path)+".000001", err)
}

// A full store is rotated without the room that running sessions need for their
// ends, and then takes new ones.
func TestRotateAtCapacity(t *testing.T) {
	r := newRig(t, session.Options{MaxRecords: 18})
	r.to("r1", session.Running)
	r.to("e1", session.Exited)
	r.to("e2", session.Preparing)
	_, err := r.create("k", "n1")
	if err == nil {
		_, err = r.create("k2", "n2")
	}
	want(t, session.Capacity, session.Record{}, err)
	if out := r.rotate(session.RotateOptions{Acknowledged: 1, AtMost: 10}); !out.Nothing {
		t.Errorf("more than a tenth stays: %+v", out)
	}
	if out := r.rotate(session.RotateOptions{Acknowledged: 1, AtMost: 90}); out.Archive == nil {
		t.Fatalf("%+v", out)
	}
	if _, err := r.create("k2", "n2"); err != nil {
		t.Error(err)
	}
	if _, err := r.s.MarkStopping(ctx, r.request("r1.stopping", "r1")); err != nil {
		t.Error(err)
	}
	if s := r.s.Stats(); s.ReservedRecords != 5 {
		t.Errorf("%+v", s)
	}
}

// Names records that contradict the store, or come where none can be, refuse it.
func TestForgedNames(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("f1", session.Running)
	if _, err := r.s.MarkFailed(ctx, "k", "f1", session.SupervisorError); err != nil {
		t.Fatal(err)
	}
	r.to("r1", session.Running)
	r.rotate(session.RotateOptions{})
	r.s.Close()
	name := filepath.Base(r.path) + ".000001"
	for what, body := range map[string]map[string]any{
		"late":  {"schema_version": 1, "operation": "archived", "archive": name, "sessions": []string{"x"}},
		"shape": {"schema_version": 1, "operation": "archived", "archive": name},
	} {
		raw, err := os.ReadFile(r.path)
		if err != nil {
			t.Fatal(err)
		}
		j, err := journal.Open(r.path, journal.Options{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := j.Append(ctx, body); err != nil {
			t.Fatal(err)
		}
		j.Close()
		if s, err := session.Open(r.path, r.o); session.CodeOf(err) != session.Storage {
			t.Errorf("%s: %v", what, err)
			s.Close()
		}
		if err := os.WriteFile(r.path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Twice in the names, or archived and alive.
	raw, err := os.ReadFile(r.path)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Count(string(raw), `"f1"`) != 1 {
		t.Errorf("the archived session is named %d times", strings.Count(string(raw), `"f1"`))
	}
}

// More sessions than one record names are named by several.
func TestManyNames(t *testing.T) {
	r := newRig(t, session.Options{})
	r.to("first", session.Created)
	var create map[string]any
	if err := journal.Walk(r.path, func(e journal.Entry) error { return unmarshal(e.Body(), &create) }); err != nil {
		t.Fatal(err)
	}
	r.s.Close()
	j, err := journal.Open(r.path, journal.Options{Clock: r.clock}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const more = 4096 // and the first: one past what a record names
	var wg sync.WaitGroup
	for n := range more {
		id := fmt.Sprintf("%064d", n) // the longest there is
		wg.Go(func() {
			if _, err := j.Append(ctx, with(with(create, "session_id", id), "idempotency_key", id)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	j.Close()
	r.open()
	r.clock.Advance(72 * time.Hour)
	if out := r.rotate(session.RotateOptions{}); out.Sessions != more+1 || out.KeptRecords != 3 {
		t.Errorf("%+v", out)
	}
	r.reopen()
	for _, id := range []string{"first", fmt.Sprintf("%064d", 0), fmt.Sprintf("%064d", more-1)} {
		_, err := r.s.Get(id)
		r.gone(id, filepath.Base(r.path)+".000001", err)
	}
}
