package cgroup

import (
	"slices"
	"testing"

	"gloved.dev/internal/require"
)

// TestHastenMovesNothing checks that the no-move is one.
func TestHastenMovesNothing(t *testing.T) {
	require.Root(t)
	e := realEnv()
	before, err := e.membership(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.hasten(); err != nil {
		t.Fatal(err)
	}
	after, err := e.membership(0)
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b membership) bool { return a.path == b.path && slices.Equal(a.controllers, b.controllers) }
	if !slices.EqualFunc(before, after, same) {
		t.Errorf("membership went from %v to %v", before, after)
	}
}
