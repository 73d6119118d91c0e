package session

import (
	"context"
	"maps"
	"time"

	"gloved.dev/internal/ident"
)

// A ResolveFunc says whether a session's plan still resolves at the store's time.
// An *Error keeps its code (a plan that may never start is invalid_authorization);
// any other error becomes invalid_plan.
type ResolveFunc func(now time.Time, r Record) error

// ReserveStart takes a session from created to preparing under an authorization,
// which is thereby used up, and sets aside the capacity to record its whole
// life. Errors, in order: invalid_authorization (shape), idempotency_conflict,
// invalid_authorization (window), not_found, invalid_state, invalid_authorization
// (digests and times), invalid_plan, capacity, storage.
func (s *Store) ReserveStart(ctx context.Context, key string, a Authorization, resolve ResolveFunc) (Record, error) {
	if !a.wellFormed() {
		return Record{}, refuse(InvalidAuthorization, "the authorization is ill-formed")
	}
	b := body{
		Operation: opReserve, IdempotencyKey: key, SessionID: a.SessionID, State: Preparing,
		RequestDigest: AuthorizationDigest(a), Authorization: &a,
	}
	return s.operate(b, nil, func(b body, r *Record) (Record, error) {
		now, ms := s.now()
		if ms < a.ApprovedAtMS || ms >= a.ExpiresAtMS {
			return Record{}, refuse(InvalidAuthorization, "the authorization is not yet or no longer valid")
		}
		if err := r.must(Created); err != nil {
			return Record{}, err
		}
		if !r.authorizes(a) {
			return Record{}, refuse(InvalidAuthorization, "the authorization is for another plan or time")
		}
		if err := resolve(now, *r); err != nil {
			return Record{}, refused(InvalidPlan, err)
		}
		res, err := s.j.Reserve(reservedRecords, reservedBytes)
		if err != nil {
			return Record{}, stored(err)
		}
		s.reserved[a.SessionID] = res
		b.of(r, ms)
		out, err := s.commit(ctx, b, r)
		if err != nil {
			s.release(a.SessionID)
		}
		return out, err
	})
}

// of completes b with what every operation repeats of its session. A clock that
// was set back never makes a session's time run backwards, and so can never keep
// one from being stopped.
func (b *body) of(r *Record, ms uint64) {
	b.ControllerPlanDigest, b.PlanContentDigest = r.ControllerPlanDigest, r.PlanContentDigest
	b.AtMS = max(ms, r.lastMS())
}

// A TerminalReservation is room for a session's receipt in the receipt journal.
type TerminalReservation interface {
	// BoundTo reports whether the room is held for exactly this session, plan
	// and profile.
	BoundTo(sessionID, controllerPlanDigest, profileDigest string) bool
}

// A StartingRequest binds a session to what it is about to run in.
type StartingRequest struct {
	IdempotencyKey  string
	SessionID       string
	AuthorizationID string
	ProfileDigest   string
	Cgroup          *CgroupIdentity     // nil: not limited by a control group
	Filesystem      *FilesystemIdentity // nil: no quota partitions
	Monitor         Monitor             // how a later gloved finds and proves the monitor
	Reservation     TerminalReservation
}

// MarkStarting takes a session from preparing to starting. Errors:
// invalid_request (shape), idempotency_conflict, not_found, invalid_state,
// invalid_authorization (another authorization, expired, or no receipt
// reservation), invalid_plan, storage.
func (s *Store) MarkStarting(ctx context.Context, q StartingRequest, resolve ResolveFunc) (Record, error) {
	if !ident.ID(q.AuthorizationID) || !ident.Hex64(q.ProfileDigest) || !q.Cgroup.wellFormed() ||
		!q.Filesystem.wellFormed() || !q.Monitor.wellFormed() {
		return Record{}, refuse(InvalidRequest, "the execution binding is ill-formed")
	}
	b := body{
		Operation: opStarting, IdempotencyKey: q.IdempotencyKey, SessionID: q.SessionID, State: Starting,
		ProfileDigest: q.ProfileDigest, Cgroup: q.Cgroup.clone(), Filesystem: q.Filesystem.clone(),
	}
	if len(q.Monitor) > 0 {
		b.Monitor = maps.Clone(q.Monitor)
	}
	commitment := func(r *Record) string {
		bind := r.binding()
		bind.AuthorizationID, bind.ProfileDigest = q.AuthorizationID, q.ProfileDigest
		return BindingDigest(bind, b.Cgroup, b.Filesystem)
	}
	return s.operate(b, commitment, func(b body, r *Record) (Record, error) {
		if err := r.must(Preparing); err != nil {
			return Record{}, err
		}
		if r.Authorization.AuthorizationID != q.AuthorizationID {
			return Record{}, refuse(InvalidAuthorization, "the session was authorized otherwise")
		}
		now, ms := s.now()
		switch {
		case ms < r.AuthorizedAtMS || r.AuthorizationExpired(ms):
			return Record{}, refuse(InvalidAuthorization, "the authorization or the plan has expired")
		case q.Reservation == nil || !q.Reservation.BoundTo(r.SessionID, r.ControllerPlanDigest, q.ProfileDigest):
			return Record{}, refuse(InvalidAuthorization, "no receipt is reserved for this session and profile")
		}
		if err := resolve(now, *r); err != nil {
			return Record{}, refused(InvalidPlan, err)
		}
		b.of(r, ms)
		return s.commit(ctx, b, r)
	})
}

