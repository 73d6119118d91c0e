package receipt

import (
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/session"
)

// Kinds of receipts.
const (
	KindResource    = session.KindResource
	KindRefinement  = session.KindRefinement
	KindChangeApply = "change_apply"
)

const (
	envelopeSchema = 1
	// maxChangeApply bounds the canonical receipt of an applied change in bytes.
	maxChangeApply = 8 << 10
)

// domains separates the HMACs of the kinds, so that a receipt of one can never
// stand in for another's.
var domains = map[string]string{
	KindResource:    "glove.receipt-audit-envelope",
	KindRefinement:  "glove.refinement-receipt-audit-envelope",
	KindChangeApply: "glove.change-apply-receipt-audit-envelope",
}

// An Envelope is one authenticated receipt in the chain. Exactly one of the
// receipts is set, the one Kind names.
type Envelope struct {
	SchemaVersion        uint8          `json:"schema_version"`
	Kind                 string         `json:"kind"`
	Sequence             uint64         `json:"sequence"`
	KeyID                string         `json:"key_id"`
	SessionID            string         `json:"session_id"`
	ControllerPlanDigest string         `json:"controller_plan_digest"`
	Resource             *Resource      `json:"resource,omitzero"`
	Refinement           *Refinement    `json:"refinement,omitzero"`
	ChangeApply          jsontext.Value `json:"change_apply,omitzero"` // canonical object
	ReceiptDigest        string         `json:"receipt_digest"`
	PreviousHMAC         string         `json:"previous_hmac"`
	ThisHMAC             string         `json:"this_hmac"`
	Confinement          *Confinement   `json:"confinement,omitzero"`
	ConfinementHMAC      string         `json:"confinement_hmac,omitzero"`
}

// validate says why the envelope's shape is wrong. It proves no HMAC.
func (v Envelope) validate() error {
	set := 0
	for _, is := range []bool{v.Resource != nil, v.Refinement != nil, v.ChangeApply != nil} {
		if is {
			set++
		}
	}
	switch {
	case v.SchemaVersion != envelopeSchema || domains[v.Kind] == "" || set != 1:
		return refuse(InvalidReceipt, "unknown schema or kind")
	case (v.Kind == KindResource) != (v.Resource != nil) || (v.Kind == KindRefinement) != (v.Refinement != nil):
		return refuse(InvalidReceipt, "the receipt is not of its kind")
	case v.Sequence == 0 || v.Sequence > ident.MaxInt || !ident.Hex64(v.KeyID) || !ident.ID(v.SessionID) ||
		!ident.Hex64(v.ControllerPlanDigest) || !ident.Hex64(v.ReceiptDigest) || !ident.Hex64(v.PreviousHMAC) || !ident.Hex64(v.ThisHMAC):
		return refuse(InvalidReceipt, "an ill-formed id or digest")
	case (v.Confinement != nil) != (v.ConfinementHMAC != "") || v.ConfinementHMAC != "" && !ident.Hex64(v.ConfinementHMAC):
		return refuse(InvalidReceipt, "a confinement without its HMAC, or the reverse")
	case v.Confinement != nil && v.Kind == KindChangeApply:
		return refuse(InvalidReceipt, "an applied change has no confinement")
	}
	if v.Confinement != nil {
		if err := v.Confinement.Validate(); err != nil {
			return err
		}
	}
	switch v.Kind {
	case KindResource:
		return v.Resource.Validate()
	case KindRefinement:
		return v.Refinement.Validate()
	}
	if len(v.ChangeApply) > maxChangeApply || !strictjson.IsCanonical(v.ChangeApply) || v.ChangeApply.Kind() != '{' {
		return refuse(InvalidReceipt, "the receipt of an applied change is not a small canonical object")
	}
	return nil
}

// digest recomputes the receipt's digest.
func (v Envelope) digest() string {
	switch v.Kind {
	case KindResource:
		return v.Resource.Digest()
	case KindRefinement:
		return v.Refinement.Digest()
	}
	return digest.SHA256Hex(v.ChangeApply)
}

