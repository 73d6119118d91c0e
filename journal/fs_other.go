//go:build !linux

package journal

import (
	"os"

	"golang.org/x/sys/unix"
)

func datasync(f *os.File) error { return f.Sync() }

func allocate(*os.File, int64) error { return nil }

func exchange(a, b string) error { return unix.RenamexNp(a, b, unix.RENAME_SWAP) }
