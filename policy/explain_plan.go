package policy

import (
	"bytes"
	"errors"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
)

// PlanExplanation says, for the policy's owner, whether a plan would be admitted now and, if not, which
// line of the policy stands against it. It holds local names and stays local.
type PlanExplanation struct {
	SchemaVersion uint8  `json:"schema_version"` // 1
	Admitted      bool   `json:"admitted"`
	Reason        Reason `json:"reason,omitzero"`         // why not
	Pointer       string `json:"pointer,omitzero"`        // the fault in the plan
	Message       string `json:"message,omitzero"`        // what the controller is told
	PolicyPointer string `json:"policy_pointer,omitzero"` // the line that stands against it
	PolicyValue   string `json:"policy_value,omitzero"`   // what is there, as JSON, shortened
	Detail        string `json:"detail,omitzero"`         // the same in words
	Fix           string `json:"fix,omitzero"`

	ContentDigest    string `json:"plan_content_digest,omitzero"`
	ControllerDigest string `json:"controller_plan_digest,omitzero"` // BLAKE3 of the canonical bytes
	Canonical        bool   `json:"canonical"`                       // the given bytes are the canonical ones

	// Launchable says whether an admitted plan could be resolved into a launch; LaunchDetail says why
	// not. What the runtime can enforce is not judged.
	Launchable          bool   `json:"launchable"`
	LaunchCode          string `json:"launch_code,omitzero"`
	LaunchDetail        string `json:"launch_detail,omitzero"`
	LaunchPolicyPointer string `json:"launch_policy_pointer,omitzero"`
}

// planFixes says, for each reason, what usually mends it.
var planFixes = map[Reason]string{
	ReasonSchema:       "send exactly the members of the plan schema, each well formed",
	ReasonExpired:      "make a new plan; check both clocks",
	ReasonTTL:          "make the plan expire sooner, or raise max_plan_ttl_ms",
	ReasonRevision:     "fetch the current policy revision and make the plan again",
	ReasonRuntime:      "use the id, runtime and digest of a template (glove policy explain lists them)",
	ReasonBackend:      "use the template's sandbox backend",
	ReasonLimits:       "use exactly the six numbers of one resource profile",
	ReasonPolicyID:     "use a listed id, or add it to the policy",
	ReasonGrant:        "ask for what the alias or exposure allows, or widen it",
	ReasonProjection:   "use a destination that the template allows, or allow it",
	ReasonSecret:       "use listed handles only, or list the handle",
	ReasonNotCanonical: "sort the list by bytes and remove duplicates",
	ReasonRefinement:   "bind the fixture and the selected variant exactly, without path grants",
	ReasonTooMany:      "shorten the list",
}

// ExplainPlan judges a plan, given as bytes, and explains the verdict. exposures may be nil.
func ExplainPlan(p *Policy, raw []byte, now time.Time, exposures Exposures) PlanExplanation {
	x := PlanExplanation{SchemaVersion: 1}
	plan, err := DecodePlan(raw)
	if err == nil {
		var a Accepted
		if a, err = p.Validate(plan, now, exposures); err == nil {
			x.Admitted, x.ContentDigest, x.ControllerDigest = true, a.ContentDigest, a.ControllerDigest
			x.Canonical = bytes.Equal(raw, a.Canonical)
			x.launch(p, plan, now, exposures)
			return x
		}
	}
	if e, ok := errors.AsType[*PlanError](err); ok {
		x.Reason, x.Pointer, x.Message, x.Fix = e.Reason, e.Pointer, e.Message, planFixes[e.Reason]
		x.PolicyPointer, x.Detail = e.PolicyPointer, e.Detail
		if e.Err != nil {
			x.Detail = joinDetail(e.Detail, e.Err.Error())
		}
		x.PolicyValue = p.valueAt(e.PolicyPointer)
	}
	return x
}

func (x *PlanExplanation) launch(p *Policy, plan *Plan, now time.Time, exposures Exposures) {
	_, err := p.ResolveLaunch(plan, now, exposures)
	if err == nil {
		x.Launchable = true
		return
	}
	x.LaunchDetail = err.Error()
	if e, ok := errors.AsType[*LaunchError](err); ok {
		x.LaunchCode, x.LaunchPolicyPointer = string(e.Code), e.PolicyPointer
		x.LaunchDetail = e.Detail
		if e.Err != nil {
			x.LaunchDetail = joinDetail(e.Detail, e.Err.Error())
		}
	}
}

func joinDetail(a, b string) string {
	if a == "" {
		return b
	}
	return a + ": " + b
}

// maxValue is how much of a policy value is shown, in bytes.
const maxValue = 200

// valueAt returns what a policy holds at a pointer.
func (p *Policy) valueAt(pointer string) string {
	if pointer == "" {
		return ""
	}
	raw, err := p.doc.Canonical()
	if err != nil {
		return ""
	}
	var doc any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return ""
	}
	return pointerValue(doc, pointer)
}

func child(at any, token string) any {
	switch at := at.(type) {
	case map[string]any:
		return at[token]
	case []any:
		if i, err := strconv.Atoi(token); err == nil && i >= 0 && i < len(at) {
			return at[i]
		}
	}
	return nil
}

func brief(v any) string {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return ""
	}
	if len(raw) > maxValue {
		return string(bytes.ToValidUTF8(raw[:maxValue], nil)) + "…"
	}
	return string(raw)
}
