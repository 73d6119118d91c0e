package rpc

import (
	"context"
	"sync"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/digest"
)

const (
	// MaxKeys bounds the idempotency keys remembered in memory.
	MaxKeys = 4096
	// maxKeyBytes bounds the answers remembered with them.
	maxKeyBytes = 16 << 20
	// keyLifetime is how long an answer is kept at least: as long as a client tries
	// the same request again. Older ones make room when the table is full, so that
	// neither a resident server nor a busy one wears out.
	keyLifetime = 2 * time.Minute
)

// keyTable remembers the answers of mutating methods that do not do so
// themselves. A key stands for one method and one set of parameters. Failures
// are not remembered: trying again is what a client does after one.
type keyTable struct {
	clock clock.Clock

	mu      sync.Mutex
	entries map[string]*keyEntry
	bytes   int
}

type keyEntry struct {
	digest string
	done   chan struct{} // closed when result is set or the entry is removed
	result []byte        // nil while the first request runs
	at     time.Time
}

// paramsDigest is what a key is bound to.
func paramsDigest(method string, canonical []byte) string {
	return digest.SHA256Hex(append(append([]byte(method), 0), canonical...))
}

// do returns the remembered answer for key, or runs f and remembers its answer.
// Of concurrent calls with one key one runs f and the others wait for it.
func (t *keyTable) do(ctx context.Context, key, sum string, f func() ([]byte, error)) ([]byte, error) {
	for {
		e, mine, err := t.claim(key, sum)
		if err != nil {
			return nil, err
		}
		if mine {
			return t.run(key, e, f)
		}
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		t.mu.Lock()
		result := e.result
		t.mu.Unlock()
		if result != nil {
			return result, nil
		}
		// The first one failed and is forgotten: try to be the next.
	}
}

func (t *keyTable) claim(key, sum string) (e *keyEntry, mine bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e = t.entries[key]; e != nil {
		if e.digest != sum {
			return nil, false, NewError(IdempotencyConflict, "")
		}
		return e, false, nil
	}
	if len(t.entries) >= MaxKeys || t.bytes >= maxKeyBytes {
		t.evict()
	}
	if len(t.entries) >= MaxKeys || t.bytes >= maxKeyBytes {
		return nil, false, NewError(IdempotencyCapacity, "")
	}
	e = &keyEntry{digest: sum, done: make(chan struct{}), at: t.clock.Now()}
	t.entries[key] = e
	return e, true, nil
}

func (t *keyTable) run(key string, e *keyEntry, f func() ([]byte, error)) ([]byte, error) {
	result, err := f()
	t.mu.Lock()
	defer t.mu.Unlock()
	defer close(e.done)
	if err != nil {
		delete(t.entries, key)
		return nil, err
	}
	e.result = result
	t.bytes += len(result)
	return result, nil
}

// evict forgets answers older than keyLifetime. t.mu is held.
func (t *keyTable) evict() {
	limit := t.clock.Now().Add(-keyLifetime)
	for key, e := range t.entries {
		if e.result != nil && e.at.Before(limit) {
			t.bytes -= len(e.result)
			delete(t.entries, key)
		}
	}
}
