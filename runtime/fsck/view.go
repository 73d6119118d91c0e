package fsck

import (
	"errors"
	"os"
	"path/filepath"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
)

// errReadOnly is the answer of a view to whoever would change something.
var errReadOnly = errors.New("the journal is only looked at")

// A view is the file system as a comparison sees it: real files, opened for
// reading, with torn tails out of sight and every removal only noted.
type view struct {
	cut     map[string]int64 // where the records of a torn journal end
	removed []string         // what opening the journals would remove
	sealed  bool             // archives, which nobody writes: no lock
}

// Open opens a journal for reading. Its lock is taken, so that nobody writes
// meanwhile.
func (v *view) Open(path string) (journal.File, error) {
	dir, _, err := safefile.OpenOwnerDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, _, err := safefile.OpenOwner(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	if !v.sealed {
		_, err = safefile.Handover(func() (*os.File, error) { return f, safefile.Flock(f) })
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &viewFile{f, v, path}, nil
}

func (v *view) Create(string) (journal.File, error) { return nil, errReadOnly }

func (v *view) Stat(path string) (safefile.Identity, error) {
	id, err := journal.OS().Stat(path)
	return v.shorten(path, id), err
}

func (v *view) shorten(path string, id safefile.Identity) safefile.Identity {
	if at, torn := v.cut[path]; torn {
		id.Size = uint64(at) //nolint:gosec // an offset in the file
	}
	return id
}

func (v *view) Rename(string, string) error   { return errReadOnly }
func (v *view) Exchange(string, string) error { return errReadOnly }
func (v *view) SyncDir(string) error          { return nil }

func (v *view) Remove(path string) error {
	v.removed = append(v.removed, path)
	return nil
}

type viewFile struct {
	f    *os.File
	v    *view
	path string
}

func (f *viewFile) ReadAt(p []byte, at int64) (int, error) { return f.f.ReadAt(p, at) }
func (f *viewFile) Write([]byte) (int, error)              { return 0, errReadOnly }
func (f *viewFile) Truncate(int64) error                   { return errReadOnly }
func (f *viewFile) Sync() error                            { return nil }
func (f *viewFile) Allocate(int64) error                   { return nil }
func (f *viewFile) Close() error                           { return f.f.Close() }

func (f *viewFile) Identity() (safefile.Identity, error) {
	id, err := safefile.Stat(f.f)
	return f.v.shorten(f.path, id), err
}
