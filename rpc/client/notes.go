package client

import "sync"

// maxNoteBytes bounds the notifications that wait for the handler. When so much
// waits the connection is not read, which is the server's back-pressure.
const maxNoteBytes = 32 << 20

// notes are the notifications that wait for the handler, in their order. There
// is room for many, because the handler may itself wait for an answer that comes
// behind them: a follower's window of ordinary output is far smaller.
type notes struct {
	mu    sync.Mutex
	list  []Note
	bytes int
	more  chan struct{} // has room for one: the list is not empty
	room  chan struct{} // has room for one: something was taken
}

func newNotes() *notes { return &notes{more: make(chan struct{}, 1), room: make(chan struct{}, 1)} }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func size(n Note) int { return len(n.Method) + len(n.Params) + 64 }

// put adds a notification, waiting while too much waits already; after quit it
// adds nothing.
func (q *notes) put(n Note, quit <-chan struct{}) {
	for !q.add(n) {
		select {
		case <-q.room:
		case <-quit:
			return
		}
	}
	signal(q.more)
}

func (q *notes) add(n Note) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) > 0 && q.bytes+size(n) > maxNoteBytes {
		return false
	}
	q.list, q.bytes = append(q.list, n), q.bytes+size(n)
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
	signal(q.room)
	return n, true
}
