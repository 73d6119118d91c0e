package frame

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sourcegraph/jsonrpc2"
)

var _ jsonrpc2.ObjectStream = (*Stream)(nil)

// A Stream is the server's jsonrpc2.ObjectStream. It shows the library requests
// and notifications only, with envelopes it wrote itself: ids as tagged strings
// (see ID), no params. The params are taken from Current.
type Stream struct {
	conn io.Closer
	r    *Reader
	w    *Writer

	// Bad is called, on the reading goroutine, with each frame that is no
	// request. It answers, and returns an error to end the connection.
	bad func(*Error) error
	// end is called once when the source has ended, before the library hears of
	// it: the library closes the connection at once, and would cut off answers
	// that are still being worked on.
	end func(error)

	current Request
	once    sync.Once
	closed  error
}

// NewStream returns a Stream over r and w, closing conn when it is closed. bad
// and end are described at Stream; both must be given.
func NewStream(r *Reader, w *Writer, conn io.Closer, bad func(*Error) error, end func(error)) *Stream {
	return &Stream{conn: conn, r: r, w: w, bad: bad, end: end}
}

// ReadObject implements jsonrpc2.ObjectStream.
func (s *Stream) ReadObject(v any) error {
	req, err := s.next()
	if err != nil {
		s.end(err)
		return err
	}
	s.current = *req
	envelope := Request{Method: req.Method}
	if !req.ID.IsNull() {
		envelope.ID = StringID(req.ID.tag())
	}
	return json.Unmarshal(AppendRequest(nil, &envelope), v)
}

func (s *Stream) next() (*Request, error) {
	for {
		line, err := s.r.Next()
		var m Message
		if err == nil {
			m, err = Parse(line)
		}
		var bad *Error
		switch {
		case errors.As(err, &bad):
		case err != nil:
			return nil, err
		case m.Request != nil:
			return m.Request, nil
		default:
			// We ask the peer nothing, so nothing is there to be answered. It is
			// not told: two such peers would answer each other for ever.
			continue
		}
		if err := s.bad(bad); err != nil {
			return nil, err
		}
	}
}

// Current returns the request whose envelope ReadObject last gave the library.
// It may be called only on the goroutine that reads, which is the one on which
// the library calls its Handler.
func (s *Stream) Current() Request { return s.current }

// TagID returns the library's form of id, for answers through the library.
func TagID(id ID) jsonrpc2.ID { return jsonrpc2.ID{Str: id.tag(), IsString: true} }

// outgoing is what the library's messages look like.
type outgoing struct {
	ID     *string          `json:"id"`
	Method string           `json:"method"`
	Params json.RawMessage  `json:"params"`
	Result json.RawMessage  `json:"result"`
	Error  *jsonrpc2.Error  `json:"error"`
	Extra  *json.RawMessage `json:"meta"`
}

// WriteObject implements jsonrpc2.ObjectStream for responses with tagged ids
// and for notifications.
func (s *Stream) WriteObject(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("frame: encode: %w", err)
	}
	var o outgoing
	if err := json.Unmarshal(raw, &o); err != nil {
		return fmt.Errorf("frame: encode: %w", err)
	}
	if o.Method != "" {
		return s.w.WriteFrame(AppendRequest(nil, &Request{Method: o.Method, Params: o.Params}))
	}
	resp := Response{Result: o.Result}
	if o.ID != nil {
		id, ok := untag(*o.ID)
		if !ok {
			return errors.New("frame: encode: the id was not given by this stream")
		}
		resp.ID = id
	}
	if o.Error != nil {
		resp.Error = &ResponseError{Number: o.Error.Code, Message: o.Error.Message}
		if o.Error.Data != nil {
			resp.Error.Data = *o.Error.Data
		}
	}
	return s.WriteResponse(&resp)
}

// WriteNotification writes a notification past the library.
func (s *Stream) WriteNotification(method string, params []byte) error {
	return s.w.WriteFrame(AppendRequest(nil, &Request{Method: method, Params: params}))
}

// WriteResponse writes a response past the library, which cannot say a null id.
func (s *Stream) WriteResponse(r *Response) error {
	return s.w.WriteFrame(AppendResponse(nil, r))
}

// Close implements jsonrpc2.ObjectStream: it closes the connection, once; every
// call returns when it is closed.
func (s *Stream) Close() error {
	s.once.Do(func() { s.closed = s.conn.Close() })
	return s.closed
}
