package policy

import (
	"fmt"
	"slices"
	"strings"
)

func (p *Policy) checkEgress() *Error {
	seen := map[string]int{}
	for i, e := range p.doc.EgressPolicies {
		at := fmt.Sprintf("/egress_policies/%d", i)
		if err := uniqueID(seen, e.PolicyID, i, at+"/policy_id"); err != nil {
			return err
		}
		if !slices.Contains(p.doc.EgressPolicyIDs, e.PolicyID) {
			return fault(CodeUnlisted, at+"/policy_id", "add it to egress_policy_ids", "%q is not listed in egress_policy_ids", e.PolicyID)
		}
		if err := checkTargets(e.Targets, at+"/targets"); err != nil {
			return err
		}
	}
	return nil
}

func checkTargets(targets []EgressEntry, at string) *Error {
	type endpoint struct {
		host string
		port uint16
	}
	seen := map[endpoint]bool{}
	for j, entry := range targets {
		here := fmt.Sprintf("%s/%d", at, j)
		t := entry.Target()
		if !egressHost(t.Host) {
			return fault(CodeEgressHost, here+"/host", "use a host name or address of 1 to 253 bytes without blanks",
				"%.260q is no host", t.Host)
		}
		if t.Port == 0 {
			return fault(CodeNumber, here+"/port", "use a port of 1 to 65535, or leave it out for 443", "the port is zero")
		}
		// The proxy compares hosts in lower case and without trailing dots, so two spellings of
		// one host would meet there as a duplicate rule.
		e := endpoint{strings.TrimRight(strings.ToLower(t.Host), "."), t.Port}
		if seen[e] {
			return fault(CodeDuplicate, here, "keep one entry a host and port", "%s:%d occurs twice", t.Host, t.Port)
		}
		seen[e] = true
	}
	return nil
}

func egressHost(h string) bool {
	if len(h) == 0 || len(h) > MaxHost {
		return false
	}
	return !strings.ContainsFunc(h, func(r rune) bool { return r <= 0x20 || r == 0x7f })
}
