//go:build !linux

package room

import (
	"context"
	"os"
)

// Main returns at once: no process of this system is a room's.
func Main() {}

// Run refuses: this build has no mechanism here.
func Run(context.Context, Options, []string, *os.File, *os.File, *os.File) (int, error) {
	return 0, fault(CodeUnsupported, nil, "this build confines sessions on Linux only")
}
