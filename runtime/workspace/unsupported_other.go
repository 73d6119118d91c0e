//go:build !linux

package workspace

import (
	"context"
	"os"
)

// CopyTree fails: elsewhere there is no way to open strictly beneath.
func CopyTree(context.Context, *Pinned, *os.File, CopyOptions) (Stats, error) {
	return Stats{}, &Error{Code: CodeUnsupported}
}

// Measure fails.
func Measure(context.Context, *Pinned, ...Skip) (bytes, entries uint64, err error) {
	return 0, 0, &Error{Code: CodeUnsupported}
}

// RefuseChannels fails.
func RefuseChannels(context.Context, *Pinned) error { return &Error{Code: CodeUnsupported} }

// RemoveTree fails.
func RemoveTree(*os.File, string) error { return &Error{Code: CodeUnsupported} }
