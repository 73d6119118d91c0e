package landlock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The sets of rights a Rule may grant.
const (
	// Read opens files for reading and lists directories.
	Read = unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR
	// List lists directories without opening files.
	List = unix.LANDLOCK_ACCESS_FS_READ_DIR
	// Exec executes files.
	Exec = unix.LANDLOCK_ACCESS_FS_EXECUTE
	// WriteFile writes and truncates existing files.
	WriteFile = unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE
	// Device issues ioctls on device files.
	Device = unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	// Change is everything that alters a tree, except making device nodes.
	Change = WriteFile | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE |
		unix.LANDLOCK_ACCESS_FS_MAKE_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_REG |
		unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO |
		unix.LANDLOCK_ACCESS_FS_MAKE_SYM | unix.LANDLOCK_ACCESS_FS_REFER
)

// onFiles are the rights that make sense on something other than a directory;
// the kernel answers EINVAL when a rule on a file has more.
const onFiles = unix.LANDLOCK_ACCESS_FS_READ_FILE | Exec | WriteFile | Device

// Rule grants Access on Path and everything below it.
type Rule struct {
	Path   string
	Access uint64
	// Optional rules are skipped when the path does not exist.
	Optional bool
}

// Options are what is not about files.
type Options struct {
	// TCP leaves binding and connecting of TCP sockets to the other layers.
	TCP bool
}

// rulesetAttr is struct landlock_ruleset_attr of level 6 (linux/landlock.h). Older
// kernels accept the longer form as long as what they do not know is zero.
type rulesetAttr struct {
	fs, net, scoped uint64
}

// pathBeneathAttr is struct landlock_path_beneath_attr, which is packed: 12 bytes.
type pathBeneathAttr [12]byte

const ruleTypePathBeneath = 1

// ABI returns the level the running kernel offers, 0 when it has no Landlock or
// has it disabled.
func ABI() int {
	v, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0,
		unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(v)
}

// handled is what a ruleset refuses by default at an ABI level. Rights are added
// up to level 7; a later level's are not handled until this table knows them.
func handled(abi int, o Options) rulesetAttr {
	// Level 1: EXECUTE up to MAKE_SYM, the thirteen lowest bits.
	a := rulesetAttr{fs: 1<<13 - 1}
	if abi >= 2 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	if abi >= 4 && !o.TCP {
		a.net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	}
	if abi >= 5 {
		a.fs |= unix.LANDLOCK_ACCESS_FS_IOCTL_DEV
	}
	if abi >= 6 {
		a.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
	}
	return a
}

// Restrict applies the rules to the calling thread, which must be locked to its
// goroutine and have no_new_privs set, and returns the ABI level used. On a kernel
// without Landlock it does nothing and returns 0. Any other failure is an error,
// and names the path it concerns.
func Restrict(rules []Rule, o Options) (abi int, path string, err error) {
	abi = ABI()
	if abi == 0 {
		return 0, "", nil
	}
	attr := handled(abi, o)
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET,
		uintptr(unsafe.Pointer(&attr)), attrSize(abi), 0)
	if errno != 0 {
		return abi, "", errno
	}
	defer unix.Close(int(fd))
	for _, r := range rules {
		if err := add(int(fd), r, attr.fs); err != nil {
			return abi, r.Path, err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, fd, 0, 0); errno != 0 {
		return abi, "", errno
	}
	return abi, "", nil
}

// attrSize is how much of rulesetAttr a level knows.
func attrSize(abi int) uintptr {
	switch {
	case abi >= 6:
		return 24
	case abi >= 4:
		return 16
	}
	return 8
}

func add(ruleset int, r Rule, known uint64) error {
	fd, err := unix.Open(r.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT && r.Optional {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	access := r.Access & known
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= onFiles
	}
	if access == 0 {
		return nil
	}
	var attr pathBeneathAttr
	*(*uint64)(unsafe.Pointer(&attr[0])) = access
	*(*int32)(unsafe.Pointer(&attr[8])) = int32(fd)
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), ruleTypePathBeneath,
		uintptr(unsafe.Pointer(&attr[0])), 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
