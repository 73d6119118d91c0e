//go:build !linux

package monitor

import (
	"context"
	"time"
)

// Main does nothing: monitors exist on Linux only.
func Main() {}

// Spawn refuses: managed sessions need Linux.
func Spawn(context.Context, Spec) (*Process, error) {
	return nil, fault(CodeUnsupported, "managed sessions need Linux")
}

// Spares keeps nothing.
type Spares struct{ UIDRange UIDRange }

// Spawn refuses, as the function Spawn does.
func (*Spares) Spawn(ctx context.Context, spec Spec) (*Process, error) { return Spawn(ctx, spec) }

// Refill does nothing.
func (*Spares) Refill(time.Duration) {}

// Close does nothing.
func (*Spares) Close() {}
