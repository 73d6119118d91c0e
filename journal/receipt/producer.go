package receipt

import (
	"context"
	"errors"
	"sync"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/ident"
	"gloved.dev/journal"
	"gloved.dev/journal/session"
)

// Bounds.
const (
	// DefaultMaxBytes bounds the receipt journal.
	DefaultMaxBytes = 64 << 20
	// MaxEnvelope bounds one stored receipt in bytes, line feed included; so much
	// is reserved for each session.
	MaxEnvelope = 64 << 10
	// MaxPageLimit bounds what a page request may ask for, and MaxPage what one
	// answer holds: 15 of the largest envelopes fit into a protocol frame.
	MaxPageLimit = 1000
	MaxPage      = 15
)

// Options say where a producer's files are and what time it is.
type Options struct {
	KeyPath     string
	JournalPath string
	MaxBytes    int64       // zero is DefaultMaxBytes
	Clock       clock.Clock // nil is the system's
	FS          journal.FS  // nil is the real one
}

// A Producer is the one writer of a receipt journal. All methods may be called
// at once.
type Producer struct {
	o   Options
	key *Key

	mu         sync.Mutex
	j          *journal.Journal // nil until the first page
	live       *segment         // what j holds
	cached     *sealed          // the archive that was read last, or nil
	sessions   map[bound]uint64 // in live; 0: two receipts, which is ambiguous
	acked      uint64           // what a controller has acknowledged
	reconciled bool
	closed     bool
}

// bound names what a session's receipt is for.
type bound struct{ session, controller, profile string }

func (b bound) wellFormed() bool {
	return ident.MatID(b.session) && ident.Hex64(b.controller) && ident.Hex64(b.profile)
}

// New loads the audit key. The journal is neither opened nor created before a
// controller's first page request.
func New(o Options) (*Producer, error) {
	if !ident.AbsPath(o.JournalPath) || o.KeyPath == o.JournalPath {
		return nil, refuse(InvalidRequest, "the journal needs an absolute path that is not the key's")
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.FS == nil {
		o.FS = journal.OS()
	}
	key, err := LoadKey(o.KeyPath)
	if err != nil {
		return nil, err
	}
	p := &Producer{o: o, key: key}
	p.forget()
	return p, nil
}

// KeyID is the public name of the audit key.
func (p *Producer) KeyID() string { return p.key.id }

// Reconciled reports whether a controller has acknowledged the exact head since
// this producer was made, which is when sessions may start.
func (p *Producer) Reconciled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reconciled
}

// A Page is a part of the chain. LocalAnchor is the head of the journal, not the
// end of the page.
type Page struct {
	Envelopes   []Envelope `json:"envelopes"`
	HasMore     bool       `json:"has_more"`
	LocalAnchor Anchor     `json:"local_anchor"`
}

