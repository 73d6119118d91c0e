package host

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"gloved.dev/runtime/cgroup"
	"golang.org/x/sys/unix"
)

// maxSysctl bounds what is read of one setting, in bytes.
const maxSysctl = 4096

func checks(ctx context.Context) []Check {
	f := facts{kernel: release(), root: os.Geteuid() == 0, sysctl: readSysctls()}
	for _, step := range []func(*facts){
		gatherNamespaces, gatherCgroup, gatherSeccomp, gatherLandlock, gatherMountAPI, gatherFiles, gatherTools,
	} {
		if err := ctx.Err(); err != nil {
			return []Check{{CodePlatform, Failed, "checking was interrupted: " + err.Error(), "glove doctor"}}
		}
		step(&f)
	}
	return judge(f)
}

func sysctl(name string) string {
	f, err := os.Open("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSysctl))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func readSysctls() sysctls {
	return sysctls{
		userNSClone:  sysctl("kernel/unprivileged_userns_clone"),
		maxUserNS:    sysctl("user/max_user_namespaces"),
		apparmorUser: sysctl("kernel/apparmor_restrict_unprivileged_userns"),
		memfdNoexec:  sysctl("vm/memfd_noexec"),
		inAContainer: exists("/.dockerenv") || exists("/run/.containerenv"),
		underSystemd: exists("/run/systemd/system"),
	}
}

// gatherNamespaces makes each namespace the sandbox uses.
func gatherNamespaces(f *facts) {
	f.userNS = tryNamespace(0, true)
	f.pidNS = tryNamespace(unix.CLONE_NEWPID, false)
	f.mountNS = tryNamespace(unix.CLONE_NEWNS, false)
	f.netNS = tryNamespace(unix.CLONE_NEWNET, false)
	f.otherNS = tryNamespace(unix.CLONE_NEWIPC|unix.CLONE_NEWUTS|unix.CLONE_NEWCGROUP, false)
}

// tryNamespace clones a child into a new user namespace together with others, maps
// our ids, and, with privilege, has the child change its root to "/", which is
// harmless and needs a capability: AppArmor lets a restricted program make the
// namespace and then withholds every capability in it. CLONE_NEWNS makes the
// child also mark its mounts private, which needs CAP_SYS_ADMIN.
//
// No program is run, so that nothing need cooperate: the child's last step is to
// execute the empty path, and the kernel's answer to that, ENOENT, says that all the
// steps before it worked.
func tryNamespace(others uintptr, privilege bool) error {
	if !exists("/proc/self/uid_map") {
		// Without it mapping our ids would fail with the same ENOENT.
		return errors.New("/proc is not mounted or shows no uid_map")
	}
	attr := &syscall.ProcAttr{
		Files: []uintptr{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | others&^unix.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		},
	}
	if others&unix.CLONE_NEWNS != 0 {
		attr.Sys.Unshareflags = unix.CLONE_NEWNS
	}
	if privilege {
		attr.Sys.Chroot = "/"
	}
	pid, err := syscall.ForkExec("", nil, attr)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return err
	}
	// Nothing can be executed under the empty name; if a kernel did, it is not
	// one whose answers can be trusted.
	_ = unix.Kill(pid, unix.SIGKILL)
	_, _ = unix.Wait4(pid, nil, 0, nil)
	return errors.New("an empty path was executed")
}

func gatherCgroup(f *facts) {
	h, err := cgroup.Detect()
	if err != nil {
		f.cgroup = err
		return
	}
	f.cgroupMechanism, f.cgroupBase = h.Mechanism(), h.Base()
	f.cgroup = h.Close()
}

// seccompNeeded are the filter actions the sandbox uses, by their names in
// kernel.seccomp.actions_avail and numbers in <linux/seccomp.h>.
var seccompNeeded = []struct {
	name   string
	action uint32
}{
	{"kill_process", 0x80000000},
	{"errno", 0x00050000},
	{"allow", 0x7fff0000},
}

const (
	seccompGetActionAvail = 2 // SECCOMP_GET_ACTION_AVAIL, Linux 4.14
	seccompModeFilter     = 2
)

// gatherSeccomp offers the kernel a filter at address 0: it refuses the address if it
// has filters and the mode if it has not.
func gatherSeccomp(f *facts) {
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, seccompModeFilter, 0, 0, 0, 0)
	if errno != unix.EFAULT {
		f.seccompFilter = errno
	}
	for _, a := range seccompNeeded {
		v := a.action
		_, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompGetActionAvail, 0, uintptr(unsafe.Pointer(&v)))
		if errno != 0 {
			f.seccompActions = append(f.seccompActions, a.name)
		}
	}
}

// gatherLandlock asks for the ABI (landlock_create_ruleset with
// LANDLOCK_CREATE_RULESET_VERSION, landlock(7)).
func gatherLandlock(f *facts) {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		f.landlockErr = errno
		return
	}
	f.landlockABI = int(abi)
}

// gatherMountAPI calls each system call in a way that cannot succeed or has no effect;
// only the answer that there is no such call counts as missing.
func gatherMountAPI(f *facts) {
	none := ^uintptr(0) // descriptor -1
	empty := []byte{0}
	p := uintptr(unsafe.Pointer(&empty[0]))
	try := func(nr uintptr, a ...uintptr) error {
		a = append(a, make([]uintptr, 6-len(a))...)
		_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno == unix.ENOSYS {
			return errno
		}
		return nil
	}
	f.mountAPI = map[string]error{
		"open_tree":     try(unix.SYS_OPEN_TREE, none, p, 0),
		"move_mount":    try(unix.SYS_MOVE_MOUNT, none, p, none, p, 0),
		"fsopen":        try(unix.SYS_FSOPEN, 0, 0),
		"fsconfig":      try(unix.SYS_FSCONFIG, none, 0, 0, 0, 0),
		"fsmount":       try(unix.SYS_FSMOUNT, none, 0, 0),
		"mount_setattr": try(unix.SYS_MOUNT_SETATTR, none, p, 0, 0, 0),
	}
}

func gatherFiles(f *facts) {
	f.pidfd = tryPidfd()
	f.memfd = tryMemfd()
	f.openat2 = tryOpenat2()
	f.pty = tryPTY()
}

func tryPidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// Signal 0 is only a check.
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

// tryMemfd makes what the sealed copy of our executable needs: sealing, and leave to
// execute it where Linux 6.3 makes that a question.
func tryMemfd() error {
	fd, err := unix.MemfdCreate("glove-check", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("glove-check", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS,
		unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	return err
}

func tryOpenat2() error {
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// tryPTY opens a master, unlocks it and opens its peer.
func tryPTY() error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return err
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER,
		unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(peer))
}

// mkfsPlaces are the only paths the program is taken from.
var mkfsPlaces = []string{"/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"}

func gatherTools(f *facts) {
	f.loop = tryLoop()
	f.mkfs = tryMkfs(mkfsPlaces)
	_, f.ssh = exec.LookPath("ssh")
}

func tryLoop() error {
	fd, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// errUntrusted says that a program could have been written by others than root.
var errUntrusted = errors.New("not a regular file of root's that only root can write")

// tryMkfs looks at the file behind the name, as distributions link it to mke2fs.
func tryMkfs(places []string) error {
	i := slices.IndexFunc(places, exists)
	if i < 0 {
		return fs.ErrNotExist
	}
	var st unix.Stat_t
	if err := unix.Stat(places[i], &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != 0 || st.Mode&0o022 != 0 || st.Mode&0o111 == 0 {
		return errUntrusted
	}
	return nil
}
