package escape

import (
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// mountAttempts change what is mounted where. Their controls run in a mount namespace of their
// own, so that nothing is seen on the host.
func mountAttempts() []attempt {
	return []attempt{
		{name: "mount: put a filesystem over /etc", refused: denied, act: func(*facts) error { return unix.Mount("none", "/etc", "tmpfs", 0, "") }},
		{name: "mount: bind the root elsewhere", refused: denied, act: func(*facts) error { return unix.Mount("/", "/tmp", "", unix.MS_BIND, "") }},
		{name: "mount: make /usr writable again", refused: denied, act: func(*facts) error {
			if err := unix.Mount("/usr", "/usr", "", unix.MS_BIND, ""); err != nil {
				return err
			}
			return unix.Mount("", "/usr", "", unix.MS_REMOUNT|unix.MS_BIND, "")
		}},
		{name: "mount: make a read grant writable again", refused: denied, act: func(f *facts) error {
			if f.Outside {
				if err := unix.Mount(f.Grant, f.Grant, "", unix.MS_BIND, ""); err != nil {
					return err
				}
			}
			return unix.Mount("", f.granted(""), "", unix.MS_REMOUNT|unix.MS_BIND, "")
		}},
		{name: "mount: a second /proc", refused: denied, act: func(*facts) error { return unix.Mount("proc", "/tmp", "proc", 0, "") }},
		{name: "mount: the control groups", refused: denied, reached: "success EBUSY",
			act: func(*facts) error { return unix.Mount("none", "/tmp", "cgroup2", 0, "") }},
		{name: "mount: take the masks off /proc", refused: denied, act: func(*facts) error { return unix.Unmount("/proc", unix.MNT_DETACH) }},
		{name: "mount: propagate", refused: denied, act: func(*facts) error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
		{name: "mount: a filesystem by descriptor", refused: denied, act: func(*facts) error {
			fd, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "mount: clone a tree", refused: denied, act: func(*facts) error {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "mount: open a tree without cloning", refused: denied, act: func(*facts) error {
			fd, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "mount: change a mount's flags", refused: denied, act: func(*facts) error {
			return unix.MountSetattr(unix.AT_FDCWD, "/", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NODEV})
		}},
		{name: "mount: reconfigure a filesystem", refused: denied, act: func(*facts) error {
			fd, err := unix.Fspick(unix.AT_FDCWD, "/dev", unix.FSPICK_CLOEXEC)
			if err != nil {
				return err
			}
			return unix.Close(fd)
		}},
		{name: "mount: another root by pivot_root", refused: denied, act: pivots},
		{name: "mount: another root by chroot", refused: denied, act: func(*facts) error { return unix.Chroot("/usr") }},
		{name: "mount: move a mount point away", refused: "EBUSY " + readOnly, act: movesMountPoint},
		{name: "mount: leave by a descriptor of the old root", refused: "nothing", act: leaves},
	}
}

func newUser() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}}
}

func pivots(*facts) error {
	if err := unix.Mount("none", "/tmp", "tmpfs", 0, ""); err != nil && err != unix.EPERM {
		return err
	}
	if err := unix.Chdir("/tmp"); err != nil {
		return err
	}
	return unix.PivotRoot(".", ".")
}

// movesMountPoint renames the directory a grant hangs on, to put another in its place.
func movesMountPoint(f *facts) error {
	from := f.granted("")
	to := strings.TrimSuffix(from, "/") + scrap
	if err := unix.Rename(from, to); err != nil {
		return err
	}
	return unix.Rename(to, from)
}

// leaves looks for a descriptor of a directory that was left open: outside, one is given to it.
func leaves(f *facts) error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, n := range names {
		var st unix.Stat_t
		if unix.Stat("/proc/self/fd/"+n.Name()+"/.", &st) != nil {
			continue // not a directory
		}
		if to, err := os.Readlink("/proc/self/fd/" + n.Name()); err == nil && to != "/proc/"+selfDir()+"/fd" {
			return nil
		}
	}
	return said("nothing")
}

func selfDir() string { s, _ := os.Readlink("/proc/self"); return s }
