package policy

import (
	"github.com/go-json-experiment/json"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/strictjson"
)

// Plan schema versions.
const (
	PlanSchemaV1 = 1 // grants name static path aliases
	PlanSchemaV2 = 2 // grants name exposures
)

// PlanDocument is a plan as it travels, for one kind of grant.
type PlanDocument[G AliasGrant | ExposureGrant] struct {
	SchemaVersion      uint8        `json:"schema_version"`
	RuntimeID          string       `json:"runtime_id"`
	RuntimeTemplateID  string       `json:"runtime_template_id"`
	AdapterDigest      string       `json:"adapter_command_digest"`
	Backend            Backend      `json:"sandbox_backend"`
	EgressPolicyID     string       `json:"egress_policy_id"`
	ToolPolicyID       string       `json:"tool_policy_id"`
	PathGrants         []G          `json:"path_grants"`
	LibraryProjections []Projection `json:"library_projections"`
	SecretHandles      []string     `json:"secret_handles"`
	Limits             Limits       `json:"limits"`
	PolicyRevision     uint64       `json:"policy_revision"`
	ExpiresAtMS        uint64       `json:"expires_at_ms"` // Unix milliseconds
	Refinement         *Refinement  `json:"refinement,omitzero"`
}

// PlanV1 and PlanV2 are the two schemas of a plan.
type (
	PlanV1 = PlanDocument[AliasGrant]
	PlanV2 = PlanDocument[ExposureGrant]
)

// AliasGrant is a grant of schema 1: one use of a static path alias.
type AliasGrant struct {
	Alias           string          `json:"alias"`
	Access          Access          `json:"access"`
	Materialization Materialization `json:"materialization"`
	MaxBytes        uint64          `json:"max_bytes"`
	TTLSecs         uint64          `json:"ttl_secs"`
	Cleanup         CleanupPolicy   `json:"cleanup_policy"`
}

// ExposureGrant is a grant of schema 2: one use of one generation of an exposure, whose scope the
// controller saw.
type ExposureGrant struct {
	ExposureID      string          `json:"exposure_id"`
	Generation      uint64          `json:"generation"`
	ScopeDigest     string          `json:"scope_digest"`
	Access          Access          `json:"access"`
	Materialization Materialization `json:"materialization"`
	MaxBytes        uint64          `json:"max_bytes"`
	TTLSecs         uint64          `json:"ttl_secs"`
	Cleanup         CleanupPolicy   `json:"cleanup_policy"`
}

// Projection asks for one library bundle, by content, at a configured destination.
type Projection struct {
	ProjectionID     string `json:"projection_id"`
	ContentDigest    string `json:"content_digest"`
	DestinationAlias string `json:"destination_alias"`
}

// Refinement binds an evaluation session to its fixture and to both skills of its matched pair.
type Refinement struct {
	SchemaVersion        uint8      `json:"schema_version"` // 1
	Variant              Variant    `json:"variant"`
	Fixture              Projection `json:"fixture"`
	Base                 Projection `json:"base"`
	Candidate            Projection `json:"candidate"`
	MatchedContextDigest string     `json:"matched_context_digest"`
}

// Selected returns the projection of the variant under test.
func (r Refinement) Selected() Projection {
	if r.Variant == VariantBase {
		return r.Base
	}
	return r.Candidate
}

// Plan is a decoded plan of either schema. SchemaVersion says which of the two grant lists is in use;
// the other is empty.
type Plan struct {
	SchemaVersion      uint8
	RuntimeID          string
	RuntimeTemplateID  string
	AdapterDigest      string
	Backend            Backend
	EgressPolicyID     string
	ToolPolicyID       string
	PathGrants         []AliasGrant    // schema 1
	ExposureGrants     []ExposureGrant // schema 2
	LibraryProjections []Projection
	SecretHandles      []string
	Limits             Limits
	PolicyRevision     uint64
	ExpiresAtMS        uint64
	Refinement         *Refinement
}

