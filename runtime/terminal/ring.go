package terminal

// ring keeps the newest bytes of a stream. A byte is named by its absolute
// offset in the stream and stored at that offset modulo the buffer's length,
// so nothing ever moves, but when the buffer grows towards its full size: an
// idle session should not cost the memory of a busy one.
type ring struct {
	buf   []byte
	limit int    // largest len(buf)
	start uint64 // offset of the oldest byte kept
	end   uint64 // offset after the newest
}

const firstRing = 64 << 10

func newRing(limit int) *ring {
	return &ring{buf: make([]byte, min(firstRing, limit)), limit: limit}
}

// append adds p, and drops the oldest bytes if there is no room.
func (r *ring) append(p []byte) {
	r.grow(len(p))
	r.end += uint64(len(p))
	if n := uint64(len(r.buf)); r.end-r.start > n {
		r.start = r.end - n
	}
	if len(p) > len(r.buf) {
		p = p[len(p)-len(r.buf):]
	}
	at := int((r.end - uint64(len(p))) % uint64(len(r.buf)))
	n := copy(r.buf[at:], p)
	copy(r.buf, p[n:])
}

// grow makes room for n more bytes, up to the limit, at least doubling.
func (r *ring) grow(n int) {
	need := int(r.end-r.start) + n
	if need <= len(r.buf) || len(r.buf) == r.limit {
		return
	}
	size := len(r.buf)
	for size < need && size < r.limit {
		size = min(2*size, r.limit)
	}
	old := *r
	r.buf = make([]byte, size)
	for at := old.start; at < old.end; {
		part := old.span(at, int(old.end-at))
		to := int(at % uint64(size))
		at += uint64(copy(r.buf[to:], part))
	}
}

// span gives the bytes from cursor at on, as far as they are contiguous, and
// at most max. It is valid until the next append.
func (r *ring) span(at uint64, max int) []byte {
	from := int(at % uint64(len(r.buf)))
	n := min(max, int(r.end-at), len(r.buf)-from)
	return r.buf[from : from+n]
}
