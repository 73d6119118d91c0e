// Package safefile is the one place where bytes on disk become authority: every
// owner-written file and every owner-only directory is opened here, once, and
// what follows works on the descriptor, never on the path again.
//
// An owner file is regular, ours by effective UID, mode exactly 0600, with one
// link, and not reached through a symbolic link in its final component. An
// owner directory is a real directory, ours, mode exactly 0700. The checks stop
// a file that another account could have written or can still reach by another
// name, a link planted to redirect us, and a file that changes while it is
// being read.
//
// It is not for untrusted trees: those are walked by runtime/workspace.
package safefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
)

// Codes of Error.
const (
	CodeNotAbsolute  = "not_absolute"
	CodeNotFound     = "not_found"
	CodeSymlink      = "symlink"
	CodeNotRegular   = "not_regular"
	CodeNotDirectory = "not_directory"
	CodeOwner        = "owner"
	CodeMode         = "mode"
	CodeLinks        = "links"
	CodeEmpty        = "empty"
	CodeTooLarge     = "too_large"
	CodeChanged      = "changed"
	CodeExists       = "exists"
	CodeLocked       = "locked"
	CodeIO           = "io"
)

// An Error tells which rule an owner file breaks. Path is for the operator
// only: it must not reach a controller.
type Error struct {
	Code, Op, Path string
	Err            error
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s %s: %s", e.Op, e.Path, advice[e.Code])
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Path == ""
}

// advice says what is wrong and what would mend it.
var advice = map[string]string{
	CodeNotAbsolute:  "the path must be absolute and in its shortest form",
	CodeNotFound:     "it does not exist",
	CodeSymlink:      "it is a symbolic link; name the file itself",
	CodeNotRegular:   "it is not a regular file",
	CodeNotDirectory: "it is not a directory",
	CodeOwner:        "it belongs to another user; chown it to the user that runs this program",
	CodeMode:         "its mode is too open or too narrow; files need chmod 600, directories chmod 700",
	CodeLinks:        "it has more than one hard link; copy it to a new file",
	CodeEmpty:        "it is empty",
	CodeTooLarge:     "it is larger than allowed",
	CodeChanged:      "it changed while it was being read; try again when nothing writes it",
	CodeExists:       "it already exists",
	CodeLocked:       "another process holds its lock",
	CodeIO:           "the system refused the operation",
}

// ErrLocked matches, by errors.Is, a lock that another process holds.
var ErrLocked error = &Error{Code: CodeLocked}

// ErrNotFound matches, by errors.Is, a path that does not exist.
var ErrNotFound error = &Error{Code: CodeNotFound}

// An Identity is what fstat says of an object: enough to notice that it was
// replaced or changed. Times are Unix nanoseconds.
type Identity struct {
	Dev, Ino         uint64
	Mode, UID, GID   uint32
	Nlink, Size      uint64
	MtimeNS, CtimeNS int64
}

// Stat returns the identity of an open file.
func Stat(f *os.File) (Identity, error) {
	var id Identity
	conn, err := f.SyscallConn()
	if err != nil {
		return id, err
	}
	var st unix.Stat_t
	var serr error
	if err := conn.Control(func(fd uintptr) { serr = ignoreEINTR(func() error { return unix.Fstat(int(fd), &st) }) }); err != nil {
		return id, err
	}
	if serr != nil {
		return id, serr
	}
	return identity(&st), nil
}

func identity(st *unix.Stat_t) Identity {
	return Identity{
		Dev: uint64(st.Dev), Ino: st.Ino, //nolint:unconvert // int32 on darwin
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid,
		Nlink: uint64(st.Nlink), Size: uint64(st.Size),
		MtimeNS: unix.TimespecToNsec(st.Mtim), CtimeNS: unix.TimespecToNsec(st.Ctim),
	}
}

