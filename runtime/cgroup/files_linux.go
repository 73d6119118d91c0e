package cgroup

import (
	"errors"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// files are control files held open for reading, so that an observation costs one
// pread each and still reaches this group after a rename or replacement.
type files map[string]*os.File

// open opens the named files of d; those in optional may be missing.
func (fs files) open(d *dir, names []string, optional ...string) error {
	for _, n := range names {
		f, err := d.openFile(n)
		if err != nil {
			return err
		}
		fs[n] = f
	}
	for _, n := range optional {
		f, err := d.openFile(n)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		fs[n] = f
	}
	return nil
}

func (fs files) close() {
	for _, f := range fs {
		f.Close()
	}
}

// number reads a held file that holds one decimal.
func (fs files) number(name string) (n uint64, err error) {
	err = fs.read(name, func(b []byte) (err error) {
		n, err = parseNumber(b)
		return err
	})
	return n, err
}

// keyed reads one key of a held flat keyed file; a missing key reads as 0 only if
// the kernel version may lack it, which the caller says with optional.
func (fs files) keyed(name, key string, optional bool) (n uint64, err error) {
	err = fs.read(name, func(b []byte) error {
		v, ok, err := parseFlat(b, key)
		if err == nil && !ok && !optional {
			err = errSyntax
		}
		n = v
		return err
	})
	return n, err
}

func (fs files) read(name string, use func([]byte) error) error {
	f, ok := fs[name]
	if !ok {
		return fail(CodeIO, "read", name, os.ErrNotExist)
	}
	if err := pread(f, use); err != nil {
		code := CodeIO
		switch {
		case errors.Is(err, errSyntax):
			code = CodeSyntax
		case errors.Is(err, errTooLarge):
			code = CodeTooLarge
		case errors.Is(err, unix.ENODEV):
			code = CodeNotFound // the group was removed
		}
		return fail(code, "read", name, err)
	}
	return nil
}

// high remembers the largest value seen.
type high struct{ v atomic.Uint64 }

// raise records v and returns the largest so far.
func (h *high) raise(v uint64) uint64 {
	for {
		old := h.v.Load()
		if v <= old {
			return old
		}
		if h.v.CompareAndSwap(old, v) {
			return v
		}
	}
}

// either returns the first of two files if this kernel has it, else the second.
func (fs files) either(first, second string) string {
	if _, ok := fs[first]; ok {
		return first
	}
	return second
}
