package broker

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/pathwalk"
	"gloved.dev/internal/safefile"
)

// MaxEntries bounds how many entries a directory on the way to an endpoint may have: each is
// compared with the endpoint's name.
const MaxEntries = 4096

// lies on another filesystem.
var (
	errNotThere = errors.New("it does not exist")
)

// A tree is the workspace, held by a descriptor of its root. Everything in it is reached from
// there, one component at a time and never through a link.
type tree struct {
	path string
	root *os.File
	id   safefile.Identity
	dirs map[string]*dir // directories opened for this reading, by path
}

// A dir is one directory of the tree.
type dir struct {
	f     *os.File
	id    safefile.Identity
	names []string // without the broker's own
}

// openTree opens the workspace. It must be a real directory at every component of its path, so that
// the path is its own real path.
func openTree(path string) (*tree, error) {
	held, _, err := pathwalk.Open(path)
	if err != nil {
		return nil, refuse(CodeInstallationInvalid, "workspace-"+strings.ReplaceAll(pathwalk.Code(err), "_", "-"),
			"the workspace must be a directory reached without symbolic links").because(err)
	}
	defer held.Close()
	root, err := openDirAt(held, ".")
	if err != nil {
		return nil, refuse(CodeInstallationInvalid, "workspace-unreadable", "the workspace cannot be opened").because(err)
	}
	id, err := safefile.Stat(root)
	if err != nil {
		root.Close()
		return nil, refuse(CodeInstallationInvalid, "workspace-unreadable", "the workspace cannot be examined").because(err)
	}
	return &tree{path: path, root: root, id: id, dirs: map[string]*dir{}}, nil
}

func (t *tree) close() {
	t.forget()
	t.root.Close()
}

// forget drops what was read, so that the next look is a fresh one.
func (t *tree) forget() {
	for _, d := range t.dirs {
		if d.f != t.root {
			d.f.Close()
		}
	}
	t.dirs = map[string]*dir{}
}

