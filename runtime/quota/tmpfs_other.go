//go:build !linux

package quota

import "os"

// FS is a filesystem of a hard size; it exists on Linux only.
type FS struct{}

// NewTmpfs fails: only Linux has what it needs.
func NewTmpfs(p Partition, o Options) (*FS, error) {
	if err := checkTmpfs(p, o); err != nil {
		return nil, err
	}
	return nil, &Error{Code: CodeUnsupported, Op: "new_tmpfs", Alias: p.Alias}
}

// Partition gives the zero partition.
func (f *FS) Partition() Partition { return Partition{} }

// Mount gives nil.
func (f *FS) Mount() *os.File { return nil }

// Dir gives nil.
func (f *FS) Dir() *os.File { return nil }

// Usage fails.
func (f *FS) Usage() (Usage, error) {
	return Usage{}, &Error{Code: CodeUnsupported, Op: "usage"}
}

// Sub fails.
func (f *FS) Sub(name string, mode, uid, gid uint32) (*os.File, error) {
	return nil, &Error{Code: CodeUnsupported, Op: "sub"}
}

// Close does nothing.
func (f *FS) Close() error { return nil }
