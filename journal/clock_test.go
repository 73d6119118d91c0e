package journal_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
)

// A clock that jumps, by hours or by centuries, forwards and backwards, changes
// what ts says and nothing else: order is seq's. A time that RFC 3339 cannot say
// refuses the record and does not poison the journal.
func TestClockJumps(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	began := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	now := clock.NewFake(began)
	j := open(t, path, journal.Options{Clock: now})
	res, err := j.Reserve(20, 20_000)
	must(t, err)
	var want []time.Time
	for n, jump := range []time.Duration{0, time.Hour, -2 * time.Hour, 200 * 365 * 24 * time.Hour, -280 * 365 * 24 * time.Hour, 24 * time.Hour} {
		now.Advance(jump)
		e, err := res.AppendIf(context.Background(), j.Head(), body{"e", n + 1})
		must(t, err)
		if !e.TS.Equal(now.Now()) {
			t.Errorf("ts is %v at %v", e.TS, now.Now())
		}
		want = append(want, now.Now())
	}
	for _, year := range []int{-1, 10_000} {
		now.Set(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC))
		if _, err := res.Append(context.Background(), body{"x", 1}); code(err) != journal.CodeInvalidBody || j.Stats().Poisoned {
			t.Errorf("year %d: %v", year, err)
		}
		if _, err := j.Rotate(context.Background(), keepNothing); code(err) != journal.CodeInvalidBody || j.Stats().Poisoned {
			t.Errorf("rotation in the year %d: %v", year, err)
		}
	}
	now.Set(began.Add(-1000 * time.Hour)) // before every record there is
	rotate(t, j, keepEven)
	must(t, j.Close())
	var got []time.Time
	j, err = journal.Open(path, journal.Options{Clock: now}, func(e journal.Entry) error {
		got = append(got, e.TS)
		return nil
	})
	must(t, err)
	defer j.Close()
	if len(got) != len(want)/2 || !got[0].Equal(now.Now()) {
		t.Errorf("carried at %v", got)
	}
	if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || v.Status != journal.StatusClean || len(v.Archives) != 1 {
		t.Errorf("%+v %v", v, err)
	}
}

// A session's whole life, receipt included, goes through a clock that jumps at
// every step; a start is refused outside its authorization's window, an end never.
func TestSessionUnderAJumpingClock(t *testing.T) {
	k := newKeeper(t, dir(t))
	k.to("s1", "running")
	k.to("s2", "running")
	room1, err := k.receipts.Reserve("s1", ctl, prof)
	must(t, err)
	room2, err := k.receipts.Reserve("s2", ctl, prof)
	must(t, err)
	k.clock.Advance(-30 * 24 * time.Hour)
	k.end("s1", room1)
	k.to("s3", "created")
	waits := k.auth("s3")
	k.clock.Advance(60 * 24 * time.Hour)
	k.end("s2", room2)
	if _, err := k.store.ReserveStart(t.Context(), "late", waits, resolves); err == nil {
		t.Error("an authorization outlived a jump forwards")
	}
	k.clock.Advance(-90 * 24 * time.Hour)
	if _, err := k.store.ReserveStart(t.Context(), "early", waits, resolves); err == nil {
		t.Error("an authorization was good before it was given")
	}
	k.reopen()
	for _, id := range []string{"s1", "s2"} {
		if r, err := k.store.Get(id); err != nil || r.State != "exited" || r.FinishedAtMS < r.RunningAtMS {
			t.Errorf("%s: %+v %v", id, r, err)
		}
	}
}
