package policy

import (
	"slices"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
)

// checkRefinement keeps refinement plans and the refinement template together. An evaluation may carry
// no path grant in either schema: two sessions of a matched pair must differ in nothing but the skill.
func (j *judge) checkRefinement() *PlanError {
	p, r := j.plan, j.plan.Refinement
	if p.RuntimeTemplateID != RefinementTemplateID {
		if r != nil {
			return refuse(ReasonRefinement, "/refinement", "only the template %s takes a refinement binding", RefinementTemplateID)
		}
		return nil
	}
	switch {
	case p.Backend != BackendLinux:
		return refuse(ReasonRefinement, "/sandbox_backend", "refinements are evaluated on %s only", BackendLinux).
			against(j.at()+"/sandbox_backend", "the template has another backend")
	case r == nil:
		return refuse(ReasonRefinement, "/refinement", "the refinement binding is missing")
	case r.SchemaVersion != 1:
		return refuse(ReasonRefinement, "/refinement/schema_version", "the binding's schema version is not supported")
	case p.grants() > 0:
		return refuse(ReasonRefinement, "/path_grants", "a refinement plan carries no path grants")
	case !r.Variant.Known():
		return refuse(ReasonRefinement, "/refinement/variant", "the variant is neither base nor candidate")
	}
	return j.checkBindings(r)
}

func (j *judge) checkBindings(r *Refinement) *PlanError {
	for _, b := range []struct {
		name string
		p    Projection
	}{{"fixture", r.Fixture}, {"base", r.Base}, {"candidate", r.Candidate}} {
		if !ident.ID(b.p.ProjectionID) || !ident.Hex64(b.p.ContentDigest) || !ident.ID(b.p.DestinationAlias) {
			return refuse(ReasonRefinement, "/refinement/"+b.name, "the projection is malformed")
		}
	}
	if !ident.Hex64(r.MatchedContextDigest) {
		return refuse(ReasonRefinement, "/refinement/matched_context_digest", "it is no digest")
	}
	ids := []string{r.Fixture.ProjectionID, r.Base.ProjectionID, r.Candidate.ProjectionID}
	if ids[0] == ids[1] || ids[0] == ids[2] || ids[1] == ids[2] {
		return refuse(ReasonRefinement, "/refinement", "fixture, base and candidate must be three projections")
	}
	list := j.plan.LibraryProjections
	if len(list) != 2 || !slices.Contains(list, r.Fixture) || !slices.Contains(list, r.Selected()) {
		return refuse(ReasonRefinement, "/library_projections", "the projections must be exactly the fixture and the selected variant")
	}
	return nil
}

// PlanContextDigest is what the two plans of a matched pair have in common: SHA-256, lowercase hex, of
//
//	S("glove.refinement-plan-context") u8(1) S(runtime) S(template) S(adapter digest) S(backend)
//	S(egress) S(tool) L[S(secret handle)] u64 cpu u64 memory u32 pids u64 wall u64 disk u64 output
//	u64 revision, then of base and of candidate: S(projection id) S(content digest) S(destination)
//
// Expiry, variant, fixture and the matched-context digest itself are left out. The plan must carry a
// refinement; without one the result is "".
func PlanContextDigest(p *Plan) string {
	if p.Refinement == nil {
		return ""
	}
	e := digest.New("glove.refinement-plan-context").U8(1).
		S(p.RuntimeID).S(p.RuntimeTemplateID).S(p.AdapterDigest).S(string(p.Backend)).
		S(p.EgressPolicyID).S(p.ToolPolicyID).Strings(p.SecretHandles)
	l := p.Limits
	e.U64(l.CPUTimeMS).U64(l.MemoryBytes).U32(l.PIDs).U64(l.WallTimeMS).U64(l.DiskBytes).U64(l.TerminalOutputBytes)
	e.U64(p.PolicyRevision)
	for _, b := range []Projection{p.Refinement.Base, p.Refinement.Candidate} {
		e.S(b.ProjectionID).S(b.ContentDigest).S(b.DestinationAlias)
	}
	return e.Sum()
}

// MatchedContext is the normalized fixture of a matched pair: everything in it but the session, the
// variant and the selected skill. Pointers are optional values.
type MatchedContext struct {
	Schema             string // the fixture's schema name
	EvaluationRunID    string
	PairID             string
	ProposalDigest     string
	BaseDigest         string
	CandidateDigest    string
	FixtureID          string
	FixtureDigest      string
	DatasetRef         string
	DatasetFingerprint string
	Seed               uint64
	Model              MatchedModel
	Harness            string
	Module             *MatchedModule
	Termination        string // expected
	ExitCode           *uint32
	Required           []string // transcript literals
	Forbidden          []string
	MaxLatencyMS       *uint64
}

// MatchedModel identifies the model of a matched pair.
type MatchedModel struct {
	Provider          *string
	ModelID           string
	Family            *string
	Revision          *string
	Tier              string
	NormalizerVersion uint32
}

// MatchedModule identifies the repository module of a matched pair, with its selectors.
type MatchedModule struct {
	RepositoryID    string
	RepositoryTree  string
	ModuleID        string
	Label           string
	IncludePaths    []string
	ExcludePaths    []string
	Languages       []string
	Frameworks      []string
	PackageManagers []string
	DetectorVersion uint32
}

// Digest returns the matched-context digest over a plan context (PlanContextDigest) and this fixture:
// SHA-256, lowercase hex, of
//
//	S("glove.refinement-matched-context") u8(1) S(plan context) S(schema) S(run) S(pair) S(proposal)
//	S(base) S(candidate) S(fixture id) S(fixture digest) S(dataset ref) S(dataset fingerprint) u64 seed
//	opt S(provider) S(model id) opt S(family) opt S(revision) S(tier) u32 normalizer S(harness)
//	opt{S(repository) S(tree) S(module) S(label) 5×L[S] u32 detector} S(termination) opt u32 exit
//	L[S(required)] L[S(forbidden)] opt u64 latency
func (m MatchedContext) Digest(planContext string) string {
	e := digest.New("glove.refinement-matched-context").U8(1).S(planContext).
		S(m.Schema).S(m.EvaluationRunID).S(m.PairID).S(m.ProposalDigest).S(m.BaseDigest).S(m.CandidateDigest).
		S(m.FixtureID).S(m.FixtureDigest).S(m.DatasetRef).S(m.DatasetFingerprint).U64(m.Seed)
	optString(e, m.Model.Provider).S(m.Model.ModelID)
	optString(e, m.Model.Family)
	optString(e, m.Model.Revision).S(m.Model.Tier).U32(m.Model.NormalizerVersion).S(m.Harness)
	e.Opt(m.Module != nil)
	if d := m.Module; d != nil {
		e.S(d.RepositoryID).S(d.RepositoryTree).S(d.ModuleID).S(d.Label).
			Strings(d.IncludePaths).Strings(d.ExcludePaths).Strings(d.Languages).
			Strings(d.Frameworks).Strings(d.PackageManagers).U32(d.DetectorVersion)
	}
	e.S(m.Termination).Opt(m.ExitCode != nil)
	if m.ExitCode != nil {
		e.U32(*m.ExitCode)
	}
	e.Strings(m.Required).Strings(m.Forbidden).Opt(m.MaxLatencyMS != nil)
	if m.MaxLatencyMS != nil {
		e.U64(*m.MaxLatencyMS)
	}
	return e.Sum()
}

func optString(e *digest.Encoder, s *string) *digest.Encoder {
	e.Opt(s != nil)
	if s != nil {
		e.S(*s)
	}
	return e
}
