package quota

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeSource counts the looks and shows a usage.
type fakeSource struct {
	mu    sync.Mutex
	looks int
	usage Usage
}

func (f *fakeSource) Partition() Partition { return Partition{Alias: "fake"} }

func (f *fakeSource) Usage() (Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	return f.usage, nil
}

// use sets the bytes in use and gives the looks so far.
func (f *fakeSource) use(bytes uint64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage.UsedBytes = bytes
	return f.looks
}

// An idle partition is looked at four times a second, a filling one at once.
func TestWatchPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{usage: Usage{UsedBytes: page, TotalBytes: 640 * page, UsedInodes: 1, TotalInodes: 10}}
		var full []Full
		w := watch([]source{src}, func(f Full) { full = append(full, f) }, func(err error) { t.Error(err) })
		time.Sleep(time.Minute)
		synctest.Wait()
		before := src.use(321 * page)
		if before < 200 || before > 250 {
			t.Errorf("%d looks in an idle minute", before)
		}
		time.Sleep(MaxPoll + MinPoll)
		synctest.Wait()
		if src.use(640*page) < before+2 {
			t.Error("no quick look after a jump")
		}
		time.Sleep(MaxPoll)
		synctest.Wait()
		w.Stop()
		if len(full) != 1 || full[0].Reason != ReasonBytes || full[0].Alias != "fake" {
			t.Errorf("callbacks: %+v", full)
		}
	})
}

func TestFilling(t *testing.T) {
	u := func(b, i uint64) Usage {
		return Usage{UsedBytes: b, TotalBytes: 6400, UsedInodes: i, TotalInodes: 640}
	}
	for _, c := range []struct {
		before, now Usage
		want        bool
	}{
		{u(0, 0), u(0, 0), false},
		{u(0, 0), u(99, 9), false},
		{u(0, 0), u(100, 0), true},
		{u(0, 0), u(0, 10), true},
		{u(6000, 0), u(6000, 0), false},
		{u(6000, 0), u(6001, 0), true},
		{u(6000, 0), u(5000, 0), false},
	} {
		if got := filling(c.before, c.now); got != c.want {
			t.Errorf("filling(%+v, %+v) = %v", c.before, c.now, got)
		}
	}
}
