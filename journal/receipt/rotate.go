package receipt

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/journal"
)

// RotateOptions say what a rotation of the receipts does.
type RotateOptions struct {
	// Live reports whether a session's end is not on record yet, so that its
	// receipt must stay at hand; nil is none.
	Live func(sessionID string) bool
	// DryRun and AtMost are those of session.RotateOptions.
	DryRun bool
	AtMost int
}

// A Rotated says what a rotation did, or would do: the archive (none when there
// was nothing to do), how many receipts went there and how many stay, the records
// and bytes before, and those carried forward.
type Rotated struct {
	Archive     *journal.Archive
	Receipts    uint64
	Kept        uint64
	Records     uint64
	Bytes       int64
	KeptRecords uint64
	KeptBytes   int64
	Nothing     bool // no receipt could be archived, or too few
}

// Rotate seals the journal into an archive and goes on with the receipts that a
// controller has not acknowledged to this producer, and with those from the first
// whose session Live wants. The chain does not notice: sequence numbers, HMACs and
// anchors go on, and pages of archived receipts are answered from their archives.
//
// Errors: reconciliation_required (no page yet), capacity, storage; the journal
// then is as it was, unless Check says otherwise.
func (p *Producer) Rotate(ctx context.Context, o RotateOptions) (Rotated, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return Rotated{}, err
	}
	base := p.archivable(o.Live)
	out := p.count(base, o.AtMost)
	if out.Nothing || o.DryRun {
		return out, nil
	}
	next := &segment{base: p.live.anchor(base)}
	archive, err := p.j.Rotate(ctx, func(r *journal.Rotation) error { return p.carry(r, next) })
	if err != nil {
		return out, stored(err)
	}
	p.live = next
	for b, seq := range p.sessions {
		if seq != 0 && seq <= base {
			delete(p.sessions, b)
		}
	}
	out.Archive = &archive
	stats := p.j.Stats()
	out.KeptRecords, out.KeptBytes = stats.Records, stats.Bytes
	return out, nil
}

// archivable is the sequence number up to which receipts can be archived.
func (p *Producer) archivable(live func(string) bool) uint64 {
	base := min(p.acked, p.live.head().Sequence)
	if live == nil {
		return base
	}
	for b, seq := range p.sessions {
		if live(b.session) {
			// Two receipts for one session are nothing to move about.
			base = min(base, max(seq, 1)-1)
		}
	}
	return max(base, p.live.base.Sequence)
}

func (p *Producer) count(base uint64, atMost int) Rotated {
	stats := p.j.Stats()
	out := Rotated{
		Receipts: base - p.live.base.Sequence, Kept: p.live.head().Sequence - base,
		Records: stats.Records, Bytes: stats.Bytes,
	}
	for _, at := range p.live.index[out.Receipts:] {
		out.KeptRecords++
		out.KeptBytes += int64(at.length) + 1
	}
	out.Nothing = out.Receipts == 0 || atMost != 0 && uint64(out.KeptBytes)*100 > uint64(out.Bytes)*uint64(atMost) //nolint:gosec // not negative
	return out
}

// carry writes the new file: where its part of the chain begins, then the
// envelopes after that, as they are.
func (p *Producer) carry(r *journal.Rotation, next *segment) error {
	if _, err := r.Put(storedBase{next.base, p.key.base(next.base)}); err != nil {
		return err
	}
	skip := next.base.Sequence - p.live.base.Sequence
	if skip == uint64(len(p.live.index)) {
		return nil
	}
	from := p.live.index[skip].offset
	return r.Walk(func(e journal.Entry) error {
		if e.Offset < from {
			return nil
		}
		var b storedEnvelope
		if err := e.Decode(&b); err != nil {
			return err
		}
		if _, err := p.key.Verify(next.head(), b.Envelope, Expectation{}); err != nil {
			return err
		}
		moved, err := r.Put(jsontext.Value(e.Body()))
		if err != nil {
			return err
		}
		return next.admit(b.Envelope, moved)
	})
}

// Acknowledged is the sequence number up to which a controller has acknowledged
// receipts to this producer, and 0 before the first page.
func (p *Producer) Acknowledged() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked
}

// Trust says that a controller has acknowledged everything up to anchor, which
// must be a prefix of the chain, on the word of whoever owns the journal. Unlike
// an acknowledgement it reconciles nothing. A page must come first. Errors:
// invalid_request, reconciliation_required, reconciliation_failed, storage.
func (p *Producer) Trust(anchor Anchor) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return err
	}
	if !anchor.wellFormed() {
		return refuse(InvalidRequest, "the anchor is ill-formed")
	}
	if err := p.prefix(anchor); err != nil {
		return err
	}
	p.acked = max(p.acked, anchor.Sequence)
	return nil
}

// Archive is the archive that the journal was last rotated into, or nil; that is
// also what it is before the first page.
func (p *Producer) Archive() *journal.Archive {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.j == nil {
		return nil
	}
	return p.j.Archive()
}