// DecodePlan reads a plan of at most MaxDocument bytes. It checks the schema only: the version first,
// then every member, strictly. Errors are *PlanError with ReasonSchema.
func DecodePlan(raw []byte) (*Plan, error) {
	if err := strictjson.Check(raw, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		return nil, schemaError(err)
	}
	var header struct {
		SchemaVersion *uint64 `json:"schema_version"`
	}
	if err := json.Unmarshal(raw, &header); err != nil || header.SchemaVersion == nil || *header.SchemaVersion == 0 {
		e := refuse(ReasonSchema, "/schema_version", "the plan has no valid schema version")
		e.Err = err
		return nil, e
	}
	switch *header.SchemaVersion {
	case PlanSchemaV1:
		d, err := decodeAs[AliasGrant](raw)
		if err != nil {
			return nil, err
		}
		p := fromDocument(d)
		p.PathGrants = d.PathGrants
		return p, nil
	case PlanSchemaV2:
		d, err := decodeAs[ExposureGrant](raw)
		if err != nil {
			return nil, err
		}
		p := fromDocument(d)
		p.ExposureGrants = d.PathGrants
		return p, nil
	}
	return nil, refuse(ReasonSchema, "/schema_version", "the plan's schema version is not supported")
}

func decodeAs[G AliasGrant | ExposureGrant](raw []byte) (PlanDocument[G], error) {
	var d PlanDocument[G]
	if err := strictjson.Decode(raw, &d, strictjson.Limits{MaxBytes: MaxDocument}); err != nil {
		return d, schemaError(err)
	}
	return d, nil
}

func fromDocument[G AliasGrant | ExposureGrant](d PlanDocument[G]) *Plan {
	return &Plan{
		SchemaVersion: d.SchemaVersion, RuntimeID: d.RuntimeID, RuntimeTemplateID: d.RuntimeTemplateID,
		AdapterDigest: d.AdapterDigest, Backend: d.Backend, EgressPolicyID: d.EgressPolicyID,
		ToolPolicyID: d.ToolPolicyID, LibraryProjections: d.LibraryProjections,
		SecretHandles: d.SecretHandles, Limits: d.Limits, PolicyRevision: d.PolicyRevision,
		ExpiresAtMS: d.ExpiresAtMS, Refinement: d.Refinement,
	}
}

func toDocument[G AliasGrant | ExposureGrant](p *Plan, grants []G) PlanDocument[G] {
	return PlanDocument[G]{
		SchemaVersion: p.SchemaVersion, RuntimeID: p.RuntimeID, RuntimeTemplateID: p.RuntimeTemplateID,
		AdapterDigest: p.AdapterDigest, Backend: p.Backend, EgressPolicyID: p.EgressPolicyID,
		ToolPolicyID: p.ToolPolicyID, PathGrants: grants, LibraryProjections: p.LibraryProjections,
		SecretHandles: p.SecretHandles, Limits: p.Limits, PolicyRevision: p.PolicyRevision,
		ExpiresAtMS: p.ExpiresAtMS, Refinement: p.Refinement,
	}
}

// Canonical returns the RFC 8785 bytes of the plan; an absent refinement is left out. Those bytes are
// what a session stores and what its digests cover. It fails on numbers beyond 2^53-1 and on invalid
// UTF-8, which a decoded plan never has.
func (p *Plan) Canonical() ([]byte, error) {
	if p.SchemaVersion == PlanSchemaV2 {
		return strictjson.Canonical(toDocument(p, p.ExposureGrants))
	}
	return strictjson.Canonical(toDocument(p, p.PathGrants))
}

// grants is how many path grants the plan carries, whatever its schema.
func (p *Plan) grants() int { return len(p.PathGrants) + len(p.ExposureGrants) }

// PlanContentDigest returns the digest under which canonical plan bytes are stored: SHA-256,
// lowercase hex.
func PlanContentDigest(canonical []byte) string { return digest.SHA256Hex(canonical) }

// ControllerDigest returns the digest by which a controller correlates a plan: BLAKE3-256 of the
// canonical bytes, lowercase hex. Admission treats the controller's value as opaque; when it equals
// this one, the session record may say that it was verified.
func ControllerDigest(canonical []byte) string { return digest.Blake3Hex(canonical) }
