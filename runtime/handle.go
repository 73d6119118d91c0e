package runtime

import (
	"context"
	"errors"
	"sync"
	"time"

	"gloved.dev/journal/receipt"
	"gloved.dev/runtime/monitor"
)

// A handle is what this gloved holds of one session: the connection to its
// monitor while it runs, the saved transcript afterwards.
type handle struct {
	id          string
	reservation *receipt.Reservation

	settling sync.Mutex    // one settlement at a time
	settled  chan struct{} // closed when the end is on record

	mu     sync.Mutex
	client *monitor.Client
	saved  *monitor.SavedTranscript
	err    error // why the session could not be settled
	signal int   // the signal that ended the harness; 0: none, or not known
}

func (h *handle) connection() *monitor.Client {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.client
}

func (h *handle) isSettled() bool { return isClosed(h.settled) }

// end replaces the live connection by the saved transcript.
func (h *handle) end(saved *monitor.SavedTranscript, err error) {
	h.mu.Lock()
	client := h.client
	h.client, h.saved, h.err = nil, saved, err
	h.mu.Unlock()
	close(h.settled)
	if client != nil {
		client.Close()
	}
}

func (h *handle) read(ctx context.Context, cursor uint64, maxBytes int, wait time.Duration) (monitor.Chunk, error) {
	h.mu.Lock()
	client, saved := h.client, h.saved
	h.mu.Unlock()
	if client != nil {
		c, err := client.Read(ctx, cursor, maxBytes, wait)
		if err == nil || !errors.Is(err, &monitor.Error{Code: monitor.CodeGone}) {
			return c, err
		}
		// The monitor left: the rest is, or will be in a moment, in the file.
		select {
		case <-h.settled:
		case <-ctx.Done():
			return monitor.Chunk{}, ctx.Err()
		}
		h.mu.Lock()
		saved = h.saved
		h.mu.Unlock()
	}
	if saved == nil {
		return monitor.Chunk{}, &Error{Code: CodeMonitor, Err: h.err}
	}
	return saved.Read(cursor, maxBytes)
}

// close lets go without ending anything.
func (h *handle) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.client != nil {
		h.client.Close()
	}
	if h.saved != nil {
		_ = h.saved.Close() // read-only
		h.saved = nil
	}
}
