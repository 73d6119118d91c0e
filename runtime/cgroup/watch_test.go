package cgroup

import (
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a group whose kernel the test plays.
type fake struct {
	use     func() (Usage, error)
	looks   atomic.Int64
	full    bool // never empties
	kills   atomic.Int64
	noEvent error
}

func (f *fake) identity() Identity { return Identity{Dev: 1, Ino: 2} }
func (f *fake) add(int) error      { return nil }
func (f *fake) limit(Limits) error { return nil }
func (f *fake) dir() *os.File      { return nil }
func (f *fake) usage() (Usage, error) {
	f.looks.Add(1)
	if f.use == nil {
		return Usage{}, nil
	}
	return f.use()
}
func (f *fake) cpuMicros() (uint64, error)   { u, err := f.usage(); return u.CPUMicros, err }
func (f *fake) populated() (bool, error)     { return f.full, nil }
func (f *fake) kill() error                  { f.kills.Add(1); return nil }
func (f *fake) remove() error                { return nil }
func (f *fake) events() (eventSource, error) { return quiet{}, f.noEvent }
func (f *fake) close()                       {}

type quiet struct{}

func (quiet) C() <-chan struct{} { return nil }
func (quiet) Close()             {}

// TestQuarantine is trap E7: a group that will not empty is given up in bounded time
// and without spinning.
func TestQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{full: true}
		g := &Group{name: "glove-stuck", c: f}
		began := time.Now()
		err := g.Destroy(t.Context())
		var typed *Error
		if !errors.Is(err, ErrQuarantined) || !errors.As(err, &typed) || typed.Name != "glove-stuck" {
			t.Errorf("Destroy = %v, want quarantined and the name", err)
		}
		if took := time.Since(began); took != DestroyBound {
			t.Errorf("gave up after %v, want %v", took, DestroyBound)
		}
		if n := f.kills.Load(); n < 2 || n > 20 {
			t.Errorf("killed %d times", n)
		}
		f.full = false
		if err := g.Destroy(t.Context()); err != nil {
			t.Errorf("Destroy once it is empty: %v", err)
		}
	})
}

func TestWatchCauses(t *testing.T) {
	const limit = time.Second
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		then Usage
		err  error
		want Cause
	}{
		{"cpu at the limit", Usage{CPUMicros: 1_000_000}, nil, CauseCPU},
		{"oom kill", Usage{OOMKills: 1}, nil, CauseMemory},
		{"oom without a victim", Usage{OOMs: 1}, nil, CauseMemory},
		{"refused fork", Usage{PIDLimitHits: 1}, nil, CausePIDs},
		{"all at once", Usage{2_000_000, 0, 0, 0, 0, 0, 1, 1, 1}, nil, CauseMemory},
		{"pids before cpu", Usage{CPUMicros: 2_000_000, PIDLimitHits: 1}, nil, CausePIDs},
		{"unreadable", Usage{}, broken, CauseSupervisorError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := time.Now().Add(300 * time.Millisecond)
				f := &fake{use: func() (Usage, error) {
					if time.Now().Before(at) {
						return Usage{CPUMicros: 999_999, MemoryLimitHits: 7}, nil
					}
					return tt.then, tt.err
				}}
				var got Cause
				calls := 0
				w, err := Watch(t.Context(), &Group{c: f}, WatchConfig{CPULimit: limit, Cores: 2}, func(c Cause) { got, calls = c, calls+1 })
				if err != nil {
					t.Fatal(err)
				}
				<-w.Done()
				w.Stop()
				if got != tt.want || calls != 1 {
					t.Errorf("reported %q %d times, want %q once", got, calls, tt.want)
				}
				if !errors.Is(w.Err(), tt.err) {
					t.Errorf("Err = %v, want %v", w.Err(), tt.err)
				}
			})
		})
	}
}

// TestIdleWatchIsCheap counts looks at a session that does nothing.
func TestIdleWatchIsCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		w, err := Watch(t.Context(), &Group{c: f}, WatchConfig{CPULimit: time.Hour, Cores: 2}, func(c Cause) { t.Errorf("reported %s", c) })
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		w.Stop()
		if n := f.looks.Load(); n > 110 {
			t.Errorf("%d looks in 10 s", n)
		}
	})
}

func TestNextPoll(t *testing.T) {
	cfg := WatchConfig{CPULimit: time.Second, Cores: 4}
	for _, tt := range []struct {
		used uint64
		want time.Duration
	}{
		{0, MaxPoll},
		{600_000, 100 * time.Millisecond},
		{800_000, 50 * time.Millisecond},
		{996_001, MinPoll},
		{1_000_000, MinPoll},
		{2_000_000, MinPoll},
	} {
		if got := nextPoll(tt.used, cfg, MaxPoll); got != tt.want {
			t.Errorf("nextPoll(%d) = %v, want %v", tt.used, got, tt.want)
		}
	}
	if got := nextPoll(5, WatchConfig{}, blindPoll); got != blindPoll {
		t.Errorf("without a limit: %v", got)
	}
}