// resource is the resource receipt within a session's receipt, or nil.
func (v Envelope) resource() *Resource {
	if v.Refinement != nil {
		return &v.Refinement.Resource
	}
	return v.Resource
}

func (k *Key) envelope(v Envelope) string {
	return k.sum(digest.New(domains[v.Kind]).U8(1).U64(v.Sequence).S(v.KeyID).S(v.SessionID).
		S(v.ControllerPlanDigest).S(v.ReceiptDigest).S(v.PreviousHMAC))
}

// TerminalReference is what the session store keeps of the receipt that ended a
// session. It is false for an applied change.
func (v Envelope) TerminalReference() (session.TerminalReference, bool) {
	r := v.resource()
	if r == nil {
		return session.TerminalReference{}, false
	}
	return session.TerminalReference{
		Kind: v.Kind, Sequence: v.Sequence, KeyID: v.KeyID, SessionID: v.SessionID,
		ControllerPlanDigest: v.ControllerPlanDigest, ProfileDigest: r.ProfileDigest,
		ReceiptDigest: v.ReceiptDigest, PreviousHMAC: v.PreviousHMAC, HMAC: v.ThisHMAC,
		TerminationCause: r.TerminationCause, StartedAtMS: r.StartedAtMS, FinishedAtMS: r.FinishedAtMS, ExitCode: r.ExitCode,
	}, true
}

// An Anchor is a prefix of the chain: the number of receipts in it and the HMAC
// of its last, 64 zeros for none.
type Anchor struct {
	KeyID    string `json:"key_id"`
	Sequence uint64 `json:"sequence"`
	HeadHMAC string `json:"head_hmac"`
}

// Genesis is the anchor of a controller that has seen nothing of a key's chain.
func Genesis(keyID string) Anchor { return Anchor{KeyID: keyID, HeadHMAC: ident.ZeroHash} }

func (a Anchor) wellFormed() bool {
	return ident.Hex64(a.KeyID) && ident.Hex64(a.HeadHMAC) && a.Sequence <= ident.MaxInt
}

// An Expectation is what a verifier demands of the next envelope. Empty session
// members demand nothing.
type Expectation struct {
	SessionID            string
	ControllerPlanDigest string
	RequireConfinement   bool
}

// Verify proves that v is the envelope after anchor and returns the anchor that
// includes it. On an error the anchor does not move. Digests are compared in
// constant time.
func (k *Key) Verify(anchor Anchor, v Envelope, want Expectation) (Anchor, error) {
	if err := v.validate(); err != nil {
		return anchor, &Error{Code: BadSchema, Err: err}
	}
	switch {
	case want.SessionID != "" && v.SessionID != want.SessionID,
		want.ControllerPlanDigest != "" && !equal(v.ControllerPlanDigest, want.ControllerPlanDigest):
		return anchor, refuse(BadSession, "the receipt is for another session or plan")
	case !equal(v.KeyID, k.id) || !equal(anchor.KeyID, k.id):
		return anchor, refuse(BadKey, "the receipt or the anchor belongs to another key")
	case v.Sequence != anchor.Sequence+1:
		return anchor, refuse(BadSequence, "the receipt does not follow the anchor")
	case !equal(v.PreviousHMAC, anchor.HeadHMAC):
		return anchor, refuse(BadPrevious, "the receipt continues another chain")
	case !equal(v.ReceiptDigest, v.digest()):
		return anchor, refuse(BadDigest, "the digest is not the receipt's")
	case !equal(v.ThisHMAC, k.envelope(v)):
		return anchor, refuse(BadHMAC, "the HMAC is not this key's")
	case want.RequireConfinement && v.Confinement == nil:
		return anchor, refuse(BadConfinement, "the confinement is missing")
	}
	if v.Confinement != nil {
		mac, err := k.confine(v.ThisHMAC, *v.Confinement)
		if err != nil || !equal(v.ConfinementHMAC, mac) {
			return anchor, refuse(BadConfinement, "the confinement is not this envelope's")
		}
	}
	return Anchor{KeyID: k.id, Sequence: v.Sequence, HeadHMAC: v.ThisHMAC}, nil
}
