package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/sourcegraph/jsonrpc2"

	"gloved.dev/internal/frame"
	"gloved.dev/rpc"
)

// NonProtocolError says that what is at the other end does not speak the
// protocol: it sent something else before its first message.
type NonProtocolError struct {
	Sample []byte // the first bytes, at most frame.SampleBytes
	Total  int64  // how many came
}

// Error implements error. The sample is quoted: it may hold terminal controls.
func (e *NonProtocolError) Error() string {
	if e.Total == 0 {
		return "client: the server closed the connection before it said anything"
	}
	return fmt.Sprintf("client: non-protocol bytes before hello: %q (%d bytes in all)", e.Sample, e.Total)
}

// A Note is a notification from the server.
type Note struct {
	Method string
	Params []byte // a JSON object, or nil when absent
}

var _ jsonrpc2.ObjectStream = (*stream)(nil)

// stream is the client's jsonrpc2.ObjectStream. It hands the library nothing but
// "this id was answered"; the answers themselves are taken from answers. So the
// library matches requests and responses, and never interprets what came in.
//
// The library keeps a request whose context ended pending for ever. abandon
// makes the stream answer it, which is the only way to take it out.
type stream struct {
	r    *frame.Reader
	w    *frame.Writer
	conn io.Closer

	in    chan incoming // from pump
	quit  chan struct{}
	once  sync.Once
	pumps sync.WaitGroup
	notes *notes
	hello atomic.Bool // the server sent a message

	mu        sync.Mutex
	waiting   map[int64]bool
	answers   map[int64]*frame.Response
	abandoned []int64
	wake      chan struct{}
	err       error // why the connection ended
}

type incoming struct {
	m   frame.Message
	err error
}

func newStream(rwc io.ReadWriteCloser) *stream {
	s := &stream{r: frame.NewReader(rwc, 0), w: frame.NewWriter(rwc, 0), conn: rwc,
		in: make(chan incoming), quit: make(chan struct{}), notes: newNotes(),
		waiting: make(map[int64]bool), answers: make(map[int64]*frame.Response), wake: make(chan struct{}, 1)}
	s.pumps.Add(1)
	go s.pump()
	return s
}

// pump reads frames until the source ends. After Close it goes on reading and
// keeps nothing, so that a server which is told to end can finish its sentence.
func (s *stream) pump() {
	defer s.pumps.Done()
	for {
		line, err := s.r.Next()
		var m frame.Message
		if err == nil {
			m, err = frame.Parse(line)
		}
		select {
		case s.in <- incoming{m, err}:
		case <-s.quit:
		}
		var bad *frame.Error
		if err != nil && !errors.As(err, &bad) {
			return
		}
	}
}

// ReadObject implements jsonrpc2.ObjectStream.
func (s *stream) ReadObject(v any) error {
	for {
		var id int64
		var ok bool
		select {
		case in := <-s.in:
			var err error
			if id, ok, err = s.take(in); err != nil {
				s.fail(err)
				return err
			}
		case <-s.wake:
			id, ok = s.nextAbandoned()
		case <-s.quit:
			return io.EOF
		}
		if ok {
			return json.Unmarshal(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"result":true}`, id), v)
		}
	}
}

// take looks at what came in: an answer that is waited for is kept and its id
// returned; everything that ends the connection is an error.
func (s *stream) take(in incoming) (id int64, ok bool, err error) {
	if in.err != nil {
		return 0, false, s.readError(in.err)
	}
	s.hello.Store(true)
	if req := in.m.Request; req != nil {
		if !req.ID.IsNull() {
			return 0, false, errors.New("client: the server sent a request")
		}
		s.notes.put(Note{Method: req.Method, Params: req.Params}, s.quit)
		return 0, false, nil
	}
	resp := in.m.Response
	if resp.ID.IsNull() {
		// We send no bad frames, so this is about the connection.
		return 0, false, rpc.RemoteError(resp.Error)
	}
	id, isInt := resp.ID.Int()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !isInt || !s.waiting[id] {
		return 0, false, nil // late: nobody waits for it any more
	}
	delete(s.waiting, id)
	s.answers[id] = resp
	return id, true, nil
}

func (s *stream) readError(err error) error {
	var bad *frame.Error
	isBad := errors.As(err, &bad)
	if !s.hello.Load() && (isBad || errors.Is(err, io.EOF)) {
		sample, total := s.r.Sample()
		return &NonProtocolError{Sample: sample, Total: total}
	}
	if isBad {
		return fmt.Errorf("client: the server sent a bad frame: %w", err)
	}
	return err
}

func (s *stream) nextAbandoned() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.abandoned) == 0 {
		return 0, false
	}
	id := s.abandoned[0]
	s.abandoned = s.abandoned[1:]
	if len(s.abandoned) > 0 {
		s.poke()
	}
	return id, true
}

func (s *stream) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// expect announces a request.
func (s *stream) expect(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[id] = true
}

// answer returns what came for id, nil when nothing did, and forgets it.
func (s *stream) answer(id int64) *frame.Response {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := s.answers[id]
	delete(s.answers, id)
	delete(s.waiting, id)
	return resp
}

// abandon gives up a request: the library forgets it, and a late answer is
// dropped.
func (s *stream) abandon(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[id] {
		delete(s.waiting, id)
		s.abandoned = append(s.abandoned, id)
		s.poke()
	}
	delete(s.answers, id)
}

func (s *stream) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// WriteObject implements jsonrpc2.ObjectStream.
func (s *stream) WriteObject(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("client: encode: %w", err)
	}
	err = s.w.WriteFrame(raw)
	var bad *frame.Error
	if errors.As(err, &bad) {
		return rpc.NewError(rpc.Code(bad.Code), bad.Message)
	}
	return err
}

// Close implements jsonrpc2.ObjectStream.
func (s *stream) Close() error {
	err := io.ErrClosedPipe
	s.once.Do(func() {
		close(s.quit)
		err = s.conn.Close()
	})
	return err
}
