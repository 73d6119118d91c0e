package service

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"gloved.dev/internal/ident"
	"gloved.dev/journal/session"
	"gloved.dev/policy"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
	"gloved.dev/runtime"
)

// Sessions serves create_session, session_status and list_sessions.
type Sessions struct {
	store     *session.Store
	policy    *policy.Policy
	exposures policy.Exposures

	// full is called before a session is stored: a store that is nearly full then
	// puts away what has ended. It is set while the assembly is built.
	full func(context.Context)
}

// NewSessions is the component of an open session store, whose plans the policy judges.
// exposures may be nil. The store stays the caller's to close.
func NewSessions(store *session.Store, judge *policy.Policy, exposures policy.Exposures) *Sessions {
	return &Sessions{store: store, policy: judge, exposures: exposures, full: func(context.Context) {}}
}

// Methods implements rpc.Component.
func (s *Sessions) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.NewMethod(wire.MethodCreateSession, "Store a session for an admitted plan; nothing is started.",
			rpc.MethodOptions{Mutating: true, Durable: true, Ordered: true, Errors: []rpc.Code{
				rpc.InvalidPlan, rpc.SessionConflict, rpc.SessionArchived, rpc.SessionCapacity, rpc.SessionStorageFailed}}, s.create),
		rpc.NewMethod(wire.MethodSessionStatus, "Return a session's record.",
			rpc.MethodOptions{Errors: []rpc.Code{rpc.SessionNotFound, rpc.SessionArchived, rpc.SessionStorageFailed}}, s.status),
		rpc.NewMethod(wire.MethodListSessions, "Return session records in the order of their ids.",
			rpc.MethodOptions{Errors: []rpc.Code{rpc.SessionStorageFailed}}, s.list),
	}
}

// Health implements rpc.HealthSource.
func (s *Sessions) Health(_ context.Context, h *wire.Health) {
	h.Components = append(h.Components, health("session_store", rpc.SessionStorageFailed, s.store.Check()))
}

func health(name string, code rpc.Code, err error) wire.ComponentHealth {
	if err != nil {
		return wire.ComponentHealth{Name: name, Status: wire.StatusDegraded, Code: string(code)}
	}
	return wire.ComponentHealth{Name: name, Status: wire.StatusReady}
}

func (s *Sessions) create(ctx context.Context, call *rpc.Call, q *wire.CreateSessionParams) (*wire.Session, error) {
	if err := checkSessionID(q.SessionID); err != nil {
		return nil, err
	}
	if !ident.Hex64(q.ControllerPlanDigest) {
		return nil, badParam("/controller_plan_digest", "controller_plan_digest is 64 lowercase hexadecimal digits")
	}
	// A retry is answered before anything is judged, but never after its deadline.
	if err := call.Admit(); err != nil {
		return nil, err
	}
	s.full(ctx)
	record, err := s.store.Create(ctx, session.CreateRequest{
		IdempotencyKey: call.IdempotencyKey, SessionID: q.SessionID,
		ControllerPlanDigest: q.ControllerPlanDigest, Plan: q.Plan,
	}, func(now time.Time) ([]byte, session.PlanInfo, error) {
		if err := call.Admit(); err != nil {
			return nil, session.PlanInfo{}, err
		}
		return s.admit(q.Plan, now)
	})
	if err != nil {
		return nil, withArchive(call, sessionError(err))
	}
	return sessionRecord(record), nil
}

// withArchive tells the owner, and nobody else, where an archived session's
// records are.
func withArchive(call *rpc.Call, err error) error {
	var where *session.ArchivedError
	var refusal *rpc.Error
	if call.Peer.OwnerLocal && errors.As(err, &where) && errors.As(err, &refusal) {
		return refusal.With("archive", where.Archive)
	}
	return err
}

// admit judges a plan for the store.
func (s *Sessions) admit(raw []byte, now time.Time) ([]byte, session.PlanInfo, error) {
	plan, err := policy.DecodePlan(raw)
	if err != nil {
		return nil, session.PlanInfo{}, err
	}
	accepted, err := s.policy.Validate(plan, now, s.exposures)
	if err != nil {
		return nil, session.PlanInfo{}, err
	}
	return accepted.Canonical, session.PlanInfo{
		PolicyRevision: accepted.PolicyRevision,
		ExpiresAtMS:    plan.ExpiresAtMS,
		Refinement:     plan.Refinement != nil,
	}, nil
}

