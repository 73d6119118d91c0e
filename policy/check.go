package policy

import (
	"fmt"

	"gloved.dev/internal/ident"
)

func (p *Policy) checkVersion() *Error {
	if p.doc.SchemaVersion != 1 {
		return fault(CodeSchemaVersion, "/schema_version", "set it to 1",
			"schema version %d is not supported", p.doc.SchemaVersion)
	}
	return nil
}

func (p *Policy) checkCollections() *Error {
	d := &p.doc
	for _, c := range []struct {
		name         string
		n, low, high int
	}{
		{"runtime_templates", len(d.RuntimeTemplates), 1, MaxTemplates},
		{"path_aliases", len(d.PathAliases), 1, MaxAliases},
		{"library_projection_destinations", len(d.Destinations), 0, MaxEntries},
		{"resource_profiles", len(d.ResourceProfiles), 1, MaxProfiles},
		{"egress_policy_ids", len(d.EgressPolicyIDs), 0, MaxEntries},
		{"tool_policy_ids", len(d.ToolPolicyIDs), 0, MaxEntries},
		{"secret_handles", len(d.SecretHandles), 0, MaxEntries},
		{"egress_policies", len(d.EgressPolicies), 0, MaxEntries},
		{"secret_mounts", len(d.SecretMounts), 0, MaxEntries},
	} {
		if c.n < c.low || c.n > c.high {
			return fault(CodeCollection, "/"+c.name, "keep the list within its bounds",
				"the list has %d entries; %d to %d are allowed", c.n, c.low, c.high)
		}
	}
	for i, e := range d.EgressPolicies {
		if len(e.Targets) > MaxTargets {
			return fault(CodeCollection, fmt.Sprintf("/egress_policies/%d/targets", i),
				"split the policy", "the list has %d targets; at most %d are allowed", len(e.Targets), MaxTargets)
		}
	}
	return nil
}

func (p *Policy) checkBackends() *Error {
	for i, t := range p.doc.RuntimeTemplates {
		if !t.Backend.Known() {
			return fault(CodeBackend, fmt.Sprintf("/runtime_templates/%d/sandbox_backend", i),
				fmt.Sprintf("use %s, %s or %s", BackendLinux, BackendRemote, BackendApple),
				"unknown backend %q", t.Backend)
		}
	}
	return nil
}

func (p *Policy) checkAccessKinds() *Error {
	for i, a := range p.doc.PathAliases {
		for j, e := range a.Access {
			at := fmt.Sprintf("/path_aliases/%d/access/%d/", i, j)
			fix := "use one of the values of the schema"
			switch {
			case !e.Access.Known():
				return fault(CodeAccessKind, at+"access", fix, "unknown access %q", e.Access)
			case !e.Materialization.Known():
				return fault(CodeAccessKind, at+"materialization", fix, "unknown materialization %q", e.Materialization)
			case !e.Create.Known():
				return fault(CodeAccessKind, at+"create_policy", fix, "unknown create policy %q", e.Create)
			case !e.Cleanup.Known():
				return fault(CodeAccessKind, at+"cleanup_policy", fix, "unknown cleanup policy %q", e.Cleanup)
			}
		}
	}
	return nil
}

func (p *Policy) checkProfiles() *Error {
	ids := map[string]int{}
	numbers := map[Limits]int{}
	for i, r := range p.doc.ResourceProfiles {
		at := fmt.Sprintf("/resource_profiles/%d", i)
		if err := uniqueID(ids, r.ID, i, at+"/profile_id"); err != nil {
			return err
		}
		if !r.Limits().complete() {
			return fault(CodeNumber, at, "give all six limits a value above zero", "a limit of profile %q is zero", r.ID)
		}
		if j, ok := numbers[r.Limits()]; ok {
			return fault(CodeDuplicate, at, "plans choose a profile by its numbers: keep one of the two",
				"profile %q has the same six limits as profile %q", r.ID, p.doc.ResourceProfiles[j].ID)
		}
		numbers[r.Limits()] = i
	}
	return nil
}

func (p *Policy) checkScalars() *Error {
	d := &p.doc
	if d.Revision == 0 {
		return fault(CodeNumber, "/revision", "start at 1", "the revision is zero")
	}
	if d.MaxPlanTTLMS == 0 {
		return fault(CodeNumber, "/max_plan_ttl_ms", "give plans a life, in milliseconds", "it is zero")
	}
	for _, l := range []struct {
		name string
		ids  []string
	}{
		{"egress_policy_ids", d.EgressPolicyIDs},
		{"tool_policy_ids", d.ToolPolicyIDs},
		{"secret_handles", d.SecretHandles},
	} {
		if err := uniqueList(l.ids, "/"+l.name); err != nil {
			return err
		}
	}
	return nil
}

// checkHeadroom keeps a policy from being unable to launch its own profiles: a plan must outlive the
// longest session by the time that approval and launch need.
func (p *Policy) checkHeadroom() *Error {
	for i, r := range p.doc.ResourceProfiles {
		if r.WallTimeMS > MaxInteger-TTLHeadroomMS || p.doc.MaxPlanTTLMS < r.WallTimeMS+TTLHeadroomMS {
			return fault(CodeHeadroom, fmt.Sprintf("/resource_profiles/%d/wall_time_ms", i),
				fmt.Sprintf("raise max_plan_ttl_ms to at least wall_time_ms + %d, or lower the wall time", TTLHeadroomMS),
				"max_plan_ttl_ms %d leaves no time to launch profile %q, whose wall_time_ms is %d",
				p.doc.MaxPlanTTLMS, r.ID, r.WallTimeMS)
		}
	}
	return nil
}

// uniqueID checks one identifier against those seen before it.
func uniqueID(seen map[string]int, id string, i int, at string) *Error {
	if !ident.ID(id) {
		return identifierFault(at, id)
	}
	if _, ok := seen[id]; ok {
		return duplicateFault(at, id)
	}
	seen[id] = i
	return nil
}

// uniqueList checks a list of identifiers; the order is free.
func uniqueList(ids []string, at string) *Error {
	seen := map[string]int{}
	for i, id := range ids {
		if err := uniqueID(seen, id, i, fmt.Sprintf("%s/%d", at, i)); err != nil {
			return err
		}
	}
	return nil
}

func identifierFault(at, id string) *Error {
	return fault(CodeIdentifier, at, "use 1 to 128 bytes of A-Z a-z 0-9 - _ : .", "%.140q is no identifier", id)
}

func duplicateFault(at, id string) *Error {
	return fault(CodeDuplicate, at, "remove one of the two", "%q occurs twice", id)
}

func digestFault(at string) *Error {
	return fault(CodeIdentifier, at, "use 64 lowercase hexadecimal digits", "it is no SHA-256 digest")
}

func pathFault(at, path string) *Error {
	return fault(CodePath, at, "use an absolute path in its shortest form, not /", "%.200q is no such path", path)
}
