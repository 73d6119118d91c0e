// Package workspace opens what an operator's policy names on the host, and
// copies it into a session's own filesystem.
//
// Host paths are under the hands of people and programs that are not the
// operator: a project is full of what an agent wrote yesterday. So a path is
// walked once, component by component, without following anything; what was
// found is held by descriptor ([Pinned]) and compared again before launch; and
// a tree is copied ([CopyTree]), measured ([Measure]) and removed
// ([RemoveTree]) by names relative to descriptors, so that no renaming, however
// fast, makes any of them leave the tree. Names from a tree appear in errors,
// quoted; host paths do not.
//
// Nouns: a Pinned is a file or directory held by identity; a tree is what is
// below it; an entry is anything in a tree; rel is an entry's path below the
// root, with slashes.
//
// The package does not decide what may be granted, does not limit what the
// session does with its copy (that is the filesystem's size, runtime/quota),
// and does not compare trees or copy anything back.
package workspace

import (
	"context"
	"errors"
	"strconv"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/pathwalk"
)

// Bounds of a tree.
const (
	MaxEntries = 100_000 // most entries below the root
	MaxDepth   = 64      // deepest entry; one in the root itself has depth 1
)

// Codes of [Error]. The first group comes from opening a path.
const (
	CodeInvalid      = pathwalk.CodeInvalid      // not an absolute, lexically normal path other than "/"
	CodeNotFound     = pathwalk.CodeNotFound     // a component does not exist
	CodeSymlink      = pathwalk.CodeSymlink      // a component is a symbolic link
	CodeNotDirectory = pathwalk.CodeNotDirectory // a component before the last is not a directory
	CodeSpecial      = pathwalk.CodeSpecial      // the object is a FIFO, a socket or a device
	CodeChannel      = "channel"                 // a socket or FIFO in a tree that is to be shown
	CodeDenied       = pathwalk.CodeDenied       // the system denies access
	CodeIO           = pathwalk.CodeIO           // a system call failed; Err has the errno

	CodeIdentity    = "identity_changed" // the path leads to something else than before
	CodeChanged     = "source_changed"   // an entry changed while it was copied
	CodeMount       = "mount_point"      // another filesystem is mounted in the tree
	CodeRecursive   = "recursive"        // the destination lies in the source
	CodeTooDeep     = "too_deep"         // past MaxDepth
	CodeTooMany     = "too_many"         // past MaxEntries
	CodeTooLarge    = "too_large"        // past MaxBytes
	CodeNoSpace     = "no_space"         // the destination is full, in bytes or inodes
	CodeExists      = "exists"           // the destination already has that entry
	CodeOptions     = "invalid_options"  // the options are out of bounds
	CodeCanceled    = "canceled"         // the context ended
	CodeClosed      = "closed"           // the Pinned has been closed
	CodeUnsupported = "unsupported"      // this system lacks what safety needs
)

var texts = map[string]string{
	CodeInvalid:      "the path is not absolute and normal",
	CodeNotFound:     "a component of the path does not exist",
	CodeSymlink:      "a component of the path is a symbolic link",
	CodeNotDirectory: "a component of the path is not a directory",
	CodeSpecial:      "not a regular file or directory",
	CodeChannel:      "a socket or FIFO in a tree that would be shown; remove it or grant less",
	CodeDenied:       "access is denied",
	CodeIO:           "a system call failed",
	CodeIdentity:     "identity changed before launch",
	CodeChanged:      "changed while it was copied",
	CodeMount:        "another filesystem is mounted here",
	CodeRecursive:    "the destination lies in the source",
	CodeTooDeep:      "the tree is too deep",
	CodeTooMany:      "the tree has too many entries",
	CodeTooLarge:     "the tree is too large",
	CodeNoSpace:      "the destination is full",
	CodeExists:       "the destination already has this entry",
	CodeOptions:      "invalid options",
	CodeCanceled:     "canceled",
	CodeClosed:       "closed",
	CodeUnsupported:  "not supported on this system",
}

// Error is what everything here fails with.
type Error struct {
	Code string
	Rel  string // the entry, relative to the root of the tree; "" for the root
	Err  error  // the cause, for the operator's log; may name host paths
}

// Error never contains a host path.
func (e *Error) Error() string {
	s := "workspace: " + texts[e.Code]
	if e.Rel != "" {
		s += ": " + strconv.QuoteToASCII(e.Rel)
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Code gives the code of err, or "" if it is not from here.
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// Skip says whether to leave out an entry, and everything below it.
type Skip func(rel string, dir bool) bool

// CopyOptions say how a tree is copied.
type CopyOptions struct {
	MaxBytes   uint64 // most bytes of all files together, by their sizes; at least 1
	MaxEntries int    // 1..MaxEntries; 0 is MaxEntries
	MaxDepth   int    // 1..MaxDepth; 0 is MaxDepth

	// UID and GID will own the copy; -1 leaves the caller's own.
	UID, GID int

	// FileName is what a single file is called in the destination; required
	// if the source is a file, refused if it is a directory.
	FileName string

	Skip     Skip                        // may be nil
	Progress func(bytes, entries uint64) // called now and then and at the end; may be nil
}

// Stats say what was copied.
type Stats struct {
	Bytes                     uint64 // sizes of all files
	Entries                   uint64 // Files + Directories + Links
	Files, Directories, Links uint64
	Cloned                    uint64 // files that share blocks with their source
}

func (o CopyOptions) withDefaults(dir bool) (CopyOptions, error) {
	if o.MaxEntries == 0 {
		o.MaxEntries = MaxEntries
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = MaxDepth
	}
	ok := o.MaxBytes >= 1 && o.MaxBytes <= ident.MaxInt &&
		o.MaxEntries >= 1 && o.MaxEntries <= MaxEntries &&
		o.MaxDepth >= 1 && o.MaxDepth <= MaxDepth &&
		o.UID >= -1 && o.GID >= -1 && dir == (o.FileName == "") &&
		(dir || ident.Component(o.FileName))
	if !ok {
		return o, &Error{Code: CodeOptions}
	}
	return o, nil
}

func canceled(ctx context.Context) error {
	if ctx.Err() != nil {
		return &Error{Code: CodeCanceled, Err: context.Cause(ctx)}
	}
	return nil
}