// A ProcessRequest names the process of a session. Filesystem, when given, must
// be the one that was bound.
type ProcessRequest struct {
	IdempotencyKey string
	SessionID      string
	Process        ProcessIdentity
	Filesystem     *FilesystemIdentity
}

// MarkRunning takes a session from starting to running, while its process is
// still held back. Errors: invalid_request (shape), idempotency_conflict,
// not_found, invalid_state (also: another cgroup or file system than was bound),
// invalid_authorization (expired: the process must not be let go), storage.
func (s *Store) MarkRunning(ctx context.Context, q ProcessRequest) (Record, error) {
	return s.process(q, opRunning, Running, func(b body, r *Record) (Record, error) {
		if err := r.must(Starting); err != nil {
			return Record{}, err
		}
		_, ms := s.now()
		switch {
		case !r.inCgroup(q.Process):
			return Record{}, refuse(InvalidState, "the process is in another control group than was bound")
		case q.Filesystem != nil && !q.Filesystem.equal(r.Filesystem):
			return Record{}, refuse(InvalidState, "the file systems are not those that were bound")
		case ms < r.StartingAtMS || ms >= r.Authorization.ExpiresAtMS || ms >= r.ExpiresAtMS:
			return Record{}, refuse(InvalidAuthorization, "the authorization or the plan has expired")
		}
		b.of(r, ms)
		return s.commit(ctx, b, r)
	})
}

// MarkStopping takes a session from running to stopping. No expiry is checked.
// Errors: invalid_request, idempotency_conflict, not_found, invalid_state (also:
// another process), storage.
func (s *Store) MarkStopping(ctx context.Context, q ProcessRequest) (Record, error) {
	return s.process(q, opStopping, Stopping, func(b body, r *Record) (Record, error) {
		if err := r.must(Running); err != nil {
			return Record{}, err
		}
		if q.Process != *r.Process {
			return Record{}, refuse(InvalidState, "the session runs as another process")
		}
		_, ms := s.now()
		b.of(r, ms)
		return s.commit(ctx, b, r)
	})
}

func (s *Store) process(q ProcessRequest, op string, to State, do func(body, *Record) (Record, error)) (Record, error) {
	if !q.Process.wellFormed() || !q.Filesystem.wellFormed() {
		return Record{}, refuse(InvalidRequest, "the process identity is ill-formed")
	}
	b := body{Operation: op, IdempotencyKey: q.IdempotencyKey, SessionID: q.SessionID, State: to, Process: &q.Process}
	commit := RunningDigest
	if op == opStopping {
		commit = StoppingDigest
	}
	return s.operate(b, func(r *Record) string { return commit(r.binding(), q.Process, r.Filesystem) }, do)
}

// MarkExited takes a session from running or stopping to exited, naming its
// terminal receipt. confirm must prove that exactly this receipt is durable in
// the receipt journal; it is called last before the record is written. Errors:
// invalid_request (shape), idempotency_conflict, not_found, invalid_state,
// invalid_authorization (a receipt that is not this session's end), storage.
func (s *Store) MarkExited(ctx context.Context, key string, t TerminalReference, confirm func(TerminalReference) error) (Record, error) {
	if !t.wellFormed() {
		return Record{}, refuse(InvalidRequest, "the terminal reference is ill-formed")
	}
	b := body{
		Operation: opExited, IdempotencyKey: key, SessionID: t.SessionID, State: Exited,
		RequestDigest: TerminalDigest(t), Terminal: &t,
	}
	if t.Kind == KindRefinement {
		b.Operation = opRefined
	}
	return s.operate(b, nil, func(b body, r *Record) (Record, error) {
		if err := r.must(Running, Stopping); err != nil {
			return Record{}, err
		}
		if why := r.ends(t); why != "" {
			return Record{}, refuse(InvalidAuthorization, "the receipt is not this session's end: "+why)
		}
		if err := confirm(t); err != nil {
			return Record{}, refused(InvalidAuthorization, err)
		}
		_, ms := s.now()
		b.of(r, ms)
		return s.commit(ctx, b, r)
	})
}

// MarkFailed ends a session without a receipt. From preparing only
// AuthorizationExpired is possible, and only when it has; from starting every
// code; from running and stopping SupervisorError and the Recovered codes.
// Errors: invalid_request (unknown code), idempotency_conflict, not_found,
// invalid_state, storage.
func (s *Store) MarkFailed(ctx context.Context, key, sessionID, code string) (Record, error) {
	if !mayFail(Starting, code) {
		return Record{}, refuse(InvalidRequest, "the failure code is unknown")
	}
	b := body{Operation: opFailed, IdempotencyKey: key, SessionID: sessionID, State: Failed, FailureCode: code}
	return s.operate(b, func(r *Record) string { return FailureDigest(r.binding(), code) }, func(b body, r *Record) (Record, error) {
		if err := r.must(Preparing, Starting, Running, Stopping); err != nil {
			return Record{}, err
		}
		_, ms := s.now()
		switch {
		case !mayFail(r.State, code):
			return Record{}, refuse(InvalidState, "a session that is "+string(r.State)+" cannot fail with "+code)
		case r.State == Preparing && !r.AuthorizationExpired(ms):
			return Record{}, refuse(InvalidState, "the authorization has not expired")
		}
		b.of(r, ms)
		return s.commit(ctx, b, r)
	})
}
