package session

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
	"gloved.dev/journal"
)

const (
	opArchived = "archived"
	// maxNames bounds the sessions that one record names: 64 bytes each, and the
	// record stays far below journal.MaxRecord.
	maxNames = 4096
	// startable is how long after its plan's end a created session is carried
	// forward. Nothing can start it any more; the day is for a clock that was wrong.
	startable = uint64(24 * time.Hour / time.Millisecond)
)

// A names record says which sessions are in an archive. It follows the first
// record of a rotated store, and every later rotation carries it forward, so
// that an archived session's id is never taken for a new one, wherever the
// archive is kept.
type names struct {
	SchemaVersion uint8    `json:"schema_version"`
	Operation     string   `json:"operation"`
	Archive       string   `json:"archive"`
	Sessions      []string `json:"sessions"`
}

// An ArchivedError says in which archive a session's records are. It is the
// cause of an Error with the code Archived, for the operator.
type ArchivedError struct{ SessionID, Archive string }

func (e *ArchivedError) Error() string {
	return fmt.Sprintf("the records of session %s are in %s", e.SessionID, e.Archive)
}

// gone is the refusal of a session whose records are in an archive.
func (s *Store) gone(id string) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if archive, ok := s.archived[id]; ok {
		return &Error{Code: Archived, Reason: "the session has ended and its records were archived",
			Err: &ArchivedError{SessionID: id, Archive: archive}}
	}
	return nil
}

// replayNames takes a names record.
func (s *Store) replayNames(e journal.Entry) error {
	var n names
	if err := e.Decode(&n); err != nil {
		return err
	}
	if n.SchemaVersion != 1 || n.Operation != opArchived || !ident.Component(n.Archive) || len(n.Sessions) > maxNames {
		return fmt.Errorf("an ill-formed %s record", opArchived)
	}
	for _, id := range n.Sessions {
		if _, twice := s.archived[id]; twice || !ident.MatID(id) {
			return fmt.Errorf("session %q is archived twice, or ill-formed", id)
		}
		s.archived[id] = n.Archive
	}
	return nil
}

// operationOf peeks at what kind of record e is.
func operationOf(e journal.Entry) (operation, session string, err error) {
	var peek struct {
		Operation string `json:"operation"`
		SessionID string `json:"session_id"`
	}
	err = json.Unmarshal(e.Body(), &peek)
	return peek.Operation, peek.SessionID, err
}

// RotateOptions say what a rotation of the store leaves where it is, besides the
// sessions that can still change.
type RotateOptions struct {
	// Acknowledged is the sequence number up to which a controller has
	// acknowledged receipts: a session that ended in a later one stays.
	Acknowledged uint64
	// Keep reports what else must stay, such as a session with files; nil is none.
	Keep func(Record) bool
	// DryRun only counts. If AtMost is not 0, a rotation that would carry more than
	// AtMost percent of the bytes or records forward is not worth its while and is
	// only counted too.
	DryRun bool
	AtMost int
}

// A Rotated says what a rotation did, or would do: the archive (none when there
// was nothing to do), how many sessions went there and how many stay, and what
// of the records and bytes is carried forward.
type Rotated struct {
	Archive     *journal.Archive
	Sessions    int
	Kept        int
	Records     uint64
	Bytes       int64
	KeptRecords uint64
	KeptBytes   int64
	Nothing     bool // no session could be archived, or too few
}

// Rotate seals the store into an archive and goes on with the sessions that are
// live: those that are not terminal (but for created ones whose plan ended more
// than a day ago, which nothing can start), whose receipt is not acknowledged, or
// which Keep wants. Every other session answers with code archived from then on.
// Idempotency keys are remembered as long as their session is.
//
// Errors: capacity, storage; the store then is as it was, unless Check says
// otherwise.
func (s *Store) Rotate(ctx context.Context, o RotateOptions) (Rotated, error) {
	s.op.Lock()
	defer s.op.Unlock()
	if err := s.Check(); err != nil {
		return Rotated{}, err
	}
	out, keep := s.plan(o)
	if out.Nothing || o.DryRun {
		return out, nil
	}
	last := map[string]uint64{}
	archive, err := s.j.Rotate(ctx, func(r *journal.Rotation) error { return s.carry(r, keep, last) })
	if err != nil {
		return out, stored(err)
	}
	out.Archive = &archive
	stats := s.j.Stats()
	out.KeptRecords, out.KeptBytes = stats.Records, stats.Bytes
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.sessions {
		if !keep[id] {
			delete(s.sessions, id)
			delete(s.lines, id)
			s.archived[id] = archive.Name
			continue
		}
		moved := *r // records that were handed out stay as they are
		moved.Sequence = last[id]
		s.sessions[id] = &moved
	}
	maps.DeleteFunc(s.keys, func(_ string, u used) bool { return !keep[u.session] })
	return out, nil
}

// plan decides which sessions stay, and counts.
func (s *Store) plan(o RotateOptions) (Rotated, map[string]bool) {
	stats := s.j.Stats()
	out := Rotated{Records: stats.Records, Bytes: stats.Bytes}
	_, now := s.now()
	keep := map[string]bool{}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id, r := range s.sessions {
		if !r.live(o.Acknowledged, now) && (o.Keep == nil || !o.Keep(*r)) {
			out.Sessions++
			out.KeptBytes += int64(len(id)) + 3
			continue
		}
		keep[id] = true
		out.Kept++
		out.KeptRecords += s.lines[id].records
		out.KeptBytes += s.lines[id].bytes
	}
	for id := range s.archived {
		out.KeptBytes += int64(len(id)) + 3
	}
	most := uint64(o.AtMost)
	out.Nothing = out.Sessions == 0 || most != 0 &&
		(out.KeptRecords*100 > out.Records*most || uint64(out.KeptBytes)*100 > uint64(out.Bytes)*most)
	return out, keep
}

// live reports whether something may still happen to the session.
func (r *Record) live(acknowledged, nowMS uint64) bool {
	switch {
	case r.State == Created:
		return nowMS < r.ExpiresAtMS+startable
	case !r.State.Terminal():
		return true
	}
	return r.Terminal != nil && r.Terminal.Sequence > acknowledged
}

// carry writes the new file: who is archived, then what is kept, as it was.
func (s *Store) carry(r *journal.Rotation, keep map[string]bool, last map[string]uint64) error {
	by := map[string][]string{}
	for id, archive := range s.archived {
		by[archive] = append(by[archive], id)
	}
	for id := range s.sessions {
		if !keep[id] {
			by[r.Archive().Name] = append(by[r.Archive().Name], id)
		}
	}
	for _, archive := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[archive])
		for ids := range slices.Chunk(by[archive], maxNames) {
			if _, err := r.Put(names{1, opArchived, archive, ids}); err != nil {
				return err
			}
		}
	}
	return r.Walk(func(e journal.Entry) error {
		_, id, err := operationOf(e)
		if err != nil || !keep[id] {
			return err
		}
		moved, err := r.Put(jsontext.Value(e.Body()))
		last[id] = moved.Seq
		return err
	})
}

// Live reports whether the store holds a session of this id that has not ended.
func (s *Store) Live(id string) bool {
	r := s.lookup(id)
	return r != nil && !r.State.Terminal()
}

// Archive is the archive that the store was last rotated into, or nil.
func (s *Store) Archive() *journal.Archive { return s.j.Archive() }
