package receipt

import (
	"context"
	"encoding/hex"
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
	index      []place          // by sequence-1
	sessions   map[bound]uint64 // 0: two receipts, which is ambiguous
	reconciled bool
	closed     bool
}

// place locates a stored envelope.
type place struct {
	offset int64
	length int
	hmac   [32]byte
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
	return &Producer{o: o, key: key, sessions: map[bound]uint64{}}, nil
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
	if !p.prefix(anchor) {
		return Page{}, refuse(ReconciliationFailed, "the anchor is not a prefix of the receipt chain")
	}
	n := min(limit, MaxPage, len(p.index)-int(anchor.Sequence)) //nolint:gosec // at most len(index)
	page := Page{Envelopes: make([]Envelope, 0, n), LocalAnchor: p.head()}
	for i := range n {
		v, err := p.read(anchor.Sequence + uint64(i) + 1)
		if err != nil {
			return Page{}, err
		}
		page.Envelopes = append(page.Envelopes, v)
	}
	page.HasMore = anchor.Sequence+uint64(n) < uint64(len(p.index))
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
	p.index, p.sessions = nil, map[bound]uint64{}
	j, err := journal.Open(p.o.JournalPath, journal.Options{
		MaxBytes: p.o.MaxBytes, Clock: p.o.Clock, FS: p.o.FS,
		AllowTorn: func(journal.Head) bool { return p.prefix(anchor) },
	}, p.replay)
	if err != nil {
		p.index, p.sessions = nil, map[bound]uint64{}
		if errors.Is(err, journal.ErrTornTail) {
			return &Error{Code: ReconciliationFailed, Reason: "the journal has a torn tail and the anchor is not a prefix of it", Err: err}
		}
		return stored(err)
	}
	if !p.prefix(anchor) {
		// Stay closed: the next request may bring a better anchor.
		p.index, p.sessions = nil, map[bound]uint64{}
		return errors.Join(refuse(ReconciliationFailed, "the anchor is not a prefix of the receipt chain"), j.Close())
	}
	p.j = j
	p.reconciled = len(p.index) > 0 && anchor == p.head()
	return nil
}

// storedEnvelope is a journal record's body.
type storedEnvelope struct {
	Envelope Envelope `json:"envelope"`
}

func (p *Producer) replay(e journal.Entry) error {
	var b storedEnvelope
	if err := e.Decode(&b); err != nil {
		return err
	}
	if _, err := p.key.Verify(p.head(), b.Envelope, Expectation{}); err != nil {
		return err
	}
	p.admit(b.Envelope, e)
	return nil
}

// admit takes note of a durable envelope.
func (p *Producer) admit(v Envelope, e journal.Entry) {
	at := place{offset: e.Offset, length: len(e.Line)}
	if _, err := hex.Decode(at.hmac[:], []byte(v.ThisHMAC)); err != nil {
		panic("receipt: internal error: a verified HMAC is no hexadecimal")
	}
	p.index = append(p.index, at)
	if r := v.resource(); r != nil {
		b := bound{v.SessionID, v.ControllerPlanDigest, r.ProfileDigest}
		if _, twice := p.sessions[b]; twice {
			p.sessions[b] = 0
		} else {
			p.sessions[b] = v.Sequence
		}
	}
}

func (p *Producer) head() Anchor {
	a := Genesis(p.key.id)
	if n := len(p.index); n > 0 {
		a.Sequence, a.HeadHMAC = uint64(n), hex.EncodeToString(p.index[n-1].hmac[:])
	}
	return a
}

// prefix reports whether a is an exact prefix of the chain.
func (p *Producer) prefix(a Anchor) bool {
	if !equal(a.KeyID, p.key.id) || a.Sequence > uint64(len(p.index)) {
		return false
	}
	want := ident.ZeroHash
	if a.Sequence > 0 {
		want = hex.EncodeToString(p.index[a.Sequence-1].hmac[:])
	}
	return equal(a.HeadHMAC, want)
}

// read returns a stored envelope, proven against the chain again.
func (p *Producer) read(seq uint64) (Envelope, error) {
	at := p.index[seq-1]
	e, err := p.j.Read(at.offset, at.length)
	if err != nil {
		return Envelope{}, stored(err)
	}
	var b storedEnvelope
	if err := e.Decode(&b); err != nil {
		return Envelope{}, stored(err)
	}
	before := Genesis(p.key.id)
	if seq > 1 {
		before.Sequence, before.HeadHMAC = seq-1, hex.EncodeToString(p.index[seq-2].hmac[:])
	}
	if _, err := p.key.Verify(before, b.Envelope, Expectation{}); err != nil {
		return Envelope{}, &Error{Code: Storage, Err: err}
	}
	return b.Envelope, nil
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
	if head := p.head(); anchor.Sequence != head.Sequence || !equal(anchor.KeyID, head.KeyID) || !equal(anchor.HeadHMAC, head.HeadHMAC) {
		return refuse(ReconciliationFailed, "the anchor is not the head of the receipt chain")
	}
	p.reconciled = true
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
	if t.Sequence == 0 || t.Sequence > uint64(len(p.index)) {
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
		s.Head, s.Journal = p.head(), p.j.Stats()
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
	err := p.j.Close()
	p.j = nil
	return err
}
