package workspace

import (
	"context"
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// copier is the state of one CopyTree.
type copier struct {
	ctx   context.Context
	o     CopyOptions
	stats Stats
	names []string // where we are in the tree, for errors
	root  unix.Stat_t
	chown bool
	buf   []byte

	noClone, noRange    bool // what this pair of filesystems turned out not to do
	toldBytes, toldEnts uint64
}

// CopyTree copies what is in the directory src into the directory dst, or the
// file src to dst under o.FileName.
//
// Permission bits are kept, setuid, setgid and sticky are not, and the owner
// may always read and write (and search) the copy. Modification times are kept;
// extended attributes, access lists and hard links are not: two names of one
// file become two files. Symbolic links are copied as they are and never
// followed. FIFOs, sockets and devices are refused (CodeSpecial), as are mounts
// inside the tree (CodeMount). Holes stay holes. What changes while it is being
// copied is refused (CodeChanged), as far as size, times and identity tell.
//
// dst must be a real descriptor (not O_PATH) of a directory that nobody else
// writes to. After an error what was copied so far is still there; the root
// directory's own mode and times are never touched.
func CopyTree(ctx context.Context, src *Pinned, dst *os.File, o CopyOptions) (Stats, error) {
	o, err := o.withDefaults(src.IsDir())
	if err != nil {
		return Stats{}, err
	}
	c := &copier{ctx: ctx, o: o, buf: make([]byte, copyBuffer)}
	out := int(dst.Fd())
	if err := unix.Fstat(out, &c.root); err != nil {
		return Stats{}, &Error{Code: CodeIO, Err: err}
	}
	if kind(&c.root) != unix.S_IFDIR {
		return Stats{}, &Error{Code: CodeNotDirectory}
	}
	// New entries belong to us anyway, unless the directory says otherwise.
	c.chown = c.root.Mode&unix.S_ISGID != 0 ||
		o.UID != -1 && o.UID != unix.Geteuid() || o.GID != -1 && o.GID != unix.Getegid()
	in, err := src.reopen()
	if err != nil {
		return Stats{}, err
	}
	defer unix.Close(in)
	if src.IsDir() {
		err = c.dir(in, out, 0)
	} else if err = c.count(); err == nil {
		c.names = []string{o.FileName}
		err = c.file(in, out, o.FileName)
	}
	if err == nil {
		c.progress(true)
	}
	return c.stats, err
}

// fail makes an error about where we are.
func (c *copier) fail(code string, err error) error {
	return &Error{Code: code, Rel: strings.Join(c.names, "/"), Err: err}
}

// failDst makes an error from a failed call on the destination.
func (c *copier) failDst(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return c.fail(CodeNoSpace, err)
	case errors.Is(err, unix.EFBIG):
		return c.fail(CodeTooLarge, err)
	case errors.Is(err, unix.EEXIST):
		return c.fail(CodeExists, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EROFS):
		return c.fail(CodeDenied, err)
	}
	return c.fail(CodeIO, err)
}

// count admits one more entry.
func (c *copier) count() error {
	if c.stats.Entries >= uint64(c.o.MaxEntries) {
		return c.fail(CodeTooMany, nil)
	}
	c.stats.Entries++
	return canceled(c.ctx)
}

func (c *copier) dir(in, out, depth int) error {
	var before, after unix.Stat_t
	if err := unix.Fstat(in, &before); err != nil {
		return c.fail(CodeIO, err)
	}
	if before.Dev == c.root.Dev && before.Ino == c.root.Ino {
		return c.fail(CodeRecursive, nil)
	}
	// One more than the rest of the bound: what Skip leaves out does not count.
	limit := c.o.MaxEntries - int(c.stats.Entries)
	if c.o.Skip != nil {
		limit = MaxEntries
	}
	entries, err := list(in, limit)
	if err != nil {
		return c.fail(Code(err), err)
	}
	for _, e := range entries {
		c.names = append(c.names, e.name)
		if err := c.entry(in, out, e, depth+1); err != nil {
			return err
		}
		c.names = c.names[:len(c.names)-1]
	}
	if err := unix.Fstat(in, &after); err != nil {
		return c.fail(CodeIO, err)
	}
	if !same(&before, &after) {
		return c.fail(CodeChanged, nil)
	}
	return nil
}

