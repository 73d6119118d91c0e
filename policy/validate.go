package policy

import (
	"fmt"
	"slices"
	"time"

	"gloved.dev/internal/ident"
)

// Exposures is the registry of dynamic path exposures, as far as plans of schema 2 need it. A nil
// Exposures means that none is configured: plans with exposure grants are then refused.
type Exposures interface {
	// ValidateGrant says whether the grant fits the live exposure it names, for a template, at a
	// time. Its error is for the owner's log only.
	ValidateGrant(templateID string, g ExposureGrant, now time.Time) error
	// ResolveGrant validates again and says which host object stands behind the grant.
	ResolveGrant(templateID string, g ExposureGrant, now time.Time) (ExposureSource, error)
}

// Accepted is what is known of an admitted plan.
type Accepted struct {
	SchemaVersion    uint8  // the plan's
	PolicyRevision   uint64 // the policy's, equal to the plan's
	Canonical        []byte // RFC 8785 bytes: what is stored
	ContentDigest    string // SHA-256 of Canonical
	ControllerDigest string // BLAKE3-256 of Canonical, to compare with the controller's
}

// Verifies reports whether a controller's digest is the BLAKE3-256 of the accepted bytes. Nothing is
// refused because it is not: a controller may correlate by other bytes.
func (a Accepted) Verifies(controllerDigest string) bool {
	return a.ControllerDigest == controllerDigest
}

// Validate judges a plan against the policy at a time. The order of checks is fixed and the first
// fault is returned as a *PlanError. exposures may be nil.
func (p *Policy) Validate(plan *Plan, now time.Time, exposures Exposures) (Accepted, error) {
	j := judge{policy: p, plan: plan, now: now, exposures: exposures}
	if err := j.run(); err != nil {
		return Accepted{}, err
	}
	canonical, err := plan.Canonical()
	if err != nil {
		return Accepted{}, schemaError(err)
	}
	return Accepted{
		SchemaVersion: plan.SchemaVersion, PolicyRevision: p.doc.Revision, Canonical: canonical,
		ContentDigest: PlanContentDigest(canonical), ControllerDigest: ControllerDigest(canonical),
	}, nil
}

// judge is one validation. template is set once the plan has been matched with one.
type judge struct {
	policy    *Policy
	plan      *Plan
	now       time.Time
	exposures Exposures

	template int // index of the template
	profile  int // index of the resource profile
}

