//go:build !linux

package monitor

import (
	"context"
	"time"
)

// Main does nothing: monitors exist on Linux only.
func Main() {}

// Spares keeps nothing.
type Spares struct {
	UIDRange     UIDRange
	Root, Groups string
}

// Spawn refuses: managed sessions need Linux.
func (*Spares) Spawn(context.Context, Spec) (*Client, string, error) {
	return nil, "", fault(CodeUnsupported, "managed sessions need Linux")
}

// Refill does nothing.
func (*Spares) Refill(time.Duration) {}

// Still calls f: there is no spare.
func (*Spares) Still(f func(dir, group string) error) error { return f("", "") }

// Close does nothing.
func (*Spares) Close() {}
