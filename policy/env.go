package policy

import (
	"gloved.dev/internal/pathwalk"
	"gloved.dev/policy/harness"
)

// Env is how a policy looks at the host. A nil member means the real host; tests set them so that a
// policy can be judged without its directories. None of them executes or changes anything.
type Env struct {
	// Identify opens a path without following links and says what is there. Errors should be
	// *pathwalk.Error.
	Identify func(path string) (pathwalk.Identity, error)
	// Discover finds an adapter's executable in search roots. Errors should be
	// *harness.NotFoundError.
	Discover func(adapter harness.Adapter, roots []string) (string, error)
}

func (e Env) orHost() Env {
	if e.Identify == nil {
		e.Identify = pathwalk.Identify
	}
	if e.Discover == nil {
		e.Discover = harness.NewFinder().Discover
	}
	return e
}