// run is the fixed order. Schema 2 bounds its grants first, then passes through the rules of schema 1
// without them, then has its own grants judged.
func (j *judge) run() error {
	steps := []func() *PlanError{
		j.checkGrantSchema, j.checkWindow, j.checkScalars, j.checkBounds, j.checkTemplate, j.checkRemote,
		j.checkPolicyIDs, j.checkAliasGrants, j.checkProjections, j.checkRefinement, j.checkSecrets,
		j.checkExposureGrants,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// nowMS is the time in Unix milliseconds; a clock before 1970 reads as 0, which makes every plan live
// too long, not for ever.
func (j *judge) nowMS() uint64 { return uint64(max(j.now.UnixMilli(), 0)) }

// remainingSecs is how many whole seconds the plan has left. Rounding down keeps a grant from
// outliving its plan by a fraction of a second.
func (j *judge) remainingSecs() uint64 { return (j.plan.ExpiresAtMS - j.nowMS()) / 1000 }

func (j *judge) at() string { return fmt.Sprintf("/runtime_templates/%d", j.template) }

func (j *judge) tmpl() *Template { return &j.policy.doc.RuntimeTemplates[j.template] }

// checkGrantSchema keeps the two kinds of grants apart and bounds those of schema 2.
func (j *judge) checkGrantSchema() *PlanError {
	p := j.plan
	switch {
	case p.SchemaVersion != PlanSchemaV1 && p.SchemaVersion != PlanSchemaV2:
		return refuse(ReasonSchema, "/schema_version", "the plan's schema version is not supported")
	case p.SchemaVersion == PlanSchemaV1 && len(p.ExposureGrants) > 0,
		p.SchemaVersion == PlanSchemaV2 && len(p.PathGrants) > 0:
		return refuse(ReasonSchema, "/path_grants", "the grants are not those of the plan's schema version")
	case len(p.ExposureGrants) > MaxPathGrants:
		return tooMany("/path_grants", len(p.ExposureGrants), MaxPathGrants)
	}
	return nil
}

func (j *judge) checkWindow() *PlanError {
	d, p, now := &j.policy.doc, j.plan, j.nowMS()
	switch {
	case p.PolicyRevision != d.Revision:
		return refuse(ReasonRevision, "/policy_revision", "the plan was made for another revision of the policy").
			against("/revision", "the policy has revision %d, the plan names %d", d.Revision, p.PolicyRevision)
	case p.ExpiresAtMS <= now:
		return refuse(ReasonExpired, "/expires_at_ms", "the plan has expired").
			against("", "it expired %d ms ago", now-p.ExpiresAtMS)
	case p.ExpiresAtMS-now > d.MaxPlanTTLMS:
		return refuse(ReasonTTL, "/expires_at_ms", "the plan lives longer than the policy allows").
			against("/max_plan_ttl_ms", "it has %d ms left, %d ms are allowed", p.ExpiresAtMS-now, d.MaxPlanTTLMS)
	}
	return nil
}

func (j *judge) checkScalars() *PlanError {
	p := j.plan
	for _, s := range []struct{ name, id string }{
		{"runtime_id", p.RuntimeID}, {"runtime_template_id", p.RuntimeTemplateID},
		{"egress_policy_id", p.EgressPolicyID}, {"tool_policy_id", p.ToolPolicyID},
	} {
		if !ident.ID(s.id) {
			return refuse(ReasonSchema, "/"+s.name, "it is no identifier")
		}
	}
	if !ident.Hex64(p.AdapterDigest) {
		return refuse(ReasonSchema, "/adapter_command_digest", "it is no digest")
	}
	if !p.Limits.complete() {
		return refuse(ReasonLimits, "/limits", "a limit is zero; all six are required").
			against("/resource_profiles", "no profile has a limit of zero")
	}
	return nil
}

func (j *judge) checkBounds() *PlanError {
	for _, c := range []struct {
		name    string
		n, most int
	}{
		{"path_grants", len(j.plan.PathGrants), MaxPathGrants},
		{"library_projections", len(j.plan.LibraryProjections), MaxProjections},
		{"secret_handles", len(j.plan.SecretHandles), MaxPlanSecrets},
	} {
		if c.n > c.most {
			return tooMany("/"+c.name, c.n, c.most)
		}
	}
	return nil
}

func tooMany(at string, n, most int) *PlanError {
	return refuse(ReasonTooMany, at, "the list has %d entries; at most %d are allowed", n, most)
}

func (j *judge) checkTemplate() *PlanError {
	p := j.plan
	i, ok := j.policy.templates[p.RuntimeTemplateID]
	if !ok {
		return refuse(ReasonRuntime, "/runtime_template_id", "the runtime template is not authorized").
			against("/runtime_templates", "no template has this id")
	}
	j.template = i
	t := j.tmpl()
	switch {
	case !p.Backend.Known():
		return refuse(ReasonBackend, "/sandbox_backend", "the sandbox backend is unknown").
			against(j.at()+"/sandbox_backend", "the template wants %s", t.Backend)
	case p.RuntimeID != t.RuntimeID:
		return refuse(ReasonRuntime, "/runtime_id", "the runtime is not that of the template").
			against(j.at()+"/runtime_id", "the template's runtime is %q", t.RuntimeID)
	case p.AdapterDigest != t.AdapterDigest:
		return j.digestError(t)
	case p.Backend != t.Backend:
		return refuse(ReasonBackend, "/sandbox_backend", "the sandbox backend is not that of the template").
			against(j.at()+"/sandbox_backend", "the template wants %s", t.Backend)
	}
	return nil
}

// digestError tells a controller that still computes the legacy digest what to use instead. That
// reveals nothing: only who knows every member of the launch can have computed the legacy digest, and
// with them the right one.
func (j *judge) digestError(t *Template) *PlanError {
	at, plan := j.at()+"/adapter_command_digest", "/adapter_command_digest"
	if t.Launch != nil && j.plan.AdapterDigest == LegacyLaunchDigest(*t.Launch) {
		return refuse(ReasonRuntime, plan, "the digest is of the legacy encoding, which leaves the read-only paths out; the right digest is %s",
			t.AdapterDigest).against(at, "the controller computes the legacy launch digest")
	}
	return refuse(ReasonRuntime, plan, "the adapter digest is not that of the template").
		against(at, "the template's digest is %s", t.AdapterDigest)
}

// checkRemote keeps secrets and lasting writes off a machine that is not this one.
func (j *judge) checkRemote() *PlanError {
	p := j.plan
	if p.Backend != BackendRemote {
		return nil
	}
	if len(p.SecretHandles) > 0 {
		return refuse(ReasonSecret, "/secret_handles", "the remote backend takes no secrets").
			against(j.at()+"/sandbox_backend", "a remote template may use no secret")
	}
	for i, g := range p.PathGrants {
		if err := j.remoteAccess(i, g.Access); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) remoteAccess(i int, a Access) *PlanError {
	if a != AccessDirectWrite && a != AccessRetainedWrite {
		return nil
	}
	return refuse(ReasonGrant, fmt.Sprintf("/path_grants/%d/access", i), "the remote backend takes no direct or retained writes").
		against(j.at()+"/sandbox_backend", "a remote template may not use %s", a)
}

func (j *judge) checkPolicyIDs() *PlanError {
	d, p := &j.policy.doc, j.plan
	if !slices.Contains(d.EgressPolicyIDs, p.EgressPolicyID) {
		return refuse(ReasonPolicyID, "/egress_policy_id", "the egress policy is not authorized").
			against("/egress_policy_ids", "it is not in the list")
	}
	if !slices.Contains(d.ToolPolicyIDs, p.ToolPolicyID) {
		return refuse(ReasonPolicyID, "/tool_policy_id", "the tool policy is not authorized").
			against("/tool_policy_ids", "it is not in the list")
	}
	j.profile = slices.IndexFunc(d.ResourceProfiles, func(r Profile) bool { return r.Limits() == p.Limits })
	if j.profile < 0 {
		return refuse(ReasonLimits, "/limits", "the limits are not those of an authorized profile").
			against("/resource_profiles", "no profile has exactly these six numbers")
	}
	return nil
}

// checkProjections judges the library projections: canonical list, then digests and destinations.
func (j *judge) checkProjections() *PlanError {
	list := j.plan.LibraryProjections
	if err := canonicalList("/library_projections", "/projection_id", len(list),
		func(i int) string { return list[i].ProjectionID }); err != nil {
		return err
	}
	for i, l := range list {
		at := fmt.Sprintf("/library_projections/%d", i)
		if !ident.Hex64(l.ContentDigest) {
			return refuse(ReasonSchema, at+"/content_digest", "it is no digest")
		}
		if !ident.ID(l.DestinationAlias) {
			return refuse(ReasonSchema, at+"/destination_alias", "it is no identifier")
		}
		if !slices.Contains(j.tmpl().AllowedDestinations, l.DestinationAlias) {
			return refuse(ReasonProjection, at+"/destination_alias", "the destination is not authorized for the template").
				against(j.at()+"/allowed_projection_destinations", "%q is not in the list", l.DestinationAlias)
		}
	}
	return nil
}

// checkSecrets judges the secret handles. A handle too long for the alias of its mount would only fail
// at launch, so it is refused here.
func (j *judge) checkSecrets() *PlanError {
	list := j.plan.SecretHandles
	if err := canonicalList("/secret_handles", "", len(list), func(i int) string { return list[i] }); err != nil {
		return err
	}
	for i, h := range list {
		at := fmt.Sprintf("/secret_handles/%d", i)
		if !ident.Secret(h) {
			return refuse(ReasonSecret, at, "the handle is longer than %d bytes and could never be mounted", ident.MaxSecret)
		}
		if !slices.Contains(j.policy.doc.SecretHandles, h) {
			return refuse(ReasonSecret, at, "the secret is not authorized").
				against("/secret_handles", "it is not in the list")
		}
	}
	return nil
}

// canonicalList judges a whole list before any of its entries: every name is an identifier, and they
// ascend strictly by bytes, so that one set of entries has one spelling and one digest.
func canonicalList(list, member string, n int, name func(int) string) *PlanError {
	for i := range n {
		at := fmt.Sprintf("%s/%d%s", list, i, member)
		if !ident.ID(name(i)) {
			return refuse(ReasonSchema, at, "it is no identifier")
		}
		if i > 0 && name(i) <= name(i-1) {
			return refuse(ReasonNotCanonical, at, "the list is not in strictly ascending order")
		}
	}
	return nil
}
