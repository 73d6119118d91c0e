package session

import (
	"context"
	"time"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

// A CreateRequest asks for a session. Plan is the plan exactly as it was
// submitted.
type CreateRequest struct {
	IdempotencyKey       string
	SessionID            string
	ControllerPlanDigest string
	Plan                 []byte
}

// PlanInfo is what the store must know of an admitted plan.
type PlanInfo struct {
	PolicyRevision uint64
	ExpiresAtMS    uint64
	Refinement     bool // only a refinement receipt may end the session
}

// A ValidateFunc judges the submitted plan at the store's time and returns its
// canonical form. It is called only for a key that was never used, so that a
// retry is answered even when the plan has expired or the policy changed.
type ValidateFunc func(now time.Time) (canonical []byte, info PlanInfo, err error)

// Create stores a new session. Errors, in order of their checks: invalid_request
// (ids), idempotency_conflict, session_conflict, invalid_plan, capacity, storage.
func (s *Store) Create(ctx context.Context, q CreateRequest, validate ValidateFunc) (Record, error) {
	b := body{
		Operation: opCreate, IdempotencyKey: q.IdempotencyKey, SessionID: q.SessionID, State: Created,
		ControllerPlanDigest: q.ControllerPlanDigest, RequestDigest: CreateDigest(q.Plan),
	}
	if !ident.Hex64(q.ControllerPlanDigest) {
		return Record{}, refuse(InvalidRequest, "the controller plan digest is ill-formed")
	}
	return s.operate(b, nil, func(b body, r *Record) (Record, error) {
		if r != nil {
			return Record{}, refuse(SessionConflict, "the session exists")
		}
		now, ms := s.now()
		plan, info, err := validate(now)
		if err != nil {
			return Record{}, refused(InvalidPlan, err)
		}
		if !strictjson.IsCanonical(plan) || len(plan) == 0 || plan[0] != '{' || info.PolicyRevision == 0 ||
			info.PolicyRevision > ident.MaxInt || info.ExpiresAtMS <= ms || info.ExpiresAtMS > ident.MaxInt {
			return Record{}, refuse(InvalidPlan, "the plan is not canonical, or has expired")
		}
		b.AtMS, b.Plan, b.PlanContentDigest = ms, plan, digest.SHA256Hex(plan)
		b.Verified = digest.Blake3Hex(plan) == q.ControllerPlanDigest
		b.PolicyRevision, b.ExpiresAtMS, b.Refinement = info.PolicyRevision, info.ExpiresAtMS, info.Refinement
		return s.commit(ctx, b, nil)
	})
}

// operate runs one operation: well-formed names, the replay check, then do with
// the session as it is (nil: there is none). For an operation whose commitment
// depends on the session, commitment computes it under the same lock; without a
// session to compare with, a known key is a conflict.
func (s *Store) operate(b body, commitment func(*Record) string, do func(body, *Record) (Record, error)) (Record, error) {
	s.op.Lock()
	defer s.op.Unlock()
	if err := s.Check(); err != nil {
		return Record{}, err
	}
	if !ident.ID(b.IdempotencyKey) || !ident.MatID(b.SessionID) {
		return Record{}, refuse(InvalidRequest, "the idempotency key or session id is ill-formed")
	}
	r := s.lookup(b.SessionID)
	if commitment != nil && r != nil && r.Authorization != nil {
		b.RequestDigest = commitment(r)
	}
	if old, known, err := s.replayed(b); known {
		return old, err
	}
	if err := s.gone(b.SessionID); err != nil {
		return Record{}, err
	}
	return do(b, r)
}

// must refuses a session that is absent or not in one of states.
func (r *Record) must(states ...State) error {
	if r == nil {
		return refuse(NotFound, "no such session")
	}
	for _, st := range states {
		if r.State == st {
			return nil
		}
	}
	return refuse(InvalidState, "the session is "+string(r.State))
}
