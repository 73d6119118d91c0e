package receipt

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal"
)

// A Reservation is room for the one receipt of one session.
type Reservation struct {
	p    *Producer
	b    bound
	room *journal.Reservation
}

// Reserve sets aside the room for a session's receipt, before it is launched.
// Errors: invalid_request, reconciliation_required, capacity, storage.
func (p *Producer) Reserve(sessionID, controllerPlanDigest, profileDigest string) (*Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reconciled {
		return nil, refuse(ReconciliationRequired, "page the receipts and acknowledge the exact head first")
	}
	return p.reserve(bound{sessionID, controllerPlanDigest, profileDigest})
}

// ReserveRecovered is Reserve for a session that was launched before this
// producer was made: its receipt is due whether or not a controller has
// acknowledged anything since. The journal must have been opened by a page.
func (p *Producer) ReserveRecovered(sessionID, controllerPlanDigest, profileDigest string) (*Reservation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reserve(bound{sessionID, controllerPlanDigest, profileDigest})
}

func (p *Producer) reserve(b bound) (*Reservation, error) {
	if err := p.opened(); err != nil {
		return nil, err
	}
	if !b.wellFormed() {
		return nil, refuse(InvalidRequest, "the session, plan digest or profile digest is ill-formed")
	}
	if _, done := p.sessions[b]; done {
		return nil, refuse(Ambiguous, "the session has its receipt already")
	}
	room, err := p.j.Reserve(1, MaxEnvelope)
	if err != nil {
		return nil, stored(err)
	}
	return &Reservation{p: p, b: b, room: room}, nil
}

// BoundTo reports whether the room is for exactly this session, plan and profile.
func (r *Reservation) BoundTo(sessionID, controllerPlanDigest, profileDigest string) bool {
	return r.b == bound{sessionID, controllerPlanDigest, profileDigest}
}

// Release gives the room back. It may be called again, and after a commit.
func (r *Reservation) Release() { r.room.Release() }

// CommitResource makes the session's resource receipt durable and returns its
// envelope. The confinement may be nil. The reservation is used up on success
// and stays on an error. Errors: invalid_receipt, not_reserved (another profile),
// ambiguous, storage.
func (r *Reservation) CommitResource(ctx context.Context, receipt Resource, c *Confinement) (Envelope, error) {
	return r.commit(ctx, Envelope{Kind: KindResource, Resource: &receipt, Confinement: c})
}

// CommitRefinement is CommitResource for an evaluation session.
func (r *Reservation) CommitRefinement(ctx context.Context, receipt Refinement, c *Confinement) (Envelope, error) {
	return r.commit(ctx, Envelope{Kind: KindRefinement, Refinement: &receipt, Confinement: c})
}

func (r *Reservation) commit(ctx context.Context, v Envelope) (Envelope, error) {
	p := r.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return Envelope{}, err
	}
	if v.resource().ProfileDigest != r.b.profile {
		return Envelope{}, refuse(NotReserved, "the receipt is for another launch profile than was reserved")
	}
	if _, done := p.sessions[r.b]; done {
		return Envelope{}, refuse(Ambiguous, "the session has its receipt already")
	}
	v.SessionID, v.ControllerPlanDigest = r.b.session, r.b.controller
	out, err := p.commit(ctx, v, r.room.AppendIf)
	if err == nil {
		r.room.Release()
	}
	return out, err
}

// CommitChangeApply makes the receipt of an applied change durable: a small JSON
// object, which is stored in canonical form. It takes open capacity. Errors:
// invalid_request, invalid_receipt, reconciliation_required, capacity, storage.
func (p *Producer) CommitChangeApply(ctx context.Context, sessionID, controllerPlanDigest string, receipt []byte) (Envelope, error) {
	if !ident.MatID(sessionID) || !ident.Hex64(controllerPlanDigest) {
		return Envelope{}, refuse(InvalidRequest, "the session or plan digest is ill-formed")
	}
	canonical, err := strictjson.CanonicalBytes(receipt)
	if err != nil {
		return Envelope{}, &Error{Code: InvalidReceipt, Err: err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return Envelope{}, err
	}
	return p.commit(ctx, Envelope{
		Kind: KindChangeApply, ChangeApply: jsontext.Value(canonical),
		SessionID: sessionID, ControllerPlanDigest: controllerPlanDigest,
	}, p.j.AppendIf)
}

// commit chains and authenticates v, and moves the chain only when it is durable.
func (p *Producer) commit(ctx context.Context, v Envelope,
	write func(context.Context, journal.Head, any) (journal.Entry, error),
) (Envelope, error) {
	head := p.live.head()
	v.SchemaVersion, v.KeyID = envelopeSchema, p.key.id
	v.Sequence, v.PreviousHMAC = head.Sequence+1, head.HeadHMAC
	v.ReceiptDigest = v.digest()
	v.ThisHMAC = p.key.envelope(v)
	if v.Confinement != nil {
		var err error
		if v.ConfinementHMAC, err = p.key.confine(v.ThisHMAC, *v.Confinement); err != nil {
			return Envelope{}, err
		}
	}
	if _, err := p.key.Verify(head, v, Expectation{}); err != nil {
		return Envelope{}, &Error{Code: InvalidReceipt, Err: err}
	}
	body := storedEnvelope{v}
	raw, err := strictjson.Canonical(body)
	if err != nil {
		return Envelope{}, &Error{Code: InvalidReceipt, Err: err}
	}
	if len(raw)+journalOverhead > MaxEnvelope {
		return Envelope{}, refuse(InvalidReceipt, "the receipt is too large")
	}
	e, err := write(ctx, p.j.Head(), body)
	if err != nil {
		return Envelope{}, stored(err)
	}
	if err := p.live.admit(v, e); err != nil {
		return Envelope{}, &Error{Code: Storage, Err: err}
	}
	p.bind(v)
	return v, nil
}

// journalOverhead is more than the journal's own members add to a record.
const journalOverhead = 512