func (c *copier) entry(in, out int, e entry, depth int) error {
	if err := e.resolve(in); err != nil {
		return c.fail(sourceCode(err), err)
	}
	if c.o.Skip != nil && c.o.Skip(strings.Join(c.names, "/"), e.kind == unix.S_IFDIR) {
		return nil
	}
	if err := c.count(); err != nil {
		return err
	}
	if depth > c.o.MaxDepth {
		return c.fail(CodeTooDeep, nil)
	}
	defer c.progress(false)
	switch e.kind {
	case unix.S_IFREG:
		fd, err := openBeneath(in, e.name, openFile, 0)
		if err != nil {
			return c.fail(sourceCode(err), err)
		}
		defer unix.Close(fd)
		return c.file(fd, out, e.name)
	case unix.S_IFDIR:
		return c.subdir(in, out, e.name, depth)
	case unix.S_IFLNK:
		return c.link(in, out, e.name)
	}
	return c.fail(CodeSpecial, nil) // never opened: a device may act on that
}

func (c *copier) subdir(in, out int, name string, depth int) error {
	src, err := openBeneath(in, name, openDir, 0)
	if err != nil {
		return c.fail(sourceCode(err), err)
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return c.fail(CodeIO, err)
	}
	if err := unix.Mkdirat(out, name, 0o700); err != nil {
		return c.failDst(err)
	}
	dst, err := openBeneath(out, name, openDir, 0)
	if err != nil {
		return c.failDst(err)
	}
	defer unix.Close(dst)
	if err := c.dir(src, dst, depth); err != nil {
		return err
	}
	c.stats.Directories++
	return c.attributes(dst, out, name, &st, 0o700)
}

// attributes gives an entry of the destination its owner, mode and time, in
// this order: a change of owner may clear mode bits, a change of mode changes
// no times that are kept.
func (c *copier) attributes(fd, dir int, name string, st *unix.Stat_t, always uint32) error {
	if c.chown {
		if err := unix.Fchown(fd, c.o.UID, c.o.GID); err != nil {
			return c.failDst(err)
		}
	}
	if err := unix.Fchmod(fd, st.Mode&0o777|always); err != nil {
		return c.failDst(err)
	}
	return c.times(dir, name, st)
}

func (c *copier) times(dir int, name string, st *unix.Stat_t) error {
	ts := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, st.Mtim}
	if err := unix.UtimesNanoAt(dir, name, ts, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return c.failDst(err)
	}
	return nil
}

// link copies a symbolic link. It is read through a descriptor of the link
// itself, so what is read and what is checked are one object.
func (c *copier) link(in, out int, name string) error {
	fd, err := openBeneath(in, name, openLink, 0)
	if err != nil {
		return c.fail(sourceCode(err), err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return c.fail(CodeIO, err)
	}
	if kind(&st) != unix.S_IFLNK {
		return c.fail(CodeChanged, nil)
	}
	n, err := unix.Readlinkat(fd, "", c.buf[:unix.PathMax])
	if err != nil || n == unix.PathMax {
		return c.fail(CodeIO, err)
	}
	if err := unix.Symlinkat(string(c.buf[:n]), out, name); err != nil {
		return c.failDst(err)
	}
	if c.chown {
		if err := unix.Fchownat(out, name, c.o.UID, c.o.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return c.failDst(err)
		}
	}
	c.stats.Links++
	return c.times(out, name, &st)
}

// progress tells the caller, at the end or when there is something to tell.
func (c *copier) progress(end bool) {
	if c.o.Progress == nil {
		return
	}
	if end || c.stats.Bytes-c.toldBytes >= progressBytes || c.stats.Entries-c.toldEnts >= progressEntries {
		c.toldBytes, c.toldEnts = c.stats.Bytes, c.stats.Entries
		c.o.Progress(c.stats.Bytes, c.stats.Entries)
	}
}
