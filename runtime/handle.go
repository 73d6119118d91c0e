package runtime

import (
	"sync"

	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/monitor"
)

// A handle is what this gloved holds of one session from its release, or its
// adoption, until its end is on record: the connection to its monitor.
type handle struct {
	id          string
	reservation *receipt.Reservation // nil for an adopted session

	settling sync.Mutex    // one settlement at a time
	settled  chan struct{} // closed when the end is on record

	mu      sync.Mutex
	client  *monitor.Client // nil: the monitor is gone
	changed chan struct{}   // closed when client changes
	issue   *Issue          // what keeps the session from being settled or reached
}

func newHandle(id string, c *monitor.Client) *handle {
	return &handle{id: id, client: c, settled: make(chan struct{}), changed: make(chan struct{})}
}

func (h *handle) connection() *monitor.Client {
	c, _ := h.watch()
	return c
}

// watch returns the connection and a channel that is closed when it is another.
func (h *handle) watch() (*monitor.Client, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client, h.changed
}

// connect replaces the connection; nil says that there is none any more.
func (h *handle) connect(c *monitor.Client) {
	h.mu.Lock()
	old := h.client
	h.client = c
	close(h.changed)
	h.changed = make(chan struct{})
	h.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

// over reports whether all that is left to do is to record the end.
func (h *handle) over() bool {
	c := h.connection()
	return c == nil || isClosed(c.Ended())
}

func (h *handle) isSettled() bool { return isClosed(h.settled) }

// note keeps why the session cannot be settled or reached; nil forgets it.
func (h *handle) note(i *Issue) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.issue = i
}

func (h *handle) trouble() *Issue {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.issue
}

// close lets go without ending anything.
func (h *handle) close() {
	if c := h.connection(); c != nil {
		c.Close()
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
