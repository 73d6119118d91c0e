package cgroup

import (
	"context"
	"sync"
	"time"
)

// Bounds of the time between two looks at the CPU time.
const (
	// MinPoll is the shortest, and what remains of precision near the limit.
	MinPoll = time.Millisecond
	// MaxPoll is the longest, and what an idle session costs: ten short reads a second.
	MaxPoll = 100 * time.Millisecond
	// blindPoll takes the place of MaxPoll where the kernel does not notify of
	// memory and pids events.
	blindPoll = 10 * time.Millisecond
	// settle is how long after a notification the counters are looked at closely:
	// the cgroup v1 out-of-memory notification comes before the kill it announces.
	settle = 200 * time.Millisecond
)

// WatchConfig says what to watch for.
type WatchConfig struct {
	// CPULimit is the CPU time of the whole group at which [CauseCPU] is reported; 0
	// means none.
	CPULimit time.Duration
	// Cores is how many CPUs the group can burn at once; 0 means all that are online.
	Cores int
}

// Watcher looks after one group until a limit is met, observation fails, or it is
// stopped.
type Watcher struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	err error
}

// Watch starts watching g and calls report, once and from another goroutine, with
// the first cause that appears: memory, pids and CPU time in this order if several
// do at once. If the group cannot be read any more the cause is
// [CauseSupervisorError] and [Watcher.Err] says why. When ctx ends or Stop is called
// first, report is not called.
//
// CPU time is polled: after each look the next comes when the rest of the budget
// could at the earliest be used up, between [MinPoll] and [MaxPoll]. The time by
// which a session can overrun is therefore about one poll and one kernel tick
// (which bounds how old the kernel's own count is) per core. Memory and pids
// events wake the watcher through the kernel's event files.
//
// The watcher does not kill; report should. On cgroup v1 that is also what makes the
// whole session die together, as the kernel there kills one process only.
func Watch(ctx context.Context, g *Group, cfg WatchConfig, report func(Cause)) (*Watcher, error) {
	if cfg.CPULimit < 0 || cfg.Cores < 0 {
		return nil, fail(CodeInvalid, "watch", "config", nil)
	}
	if cfg.Cores == 0 {
		cfg.Cores = onlineCPUs()
	}
	if _, err := g.Usage(); err != nil {
		return nil, err
	}
	var events eventSource
	err := g.use("watch", func(c control) (err error) {
		events, err = c.events()
		return err
	})
	if err != nil {
		events = nil // no notifications here, for example no inotify instance is left: poll
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &Watcher{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer cancel()
		if events != nil {
			// Aside: the kernel lets the last reader of a watched inode go before it
			// gives an inotify instance back, which takes many milliseconds.
			defer func() { go events.Close() }()
		}
		if cause, ok := w.watch(ctx, g, cfg, events); ok {
			report(cause)
		}
	}()
	return w, nil
}

// watch runs until a cause appears or ctx ends.
func (w *Watcher) watch(ctx context.Context, g *Group, cfg WatchConfig, events eventSource) (Cause, bool) {
	var wake <-chan struct{}
	longest := blindPoll
	if events != nil {
		wake, longest = events.C(), MaxPoll
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var whole, closely time.Time // last full look; until when to look closely
	for {
		select {
		case <-ctx.Done():
			return "", false
		case <-wake:
			closely, whole = time.Now().Add(settle), time.Time{}
		case <-timer.C:
		}
		now := time.Now()
		full := now.Sub(whole) >= longest || now.Before(closely)
		u, err := look(g, full)
		if ctx.Err() != nil {
			return "", false
		}
		if err != nil {
			w.mu.Lock()
			w.err = err
			w.mu.Unlock()
			return CauseSupervisorError, true
		}
		if cause, met := u.Exceeded(cfg.CPULimit); met {
			return cause, true
		}
		if full {
			whole = now
		}
		next := nextPoll(u.CPUMicros, cfg, longest)
		if now.Before(closely) {
			next = MinPoll
		}
		timer.Reset(next)
	}
}

// look reads everything, or the CPU time only.
func look(g *Group, full bool) (u Usage, err error) {
	if full {
		return g.Usage()
	}
	u.CPUMicros, err = g.cpuMicros()
	return u, err
}

// nextPoll returns how long all cores together need at least for what is left.
func nextPoll(usedMicros uint64, cfg WatchConfig, longest time.Duration) time.Duration {
	if cfg.CPULimit == 0 {
		return longest
	}
	limit := uint64(cfg.CPULimit.Microseconds())
	if usedMicros >= limit {
		return MinPoll
	}
	rest := min(limit-usedMicros, uint64(time.Hour.Microseconds()))
	return min(max(time.Duration(rest)*time.Microsecond/time.Duration(cfg.Cores), MinPoll), longest)
}

// Done is closed when the watcher has ended and report, if it was called, has returned.
func (w *Watcher) Done() <-chan struct{} { return w.done }

// Err returns why observation failed, nil otherwise.
func (w *Watcher) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Stop ends the watcher and waits until it has ended. It must not be called from
// report. It may be called more than once.
func (w *Watcher) Stop() {
	w.cancel()
	<-w.done
}
