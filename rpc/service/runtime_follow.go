package service

import (
	"context"
	"errors"
	"sync"
	"time"

	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime/monitor"
)

const (
	// followChunk is how much one session_output carries at most.
	followChunk = 32 << 10
	// followWait is how long one look for new output lasts; the end of the
	// connection is noticed in between.
	followWait = 20 * time.Second
	// maxFollowers bounds the sessions one connection may follow.
	maxFollowers = 64
)

// source is what a follower reads; the executor is one.
type source interface {
	Read(ctx context.Context, id string, cursor uint64, max int, wait time.Duration) (monitor.Chunk, error)
	Get(id string) (session.Record, error)
	Settled(ctx context.Context, id string) error
	EndSignal(id string) int
}

// followers are the connections that get a session's output pushed. Each has a
// window: what it has not acknowledged by attach_credit is at most
// wire.FollowWindow, so that a client which stops reading costs that much and
// no more, and never holds up the session.
type followers struct {
	mu  sync.Mutex
	all map[followKey]*follower
}

type followKey struct {
	peer    uint64
	session string
}

type follower struct {
	mu    sync.Mutex
	acked uint64
	more  chan struct{} // has room for one: something was acknowledged
	gone  chan struct{}
	once  sync.Once
	peer  <-chan struct{} // closed when the connection has ended
}

// orphaned reports whether the connection ended before the answer went out, so
// that nothing was ever pushed to it.
func (f *follower) orphaned() bool {
	select {
	case <-f.peer:
		return true
	default:
		return false
	}
}

func (f *follower) end() { f.once.Do(func() { close(f.gone) }) }

// follow begins to push output after the answer to call went out. A second
// follow of the same session on one connection replaces the first.
func (s *followers) follow(call *rpc.Call, src source, id string, first monitor.Chunk) error {
	key := followKey{call.Peer.ID, id}
	f := &follower{acked: first.Next - uint64(len(first.Data)), more: make(chan struct{}, 1), gone: make(chan struct{}), peer: call.Peer.Done()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[followKey]*follower{}
	}
	count := 0
	for k, other := range s.all {
		if k.peer == key.peer {
			count++
		} else if other.orphaned() {
			delete(s.all, k)
		}
	}
	if old := s.all[key]; old != nil {
		old.end()
	} else if count >= maxFollowers {
		return rpc.NewError(rpc.SessionAttachFailed, "the connection follows too many sessions")
	}
	s.all[key] = f
	call.AfterReply(func() {
		defer s.forget(key, f)
		f.run(call.Peer, src, id, first.Next)
	})
	return nil
}

func (s *followers) forget(key followKey, f *follower) {
	f.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[key] == f {
		delete(s.all, key)
	}
}

// drop ends a follow.
func (s *followers) drop(p *rpc.Peer, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.all[followKey{p.ID, id}]; f != nil {
		f.end()
	}
}

func (s *followers) credit(_ context.Context, call *rpc.Call, p *wire.AttachCreditParams) (*wire.Empty, error) {
	s.mu.Lock()
	f := s.all[followKey{call.Peer.ID, p.SessionID}]
	s.mu.Unlock()
	if f == nil || p.Cursor < 0 {
		return nil, nil // the session may just have ended
	}
	f.mu.Lock()
	f.acked = max(f.acked, uint64(p.Cursor))
	f.mu.Unlock()
	select {
	case f.more <- struct{}{}:
	default:
	}
	return nil, nil
}

func (f *follower) window(cursor uint64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	used := cursor - min(f.acked, cursor)
	return int(wire.FollowWindow - min(used, wire.FollowWindow))
}

func (f *follower) run(peer *rpc.Peer, src source, id string, cursor uint64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-peer.Done():
		case <-f.gone:
		case <-ctx.Done():
		}
		cancel()
	}()
	for ctx.Err() == nil {
		room := f.window(cursor)
		if room == 0 {
			select {
			case <-f.more:
			case <-ctx.Done():
			}
			continue
		}
		c, err := src.Read(ctx, id, cursor, min(room, followChunk), followWait)
		if err != nil {
			f.finish(ctx, peer, src, id, cursor)
			return
		}
		if len(c.Data) > 0 || c.Truncated {
			start := c.Next - uint64(len(c.Data))
			if peer.Notify(wire.NotifySessionOutput, wire.SessionOutputParams{
				SessionID: id, Cursor: int64(start), Truncated: c.Truncated, Data: c.Data}) != nil {
				return
			}
			if c.Truncated { // what was evicted needs no acknowledgement
				f.mu.Lock()
				f.acked = max(f.acked, start)
				f.mu.Unlock()
			}
			cursor = c.Next
		}
		if c.EOF {
			f.finish(ctx, peer, src, id, cursor)
			return
		}
	}
}

// finish tells the end, once the end is on record.
func (f *follower) finish(ctx context.Context, peer *rpc.Peer, src source, id string, cursor uint64) {
	if err := src.Settled(ctx, id); err != nil && errors.Is(err, context.Canceled) {
		return
	}
	rec, err := src.Get(id)
	if err != nil {
		return
	}
	s := sessionRecord(rec)
	_ = peer.Notify(wire.NotifySessionEnded, wire.SessionEndedParams{ // a peer that is gone needs none
		SessionID: id, Cursor: int64(cursor), State: s.State, TerminationCause: s.TerminationCause, ExitCode: s.ExitCode,
		Signal: src.EndSignal(id)})
}
