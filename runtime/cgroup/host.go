package cgroup

import (
	"context"
	"slices"
	"strings"
)

// leafPrefix begins the name of the cgroup v2 leaf a supervisor steps into.
const leafPrefix = "glove-host-"

// baseName is the directory that holds our groups where the place is shared.
const baseName = "glove"

func hasLeafPrefix(s string) bool { return strings.HasPrefix(s, leafPrefix) }

// backend is what one cgroup version does for a [Host].
type backend interface {
	mechanism() string
	base() string
	create(name string, lim Limits) (control, error)
	open(name string) (control, error)
	// wreck opens whatever is left of a group, even if some of its parts are gone.
	wreck(name string) (control, error)
	entries() ([]string, error)
	close() error
}

// Host is a place where this process may create groups. Its methods may be used
// concurrently, and by several processes on the same base.
type Host struct {
	b backend
}

// Detect finds, and prepares where needed, the place for groups that limit memory
// and pids and count CPU time. It prefers a delegated part of cgroup v2, then
// the top of cgroup v2, then cgroup v1 where the memory controller is bound there.
//
// On a delegated cgroup v2 it moves the calling process, and processes that share
// its group when the group is marked as delegated, into a leaf. Call it before
// starting children. It fails with an [Error] that names what is missing and what
// to do: [CodeNoMount], [CodeMissingController], [CodeNotDelegated], [CodeBusy].
// On systems other than Linux it fails with [CodeUnsupported].
func Detect() (*Host, error) {
	b, err := detect()
	if err != nil {
		return nil, err
	}
	return &Host{b: b}, nil
}

// Mechanism returns [MechanismV2] or [MechanismV1].
func (h *Host) Mechanism() string { return h.b.mechanism() }

// Base returns the path of the base for diagnostics, as the kernel names it
// (the memory hierarchy's on v1). Nothing may be decided by it.
func (h *Host) Base() string { return h.b.base() }

// Create makes a group with its limits already in force and no process in it.
// It fails with [CodeExists] if any part of that name exists. Whatever it made
// before a failure is removed again.
func (h *Host) Create(name string, lim Limits) (*Group, error) {
	if !validName(name) {
		return nil, fail(CodeInvalid, "create", "name", nil)
	}
	if err := lim.check(); err != nil {
		return nil, err
	}
	c, err := h.b.create(name, lim)
	if err != nil {
		return nil, err
	}
	return &Group{name: name, c: c}, nil
}

// Open adopts the group of that name if it is the one id names. A different group
// gives [CodeMismatch], none [CodeNotFound]; neither has any effect.
func (h *Host) Open(name string, id Identity) (*Group, error) {
	if !validName(name) {
		return nil, fail(CodeInvalid, "open", "name", nil)
	}
	c, err := h.b.open(name)
	if err != nil {
		return nil, err
	}
	if c.identity() != id {
		c.close()
		return nil, fail(CodeMismatch, "open", name, nil)
	}
	return &Group{name: name, c: c}, nil
}

// Lookup returns the identity of the group that has the name now.
func (h *Host) Lookup(name string) (Identity, error) {
	if !validName(name) {
		return Identity{}, fail(CodeInvalid, "lookup", "name", nil)
	}
	c, err := h.b.open(name)
	if err != nil {
		return Identity{}, err
	}
	defer c.close()
	return c.identity(), nil
}

// Names lists the groups below the base whose names start with prefix, sorted. On
// v1 a name counts if any hierarchy has it, so that half-made groups are seen.
// The prefix must itself be a valid name: an empty one would match strangers.
func (h *Host) Names(prefix string) ([]string, error) {
	if !validName(prefix) {
		return nil, fail(CodeInvalid, "names", "prefix", nil)
	}
	all, err := h.b.entries()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range all {
		if strings.HasPrefix(n, prefix) && validName(n) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Sweep destroys the group of that name whatever its identity, including one
// that a crash left half-made. It is for orphans found by [Host.Names] under the
// caller's own prefix and owned by no session. A missing group is no error.
func (h *Host) Sweep(ctx context.Context, name string) error {
	if !validName(name) {
		return fail(CodeInvalid, "sweep", "name", nil)
	}
	c, err := h.b.wreck(name)
	if err != nil {
		if isNotFound(err) {
			return nil
		}
		return err
	}
	g := &Group{name: name, c: c}
	defer g.Close()
	return g.Destroy(ctx)
}

// Close releases the base. A base directory that nobody uses any more is removed.
// Groups stay as they are.
func (h *Host) Close() error { return h.b.close() }
