package receipt

import (
	"encoding/hex"
	"errors"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/journal"
)

// A segment is the part of the chain that one file holds: the envelopes after
// base. The first file of a chain has the key's genesis as its base.
type segment struct {
	base  Anchor
	index []place // of the envelope base.Sequence+1 and on
}

// place locates a stored envelope.
type place struct {
	offset int64
	length int
	hmac   [32]byte
}

// A storedBase is the record that a rotated journal of receipts has before its
// first envelope: where its part of the chain begins, under the key.
type storedBase struct {
	Base Anchor `json:"base"`
	HMAC string `json:"hmac"`
}

func (k *Key) base(a Anchor) string {
	return k.sum(digest.New("glove.receipt-journal-base").U8(1).S(a.KeyID).U64(a.Sequence).S(a.HeadHMAC))
}

func newSegment(k *Key) *segment { return &segment{base: Genesis(k.id)} }

// head is the anchor of the whole chain up to the segment's end.
func (g *segment) head() Anchor {
	a := g.base
	if n := len(g.index); n > 0 {
		a.Sequence, a.HeadHMAC = g.base.Sequence+uint64(n), hex.EncodeToString(g.index[n-1].hmac[:])
	}
	return a
}

// holds reports whether the envelope seq is in the segment.
func (g *segment) holds(seq uint64) bool {
	return seq > g.base.Sequence && seq <= g.head().Sequence
}

// hmac is that of the envelope seq, which the segment holds, or of its base.
func (g *segment) hmac(seq uint64) string {
	if seq == g.base.Sequence {
		return g.base.HeadHMAC
	}
	return hex.EncodeToString(g.index[seq-g.base.Sequence-1].hmac[:])
}

func (g *segment) anchor(seq uint64) Anchor {
	return Anchor{KeyID: g.base.KeyID, Sequence: seq, HeadHMAC: g.hmac(seq)}
}

// replay takes a record of the file. It returns the envelope in it, nil when it
// is the base.
func (g *segment) replay(k *Key, e journal.Entry, rotated bool) (*Envelope, error) {
	if rotated && e.Seq == 2 {
		var b storedBase
		if err := e.Decode(&b); err != nil {
			return nil, err
		}
		if !b.Base.wellFormed() || b.Base.KeyID != k.id || b.Base.Sequence == 0 || !equal(b.HMAC, k.base(b.Base)) {
			return nil, refuse(BadHMAC, "the beginning of the rotated journal is not this key's")
		}
		g.base = b.Base
		return nil, nil
	}
	var b storedEnvelope
	if err := e.Decode(&b); err != nil {
		return nil, err
	}
	if _, err := k.Verify(g.head(), b.Envelope, Expectation{}); err != nil {
		return nil, err
	}
	return &b.Envelope, g.admit(b.Envelope, e)
}

// admit takes note of a verified envelope.
func (g *segment) admit(v Envelope, e journal.Entry) error {
	at := place{offset: e.Offset, length: len(e.Line)}
	if n, err := hex.Decode(at.hmac[:], []byte(v.ThisHMAC)); err != nil || n != len(at.hmac) {
		return errors.New("a verified HMAC is no hexadecimal")
	}
	g.index = append(g.index, at)
	return nil
}

// read returns the envelope seq, proven against the chain again.
func (g *segment) read(k *Key, seq uint64, at func(int64, int) (journal.Entry, error)) (Envelope, error) {
	where := g.index[seq-g.base.Sequence-1]
	e, err := at(where.offset, where.length)
	if err != nil {
		return Envelope{}, stored(err)
	}
	var b storedEnvelope
	if err := e.Decode(&b); err != nil {
		return Envelope{}, stored(err)
	}
	if _, err := k.Verify(g.anchor(seq-1), b.Envelope, Expectation{}); err != nil {
		return Envelope{}, &Error{Code: Storage, Err: err}
	}
	return b.Envelope, nil
}

