//go:build !linux

package transport

import (
	"os"

	"golang.org/x/sys/unix"
)

// replace makes to a copy of from.
func replace(from, to int) error { return os.NewSyscallError("dup2", unix.Dup2(from, to)) }
