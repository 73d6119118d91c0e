package quota

import (
	"errors"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/ident"
)

// FS is a partition made real: a detached mount that no path leads to. It
// lives as long as any descriptor of it does; attach it with move_mount from
// Mount, and Close it when the session is over. Methods may be called from
// several goroutines.
type FS struct {
	part Partition

	mu     sync.Mutex
	mount  *os.File // O_PATH, the detached mount
	root   *os.File // its root directory, open for reading
	closed bool
}

// NewTmpfs makes a tmpfs with exactly p.Bytes and p.Inodes, owned as o says,
// with nosuid and nodev. The caller needs CAP_SYS_ADMIN over its own user and
// mount namespaces, as root has, and as uid 0 of a fresh user namespace has.
// Needs Linux 5.2 (fsopen). Its pages are kept out of swap where the kernel
// allows it (noswap, Linux 6.4, refused in a user namespace), because data of
// one session must not outlive it on a disk.
func NewTmpfs(p Partition, o Options) (*FS, error) {
	if err := checkTmpfs(p, o); err != nil {
		return nil, err
	}
	fail := func(op string, err error) (*FS, error) {
		code := CodeKernel
		if errors.Is(err, unix.ENOSYS) {
			code = CodeUnsupported
		}
		return nil, &Error{Code: code, Op: op, Alias: p.Alias, Err: err}
	}
	ctx, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail("fsopen", err)
	}
	defer unix.Close(ctx)
	if op, err := configure(ctx, p, o); err != nil {
		return fail(op, err)
	}
	attrs := unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	if o.NoExec {
		attrs |= unix.MOUNT_ATTR_NOEXEC
	}
	mnt, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, attrs)
	if err != nil {
		return fail("fsmount", err)
	}
	f := &FS{part: p, mount: os.NewFile(uintptr(mnt), "tmpfs")}
	root, err := unix.Openat(mnt, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		f.mount.Close()
		return fail("open_root", err)
	}
	f.root = os.NewFile(uintptr(root), "tmpfs-root")
	if err := f.verify(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// configure sets the parameters of the filesystem context and creates it.
func configure(ctx int, p Partition, o Options) (op string, err error) {
	params := []struct{ key, value string }{
		{"size", strconv.FormatUint(p.Bytes, 10)},
		{"nr_inodes", strconv.FormatUint(p.Inodes, 10)},
		{"mode", strconv.FormatUint(uint64(o.Mode), 8)},
		{"uid", strconv.FormatUint(uint64(o.UID), 10)},
		{"gid", strconv.FormatUint(uint64(o.GID), 10)},
	}
	for _, kv := range params {
		if err := unix.FsconfigSetString(ctx, kv.key, kv.value); err != nil {
			return "fsconfig_" + kv.key, err
		}
	}
	// EINVAL: the kernel does not know noswap, or we are in a user namespace.
	// A refused parameter leaves the context as it was.
	if err := unix.FsconfigSetFlag(ctx, "noswap"); err != nil && !errors.Is(err, unix.EINVAL) {
		return "fsconfig_noswap", err
	}
	if err := unix.FsconfigCreate(ctx); err != nil {
		return "fsconfig_create", err
	}
	return "", nil
}

// verify compares what was made with what was asked for: a filesystem that is
// larger than its share would break the sum that the disk limit rests on.
func (f *FS) verify() error {
	var st unix.Statfs_t
	if err := fstatfs(int(f.root.Fd()), &st); err != nil {
		return &Error{Code: CodeKernel, Op: "statfs", Alias: f.part.Alias, Err: err}
	}
	u := usageOf(&st)
	if int64(st.Type) != unix.TMPFS_MAGIC || u.TotalBytes != f.part.Bytes || u.TotalInodes != f.part.Inodes {
		return &Error{Code: CodeMismatch, Op: "statfs", Alias: f.part.Alias}
	}
	return nil
}

// Partition gives what the filesystem was made from.
func (f *FS) Partition() Partition { return f.part }

// Mount gives the detached mount, for move_mount with
// MOVE_MOUNT_F_EMPTY_PATH. The FS keeps owning it.
func (f *FS) Mount() *os.File { return f.mount }

// Dir gives the root directory, to fill it with openat. The FS keeps owning
// it, and so do not read entries through it from two places at once.
func (f *FS) Dir() *os.File { return f.root }

// Usage asks the kernel, through the descriptor held since creation: it works
// wherever the mount has been moved to, other mount namespaces included.
func (f *FS) Usage() (Usage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return Usage{}, &Error{Code: CodeClosed, Op: "usage", Alias: f.part.Alias}
	}
	var st unix.Statfs_t
	if err := fstatfs(int(f.root.Fd()), &st); err != nil {
		return Usage{}, &Error{Code: CodeKernel, Op: "statfs", Alias: f.part.Alias, Err: err}
	}
	return usageOf(&st), nil
}

func usageOf(st *unix.Statfs_t) Usage {
	block := uint64(st.Bsize) //nolint:unconvert // the type differs by architecture
	return Usage{
		TotalBytes: st.Blocks * block, UsedBytes: (st.Blocks - st.Bfree) * block,
		TotalInodes: st.Files, UsedInodes: st.Files - st.Ffree,
	}
}

func fstatfs(fd int, st *unix.Statfs_t) error {
	for {
		if err := unix.Fstatfs(fd, st); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Sub makes the directory name in the root, with that mode and owner, and
// gives a detached mount of it, so that several places of a sandbox can share
// one partition. The caller owns the result. It shares the flags of the FS.
func (f *FS) Sub(name string, mode, uid, gid uint32) (*os.File, error) {
	fail := func(code, op string, err error) (*os.File, error) {
		return nil, &Error{Code: code, Op: op, Alias: f.part.Alias, Err: err}
	}
	if !ident.Component(name) || mode&^0o1777 != 0 {
		return fail(CodeName, "sub", nil)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fail(CodeClosed, "sub", nil)
	}
	root := int(f.root.Fd())
	if err := unix.Mkdirat(root, name, 0o700); err != nil {
		return fail(CodeKernel, "mkdir", err)
	}
	dir, err := unix.Openat(root, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(CodeKernel, "open_sub", err)
	}
	defer unix.Close(dir)
	if err := unix.Fchown(dir, int(uid), int(gid)); err != nil {
		return fail(CodeKernel, "chown", err)
	}
	if err := unix.Fchmod(dir, mode); err != nil { // after chown, and free of the umask
		return fail(CodeKernel, "chmod", err)
	}
	fd, err := cloneMount(int(f.mount.Fd()), dir, name)
	if err != nil {
		return fail(CodeKernel, "open_tree", err)
	}
	return os.NewFile(uintptr(fd), "tmpfs-"+name), nil
}

// Close gives up the descriptors. A mount that was attached somewhere stays
// there until it is unmounted; one that was not is gone with its contents.
// Closing twice is harmless.
func (f *FS) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = true
	var err error
	if f.root != nil {
		err = f.root.Close()
	}
	return errors.Join(err, f.mount.Close())
}
