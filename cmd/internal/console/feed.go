package console

import (
	"context"
	"io"
	"sync"

	"gloved.dev/internal/strictjson"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// A Feed receives one session's output. Its Note method is the client's OnNote. It
// outlives the client: Follow on a new connection goes on where the last one ended.
type Feed struct {
	ID  string
	Out io.Writer
	// OnProgress, if set, is told of copying.
	OnProgress func(wire.SessionProgressParams)

	mu     sync.Mutex // held while output is written: it stays in order
	client *client.Client
	cursor int64
	lost   bool // output was missed
	failed chan struct{}
	ended  chan struct{}
	once   [2]sync.Once
	err    error
	end    wire.SessionEndedParams
}

// NewFeed returns a feed that writes to out.
func NewFeed(id string, out io.Writer) *Feed {
	return &Feed{ID: id, Out: out, failed: make(chan struct{}), ended: make(chan struct{})}
}

// From sets where the feed begins; before Follow.
func (f *Feed) From(cursor int64) { f.cursor = cursor }

// Follow attaches to the session at the feed's cursor. Everything that comes later
// comes as notes.
func (f *Feed) Follow(ctx context.Context, c *client.Client) error {
	f.mu.Lock() // notes that overtake the answer wait for it
	defer f.mu.Unlock()
	f.client = c
	r, err := c.Attach(ctx, &wire.AttachParams{SessionID: f.ID, Cursor: f.cursor, MaxBytes: wire.MaxAttachBytes, Follow: true})
	if err != nil {
		return err
	}
	f.lost = f.lost || r.Truncated
	f.write(r.NextCursor-int64(len(r.Data)), r.Data)
	return nil
}

// Note takes a notification of the server.
func (f *Feed) Note(n client.Note) {
	switch n.Method {
	case wire.NotifySessionOutput:
		var p wire.SessionOutputParams
		if strictjson.Decode(n.Params, &p, strictjson.Limits{}) != nil || p.SessionID != f.ID {
			return
		}
		f.mu.Lock()
		f.lost = f.lost || p.Truncated
		f.write(p.Cursor, p.Data)
		f.mu.Unlock()
	case wire.NotifySessionEnded:
		var p wire.SessionEndedParams
		if strictjson.Decode(n.Params, &p, strictjson.Limits{}) != nil || p.SessionID != f.ID {
			return
		}
		f.mu.Lock()
		f.end = p
		f.mu.Unlock()
		f.once[0].Do(func() { close(f.ended) })
	case wire.NotifySessionProgress:
		var p wire.SessionProgressParams
		if f.OnProgress != nil && strictjson.Decode(n.Params, &p, strictjson.Limits{}) == nil && p.SessionID == f.ID {
			f.OnProgress(p)
		}
	}
}

// write passes on what is new and returns the credit. Called with mu held.
func (f *Feed) write(start int64, data []byte) {
	if start < f.cursor { // sent twice, by two connections
		data = data[min(f.cursor-start, int64(len(data))):]
	}
	f.cursor = max(f.cursor, start+int64(len(data)))
	if len(data) == 0 {
		return
	}
	if f.err == nil {
		if _, err := f.Out.Write(data); err != nil {
			f.err = err
			f.once[1].Do(func() { close(f.failed) })
		}
	}
	// Without credit the session's output would only wait; a lost connection is
	// noticed by whoever waits for the end.
	_ = f.client.AttachCredit(context.Background(), f.ID, f.cursor)
}

// Silence throws away whatever comes from now on; when it returns nothing is being
// written any more.
func (f *Feed) Silence() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Out = io.Discard
}

// Ended is closed when the session has ended and all of its output was written.
func (f *Feed) Ended() <-chan struct{} { return f.ended }

// End is how the session ended, once Ended is closed.
func (f *Feed) End() wire.SessionEndedParams {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.end
}

// Failed is closed when output could not be written; Err then says why.
func (f *Feed) Failed() <-chan struct{} { return f.failed }

// Err is why output could not be written.
func (f *Feed) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// Cursor is up to where output was written.
func (f *Feed) Cursor() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cursor
}

// Lost reports whether output was missed, because the session's ring had no room left.
func (f *Feed) Lost() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}
