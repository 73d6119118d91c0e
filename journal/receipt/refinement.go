package receipt

import (
	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
)

const maxOutcome = 32 << 10

// A ProjectionBinding names one library projection of an evaluation.
type ProjectionBinding struct {
	ProjectionID     string `json:"projection_id"`
	ContentDigest    string `json:"content_digest"`
	DestinationAlias string `json:"destination_alias"`
}

func (b ProjectionBinding) wellFormed() bool {
	return ident.ID(b.ProjectionID) && ident.Hex64(b.ContentDigest) && ident.ID(b.DestinationAlias)
}

func (b ProjectionBinding) digest(e *digest.Encoder) {
	e.S(b.ProjectionID).S(b.ContentDigest).S(b.DestinationAlias)
}

// An Outcome is the evaluator's result, or, without Content, a commitment to it.
type Outcome struct {
	Schema   string  `json:"schema"`
	Encoding string  `json:"encoding"`
	Digest   string  `json:"digest"` // SHA-256 of the content
	Length   uint64  `json:"length"` // of the content, in bytes
	Content  *string `json:"content,omitzero"`
}

// A StreamCommitment commits to everything a terminal said.
type StreamCommitment struct {
	Schema   string `json:"schema"`
	Digest   string `json:"digest"`
	Count    uint64 `json:"count"` // bytes
	Complete bool   `json:"complete"`
}

func (c StreamCommitment) wellFormed() bool {
	return ident.ID(c.Schema) && ident.Hex64(c.Digest) && c.Count <= ident.MaxInt
}

// An Evaluator says how completely the evaluation was made.
type Evaluator struct {
	Schema            string `json:"schema"`
	FixtureComplete   bool   `json:"fixture_complete"`
	TranscriptUTF8    bool   `json:"transcript_utf8"`
	RequiredLiterals  uint32 `json:"required_literals"`
	ForbiddenLiterals uint32 `json:"forbidden_literals"`
}

// A Refinement receipt is the resource receipt of an evaluation session and what
// the evaluator found.
type Refinement struct {
	SchemaVersion        uint8             `json:"schema_version"`
	RuntimeTemplateID    string            `json:"runtime_template_id"`
	Resource             Resource          `json:"resource"`
	Status               string            `json:"status"`
	Variant              string            `json:"variant"`
	Fixture              ProjectionBinding `json:"fixture"`
	Base                 ProjectionBinding `json:"base"`
	Candidate            ProjectionBinding `json:"candidate"`
	MatchedContextDigest string            `json:"matched_context_digest"`
	Outcome              Outcome           `json:"outcome"`
	Transcript           StreamCommitment  `json:"transcript"`
	Evaluator            Evaluator         `json:"evaluator"`
}

// Validate says why the receipt is incomplete or contradicts itself.
func (r Refinement) Validate() error {
	if err := r.Resource.Validate(); err != nil {
		return err
	}
	o := r.Outcome
	switch {
	case r.SchemaVersion != receiptSchema:
		return refuse(InvalidReceipt, "unknown schema_version")
	case !ident.ID(r.RuntimeTemplateID) || !ident.ID(r.Status) || r.Variant != "base" && r.Variant != "candidate":
		return refuse(InvalidReceipt, "an ill-formed id, status or variant")
	case !r.Fixture.wellFormed() || !r.Base.wellFormed() || !r.Candidate.wellFormed() || !ident.Hex64(r.MatchedContextDigest):
		return refuse(InvalidReceipt, "an ill-formed projection binding")
	case r.Fixture.ProjectionID == r.Base.ProjectionID || r.Fixture.ProjectionID == r.Candidate.ProjectionID ||
		r.Base.ProjectionID == r.Candidate.ProjectionID:
		return refuse(InvalidReceipt, "the projections must differ")
	case !ident.ID(o.Schema) || !ident.ID(o.Encoding) || !ident.Hex64(o.Digest) || o.Length > ident.MaxInt:
		return refuse(InvalidReceipt, "an ill-formed outcome")
	case o.Content != nil && (len(*o.Content) > maxOutcome || uint64(len(*o.Content)) != o.Length ||
		digest.SHA256Hex([]byte(*o.Content)) != o.Digest):
		return refuse(InvalidReceipt, "the outcome is not the one its digest names")
	case !r.Transcript.wellFormed() || !ident.ID(r.Evaluator.Schema):
		return refuse(InvalidReceipt, "an ill-formed transcript or evaluator")
	}
	return nil
}

// Digest is the receipt's digest, in the layout of the existing system.
func (r Refinement) Digest() string {
	e := digest.New("glove.refinement-evaluation-receipt").U8(2).U8(r.SchemaVersion).
		S(r.RuntimeTemplateID).S(r.Resource.Digest()).S(r.Status).S(r.Variant)
	r.Fixture.digest(e)
	r.Base.digest(e)
	r.Candidate.digest(e)
	e.S(r.MatchedContextDigest)
	e.S(r.Outcome.Schema).S(r.Outcome.Encoding).S(r.Outcome.Digest).U64(r.Outcome.Length)
	if e.Opt(r.Outcome.Content != nil); r.Outcome.Content != nil {
		e.S(*r.Outcome.Content)
	}
	e.S(r.Transcript.Schema).S(r.Transcript.Digest).U64(r.Transcript.Count).Bool(r.Transcript.Complete)
	e.S(r.Evaluator.Schema).Bool(r.Evaluator.FixtureComplete).Bool(r.Evaluator.TranscriptUTF8).
		U32(r.Evaluator.RequiredLiterals).U32(r.Evaluator.ForbiddenLiterals)
	return e.Sum()
}