func (s *Sessions) status(_ context.Context, call *rpc.Call, q *wire.SessionParams) (*wire.Session, error) {
	if err := checkSessionID(q.SessionID); err != nil {
		return nil, err
	}
	record, err := s.store.Get(q.SessionID)
	if err != nil {
		return nil, withArchive(call, sessionError(err))
	}
	return sessionRecord(record), nil
}

func (s *Sessions) list(_ context.Context, _ *rpc.Call, q *wire.ListSessionsParams) (*wire.ListSessionsResult, error) {
	limit := q.Limit
	if limit == 0 {
		limit = wire.MaxListLimit
	}
	if limit < 1 || limit > wire.MaxListLimit {
		return nil, badParam("/limit", "limit is 1 to 1000")
	}
	if q.After != "" {
		if err := checkSessionID(q.After); err != nil {
			return nil, badParam("/after", "after is a session id")
		}
	}
	records, err := s.store.List()
	if err != nil {
		return nil, sessionError(err)
	}
	first, found := slices.BinarySearchFunc(records, q.After, func(r session.Record, id string) int {
		return strings.Compare(r.SessionID, id)
	})
	if found {
		first++
	}
	out := &wire.ListSessionsResult{Sessions: []wire.Session{}}
	last := min(first+limit, len(records))
	for _, record := range records[first:last] {
		out.Sessions = append(out.Sessions, *sessionRecord(record))
	}
	if last < len(records) {
		out.Next = records[last-1].SessionID
	}
	return out, nil
}

// checkSessionID holds the grammar of names that directories are made of, so that an id
// which could never be launched is refused at once.
func checkSessionID(id string) error {
	if ident.MatID(id) {
		return nil
	}
	return badParam("/session_id", "session_id is 1 to 64 of A-Z a-z 0-9 - _ .")
}

func badParam(pointer, message string) error {
	return rpc.NewError(rpc.InvalidParams, message).With("reason", "type").With("pointer", pointer)
}

// sessionCodes are the wire's names for the store's refusals.
var sessionCodes = map[session.Code]rpc.Code{
	session.InvalidRequest:       rpc.InvalidParams,
	session.InvalidAuthorization: rpc.InvalidAuthorization,
	session.InvalidState:         rpc.InvalidSessionState,
	session.IdempotencyConflict:  rpc.IdempotencyConflict,
	session.SessionConflict:      rpc.SessionConflict,
	session.NotFound:             rpc.SessionNotFound,
	session.Archived:             rpc.SessionArchived,
	session.Capacity:             rpc.SessionCapacity,
	session.Storage:              rpc.SessionStorageFailed,
}

// sessionError is how a refusal of the store looks on the wire.
func sessionError(err error) error {
	var already *rpc.Error
	if errors.As(err, &already) {
		return already
	}
	code := session.CodeOf(err)
	if code == session.InvalidPlan {
		return planError(err, policy.ReasonExpired)
	}
	mapped, ok := sessionCodes[code]
	if !ok {
		return err
	}
	message := ""
	var refusal *session.Error
	// The store's own trouble is not the peer's business.
	if errors.As(err, &refusal) && code != session.Storage {
		message = refusal.Reason
	}
	return rpc.Wrap(mapped, message, err)
}

// sessionRecord is a record as controllers see it.
func sessionRecord(r session.Record) *wire.Session {
	out := &wire.Session{
		SchemaVersion: 1, SessionID: r.SessionID, State: string(r.State),
		ControllerPlanDigest: r.ControllerPlanDigest, ControllerDigestVerified: r.ControllerDigestVerified,
		PlanContentDigest: r.PlanContentDigest, PolicyRevision: number(r.PolicyRevision),
		CreatedAtMS: number(r.CreatedAtMS), ExpiresAtMS: number(r.ExpiresAtMS),
		ProfileDigest: r.ProfileDigest, StartedAtMS: number(r.RunningAtMS), FinishedAtMS: number(r.FinishedAtMS),
		FailureCode: r.FailureCode,
	}
	if runtime.Foreign(r) != nil {
		out.Issue = runtime.IssueVersion
	}
	if r.Terminal != nil {
		out.TerminationCause = r.Terminal.TerminationCause
		out.Receipt = &wire.ReceiptRef{Sequence: number(r.Terminal.Sequence), Digest: r.Terminal.ReceiptDigest}
		if r.Terminal.ExitCode != nil {
			code := int(*r.Terminal.ExitCode)
			out.ExitCode = &code
		}
	}
	return out
}

// number converts what the journal bounds to 2^53-1.
func number(n uint64) int64 {
	return int64(min(n, ident.MaxInt)) //nolint:gosec // bounded right here
}
