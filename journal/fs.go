package journal

import (
	"io"

	"gloved.dev/internal/safefile"
)

// An FS is the file system as a journal uses it. OS is the real one; tests put
// in one that fails, forgets and reorders.
type FS interface {
	// Open opens the owner file at path for reading and appending and takes its
	// exclusive lock without waiting. An absent file matches
	// safefile.ErrNotFound, a held lock safefile.ErrLocked.
	Open(path string) (File, error)
	// Create creates the owner file, which must not exist, and takes its lock.
	Create(path string) (File, error)
	// Stat identifies what the path names now, without following a link.
	Stat(path string) (safefile.Identity, error)
	// Rename replaces to with from.
	Rename(from, to string) error
	// Exchange makes each of two names mean what the other meant, in one step.
	Exchange(a, b string) error
	// Remove removes a file.
	Remove(path string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// A File is one open journal.
type File interface {
	io.ReaderAt
	// Write appends at the end of the file.
	io.Writer
	// Truncate sets the length.
	Truncate(size int64) error
	// Sync makes bytes and length durable (fdatasync).
	Sync() error
	// Allocate asks for blocks up to size without changing the length, so that
	// a full disk cannot refuse those bytes later. A file system that cannot do
	// it may return nil.
	Allocate(size int64) error
	// Identity identifies the open file (fstat).
	Identity() (safefile.Identity, error)
	// Close closes the file and drops its lock.
	io.Closer
}
