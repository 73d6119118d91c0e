package service

import (
	"context"

	"gloved.dev/internal/clock"
	"gloved.dev/policy"
	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

// Policy serves validate_plan.
type Policy struct {
	policy    *policy.Policy
	exposures policy.Exposures
	clock     clock.Clock
}

// NewPolicy is the component of a loaded policy. exposures may be nil: plans with
// exposure grants are then refused.
func NewPolicy(loaded *policy.Policy, exposures policy.Exposures, c clock.Clock) *Policy {
	return &Policy{policy: loaded, exposures: exposures, clock: c}
}

// Methods implements rpc.Component.
func (p *Policy) Methods() []rpc.Method {
	return []rpc.Method{
		rpc.NewMethod(wire.MethodValidatePlan, "Say whether a plan would be admitted now; nothing is stored.",
			rpc.MethodOptions{Errors: []rpc.Code{rpc.InvalidPlan}}, p.validate),
	}
}

func (p *Policy) validate(_ context.Context, _ *rpc.Call, q *wire.ValidatePlanParams) (*wire.ValidatePlanResult, error) {
	plan, err := policy.DecodePlan(q.Plan)
	if err != nil {
		return nil, planError(err, policy.ReasonSchema)
	}
	accepted, err := p.policy.Validate(plan, p.clock.Now(), p.exposures)
	if err != nil {
		return nil, planError(err, policy.ReasonSchema)
	}
	return &wire.ValidatePlanResult{
		SchemaVersion:     int(accepted.SchemaVersion),
		PolicyRevision:    int64(accepted.PolicyRevision), //nolint:gosec // the policy bounds it to 2^53-1
		PlanContentDigest: accepted.ContentDigest,
	}, nil
}
