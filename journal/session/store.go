package session

import (
	"context"
	"errors"
	"sort"
	"sync"
	"time"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/ident"
	"gloved.dev/journal"
)

// Capacity kept for one started session, from reserve_start to its end: the
// records of reserve_start, mark_starting, mark_running, mark_stopping and the
// end. The largest is mark_starting: 128 partitions of some 130 bytes, the
// monitor locator, and some 1.5 KiB of identifiers and digests.
const (
	reservedRecords = 5
	reservedBytes   = 36 << 10
)

// Options say how a store is opened.
type Options struct {
	// MaxBytes and MaxRecords bound the store; zero is the default.
	MaxBytes   int64
	MaxRecords uint64
	// Clock is the time the store judges by; nil is the system's.
	Clock clock.Clock
	// FS is the file system; nil is the real one.
	FS journal.FS
}

// A Store is the one writer of a session store. All methods may be called at
// once; those that change something take effect one after another.
type Store struct {
	j     *journal.Journal
	clock clock.Clock

	op       sync.Mutex // serialises operations
	reserved map[string]*journal.Reservation

	mu       sync.RWMutex // guards the maps, never held over I/O
	sessions map[string]*Record
	keys     map[string]used
	lines    map[string]weight // of each session, in the file
	archived map[string]string // sessions by id, and the archive they are in
	begun    bool              // replay is past the names records
}

// weight is what records take in the file.
type weight struct {
	records uint64
	bytes   int64
}

// used is what an idempotency key stands for.
type used struct {
	operation, session, digest, extra string
	record                            *Record
}

// Open opens the store at path (an owner file in an owner directory), creating it
// when absent, and replays it strictly: the first record that does not follow
// refuses the open with code storage and changes nothing.
func Open(path string, o Options) (*Store, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxRecords == 0 {
		o.MaxRecords = DefaultMaxRecords
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	s := &Store{
		clock: o.Clock, reserved: map[string]*journal.Reservation{},
		sessions: map[string]*Record{}, keys: map[string]used{},
		lines: map[string]weight{}, archived: map[string]string{},
	}
	j, err := journal.Open(path, journal.Options{
		MaxBytes: o.MaxBytes, MaxRecords: o.MaxRecords, Clock: o.Clock, FS: o.FS,
	}, s.replay)
	if err != nil {
		return nil, stored(err)
	}
	s.j = j
	if err := s.reserveAgain(); err != nil {
		return nil, errors.Join(stored(err), j.Close())
	}
	return s, nil
}

func (s *Store) replay(e journal.Entry) error {
	if !s.begun && e.Seq > 1 { // only an archive record can have been before it
		if operation, _, err := operationOf(e); err != nil || operation == opArchived {
			return errors.Join(err, s.replayNames(e))
		}
	}
	s.begun = true
	var b body
	if err := e.Decode(&b); err != nil {
		return err
	}
	if s.gone(b.SessionID) != nil {
		return errors.New("the session was archived")
	}
	if _, dup := s.keys[b.IdempotencyKey]; dup {
		return errors.New("an idempotency key is used twice")
	}
	r, err := b.next(s.sessions[b.SessionID])
	if err != nil {
		return err
	}
	r.Sequence = e.Seq
	s.remember(b, r, len(e.Line))
	return nil
}

func (s *Store) remember(b body, r *Record, line int) {
	w := s.lines[b.SessionID]
	s.lines[b.SessionID] = weight{w.records + 1, w.bytes + int64(line) + 1}
	s.sessions[b.SessionID] = r
	s.keys[b.IdempotencyKey] = used{b.Operation, b.SessionID, b.RequestDigest, b.extra(), r}
}

// extra is what a replayed request must equal beyond its commitment.
func (b body) extra() string {
	switch b.Operation {
	case opCreate:
		return b.ControllerPlanDigest
	case opStarting:
		return b.Monitor.digest()
	}
	return ""
}

// reserveAgain takes back the capacity that live sessions had before a restart.
// Bounds that an owner lowered since then refuse new sessions, not these.
func (s *Store) reserveAgain() error {
	for id, r := range s.sessions {
		left := 0
		switch r.State {
		case Preparing:
			left = 4
		case Starting:
			left = 3
		case Running:
			left = 2
		case Stopping:
			left = 1
		default:
			continue
		}
		res, err := s.j.Reserve(left, reservedBytes/reservedRecords*int64(left))
		switch {
		case err == nil:
			s.reserved[id] = res
		case hasCode(err, journal.CodeCapacity):
		default:
			return err
		}
	}
	return nil
}

// Close closes the store and drops its lock.
func (s *Store) Close() error { return s.j.Close() }

// Stats returns the journal's counters.
func (s *Store) Stats() journal.Stats { return s.j.Stats() }

// Check reports, with code storage, whether the file is as the store left it.
func (s *Store) Check() error { return stored(s.j.Check()) }

func (s *Store) now() (time.Time, uint64) {
	t := s.clock.Now()
	return t, uint64(max(t.UnixMilli(), 0)) //nolint:gosec // not negative
}

func (s *Store) lookup(id string) *Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.sessions[id]
}

