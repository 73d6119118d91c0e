package runtime

import (
	"context"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/journal/session"
)

// TestConservation runs many sessions, half of which are killed at random, by
// their monitor, by their first process, by a stop, or by a broken connection.
// Afterwards everything on the host is as it was before, and every session has
// its truthful end.
func TestConservation(t *testing.T) {
	count := 200
	if testing.Short() {
		count = 40
	}
	w := newWorld(t, generous, "/bin/sh", "-c", "echo a; sleep 0.02; echo b; setsid sleep 0.02 & exit 0")
	w.trust()
	warm, _ := w.run(w.grant("copy"))
	_ = warm
	_, err := w.Cleanup(t.Context(), "s1")
	must(t, err)
	before, goroutines := w.inventory(), runtime.NumGoroutine()
	random := rand.New(rand.NewPCG(1, 2))
	ends := map[end]int{}
	for i := range count {
		rec, err := w.start(w.create(w.grant("copy")))
		must(t, err)
		if i%2 == 0 {
			w.harm(random, rec)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		must(t, w.Settled(ctx, rec.SessionID))
		rec, err = w.store.Get(rec.SessionID)
		must(t, err)
		ends[endOf(rec)]++
		_, err = w.Cleanup(ctx, rec.SessionID)
		must(t, err)
		cancel()
	}
	t.Logf("ends: %v", ends)
	for e := range ends {
		switch e {
		case exitedEnd, signaledEnd, killedEnd, lostEnd, end{session.Exited, "supervisor_error"}:
		default:
			t.Errorf("a session is %v", e)
		}
	}
	w.same(before)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for runtime.NumGoroutine() > goroutines+spareFDs {
		if !wait(ctx, 10*time.Millisecond) {
			t.Fatalf("%d goroutines, were %d", runtime.NumGoroutine(), goroutines)
		}
	}
	must(t, w.Reconcile(t.Context()))
	if len(w.Issues()) != 0 {
		t.Errorf("issues: %v", w.Issues())
	}
}

// harm ends a running session from outside, after a random moment.
func (w *world) harm(random *rand.Rand, rec session.Record) {
	w.t.Helper()
	wait(w.t.Context(), time.Duration(random.Int64N(int64(40*time.Millisecond))))
	switch random.IntN(4) {
	case 0:
		if alive, pid := w.monitorOf(rec.SessionID); alive {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	case 1:
		// Its own first process; it is not reaped before its monitor says so.
		if h := w.handle(rec.SessionID); h != nil && !h.over() {
			_ = unix.Kill(int(rec.Process.PID), unix.SIGKILL)
		}
	case 2:
		if _, err := w.Stop(w.t.Context(), "stop-"+rec.SessionID, rec.SessionID); err != nil {
			w.t.Errorf("stop: %v", err)
		}
	case 3:
		if h := w.handle(rec.SessionID); h != nil {
			h.close()
		}
	}
}

// TestReconcileMeanwhile reconciles over and over while sessions start, are
// read, stopped and end, and while their connections break: it finds nothing to
// complain of, and every session has its one receipt.
func TestReconcileMeanwhile(t *testing.T) {
	count := 24
	if testing.Short() {
		count = 8
	}
	w := newWorld(t, generous, "/bin/sh", "-c", "echo a; sleep 0.05; echo b")
	w.trust()
	var records []session.Record
	for range count {
		records = append(records, w.create())
	}
	done := make(chan struct{})
	var reconciler, workers sync.WaitGroup
	reconciler.Go(func() {
		for !isClosed(done) {
			if err := w.Reconcile(t.Context()); err != nil {
				t.Errorf("reconcile: %v", err)
				return
			}
		}
	})
	for i, rec := range records {
		workers.Go(func() {
			if _, err := w.start(rec); err != nil {
				t.Errorf("start: %v", err)
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			switch i % 3 {
			case 0:
				if _, err := w.Stop(ctx, "stop-"+rec.SessionID, rec.SessionID); err != nil {
					t.Errorf("stop: %v", err)
				}
			case 1:
				if h := w.handle(rec.SessionID); h != nil {
					h.close()
				}
			}
			if err := w.Settled(ctx, rec.SessionID); err != nil {
				t.Errorf("settled: %v", err)
			}
		})
	}
	workers.Wait()
	close(done)
	reconciler.Wait()
	for _, rec := range records {
		rec, err := w.store.Get(rec.SessionID)
		must(t, err)
		if rec.State != session.Exited {
			t.Errorf("session %s is %v", rec.SessionID, endOf(rec))
		}
		w.oneReceipt(rec)
	}
	if len(w.Issues()) != 0 {
		t.Errorf("issues: %v", w.Issues())
	}
}
