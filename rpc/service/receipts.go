package service

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

// Receipts serves page_receipts and acknowledge_receipts, which every gloved has.
type Receipts struct {
	producer *receipt.Producer

	// reconciled is called after a page or an acknowledgement has shown that the
	// controller's anchor and the journal agree; the runtime settles there what an
	// earlier gloved left. It is set while the assembly is built and not changed later.
	reconciled func(context.Context)
	// unsettled, if not nil, reports that reconciling again may change something.
	unsettled func() bool
	// full is called after an acknowledgement, which is when receipts can be put away.
	full func(context.Context)
}

// NewReceipts is the component of a receipt producer, which stays the caller's to close.
func NewReceipts(producer *receipt.Producer) *Receipts {
	return &Receipts{producer: producer, reconciled: func(context.Context) {}, full: func(context.Context) {}}
}

// Methods implements rpc.Component.
func (r *Receipts) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.NewMethod(wire.MethodPageReceipts, "Return receipts after the controller's trusted anchor.",
			rpc.MethodOptions{Errors: []rpc.Code{rpc.AuditReconciliationFailed, rpc.SessionArchived}}, r.page),
		rpc.NewMethod(wire.MethodAcknowledgeReceipts, "Say that everything up to the exact head is archived.",
			rpc.MethodOptions{Mutating: true, Errors: []rpc.Code{rpc.AuditReconciliationFailed}}, r.acknowledge),
	}
}

// Capabilities implements rpc.CapabilitySource.
func (r *Receipts) Capabilities(c *wire.Capabilities) {
	c.ReceiptAudit = &wire.ReceiptAudit{EnvelopeSchemaVersion: 1, Algorithm: "hmac_sha256", KeyID: r.producer.KeyID()}
}

// Health implements rpc.HealthSource. The journal is opened by the first page; before that
// there is nothing to say about it.
func (r *Receipts) Health(_ context.Context, h *wire.Health) {
	if opened, err := r.producer.Check(); opened {
		h.Components = append(h.Components, health("receipts", rpc.AuditReconciliationFailed, err))
	}
}

func (r *Receipts) page(ctx context.Context, _ *rpc.Call, q *wire.PageReceiptsParams) (*wire.PageReceiptsResult, error) {
	anchor, err := localAnchor(q.Anchor)
	if err != nil {
		return nil, err
	}
	if q.Limit < 1 || q.Limit > wire.MaxPageLimit {
		return nil, badParam("/limit", "limit is 1 to 1000")
	}
	before := r.producer.Reconciled()
	page, err := r.producer.Page(ctx, anchor, q.Limit)
	if receipt.CodeOf(err) == receipt.Archived {
		// Who only asks where the chain ends need not have the archives at hand.
		return nil, rpc.Wrap(rpc.SessionArchived, "the receipts after the anchor were archived and are not at hand", err).
			With("local_anchor", wireAnchor(r.producer.Status().Head))
	}
	if err != nil {
		return nil, receiptError(err)
	}
	out := &wire.PageReceiptsResult{Envelopes: []jsontext.Value{}, HasMore: page.HasMore, LocalAnchor: wireAnchor(page.LocalAnchor)}
	for _, envelope := range page.Envelopes {
		raw, err := strictjson.Canonical(envelope)
		if err != nil {
			return nil, err
		}
		out.Envelopes = append(out.Envelopes, raw)
	}
	// Reconciling waits for every start before it. A page that did so each time would
	// be old when it is read: on a busy gloved no controller could ever acknowledge.
	if !before || r.unsettled != nil && r.unsettled() {
		r.settle(ctx)
	}
	return out, nil
}

func (r *Receipts) acknowledge(ctx context.Context, call *rpc.Call, q *wire.AcknowledgeReceiptsParams) (*wire.AcknowledgeReceiptsResult, error) {
	anchor, err := localAnchor(q.Anchor)
	if err != nil {
		return nil, err
	}
	if err := call.Admit(); err != nil {
		return nil, err
	}
	if err := r.producer.Acknowledge(ctx, anchor); err != nil {
		return nil, receiptError(err)
	}
	r.settle(ctx)
	r.full(ctx)
	return &wire.AcknowledgeReceiptsResult{LocalAnchor: q.Anchor}, nil
}

func (r *Receipts) settle(ctx context.Context) {
	if r.producer.Reconciled() {
		r.reconciled(ctx)
	}
}

func localAnchor(a wire.Anchor) (receipt.Anchor, error) {
	switch {
	case !ident.Hex64(a.KeyID):
		return receipt.Anchor{}, badParam("/anchor/key_id", "key_id is 64 lowercase hexadecimal digits")
	case !ident.Hex64(a.HeadHMAC):
		return receipt.Anchor{}, badParam("/anchor/head_hmac", "head_hmac is 64 lowercase hexadecimal digits")
	case a.Sequence < 0:
		return receipt.Anchor{}, badParam("/anchor/sequence", "sequence is not negative")
	}
	return receipt.Anchor{KeyID: a.KeyID, Sequence: uint64(a.Sequence), HeadHMAC: a.HeadHMAC}, nil
}

func wireAnchor(a receipt.Anchor) wire.Anchor {
	return wire.Anchor{KeyID: a.KeyID, Sequence: number(a.Sequence), HeadHMAC: a.HeadHMAC}
}

// receiptError is how a refusal of the producer looks on the wire. The reasons are public;
// the journal's own trouble is not.
func receiptError(err error) error {
	var refusal *receipt.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case receipt.InvalidRequest:
		return rpc.Wrap(rpc.InvalidParams, refusal.Reason, err)
	case receipt.ReconciliationFailed:
		if errors.Is(err, receipt.ErrNotPaged) {
			return rpc.Wrap(rpc.AuditReconciliationFailed, "page the receipts before they are acknowledged", err)
		}
		return rpc.Wrap(rpc.AuditReconciliationFailed, "", err)
	case receipt.ReconciliationRequired:
		return rpc.Wrap(rpc.AuditReconciliationRequired, "", err)
	case receipt.Archived:
		return rpc.Wrap(rpc.SessionArchived, "the receipt was archived and is not at hand", err)
	case receipt.Storage, receipt.Capacity:
		return rpc.Wrap(rpc.AuditReconciliationFailed, "the receipt journal failed", err)
	}
	return err
}

func (b *builder) buildReceipts() error {
	producer, err := receipt.New(receipt.Options{KeyPath: b.AuditKey, JournalPath: b.Journal, Clock: b.Clock})
	if err != nil {
		return &BuildError{Option: "--audit-key", Err: err}
	}
	b.own(producer)
	b.producer = producer
	b.receipts = NewReceipts(producer)
	b.add(b.receipts)
	return nil
}
