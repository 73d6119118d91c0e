//go:build linux && !amd64

package escape

// archAttempts are none on an architecture with one system call table.
func archAttempts() []attempt { return nil }
