package cgroup

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// env is the kernel as this package sees it. Tests replace parts of it to drive
// the code of a cgroup version this machine does not have.
type env struct {
	proc   string // procfs
	sys    string // sysfs
	euid   int
	mkdir  func(parent int, name string) error
	rmdir  func(parent int, name string) error
	write  func(dir int, file, value string) error
	magic  func(fd int) (int64, error)
	marked func(fd int) bool // is this cgroup marked as delegated?
}

// dirMode keeps other users from watching or locking our groups.
const dirMode = 0o700

func realEnv() *env {
	return &env{
		proc:   "/proc",
		sys:    "/sys",
		euid:   os.Geteuid(),
		mkdir:  func(fd int, name string) error { return unix.Mkdirat(fd, name, dirMode) },
		rmdir:  func(fd int, name string) error { return unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) },
		write:  writeFile,
		magic:  fsMagic,
		marked: markedDelegated,
	}
}

func fsMagic(fd int) (int64, error) {
	var st unix.Statfs_t
	err := retry(func() error { return unix.Fstatfs(fd, &st) })
	return int64(st.Type), err
}

// markedDelegated reads the mark systemd puts on units with Delegate=yes: for
// everyone since version 251, for root since 236.
func markedDelegated(fd int) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		buf := make([]byte, 8)
		if n, err := unix.Fgetxattr(fd, name, buf); err == nil && string(buf[:n]) == "1" {
			return true
		}
	}
	return false
}

// retry runs a system call again while a signal interrupts it. The Go runtime
// preempts threads by signals, so this happens at any time.
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// readProc reads a file below /proc, bounded.
func (e *env) readProc(name string) ([]byte, error) { return readBounded(e.proc+"/"+name, 1<<20) }

func readBounded(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = errTooLarge
	}
	return data, err
}

var errTooLarge = errors.New("larger than its bound")

// mounts returns the cgroup mounts of this process.
func (e *env) mounts() ([]mount, error) {
	data, err := e.readProc("self/mountinfo")
	if err != nil {
		return nil, fail(CodeIO, "read_mounts", "/proc/self/mountinfo", err)
	}
	return parseMountinfo(data), nil
}

// membership returns the groups of a process; pid 0 is this process.
func (e *env) membership(pid int) ([]membership, error) {
	name := "self/cgroup"
	if pid != 0 {
		name = strconv.Itoa(pid) + "/cgroup"
	}
	data, err := e.readProc(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil, fail(CodeNotFound, "read_membership", name, err)
	}
	if err != nil {
		return nil, fail(CodeIO, "read_membership", name, err)
	}
	ms, err := parseMembership(data)
	if err != nil {
		return nil, fail(CodeSyntax, "read_membership", name, err)
	}
	return ms, nil
}

// buffers holds scratch space for control files, as watchers read them often.
var buffers = sync.Pool{New: func() any { return new([4096]byte) }}

// pread reads a held control file from its start, where the kernel renders it anew,
// and hands the bytes, which are only valid inside, to use.
func pread(f *os.File, use func([]byte) error) error {
	buf := buffers.Get().(*[4096]byte)
	defer buffers.Put(buf)
	n, err := f.ReadAt(buf[:], 0)
	if err != nil && err != io.EOF {
		return err
	}
	if n < len(buf) {
		return use(buf[:n])
	}
	big := make([]byte, MaxControlFile+1)
	n, err = f.ReadAt(big, 0)
	if err != nil && err != io.EOF {
		return err
	}
	if n > MaxControlFile {
		return errTooLarge
	}
	return use(big[:n])
}