// Page returns up to limit (1 to MaxPageLimit, and MaxPage at once) envelopes
// after anchor, which must be an exact prefix of the chain. The first page opens
// or creates the journal; an anchor that then equals the head of a journal that
// has receipts reconciles at once.
//
// Errors: invalid_request, reconciliation_failed (no prefix, or the journal
// cannot be opened with this anchor), storage.
func (p *Producer) Page(_ context.Context, anchor Anchor, limit int) (Page, error) {
	if !anchor.wellFormed() || limit < 1 || limit > MaxPageLimit {
		return Page{}, refuse(InvalidRequest, "the anchor is ill-formed or the limit is not 1 to 1000")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.bootstrap(anchor); err != nil {
		return Page{}, err
	}
	if err := p.prefix(anchor); err != nil {
		return Page{}, err
	}
	page := Page{LocalAnchor: p.live.head()}
	n := int(min(uint64(min(limit, MaxPage)), page.LocalAnchor.Sequence-anchor.Sequence)) //nolint:gosec // at most MaxPage
	page.Envelopes = make([]Envelope, 0, n)
	for i := range n {
		v, err := p.read(anchor.Sequence + uint64(i) + 1)
		if err != nil {
			return Page{}, err
		}
		page.Envelopes = append(page.Envelopes, v)
	}
	page.HasMore = anchor.Sequence+uint64(n) < page.LocalAnchor.Sequence //nolint:gosec // not negative
	return page, nil
}

// bootstrap opens the journal under a controller's anchor, or proves that it is
// as it was left.
func (p *Producer) bootstrap(anchor Anchor) error {
	if p.closed {
		return refuse(Storage, "the producer is closed")
	}
	if p.j != nil {
		return stored(p.j.Check())
	}
	if anchor.KeyID != p.key.id {
		return refuse(ReconciliationFailed, "the anchor belongs to another key")
	}
	if _, err := p.o.FS.Stat(p.o.JournalPath); err != nil && anchor != Genesis(p.key.id) {
		// Creating an empty journal here would hide that all receipts are gone.
		return &Error{Code: ReconciliationFailed, Reason: "there is no receipt journal and the anchor is not the start of one", Err: err}
	}
	p.forget()
	j, err := journal.Open(p.o.JournalPath, journal.Options{
		MaxBytes: p.o.MaxBytes, Clock: p.o.Clock, FS: p.o.FS,
		// An anchor that only an archive could judge does not let a tail be cut.
		AllowTorn: func(journal.Head) bool {
			return (anchor.Sequence == 0 || anchor.Sequence >= p.live.base.Sequence) && p.prefix(anchor) == nil
		},
	}, p.replay)
	if err != nil {
		p.forget()
		if errors.Is(err, journal.ErrTornTail) {
			return &Error{Code: ReconciliationFailed, Reason: "the journal has a torn tail and the anchor is not a prefix of it", Err: err}
		}
		return stored(err)
	}
	p.j = j
	if err := p.prefix(anchor); err != nil {
		// Stay closed: the next request may bring a better anchor.
		p.j = nil
		p.forget()
		return errors.Join(err, p.closeCached(), j.Close())
	}
	p.acked = p.live.base.Sequence // nothing else is ever archived
	if p.live.head().Sequence > 0 && anchor == p.live.head() {
		p.acked, p.reconciled = anchor.Sequence, true
	}
	return nil
}

// forget is the state before any record was read.
func (p *Producer) forget() {
	p.live, p.sessions, p.reconciled = newSegment(p.key), map[bound]uint64{}, false
}

// storedEnvelope is a journal record's body.
type storedEnvelope struct {
	Envelope Envelope `json:"envelope"`
}

func (p *Producer) replay(e journal.Entry) error {
	v, err := p.live.replay(p.key, e, e.Seq > 1 && len(p.live.index) == 0)
	if err == nil && v != nil {
		p.bind(*v)
	}
	return err
}

// bind takes note of which session an envelope of the live file is for.
func (p *Producer) bind(v Envelope) {
	r := v.resource()
	if r == nil {
		return
	}
	b := bound{v.SessionID, v.ControllerPlanDigest, r.ProfileDigest}
	if _, twice := p.sessions[b]; twice {
		p.sessions[b] = 0
	} else {
		p.sessions[b] = v.Sequence
	}
}

// prefix refuses an anchor that is no exact prefix of the chain.
func (p *Producer) prefix(a Anchor) error {
	no := refuse(ReconciliationFailed, "the anchor is not a prefix of the receipt chain")
	if !equal(a.KeyID, p.key.id) || a.Sequence > p.live.head().Sequence {
		return no
	}
	want, err := p.hmacAt(a.Sequence)
	if err == nil && !equal(a.HeadHMAC, want) {
		err = no
	}
	return err
}

// Acknowledge says that the controller has archived everything up to anchor,
// which must be exactly the head. It opens nothing: a page must come first.
// Errors: invalid_request, reconciliation_failed, storage.
func (p *Producer) Acknowledge(_ context.Context, anchor Anchor) error {
	if !anchor.wellFormed() {
		return refuse(InvalidRequest, "the anchor is ill-formed")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.j == nil {
		return &Error{Code: ReconciliationFailed, Err: ErrNotPaged}
	}
	if err := p.j.Check(); err != nil {
		return stored(err)
	}
	if head := p.live.head(); anchor.Sequence != head.Sequence || !equal(anchor.KeyID, head.KeyID) || !equal(anchor.HeadHMAC, head.HeadHMAC) {
		return refuse(ReconciliationFailed, "the anchor is not the head of the receipt chain")
	}
	p.acked, p.reconciled = anchor.Sequence, true
	return nil
}

// Lookup returns the terminal envelope of a session, or nil when there is none.
// Two are ambiguous, which is an error and never a choice. Before the first page
// it is reconciliation_required.
func (p *Producer) Lookup(sessionID, controllerPlanDigest, profileDigest string) (*Envelope, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return nil, err
	}
	seq, ok := p.sessions[bound{sessionID, controllerPlanDigest, profileDigest}]
	switch {
	case !ok:
		return nil, nil
	case seq == 0:
		return nil, refuse(Ambiguous, "two receipts for one session and profile")
	}
	v, err := p.read(seq)
	if err != nil {
		return nil, err
	}
	return &v, nil
}

// Confirm reports, by a nil error, that exactly the receipt t names is durable.
// It has the form session.Store.MarkExited asks for.
func (p *Producer) Confirm(t session.TerminalReference) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.opened(); err != nil {
		return err
	}
	if t.Sequence == 0 || t.Sequence > p.live.head().Sequence {
		return refuse(NotReserved, "there is no such receipt")
	}
	v, err := p.read(t.Sequence)
	if err != nil {
		return err
	}
	got, ok := v.TerminalReference()
	same := ok && session.TerminalDigest(got) == session.TerminalDigest(t) && got.Kind == t.Kind
	if !same {
		return refuse(NotReserved, "the receipt is another one")
	}
	return nil
}

func (p *Producer) opened() error {
	if p.closed {
		return refuse(Storage, "the producer is closed")
	}
	if p.j == nil {
		return refuse(ReconciliationRequired, "the receipts were not paged yet")
	}
	return stored(p.j.Check())
}

// Check reports whether the journal was opened, by a first page, and whether it is still
// as this producer left it.
func (p *Producer) Check() (opened bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.j == nil {
		return false, nil
	}
	return true, stored(p.j.Check())
}

// Status describes the producer to an operator. Opened is false before the first
// page; the rest is then zero.
type Status struct {
	KeyID      string
	Opened     bool
	Reconciled bool
	Head       Anchor
	Journal    journal.Stats
}

// Status returns the producer's state.
func (p *Producer) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Status{KeyID: p.key.id, Opened: p.j != nil, Reconciled: p.reconciled}
	if p.j != nil {
		s.Head, s.Journal = p.live.head(), p.j.Stats()
	}
	return s
}

// Close closes the journal, if it was opened.
func (p *Producer) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.j == nil {
		return nil
	}
	err := errors.Join(p.closeCached(), p.j.Close())
	p.j = nil
	return err
}
