package workspace

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"
)

// Measure adds up the sizes of all regular files of a tree and counts its
// entries, as CopyTree with the same skip would, without opening any file. It
// is an estimate for a progress bar: nothing is decided by it. The bounds of
// CopyTree hold.
func Measure(ctx context.Context, p *Pinned, skip ...Skip) (bytes, entries uint64, err error) {
	if !p.IsDir() {
		fd, err := p.reopen()
		if err != nil {
			return 0, 0, err
		}
		defer unix.Close(fd)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return 0, 0, &Error{Code: CodeIO, Err: err}
		}
		return uint64(st.Size), 1, nil
	}
	fd, err := p.reopen()
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	m := &measurer{ctx: ctx, skip: skip}
	err = m.dir(fd, 1)
	return m.bytes, m.entries, err
}

type measurer struct {
	ctx            context.Context
	skip           []Skip
	names          []string
	bytes, entries uint64
}

func (m *measurer) fail(code string, err error) error {
	return &Error{Code: code, Rel: strings.Join(m.names, "/"), Err: err}
}

func (m *measurer) dir(fd, depth int) error {
	entries, err := list(fd, MaxEntries)
	if err != nil {
		return m.fail(Code(err), err)
	}
	for _, e := range entries {
		m.names = append(m.names, e.name)
		if err := m.entry(fd, e, depth); err != nil {
			return err
		}
		m.names = m.names[:len(m.names)-1]
	}
	return nil
}

func (m *measurer) entry(dir int, e entry, depth int) error {
	if err := canceled(m.ctx); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, e.name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return m.fail(sourceCode(err), err)
	}
	isDir := kind(&st) == unix.S_IFDIR
	for _, skip := range m.skip {
		if skip != nil && skip(strings.Join(m.names, "/"), isDir) {
			return nil
		}
	}
	if m.entries++; m.entries > MaxEntries {
		return m.fail(CodeTooMany, nil)
	}
	if depth > MaxDepth {
		return m.fail(CodeTooDeep, nil)
	}
	if kind(&st) == unix.S_IFREG {
		m.bytes += uint64(st.Size)
	}
	if !isDir {
		return nil
	}
	fd, err := openBeneath(dir, e.name, openDir, 0)
	if err != nil {
		return m.fail(sourceCode(err), err)
	}
	defer unix.Close(fd)
	return m.dir(fd, depth+1)
}
