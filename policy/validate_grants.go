package policy

import (
	"fmt"
	"slices"

	"gloved.dev/internal/ident"
)

// grantName judges the name by which a grant refers to its object, which is an identifier. Names become
// directory names at launch, where a colon or more than 64 bytes would fail: they are refused here.
func grantName(name, at string) *PlanError {
	if ident.MatID(name) {
		return nil
	}
	return refuse(ReasonGrant, at, "a granted name has no colon and at most %d bytes, or it could never be launched", ident.MaxMatID)
}

// grantKinds judges the closed values of a grant.
func grantKinds(a Access, m Materialization, c CleanupPolicy, at string) *PlanError {
	switch {
	case !a.Known():
		return refuse(ReasonSchema, at+"/access", "the access is unknown")
	case !m.Known():
		return refuse(ReasonSchema, at+"/materialization", "the materialization is unknown")
	case !c.Known():
		return refuse(ReasonSchema, at+"/cleanup_policy", "the cleanup policy is unknown")
	}
	return nil
}

// grantTTL judges a grant's life against the plan's.
func (j *judge) grantTTL(ttl uint64, at string) *PlanError {
	if left := j.remainingSecs(); ttl > left {
		return refuse(ReasonGrant, at+"/ttl_secs", "the grant would outlive the plan").
			against("", "the plan has %d whole seconds left", left)
	}
	return nil
}

// checkAliasGrants judges the grants of schema 1, the list first, then each against its alias.
func (j *judge) checkAliasGrants() *PlanError {
	list := j.plan.PathGrants
	if err := canonicalList("/path_grants", "/alias", len(list),
		func(i int) string { return list[i].Alias }); err != nil {
		return err
	}
	for i, g := range list {
		if err := j.aliasGrant(g, fmt.Sprintf("/path_grants/%d", i)); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) aliasGrant(g AliasGrant, at string) *PlanError {
	if err := grantName(g.Alias, at+"/alias"); err != nil {
		return err
	}
	if !slices.Contains(j.tmpl().AllowedAliases, g.Alias) {
		return refuse(ReasonGrant, at+"/alias", "the path alias is not authorized for the template").
			against(j.at()+"/allowed_path_aliases", "%q is not in the list", g.Alias)
	}
	if err := j.grantTTL(g.TTLSecs, at); err != nil {
		return err
	}
	if err := grantKinds(g.Access, g.Materialization, g.Cleanup, at); err != nil {
		return err
	}
	if g.Access == AccessRetainedWrite {
		return refuse(ReasonGrant, at+"/access", "a retained write needs a plan of schema version 2")
	}
	return j.aliasRequest(g, at)
}

// aliasRequest judges one grant against the alias it names, and that the host object is still there.
func (j *judge) aliasRequest(g AliasGrant, at string) *PlanError {
	n, ok := j.policy.aliases[g.Alias]
	if !ok {
		return refuse(ReasonGrant, at+"/alias", "the path alias is not authorized").
			against("/path_aliases", "the template allows %q, but no alias of that name exists", g.Alias)
	}
	alias, local := &j.policy.doc.PathAliases[n], fmt.Sprintf("/path_aliases/%d", n)
	k := slices.IndexFunc(alias.Access, func(e AccessEntry) bool { return e.Access == g.Access })
	if k < 0 {
		return refuse(ReasonGrant, at+"/access", "the access is not authorized for the alias").
			against(local+"/access", "the alias has no entry for %s", g.Access)
	}
	entry, line := alias.Access[k], fmt.Sprintf("%s/access/%d", local, k)
	switch {
	case g.Materialization != entry.Materialization:
		return refuse(ReasonGrant, at+"/materialization", "the materialization is not that of the alias").
			against(line+"/materialization", "the alias has %s", entry.Materialization)
	case g.Cleanup != entry.Cleanup:
		return refuse(ReasonGrant, at+"/cleanup_policy", "the cleanup policy is not that of the alias").
			against(line+"/cleanup_policy", "the alias has %s", entry.Cleanup)
	case g.TTLSecs == 0 || g.TTLSecs > alias.MaxTTLSecs:
		return refuse(ReasonGrant, at+"/ttl_secs", "the grant's life is zero or longer than the alias allows").
			against(local+"/max_ttl_secs", "the alias allows 1 to %d seconds", alias.MaxTTLSecs)
	case g.Access.Quota() && (g.MaxBytes == 0 || g.MaxBytes > entry.MaxBytes):
		return refuse(ReasonGrant, at+"/max_bytes", "the quota is zero or more than the alias allows").
			against(line+"/max_bytes", "the alias allows 1 to %d bytes", entry.MaxBytes)
	case !g.Access.Quota() && g.MaxBytes != 0:
		return refuse(ReasonGrant, at+"/max_bytes", "a grant without quota has max_bytes 0")
	}
	if _, err := j.policy.env.Identify(alias.HostPath); err != nil {
		e := refuse(ReasonGrant, at+"/alias", "the object behind the alias is not available").
			against(local+"/host_path", "the host object cannot be opened")
		e.Err = err
		return e
	}
	return nil
}

// checkExposureGrants judges the grants of schema 2: the remote constraint, then that a registry
// exists, then the list, then each grant.
func (j *judge) checkExposureGrants() *PlanError {
	list := j.plan.ExposureGrants
	if j.plan.Backend == BackendRemote {
		for i, g := range list {
			if err := j.remoteAccess(i, g.Access); err != nil {
				return err
			}
		}
	}
	if len(list) > 0 && j.exposures == nil {
		return refuse(ReasonGrant, "/path_grants", "path exposures are not configured").
			against("", "start gloved with an exposure policy and journal")
	}
	if err := canonicalList("/path_grants", "/exposure_id", len(list),
		func(i int) string { return list[i].ExposureID }); err != nil {
		return err
	}
	for i, g := range list {
		if err := j.exposureGrant(g, fmt.Sprintf("/path_grants/%d", i)); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) exposureGrant(g ExposureGrant, at string) *PlanError {
	if err := grantName(g.ExposureID, at+"/exposure_id"); err != nil {
		return err
	}
	if g.Generation == 0 {
		return refuse(ReasonSchema, at+"/generation", "generations start at 1")
	}
	if !ident.Hex64(g.ScopeDigest) {
		return refuse(ReasonSchema, at+"/scope_digest", "it is no digest")
	}
	if err := grantKinds(g.Access, g.Materialization, g.Cleanup, at); err != nil {
		return err
	}
	if g.TTLSecs == 0 {
		return refuse(ReasonGrant, at+"/ttl_secs", "the grant has no life")
	}
	if err := j.grantTTL(g.TTLSecs, at); err != nil {
		return err
	}
	if err := j.exposures.ValidateGrant(j.plan.RuntimeTemplateID, g, j.now); err != nil {
		e := refuse(ReasonGrant, at, "the exposure grant is not authorized")
		e.Err = err
		return e
	}
	return nil
}
