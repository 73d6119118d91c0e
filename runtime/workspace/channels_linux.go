package workspace

import (
	"context"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// MaxScan bounds the entries that RefuseChannels looks at.
const MaxScan = 1_000_000

// RefuseChannels walks a tree and fails with CodeChannel at the first socket or
// FIFO in it. A socket in a tree that a session may read is a way to whatever
// listens on the host: connecting needs no writable mount, neither network
// namespaces nor the system call filter tell one path from another, and Landlock
// has no right for it. A FIFO may be read, which takes what was meant for another,
// and on a kernel without Landlock written. So such a tree is not granted.
//
// Other mounts in the tree are passed over: a clone of the tree does not show
// them. So are directories that the caller itself may not read. A channel made
// after the walk is not seen. A tree of more than MaxScan entries is refused
// (CodeTooMany).
func RefuseChannels(ctx context.Context, p *Pinned) error {
	if !p.IsDir() {
		return nil // a Pinned is a regular file or a directory
	}
	fd, err := p.reopen()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	s := &channelScan{ctx: ctx, left: MaxScan}
	return s.dir(fd, 1)
}

type channelScan struct {
	ctx   context.Context
	names []string
	left  int
}

func (s *channelScan) fail(code string, err error) error {
	return &Error{Code: code, Rel: strings.Join(s.names, "/"), Err: err}
}

func (s *channelScan) dir(fd, depth int) error {
	if err := canceled(s.ctx); err != nil {
		return err
	}
	entries, err := list(fd, s.left)
	if err != nil {
		return s.fail(Code(err), err)
	}
	s.left -= len(entries)
	for _, e := range entries {
		s.names = append(s.names, e.name)
		if err := s.entry(fd, e, depth); err != nil {
			return err
		}
		s.names = s.names[:len(s.names)-1]
	}
	return nil
}

func (s *channelScan) entry(dir int, e entry, depth int) error {
	if err := e.resolve(dir); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		return s.fail(CodeIO, err)
	}
	switch e.kind {
	case unix.S_IFSOCK, unix.S_IFIFO:
		return s.fail(CodeChannel, nil)
	case unix.S_IFDIR:
	default:
		return nil
	}
	if depth >= maxScanDepth {
		return s.fail(CodeTooDeep, nil)
	}
	fd, err := openBeneath(dir, e.name, openDir, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EACCES), errors.Is(err, unix.EXDEV):
		return nil
	case err != nil:
		return s.fail(sourceCode(err), err)
	}
	defer unix.Close(fd)
	return s.dir(fd, depth+1)
}

// maxScanDepth bounds the descriptors that a walk holds.
const maxScanDepth = 256