func ignoreEINTR(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// OpenOwner opens an owner file with flags (os.O_RDONLY, or os.O_RDWR with or
// without os.O_APPEND) and checks it. A max above zero bounds its size in
// bytes; an empty file is accepted. The caller closes the file.
func OpenOwner(path string, flags int, max int64) (*os.File, Identity, error) {
	fail := failer("open", path)
	if !ident.AbsPath(path) {
		return nil, Identity{}, fail(CodeNotAbsolute, nil)
	}
	// O_NONBLOCK: a FIFO in the file's place must not hang us; it is refused
	// right after by its type.
	f, err := openNoFollow(path, flags|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, Identity{}, fail(openCode(err), err)
	}
	id, err := checkOwner(f, path, max)
	if err != nil {
		f.Close()
		return nil, Identity{}, err
	}
	return f, id, nil
}

func openNoFollow(path string, flags int, perm uint32) (*os.File, error) {
	var fd int
	err := ignoreEINTR(func() (err error) {
		fd, err = unix.Open(path, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

func failer(op, path string) func(code string, err error) error {
	return func(code string, err error) error {
		return &Error{Code: code, Op: op, Path: path, Err: err}
	}
}

func openCode(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return CodeNotFound
	case errors.Is(err, syscall.ELOOP):
		return CodeSymlink
	case errors.Is(err, fs.ErrExist):
		return CodeExists
	case errors.Is(err, syscall.EISDIR):
		return CodeNotRegular
	}
	return CodeIO
}

func checkOwner(f *os.File, path string, max int64) (Identity, error) {
	fail := failer("check", path)
	id, err := Stat(f)
	if err != nil {
		return id, fail(CodeIO, err)
	}
	switch {
	case id.Mode&unix.S_IFMT != unix.S_IFREG:
		return id, fail(CodeNotRegular, nil)
	case id.UID != uint32(os.Geteuid()):
		return id, fail(CodeOwner, nil)
	case id.Mode&0o7777 != 0o600:
		return id, fail(CodeMode, nil)
	case id.Nlink != 1:
		return id, fail(CodeLinks, nil)
	case max > 0 && id.Size > uint64(max):
		return id, fail(CodeTooLarge, nil)
	}
	return id, nil
}

// ReadOwner reads a whole owner file of 1 to max bytes from one descriptor and
// proves that it did not change meanwhile.
func ReadOwner(path string, max int64) ([]byte, Identity, error) {
	f, id, err := OpenOwner(path, os.O_RDONLY, max)
	if err != nil {
		return nil, id, err
	}
	defer f.Close()
	fail := failer("read", path)
	if id.Size == 0 {
		return nil, id, fail(CodeEmpty, nil)
	}
	data := make([]byte, id.Size)
	if _, err := f.ReadAt(data, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, id, fail(CodeChanged, nil)
		}
		return nil, id, fail(CodeIO, err)
	}
	again, err := Stat(f)
	if err != nil {
		return nil, id, fail(CodeIO, err)
	}
	if again != id {
		return nil, id, fail(CodeChanged, nil)
	}
	return data, id, nil
}

// OpenOwnerDir opens an owner directory, whose descriptor then stands for it.
func OpenOwnerDir(path string) (*os.File, Identity, error) {
	fail := failer("open", path)
	if !ident.AbsPath(path) {
		return nil, Identity{}, fail(CodeNotAbsolute, nil)
	}
	f, err := openNoFollow(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		code := openCode(err)
		if errors.Is(err, syscall.ENOTDIR) {
			code = notDirectoryCode(path)
		}
		return nil, Identity{}, fail(code, err)
	}
	id, err := Stat(f)
	if err != nil {
		f.Close()
		return nil, id, fail(CodeIO, err)
	}
	code := ""
	switch {
	case id.UID != uint32(os.Geteuid()):
		code = CodeOwner
	case id.Mode&0o7777 != 0o700:
		code = CodeMode
	}
	if code != "" {
		f.Close()
		return nil, id, fail(code, nil)
	}
	return f, id, nil
}

// notDirectoryCode tells a symbolic link from a plain file: O_DIRECTORY with
// O_NOFOLLOW answers ENOTDIR for both.
func notDirectoryCode(path string) string {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return CodeNotFound
	case info.Mode()&fs.ModeSymlink != 0:
		return CodeSymlink
	}
	return CodeNotDirectory
}

// MakeOwnerDir creates the directory with mode 0700 if it is absent (its parent
// must exist), then opens it as OpenOwnerDir does.
func MakeOwnerDir(path string) (*os.File, Identity, error) {
	if !ident.AbsPath(path) {
		return nil, Identity{}, failer("create", path)(CodeNotAbsolute, nil)
	}
	err := unix.Mkdir(path, 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, Identity{}, failer("create", path)(openCode(err), err)
	}
	if err == nil {
		// The umask may have narrowed it; only our own new directory is touched.
		if err := os.Chmod(path, 0o700); err != nil {
			return nil, Identity{}, failer("create", path)(CodeIO, err)
		}
		if err := syncDir(filepath.Dir(path)); err != nil {
			return nil, Identity{}, failer("create", path)(CodeIO, err)
		}
	}
	return OpenOwnerDir(path)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// CreateOwner creates a new, empty owner file for reading and appending inside
// an owner directory. The new name is durable when it returns.
func CreateOwner(path string) (*os.File, error) { return create(path, (*os.File).Sync) }

// CreatePassing is CreateOwner for a file that means nothing after a restart of the
// machine, such as a lock: it does not wait for the disk.
func CreatePassing(path string) (*os.File, error) {
	return create(path, func(*os.File) error { return nil })
}

func create(path string, settle func(dir *os.File) error) (*os.File, error) {
	fail := failer("create", path)
	if !ident.AbsPath(path) {
		return nil, fail(CodeNotAbsolute, nil)
	}
	dir, _, err := OpenOwnerDir(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := createAt(dir, filepath.Base(path), path)
	if err != nil {
		return nil, fail(openCode(err), err)
	}
	if err := settle(dir); err != nil {
		f.Close()
		return nil, fail(CodeIO, err)
	}
	return f, nil
}

func createAt(dir *os.File, name, full string) (*os.File, error) {
	var fd int
	err := ignoreEINTR(func() (err error) {
		fd, err = unix.Openat(int(dir.Fd()), name,
			unix.O_RDWR|unix.O_APPEND|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), full)
	if err := f.Chmod(0o600); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// WriteOwner replaces an owner file in an owner directory with data, so that a
// reader, or a crash at any moment, finds the whole old or the whole new file.
func WriteOwner(path string, data []byte) error {
	if !ident.AbsPath(path) {
		return failer("write", path)(CodeNotAbsolute, nil)
	}
	return WriteOwners(filepath.Dir(path), New{filepath.Base(path), data})
}

// New is a file to be written: its name in the directory, and what is to be in it.
type New struct {
	Name string
	Data []byte
}

// WriteOwners is WriteOwner for files of one directory that belong together: it waits for
// the disk no longer than for one of them. They get their names in the order given, when
// all of them are on the disk. After an error some may have theirs.
func WriteOwners(dir string, files ...New) error {
	d, _, err := OpenOwnerDir(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	errs := make([]error, len(files))
	var wg sync.WaitGroup
	for i, n := range files {
		wg.Go(func() { errs[i] = n.stage(d, dir) })
	}
	wg.Wait()
	err = errors.Join(errs...)
	for _, n := range files {
		if err != nil {
			_ = unix.Unlinkat(int(d.Fd()), n.temp(), 0) // the error that matters is err
		} else if rename := unix.Renameat(int(d.Fd()), n.temp(), int(d.Fd()), n.Name); rename != nil {
			_ = unix.Unlinkat(int(d.Fd()), n.temp(), 0)
			err = failer("write", filepath.Join(dir, n.Name))(CodeIO, rename)
		}
	}
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		return failer("write", dir)(CodeIO, err)
	}
	return nil
}

// temp is what a file is called until it is whole.
func (n New) temp() string { return "." + n.Name + ".new" }

// stage writes the file under its passing name.
func (n New) stage(dir *os.File, path string) error {
	full := filepath.Join(path, n.Name)
	fail := failer("write", full)
	// A leftover of our own crashed write may stand in the way; the directory
	// is ours alone.
	if err := unix.Unlinkat(int(dir.Fd()), n.temp(), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(CodeIO, err)
	}
	f, err := createAt(dir, n.temp(), full)
	if err != nil {
		return fail(openCode(err), err)
	}
	if err := fill(f, n.Data); err != nil {
		return fail(CodeIO, err)
	}
	return nil
}

func fill(f *os.File, data []byte) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// A Lock is an exclusive flock on an owner file. The kernel drops it when its
// holder dies, so there is never a stale one to break.
type Lock struct{ f *os.File }

// LockFile takes the lock of the owner file at path, creating the file if it is
// absent. It never waits: a held lock is ErrLocked.
func LockFile(path string) (*Lock, error) {
	f, _, err := OpenOwner(path, os.O_RDWR, 0)
	if errors.Is(err, ErrNotFound) {
		f, err = CreatePassing(path)
		if errors.Is(err, &Error{Code: CodeExists}) { // lost the race to create it
			f, _, err = OpenOwner(path, os.O_RDWR, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := Flock(f); err != nil {
		f.Close()
		return nil, err
	}
	return &Lock{f: f}, nil
}

// Flock takes the exclusive, non-blocking flock of an open file; a held one is
// ErrLocked. Closing the file releases it.
func Flock(f *os.File) error {
	err := ignoreEINTR(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return failer("lock", f.Name())(CodeLocked, nil)
	}
	return failer("lock", f.Name())(CodeIO, err)
}

// handoverTries and handoverPause bound Handover: a quarter of a second.
const (
	handoverTries = 25
	handoverPause = 10 * time.Millisecond
)

// Handover takes a lock whose holder may just have been killed. A process that
// dies while it starts another lives on in that child, locks included, until the
// child executes its program and its descriptors close; so a lock that is held
// is asked for again for a moment before it counts as ErrLocked.
func Handover[T any](take func() (T, error)) (T, error) {
	for range handoverTries {
		if held, err := take(); !errors.Is(err, ErrLocked) {
			return held, err
		}
		<-time.After(handoverPause)
	}
	return take()
}

// File returns the locked file, to be written by the holder.
func (l *Lock) File() *os.File { return l.f }

// Unlock releases the lock. The file stays: removing it would let two holders
// lock two different files of the same name.
func (l *Lock) Unlock() error { return l.f.Close() }
