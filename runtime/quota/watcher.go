package quota

import (
	"context"
	"time"
)

// How often a Watcher looks. The limit itself is the kernel's, so a late look
// costs nothing but the time until the session is told.
const (
	// MinPoll is the pause while a partition is filling.
	MinPoll = 10 * time.Millisecond
	// MaxPoll is the pause once nothing has changed for a while.
	MaxPoll = 250 * time.Millisecond
)

// Full says which partition was filled, and with what.
type Full struct {
	Alias  string
	Reason string // ReasonBytes or ReasonInodes
	Usage  Usage
}

// source is what a Watcher looks at; an FS is one.
type source interface {
	Partition() Partition
	Usage() (Usage, error)
}

// Watcher looks at the partitions of a session until one of them is full.
type Watcher struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Watch starts a Watcher. It calls onFull once, with the first partition found
// to have no free page or no free inode, or onError once, if the usage of a
// partition cannot be read, since a limit that is not watched is not a limit;
// then it ends. Both are called on the Watcher's goroutine. An FS must stay
// open until Stop has returned.
func Watch(list []*FS, onFull func(Full), onError func(error)) *Watcher {
	sources := make([]source, len(list))
	for i, f := range list {
		sources[i] = f
	}
	return watch(sources, onFull, onError)
}

func watch(list []source, onFull func(Full), onError func(error)) *Watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{cancel: cancel, done: make(chan struct{})}
	go w.run(ctx, list, onFull, onError)
	return w
}

// Stop ends the watching and waits until no callback can come any more. It
// must not be called from a callback. Stopping twice is harmless.
func (w *Watcher) Stop() {
	w.cancel()
	<-w.done
}

func (w *Watcher) run(ctx context.Context, list []source, onFull func(Full), onError func(error)) {
	defer close(w.done)
	last := make([]Usage, len(list))
	pause := MinPoll
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		busy := false
		for i, s := range list {
			u, err := s.Usage()
			if err != nil {
				onError(err)
				return
			}
			if reason := u.Reason(); reason != "" {
				onFull(Full{Alias: s.Partition().Alias, Reason: reason, Usage: u})
				return
			}
			busy = busy || filling(last[i], u)
			last[i] = u
		}
		if pause = min(2*pause, MaxPoll); busy {
			pause = MinPoll
		}
		timer.Reset(pause)
	}
}

// filling says whether the next look should come soon: usage rose by a
// sixty-fourth of the whole, or less than an eighth is left and it rose at all.
func filling(before, now Usage) bool {
	rose := func(before, now, total uint64) bool {
		return now > before && (now-before >= total/64 || total-now < total/8)
	}
	return rose(before.UsedBytes, now.UsedBytes, now.TotalBytes) ||
		rose(before.UsedInodes, now.UsedInodes, now.TotalInodes)
}