// replayed answers a known key: the record as it was then, or a conflict.
func (s *Store) replayed(b body) (Record, bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	u, ok := s.keys[b.IdempotencyKey]
	if !ok {
		return Record{}, false, nil
	}
	if u.operation != b.Operation || u.session != b.SessionID || u.digest != b.RequestDigest || u.extra != b.extra() {
		return Record{}, true, refuse(IdempotencyConflict, "the idempotency key was used for another request")
	}
	return *u.record, true, nil
}

// commit writes b, which follows r, and only then moves the session.
func (s *Store) commit(ctx context.Context, b body, r *Record) (Record, error) {
	b.SchemaVersion = 1
	to, err := b.next(r)
	if err != nil {
		return Record{}, &Error{Code: InvalidState, Err: err}
	}
	head := s.j.Head()
	var e journal.Entry
	if res := s.reserved[b.SessionID]; res != nil {
		e, err = res.AppendIf(ctx, head, b)
	} else {
		e, err = s.j.AppendIf(ctx, head, b)
	}
	if err != nil {
		return Record{}, stored(err)
	}
	to.Sequence = e.Seq
	s.mu.Lock()
	s.remember(b, to, len(e.Line))
	s.mu.Unlock()
	if to.State.Terminal() {
		s.release(b.SessionID)
	}
	return *to, nil
}

func (s *Store) release(id string) {
	if res := s.reserved[id]; res != nil {
		res.Release()
		delete(s.reserved, id)
	}
}

// Get returns a session's record, or not_found, or archived.
func (s *Store) Get(id string) (Record, error) {
	if err := s.Check(); err != nil {
		return Record{}, err
	}
	if !ident.MatID(id) {
		return Record{}, refuse(InvalidRequest, "the session id is ill-formed")
	}
	r := s.lookup(id)
	if r == nil {
		if err := s.gone(id); err != nil {
			return Record{}, err
		}
		return Record{}, refuse(NotFound, "no such session")
	}
	return *r, nil
}

// List returns every session that is not archived, in order of its id.
func (s *Store) List() ([]Record, error) {
	return s.filter(func(*Record) bool { return true })
}

// Candidates returns the sessions recovery must look at: those that may have a
// process, in order of their id.
func (s *Store) Candidates() ([]Record, error) {
	return s.filter(func(r *Record) bool {
		return r.State == Starting || r.State == Running || r.State == Stopping
	})
}

// Expired returns the sessions that wait in preparing for a start that can no
// longer come; recovery fails them with AuthorizationExpired.
func (s *Store) Expired() ([]Record, error) {
	_, ms := s.now()
	return s.filter(func(r *Record) bool { return r.AuthorizationExpired(ms) })
}

func (s *Store) filter(keep func(*Record) bool) ([]Record, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := []Record{}
	for _, r := range s.sessions {
		if keep(r) {
			out = append(out, *r)
		}
	}
	sort.Slice(out, func(i, k int) bool { return out[i].SessionID < out[k].SessionID })
	return out, nil
}
