package policy

import (
	"fmt"
	"slices"

	"gloved.dev/internal/ident"
)

// place is one thing that a session puts somewhere in its sandbox.
type place struct {
	what, path string
}

// sessionPlaces are always there: the scratch file systems and the process tree.
var sessionPlaces = []place{{"scratch", "/tmp"}, {"scratch", "/var/tmp"}, {"process tree", "/proc"}}

// composition refuses a launch in which two things want the same place: the later mount would hide
// the earlier one, and what a grant promised would not be what the session sees. The exceptions are a
// secret below the private home, and read-only paths of one snapshot around its executable.
func (j *judge) composition(l *ResolvedLaunch) error {
	fixed := sessionPlaces
	if l.ManagedHome {
		fixed = append([]place{{"private home", l.Home}}, fixed...)
	}
	// Read-only paths keep their host names and are mounted above the scratch file systems, so they
	// may lie below one; what they may not do is hide one.
	for _, ro := range l.ReadOnlyPaths {
		for _, f := range fixed {
			if ident.Within(f.path, ro) {
				return conflictError(place{"read-only path", ro}, f)
			}
		}
	}
	taken := slices.Clone(fixed)
	for _, p := range l.ReadOnlyPaths {
		taken = append(taken, place{"read-only path", p})
	}
	taken = append(taken, place{"executable", l.Executable})
	for _, g := range l.Grants {
		next := place{fmt.Sprintf("grant %q", g.Alias), g.Target}
		if err := conflict(taken, next); err != nil {
			return err
		}
		taken = append(taken, next)
	}
	for _, p := range l.Projections {
		next := place{fmt.Sprintf("projection %q", p.ProjectionID), p.Target}
		if err := conflict(taken, next); err != nil {
			return err
		}
		taken = append(taken, next)
	}
	for i, s := range l.Secrets {
		for _, other := range l.Secrets[:i] {
			if ident.Overlap(s.Target, other.Target) {
				return conflictError(place{fmt.Sprintf("secret %q", s.Handle), s.Target}, place{fmt.Sprintf("secret %q", other.Handle), other.Target})
			}
		}
		for _, p := range taken {
			if p.path != l.Home && ident.Overlap(s.Target, p.path) {
				return conflictError(place{fmt.Sprintf("secret %q", s.Handle), s.Target}, p)
			}
		}
	}
	return nil
}

func conflict(taken []place, next place) error {
	for _, p := range taken {
		if ident.Overlap(next.path, p.path) {
			return conflictError(next, p)
		}
	}
	return nil
}

func conflictError(a, b place) error {
	return &LaunchError{Code: LaunchTarget, Detail: fmt.Sprintf("%s at %s and %s at %s overlap", a.what, a.path, b.what, b.path)}
}

func cannot(format string, args ...any) error {
	return &LaunchError{Code: LaunchUnsupported, Detail: fmt.Sprintf(format, args...)}
}
