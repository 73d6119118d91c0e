package rpc

import "sync"

// orderer lets calls with the same key run one after another in the order in
// which they took their tickets, on whichever connection they came.
type orderer struct {
	mu    sync.Mutex
	tails map[string]*ticket
}

// A ticket is a place in the queue of one key.
type ticket struct {
	before <-chan struct{} // closed when it is this ticket's turn
	over   chan struct{}   // closed when the next may run
}

var noQueue = func() <-chan struct{} { c := make(chan struct{}); close(c); return c }()

// take returns the next place for key.
func (o *orderer) take(key string) *ticket {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := &ticket{before: noQueue, over: make(chan struct{})}
	if last := o.tails[key]; last != nil {
		t.before = last.over
	}
	o.tails[key] = t
	return t
}

// done lets the next one run. It must be called after t.before was closed, once.
func (o *orderer) done(key string, t *ticket) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.tails[key] == t {
		delete(o.tails, key)
	}
	close(t.over)
}
