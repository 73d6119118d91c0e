package service

import (
	"errors"

	"gloved.dev/policy"
	"gloved.dev/rpc"
)

// planError is how a plan's refusal looks on the wire: always invalid_plan with a reason.
// Where the cause is no *policy.PlanError, fallback is the reason.
func planError(err error, fallback policy.Reason) error {
	var refusal *policy.PlanError
	if !errors.As(err, &refusal) {
		return rpc.Wrap(rpc.InvalidPlan, "", err).With("reason", string(fallback))
	}
	out := rpc.Wrap(rpc.InvalidPlan, refusal.Message, errors.New(refusal.Local())).With("reason", string(refusal.Reason))
	if refusal.Pointer != "" {
		out = out.With("pointer", refusal.Pointer)
	}
	return out
}
