// Package tail keeps the end of a text that may be endless: the last words of a
// child process, for the report of its failure.
//
// It is not a log and not a ring for readers; see runtime/terminal for that.
package tail

import "sync"

// DefaultMax is how much a Buffer keeps unless it says otherwise: 4 KiB.
const DefaultMax = 4096

// A Buffer keeps the last bytes written to it. The zero value is ready, keeps
// DefaultMax bytes, and is safe for concurrent use.
type Buffer struct {
	// Max is how many bytes are kept; 0 means DefaultMax.
	Max int

	mu   sync.Mutex
	data []byte
}

// Write implements io.Writer and never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	keep := b.Max
	if keep <= 0 {
		keep = DefaultMax
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(p) >= keep {
		b.data = append(b.data[:0], p[len(p)-keep:]...)
		return len(p), nil
	}
	if over := len(b.data) + len(p) - keep; over > 0 {
		b.data = append(b.data[:0], b.data[over:]...)
	}
	b.data = append(b.data, p...)
	return len(p), nil
}

// String returns what is kept.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.data)
}
