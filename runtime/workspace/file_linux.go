package workspace

import (
	"errors"

	"golang.org/x/sys/unix"
)

const (
	copyBuffer      = 256 << 10 // bytes per read and write
	rangeChunk      = 8 << 20   // bytes per copy_file_range, so that ctx is looked at
	progressBytes   = 1 << 20   // Progress is called at least this often
	progressEntries = 64
)

// file copies the open regular file in to a new entry of the directory dir.
func (c *copier) file(in, dir int, name string) error {
	var before, after unix.Stat_t
	if err := unix.Fstat(in, &before); err != nil {
		return c.fail(CodeIO, err)
	}
	if kind(&before) != unix.S_IFREG {
		return c.fail(CodeChanged, nil)
	}
	if before.Size < 0 || uint64(before.Size) > c.o.MaxBytes-c.stats.Bytes {
		return c.fail(CodeTooLarge, nil)
	}
	out, err := openBeneath(dir, name, openNew, 0o600)
	if err != nil {
		return c.failDst(err)
	}
	err = c.contents(in, out, &before)
	if err == nil {
		err = c.attributes(out, dir, name, &before, 0o600)
	}
	if closeErr := unix.Close(out); err == nil && closeErr != nil {
		err = c.failDst(closeErr)
	}
	if err != nil {
		return err
	}
	if err := unix.Fstat(in, &after); err != nil {
		return c.fail(CodeIO, err)
	}
	if !same(&before, &after) {
		return c.fail(CodeChanged, nil)
	}
	c.stats.Files++
	return nil
}

// contents copies exactly the size that st promises, the fastest way there is,
// and makes sure that there is no more.
func (c *copier) contents(in, out int, st *unix.Stat_t) error {
	var err error
	switch {
	case st.Size > 0 && c.clone(in, out):
		c.stats.Bytes += uint64(st.Size)
		c.stats.Cloned++
	case st.Blocks*512 < st.Size:
		err = c.sparse(in, out, st.Size)
	default:
		err = c.span(in, out, 0, st.Size)
	}
	if err != nil {
		return err
	}
	// Timestamps have grains; a file that grew within one is found out here.
	switch n, err := pread(in, c.buf[:1], st.Size); {
	case err != nil:
		return c.fail(CodeIO, err)
	case n != 0:
		return c.fail(CodeChanged, nil)
	}
	return nil
}

// clone makes out share the blocks of in, where the filesystem can.
func (c *copier) clone(in, out int) bool {
	if c.noClone {
		return false
	}
	err := unix.IoctlFileClone(out, in)
	switch {
	case err == nil:
		return true
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.ENOSYS):
		c.noClone = true // not between these two filesystems
	}
	return false
}

// sparse copies the parts of a file that have data, and leaves holes between.
func (c *copier) sparse(in, out int, size int64) error {
	if err := unix.Ftruncate(out, size); err != nil {
		return c.failDst(err)
	}
	for at := int64(0); at < size; {
		data, err := unix.Seek(in, at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // only a hole is left
			data = size
		case errors.Is(err, unix.EINVAL): // the filesystem does not tell holes
			return c.span(in, out, at, size)
		case err != nil:
			return c.fail(CodeIO, err)
		}
		data = min(data, size)
		c.stats.Bytes += uint64(data - at)
		if data == size {
			return nil
		}
		hole, err := unix.Seek(in, data, unix.SEEK_HOLE)
		if err != nil {
			return c.fail(CodeIO, err)
		}
		hole = min(hole, size)
		if err := c.span(in, out, data, hole); err != nil {
			return err
		}
		at = hole
	}
	return nil
}

// span copies the bytes from..to, at the same place.
func (c *copier) span(in, out int, from, to int64) error {
	for from < to {
		if err := canceled(c.ctx); err != nil {
			return err
		}
		n, err := c.step(in, out, from, to-from)
		if err != nil {
			return err
		}
		from += n
		c.stats.Bytes += uint64(n)
		c.progress(false)
	}
	return nil
}

// step copies some of the n bytes at off. For what fits the buffer two plain
// calls are the fastest; beyond it the kernel may do better by itself.
func (c *copier) step(in, out int, off, n int64) (int64, error) {
	if n > copyBuffer && !c.noRange {
		from, to := off, off
		k, err := unix.CopyFileRange(in, &from, out, &to, int(min(n, rangeChunk)), 0)
		switch {
		case err == nil && k > 0:
			return int64(k), nil
		case errors.Is(err, unix.EINTR):
			return 0, nil
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EFBIG):
			return 0, c.failDst(err)
		}
		// Not between these two, or it does not say why, or it claims the end
		// where there is none, as some kernels do: read and see.
		c.noRange = true
	}
	k, err := pread(in, c.buf[:min(n, copyBuffer)], off)
	if err != nil {
		return 0, c.fail(CodeIO, err)
	}
	if k == 0 { // it shrank
		return 0, c.fail(CodeChanged, nil)
	}
	for done := 0; done < k; {
		w, err := unix.Pwrite(out, c.buf[done:k], off+int64(done))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, c.failDst(err)
		}
		done += max(w, 0)
	}
	return int64(k), nil
}

func pread(fd int, p []byte, off int64) (int, error) {
	for {
		n, err := unix.Pread(fd, p, off)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
