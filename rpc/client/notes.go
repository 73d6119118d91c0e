package client

import "sync"

// maxNoteBytes bounds the notifications that wait for the handler. A follower's
// window keeps a well-behaved server far below it.
const maxNoteBytes = 32 << 20

// notes are the notifications that wait for the handler, in their order. The
// reader never waits for the handler: the handler may itself wait for an answer
// that comes behind more notifications than any fixed queue would hold.
type notes struct {
	mu    sync.Mutex
	list  []Note
	bytes int
	more  chan struct{} // has room for one: the list is not empty
}

func newNotes() *notes { return &notes{more: make(chan struct{}, 1)} }

func size(n Note) int { return len(n.Method) + len(n.Params) + 64 }

// put adds a notification, or refuses it when too much waits already.
func (q *notes) put(n Note) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.bytes+size(n) > maxNoteBytes {
		return false
	}
	q.list, q.bytes = append(q.list, n), q.bytes+size(n)
	select {
	case q.more <- struct{}{}:
	default:
	}
	return true
}

// get waits for the next notification. After quit it returns what is left, and
// then false: what the server said before it went is still heard.
func (q *notes) get(quit <-chan struct{}) (Note, bool) {
	for {
		if n, ok := q.take(); ok {
			return n, true
		}
		select {
		case <-q.more:
		case <-quit:
			return q.take()
		}
	}
}

func (q *notes) take() (Note, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		return Note{}, false
	}
	n := q.list[0]
	q.list[0] = Note{}
	q.list, q.bytes = q.list[1:], q.bytes-size(n)
	return n, true
}
