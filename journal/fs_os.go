package journal

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/safefile"
)

// OS returns the real file system, under the rules of internal/safefile: an
// owner file (0600, ours, one link) in an owner directory (0700).
func OS() FS { return osFS{} }

type osFS struct{}

type osFile struct{ f *os.File }

func (osFS) Open(path string) (File, error) {
	dir, _, err := safefile.OpenOwnerDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, _, err := safefile.OpenOwner(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	return locked(f)
}

func (osFS) Create(path string) (File, error) {
	f, err := safefile.CreateOwner(path)
	if err != nil {
		return nil, err
	}
	return locked(f)
}

func locked(f *os.File) (File, error) {
	if _, err := safefile.Handover(func() (*os.File, error) { return f, safefile.Flock(f) }); err != nil {
		f.Close()
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Stat(path string) (safefile.Identity, error) {
	var st unix.Stat_t
	for {
		err := unix.Lstat(path, &st)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return safefile.Identity{}, &os.PathError{Op: "lstat", Path: path, Err: err}
		}
		break
	}
	return safefile.Identity{
		Dev: uint64(st.Dev), Ino: st.Ino, //nolint:unconvert // int32 on darwin
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, //nolint:unconvert // uint16 on darwin
		Nlink: uint64(st.Nlink), Size: uint64(st.Size), //nolint:unconvert // uint16 on darwin
		MtimeNS: unix.TimespecToNsec(st.Mtim), CtimeNS: unix.TimespecToNsec(st.Ctim),
	}, nil
}

func (osFS) Rename(from, to string) error { return os.Rename(from, to) }

func (osFS) Exchange(a, b string) error {
	if err := exchange(a, b); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

func (osFS) Remove(path string) error { return os.Remove(path) }

func (osFS) SyncDir(dir string) error {
	d, _, err := safefile.OpenOwnerDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func (o osFile) ReadAt(p []byte, off int64) (int, error) { return o.f.ReadAt(p, off) }

func (o osFile) Write(p []byte) (int, error) { return o.f.Write(p) }

func (o osFile) Truncate(size int64) error { return o.f.Truncate(size) }

func (o osFile) Sync() error { return datasync(o.f) }

func (o osFile) Allocate(size int64) error { return allocate(o.f, size) }

func (o osFile) Identity() (safefile.Identity, error) { return safefile.Stat(o.f) }

func (o osFile) Close() error { return o.f.Close() }
