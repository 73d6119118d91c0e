// Package clock injects time. Code that decides by time takes a Clock, so that
// tests can stand at an exact instant, step over a bound, or turn time back as
// an operator's NTP daemon may.
//
// It is for wall-clock decisions (expiry windows, record stamps). It is not for
// measuring durations: limits use the kernel's monotonic clocks.
package clock

import (
	"sync"
	"time"
)

// A Clock tells the time of day.
type Clock interface {
	Now() time.Time
}

type system struct{}

func (system) Now() time.Time { return time.Now() }

// System returns the machine's own clock.
func System() Clock { return system{} }

// UnixMS returns c's time in Unix milliseconds, 0 for times before 1970.
func UnixMS(c Clock) uint64 {
	return uint64(max(c.Now().UnixMilli(), 0))
}

// A Fake is a Clock that stands still until it is told to move. It is safe for
// concurrent use.
type Fake struct {
	mu sync.Mutex
	t  time.Time
}

// NewFake returns a Fake that shows t.
func NewFake(t time.Time) *Fake { return &Fake{t: t} }

// Now implements Clock.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.t
}

// Advance moves the clock by d, which may be negative.
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.t = f.t.Add(d)
}

// Set moves the clock to t.
func (f *Fake) Set(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.t = t
}