// A sealed segment is one in an archive, read as far as was asked for. Its
// envelopes prove themselves and their order by their HMACs; that nothing is
// missing from the archive is for the verifier to say.
type sealed struct {
	segment
	end  uint64 // the last envelope it is asked for: later ones were carried forward
	file *journal.Sealed
}

// archived returns the sealed segment with the envelope seq, which the live file
// does not hold. The one that was used last stays open, so that a controller who
// pages through an archive has it read once.
func (p *Producer) archived(seq uint64) (*sealed, error) {
	if s := p.cached; s != nil && seq > s.base.Sequence && seq <= s.end {
		return s, p.reach(s, seq)
	}
	if err := p.closeCached(); err != nil { // its lock would be in our own way
		return nil, stored(err)
	}
	end := p.live.base.Sequence
	for a := p.j.Archive(); a != nil; {
		before, base, err := p.peek(*a)
		if err != nil {
			return nil, archivedError(err)
		}
		if seq <= base {
			a, end = before, base
			continue
		}
		s := &sealed{segment: *newSegment(p.key), end: end}
		if s.file, err = journal.OpenSealed(p.o.FS, p.o.JournalPath, *a); err != nil {
			return nil, archivedError(err)
		}
		p.cached = s
		return s, p.reach(s, seq)
	}
	return nil, archivedError(errors.New("the first archive does not hold it"))
}

// reach reads s up to the envelope seq.
func (p *Producer) reach(s *sealed, seq uint64) error {
	err := s.file.Walk(func(e journal.Entry) error {
		if s.holds(seq) {
			return journal.ErrStop
		}
		_, err := s.replay(p.key, e, e.Seq > 1 && len(s.index) == 0)
		return err
	})
	if errors.Is(err, journal.ErrStop) || err == nil && s.holds(seq) {
		return nil
	}
	if err == nil {
		err = errors.New("it does not hold the receipt that it should")
	}
	return errors.Join(archivedError(err), p.closeCached())
}

// peek reads where an archive's part of the chain begins, and what was before.
func (p *Producer) peek(a journal.Archive) (before *journal.Archive, base uint64, err error) {
	first, err := journal.PeekArchive(p.o.FS, p.o.JournalPath, a, 2)
	if err != nil || len(first) == 0 {
		return nil, 0, err
	}
	before, err = journal.Archived(first[0])
	if err != nil || before == nil {
		return nil, 0, err
	}
	var b storedBase
	if len(first) < 2 {
		return nil, 0, errors.New("an archive without a base")
	}
	err = first[1].Decode(&b)
	return before, b.Base.Sequence, err
}

func (p *Producer) closeCached() error {
	if p.cached == nil {
		return nil
	}
	err := p.cached.file.Close()
	p.cached = nil
	return err
}

// archivedError is the refusal of what an archive would have to answer. The
// archive's name is the operator's business, and in the cause.
func archivedError(err error) error {
	return &Error{Code: Archived, Reason: "the receipts after the anchor are in an archive that is not at hand", Err: err}
}

// hmacAt returns the HMAC of the envelope seq, wherever it is; seq is at most
// that of the head.
func (p *Producer) hmacAt(seq uint64) (string, error) {
	switch {
	case seq == 0:
		return ident.ZeroHash, nil
	case seq >= p.live.base.Sequence:
		return p.live.hmac(seq), nil
	}
	s, err := p.archived(seq)
	if err != nil {
		return "", err
	}
	return s.hmac(seq), nil
}

// read returns the envelope seq, wherever it is.
func (p *Producer) read(seq uint64) (Envelope, error) {
	if seq > p.live.base.Sequence {
		return p.live.read(p.key, seq, p.j.Read)
	}
	s, err := p.archived(seq)
	if err != nil {
		return Envelope{}, err
	}
	return s.segment.read(p.key, seq, s.file.Read)
}
