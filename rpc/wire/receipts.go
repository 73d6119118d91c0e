package wire

import "github.com/go-json-experiment/json/jsontext"

// Names of the receipt producer's methods.
const (
	MethodPageReceipts        = "page_receipts"
	MethodAcknowledgeReceipts = "acknowledge_receipts"
)

const (
	// MaxPageLimit bounds PageReceiptsParams.Limit.
	MaxPageLimit = 1000
	// MaxPageEnvelopes is how many envelopes one answer carries at most, whatever
	// the limit: fifteen records of 64 KiB fit a frame.
	MaxPageEnvelopes = 15
)

// Kinds of receipt envelopes.
const (
	ReceiptResource    = "resource"
	ReceiptRefinement  = "refinement"
	ReceiptChangeApply = "change_apply"
)

// Anchor is a position in the receipt chain: the HMAC of the envelope with that
// sequence, or sequence 0 with 64 zeros before the first.
type Anchor struct {
	KeyID    string `json:"key_id"`
	Sequence int64  `json:"sequence"`
	HeadHMAC string `json:"head_hmac"`
}

// PageReceiptsParams asks for the receipts after the controller's trusted
// prefix, at most Limit (1 to MaxPageLimit).
type PageReceiptsParams struct {
	Anchor Anchor `json:"anchor"`
	Limit  int    `json:"limit"`
}

// PageReceiptsResult holds envelopes in sequence. LocalAnchor is the head of
// the journal, which lies past the page while HasMore is true.
type PageReceiptsResult struct {
	Envelopes   []jsontext.Value `json:"envelopes" jsonschema:"receipt envelopes, each with its kind"`
	HasMore     bool             `json:"has_more"`
	LocalAnchor Anchor           `json:"local_anchor"`
}

// AcknowledgeReceiptsParams must name the exact local head.
type AcknowledgeReceiptsParams struct {
	Anchor Anchor `json:"anchor"`
}

// AcknowledgeReceiptsResult repeats the acknowledged head.
type AcknowledgeReceiptsResult struct {
	LocalAnchor Anchor `json:"local_anchor"`
}
