// Package quota makes filesystems of a hard size.
//
// A session's disk limit is not a counter that something has to read in time:
// it is the size of the filesystems the session can write to. [Plan] divides
// the limit into partitions, one for every writable grant and one for scratch,
// so that together they are exactly the limit. [NewTmpfs] makes a partition
// real as an [FS]: a tmpfs with that many bytes and that many inodes, mounted
// nowhere, reachable only through the descriptors this package hands out, and
// gone when they are closed. A [Watcher] notices that a partition has been
// filled, so that the session can end with the right cause.
//
// Nouns: a Grant is a writable path a plan asked for; a Partition is a share
// of the limit; an FS is the mounted partition; Usage is what the kernel says
// about it.
//
// The package does not decide where a partition appears in a sandbox, does
// not copy anything into it (see runtime/workspace), and does not charge its
// pages to a memory group: a tmpfs page belongs to whoever first touches it,
// which a caller that compares the disk limit with the memory limit must know.
package quota

import (
	"fmt"
	"os"
	"strconv"

	"gloved.dev/internal/ident"
)

// Bounds of a plan and of a partition.
const (
	// PageBytes is the unit every size is a multiple of. It is fixed, rather
	// than the machine's page size, because it is part of the policy format;
	// NewTmpfs refuses to run where the machine's pages do not divide it.
	PageBytes = 4096
	// MaxPartitions bounds the partitions of one session, scratch included.
	MaxPartitions = 128
	// MinInodes and MaxInodes bound what Plan gives a partition; in between
	// it is one inode for every page. An inode costs about a kibibyte of
	// kernel memory even for an empty file, so the ceiling keeps a million
	// empty files from becoming a memory problem instead of a disk limit.
	MinInodes = 1024
	MaxInodes = 1 << 20
	// MaxBytes bounds a partition; it is the largest integer of the protocol.
	MaxBytes = ident.MaxInt
)

// Scratch is the alias of the partition that holds /tmp, /var/tmp and the
// home directory. Its colon keeps it apart from every alias a policy can name.
const Scratch = ":scratch"

// Grant is a writable path that needs Bytes of its own.
type Grant struct {
	Alias string // the policy's alias, unique in a plan
	Bytes uint64 // a positive multiple of PageBytes
}

// Partition is a share of a session's disk limit.
type Partition struct {
	Alias  string // the grant's alias, or Scratch
	Bytes  uint64 // a positive multiple of PageBytes
	Inodes uint64 // files, directories and links, the root directory included
}

// Codes of [Error].
const (
	CodeSize        = "size"          // a size is zero, too large, or not a multiple of PageBytes
	CodeAlias       = "alias"         // an alias is malformed or appears twice
	CodeTooMany     = "too_many"      // more than MaxPartitions
	CodeNoScratch   = "no_scratch"    // the grants leave less than one page of scratch
	CodeInodes      = "inodes"        // a partition without a usable number of inodes
	CodeName        = "name"          // not a single file name
	CodeUnsupported = "unsupported"   // this system cannot make such a filesystem
	CodeKernel      = "kernel"        // a system call failed; Err has the errno
	CodeMismatch    = "size_mismatch" // the kernel made a filesystem of another size or kind
	CodeClosed      = "closed"        // the FS has been closed
)

// Error is what every function here fails with. Op names the step.
type Error struct {
	Code  string
	Op    string
	Alias string // the partition, if one was meant
	Err   error  // the cause, if there is one; private to the operator's log
}

// Error gives step and code without any path.
func (e *Error) Error() string {
	s := "quota: " + e.Op + ": " + e.Code
	if e.Alias != "" {
		s += " (" + strconv.Quote(e.Alias) + ")"
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Code: c}) match on the code alone.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Op == "" && t.Alias == "" && t.Err == nil
}

// Plan divides diskBytes among the grants and scratch, which gets what is
// left and at least one page. The result keeps the order of the grants, has
// Scratch last, and adds up to exactly diskBytes.
func Plan(diskBytes uint64, grants []Grant) ([]Partition, error) {
	if err := checkSize(diskBytes); err != nil {
		return nil, err
	}
	if len(grants) > MaxPartitions-1 {
		return nil, &Error{Code: CodeTooMany, Op: "plan"}
	}
	left := diskBytes
	seen := make(map[string]bool, len(grants))
	parts := make([]Partition, 0, len(grants)+1)
	for _, g := range grants {
		if !ident.Alias(g.Alias) || seen[g.Alias] {
			return nil, &Error{Code: CodeAlias, Op: "plan", Alias: g.Alias}
		}
		seen[g.Alias] = true
		if err := checkSize(g.Bytes); err != nil {
			return nil, &Error{Code: CodeSize, Op: "plan", Alias: g.Alias}
		}
		if g.Bytes > left-PageBytes { // left is at least one page, always
			return nil, &Error{Code: CodeNoScratch, Op: "plan", Alias: g.Alias}
		}
		left -= g.Bytes
		parts = append(parts, newPartition(g.Alias, g.Bytes))
	}
	return append(parts, newPartition(Scratch, left)), nil
}

func newPartition(alias string, bytes uint64) Partition {
	return Partition{Alias: alias, Bytes: bytes, Inodes: min(max(bytes/PageBytes, MinInodes), MaxInodes)}
}

func checkSize(bytes uint64) error {
	if bytes == 0 || bytes > MaxBytes || bytes%PageBytes != 0 {
		return &Error{Code: CodeSize, Op: "plan"}
	}
	return nil
}

// Options are the owner and mount flags of a filesystem.
type Options struct {
	UID, GID uint32 // owner of the root directory, as the caller's user namespace numbers it
	Mode     uint32 // permission bits and sticky bit of the root directory
	NoExec   bool   // forbid execution; nosuid and nodev are always set
}

// Usage is what the kernel reports about a filesystem. Bytes are whole blocks.
type Usage struct {
	UsedBytes, TotalBytes   uint64
	UsedInodes, TotalInodes uint64
}

// Reason says in which way u is full: "bytes" when no page is left, "inodes"
// when no further file can be made, "" when neither holds. A tmpfs refuses a
// write with ENOSPC exactly when its used pages reach its size, so a full
// filesystem is seen as full however small the refused write was.
func (u Usage) Reason() string {
	switch {
	case u.UsedBytes >= u.TotalBytes:
		return ReasonBytes
	case u.UsedInodes >= u.TotalInodes:
		return ReasonInodes
	}
	return ""
}

// What a filesystem can run out of.
const (
	ReasonBytes  = "bytes"
	ReasonInodes = "inodes"
)

// checkTmpfs refuses what NewTmpfs cannot make, before any system call.
func checkTmpfs(p Partition, o Options) error {
	if checkSize(p.Bytes) != nil || PageBytes%os.Getpagesize() != 0 {
		return &Error{Code: CodeSize, Op: "new_tmpfs", Alias: p.Alias}
	}
	// One inode is the root directory itself; with fewer than two nothing
	// could ever be made, and zero would mean "no bound" to the kernel.
	if p.Inodes < 2 || p.Inodes > MaxInodes {
		return &Error{Code: CodeInodes, Op: "new_tmpfs", Alias: p.Alias}
	}
	if o.Mode&^0o1777 != 0 {
		return &Error{Code: CodeKernel, Op: "new_tmpfs", Alias: p.Alias, Err: fmt.Errorf("mode %#o", o.Mode)}
	}
	return nil
}