// split gives the directory and the name of an endpoint.
func split(path string) (parent, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// dir opens the directory rel ("" is the root), checking every name on the way.
func (t *tree) dir(rel string) (*dir, *Refusal) {
	if d := t.dirs[rel]; d != nil {
		return d, nil
	}
	if rel == "" {
		return t.keep(rel, t.root)
	}
	above, name := split(rel)
	parent, r := t.dir(above)
	if r != nil {
		return nil, r
	}
	if there, r := parent.look(rel, name); r != nil {
		return nil, r
	} else if !there {
		return nil, planRefusal("parent-missing", rel, "the directory does not exist")
	}
	f, err := openDirAt(parent.f, name)
	if err != nil {
		return nil, openRefusal(rel, err)
	}
	return t.keep(rel, f)
}

func openRefusal(rel string, err error) *Refusal {
	switch {
	case errors.Is(err, unix.EXDEV):
		return planRefusal("mount-point", rel, "another filesystem is mounted there")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return planRefusal("parent-not-directory", rel, "it is a symbolic link or no directory")
	case errors.Is(err, fs.ErrNotExist):
		return planRefusal("parent-missing", rel, "the directory does not exist")
	}
	return planRefusal("unreadable", rel, "the directory cannot be opened").because(err)
}

func (t *tree) keep(rel string, f *os.File) (*dir, *Refusal) {
	d := &dir{f: f}
	var err error
	if d.id, err = safefile.Stat(f); err == nil && d.id.Dev != t.id.Dev {
		err = unix.EXDEV
	}
	if err == nil {
		d.names, err = readNames(f)
	}
	if err == nil {
		t.dirs[rel] = d
		return d, nil
	}
	if f != t.root {
		f.Close()
	}
	switch {
	case errors.Is(err, errTooLarge):
		return nil, planRefusal("directory-too-large", rel, "a directory may have at most %d entries", MaxEntries)
	case errors.Is(err, unix.EXDEV):
		return nil, openRefusal(rel, err)
	}
	return nil, planRefusal("unreadable", rel, "the directory cannot be listed").because(err)
}

// readNames lists a directory without the broker's own two names.
func readNames(f *os.File) ([]string, error) {
	// A descriptor of its own: reading moves the position, which f's other users share.
	again, err := openDirAt(f, ".")
	if err != nil {
		return nil, err
	}
	defer again.Close()
	var names []string
	for {
		batch, err := again.Readdirnames(512)
		for _, n := range batch {
			if n != TransactionDir && n != LockName {
				names = append(names, n)
			}
		}
		if len(names) > MaxEntries {
			return nil, errTooLarge
		}
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// look reports whether the directory has name, and refuses a name that another entry could be
// taken for where case or normalization does not count.
func (d *dir) look(path, name string) (there bool, r *Refusal) {
	for _, n := range d.names {
		if n == name {
			there = true
		} else if alias(name, n) {
			return false, planRefusal("alias", path, "an entry with another spelling of the name exists")
		}
	}
	return there, nil
}

// A file is an open regular file with what was read of it.
type file struct {
	id   safefile.Identity
	data []byte
	sum  string
}

// stat examines name in d without following or opening it.
func (d *dir) stat(name string) (safefile.Identity, error) {
	var st unix.Stat_t
	err := retry(func() error { return unix.Fstatat(int(d.f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if errors.Is(err, fs.ErrNotExist) {
		return safefile.Identity{}, errNotThere
	}
	if err != nil {
		return safefile.Identity{}, err
	}
	return identityOf(&st), nil
}

func identityOf(st *unix.Stat_t) safefile.Identity {
	return safefile.Identity{
		Dev: uint64(st.Dev), Ino: st.Ino, //nolint:unconvert // int32 on darwin
		Mode: uint32(st.Mode), UID: st.Uid, GID: st.Gid, //nolint:unconvert // uint16 on darwin
		Nlink: uint64(st.Nlink), Size: uint64(st.Size), //nolint:unconvert // uint16 on darwin
		MtimeNS: unix.TimespecToNsec(st.Mtim), CtimeNS: unix.TimespecToNsec(st.Ctim),
	}
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// judge refuses what is no plain file of ours. It opens nothing: a FIFO would wait, a device would
// act.
func judge(path string, id safefile.Identity) *Refusal {
	switch id.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return planRefusal("symlink", path, "it is a symbolic link")
	case unix.S_IFDIR:
		return planRefusal("not-a-file", path, "it is a directory")
	default:
		return planRefusal("not-a-file", path, "it is not a regular file")
	}
	switch {
	case id.Nlink != 1:
		return planRefusal("hardlink", path, "the file has %d names; a change to one would be a change to all", id.Nlink)
	case id.UID != uint32(os.Geteuid()):
		return planRefusal("foreign-owner", path, "the file belongs to another user, which a replacement would not")
	case id.Mode&0o7000 != 0:
		return planRefusal("special-mode", path, "the file has a set-id or sticky bit, which a replacement would lose")
	case id.Size > MaxImage:
		return planRefusal("image-too-large", path, "the file has more than %d bytes", MaxImage)
	}
	return nil
}

// read reads the plain file that stat found, from one descriptor, and proves that it is that file
// and did not change meanwhile.
func (d *dir) read(name string, id safefile.Identity) (*file, error) {
	f, err := openFileAt(d.f, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	now, err := safefile.Stat(f)
	if err != nil {
		return nil, err
	}
	if now != id {
		return nil, errChanged
	}
	if err := plainAttributes(f); err != nil {
		return nil, err
	}
	data := make([]byte, id.Size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, errChanged
	}
	if n, err := f.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		return nil, errChanged
	}
	if now, err = safefile.Stat(f); err != nil || now != id {
		return nil, errChanged
	}
	return &file{id: id, data: data, sum: digest.SHA256Hex(data)}, nil
}

var (
	errChanged    = errors.New("it changed while it was being read")
	errAttributes = errors.New("it has extended attributes")
)

// systemAttributes are given to a new file by the system itself.
var systemAttributes = map[string]bool{"security.selinux": true, "com.apple.provenance": true}

// plainAttributes refuses extended attributes, and with them access lists and file capabilities: a
// replacement would silently drop them.
func plainAttributes(f *os.File) error {
	buf := make([]byte, 4096)
	var n int
	err := retry(func() (err error) { n, err = unix.Flistxattr(int(f.Fd()), buf); return err })
	switch {
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS):
		return nil
	case err != nil:
		return errAttributes
	}
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name != "" && !systemAttributes[name] {
			return errAttributes
		}
	}
	return nil
}

func openFileAt(d *os.File, name string) (*os.File, error) {
	return openAt(d, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
}

func openAt(d *os.File, name string, flags int, mode uint32) (*os.File, error) {
	var fd int
	err := retry(func() (err error) {
		fd, err = unix.Openat(int(d.Fd()), name, flags|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// readBounded reads the whole regular file at an absolute path that is reached without symbolic
// links.
func readBounded(path string, limit int64) ([]byte, error) {
	held, id, err := pathwalk.Open(path)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	if !id.IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	parent, name := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/')+1:]
	if parent == "" {
		parent = "/"
	}
	d, err := os.Open(parent)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, err := openFileAt(d, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	now, err := pathwalk.FromFile(f)
	if err != nil {
		return nil, err
	}
	if !now.SameObject(id) || !now.IsRegular() {
		return nil, errChanged
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = errTooLarge
	}
	return data, err
}
