//go:build !linux

package monitor

import "context"

// Main does nothing: monitors exist on Linux only.
func Main() {}

// Spawn refuses: managed sessions need Linux.
func Spawn(context.Context, Spec) (*Process, error) {
	return nil, fault(CodeUnsupported, "managed sessions need Linux")
}
