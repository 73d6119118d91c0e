package escape

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// The answers that are refusals, by what refuses: a mount flag answers EROFS, Landlock and file
// modes EACCES, seccomp and missing capabilities EPERM, a root of the session's own ENOENT.
const (
	notThere = "ENOENT"
	hidden   = "ENOENT EACCES EPERM"
	readOnly = "EROFS EACCES EPERM"
	denied   = "EPERM"
	absent   = "ENOSYS"
)

// fileAttempts reach for files: the host's, gloved's own, another session's, and what was granted
// for reading only.
func fileAttempts() []attempt {
	return []attempt{
		{name: "file: read what anyone on the host may read", refused: notThere,
			act: func(f *facts) error { return reads(f.Secret, f.Text) }},
		{name: "file: climb above the root", refused: notThere,
			act: func(f *facts) error { return reads("/../../../../../.."+f.Secret, f.Text) }},
		{name: "file: read the password hashes", refused: notThere, lacking: notThere,
			act: func(*facts) error { return reads("/etc/shadow", "root:") }},
		{name: "file: list root's home", refused: notThere, act: opens("/root", unix.O_RDONLY|unix.O_DIRECTORY)},
		{name: "file: read gloved's audit key", refused: notThere, act: func(f *facts) error { return reads(f.Key, "") }},
		{name: "file: read the receipt journal", refused: notThere, act: func(f *facts) error { return open(f.Journal, unix.O_RDONLY) }},
		{name: "file: append to the receipt journal", refused: notThere,
			act: func(f *facts) error { return open(f.Journal, unix.O_WRONLY|unix.O_APPEND) }},
		{name: "file: read the session store", refused: notThere, act: func(f *facts) error { return open(f.Store, unix.O_RDONLY) }},
		{name: "file: list the other session's directory", refused: notThere,
			act: func(f *facts) error { return open(f.Other, unix.O_RDONLY|unix.O_DIRECTORY) }},
		{name: "file: list one's own session directory", refused: notThere,
			act: func(f *facts) error { return open(f.own(), unix.O_RDONLY|unix.O_DIRECTORY) }},
		{name: "file: create in /usr", refused: readOnly, act: func(*facts) error { return creates("/usr") }},
		{name: "file: create in /etc", refused: readOnly, act: func(*facts) error { return creates("/etc") }},
		{name: "file: create in the root", refused: readOnly, act: func(*facts) error { return creates("/") }},
		{name: "file: open the executable for writing", refused: readOnly, reached: "success ETXTBSY",
			act: func(f *facts) error { return open(f.Exe, unix.O_WRONLY) }},
		{name: "file: reopen the running program for writing", refused: readOnly, reached: "success ETXTBSY",
			act: opens("/proc/self/exe", unix.O_WRONLY)},
		{name: "file: write a read grant", refused: readOnly, act: func(f *facts) error { return open(f.granted("data"), unix.O_WRONLY) }},
		{name: "file: truncate a read grant", refused: readOnly,
			act: func(f *facts) error { return unix.Truncate(f.granted("data"), int64(len(grantText))) }},
		{name: "file: reopen a granted descriptor for writing", refused: readOnly, act: reopensForWriting},
		{name: "file: create in a read grant", refused: readOnly, act: func(f *facts) error { return creates(f.granted("")) }},
		{name: "file: remove from a read grant", refused: readOnly, act: removesGranted},
		{name: "file: rename in a read grant", refused: readOnly, act: func(f *facts) error { return renames(f.granted("data")) }},
		{name: "file: change a granted file's mode", refused: readOnly,
			act: func(f *facts) error { return unix.Chmod(f.granted("data"), 0o644) }},
		{name: "file: change a granted file's times", refused: readOnly,
			act: func(f *facts) error { return unix.UtimesNanoAt(unix.AT_FDCWD, f.granted("data"), nil, 0) }},
		{name: "file: set an attribute on a granted file", refused: readOnly, lacking: "ENOTSUP EOPNOTSUPP",
			act: func(f *facts) error { return unix.Setxattr(f.granted("data"), "user.glove", []byte("x"), 0) }},
		{name: "file: link a granted file to a writable place", refused: "EXDEV " + readOnly,
			act: func(f *facts) error { return links(f.granted("data"), f.copied("hard")) }},
		{name: "file: map a granted file shared and writable", refused: readOnly, act: mapsShared},
		{name: "file: follow a link out of the copy", refused: notThere,
			act: func(f *facts) error { return reads(f.copied("out"), f.Text) }},
		{name: "file: follow a relative link out of the copy", refused: notThere,
			act: func(f *facts) error { return reads(f.copied("up"), f.Text) }},
		{name: "file: write the original through the copy", refused: "other-content", act: writesOriginal},
		{name: "file: open by handle", refused: denied, lacking: "ENOTSUP EOPNOTSUPP", act: opensByHandle},
		{name: "file: make a device node", refused: "EPERM EACCES", act: makesDevice(unix.S_IFCHR, unix.Mkdev(1, 1))},
		{name: "file: make the disk's device node", refused: "EPERM EACCES", act: makesDevice(unix.S_IFBLK, unix.Mkdev(7, 0))},
		{name: "file: give a file to root", refused: "EPERM EINVAL", act: givesAway},
	}
}

// grantText is in every granted file.
const grantText = "granted for reading\n"

const scrap = ".glove-escape-scrap"

// creates makes a file and removes it.
func creates(dir string) error {
	path := filepath.Join(dir, scrap)
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	unix.Close(fd)
	return unix.Unlink(path)
}

func removesGranted(f *facts) error {
	path := f.granted("spare")
	if err := unix.Unlink(path); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(grantText), 0o644)
}

func renames(path string) error {
	if err := unix.Rename(path, path+scrap); err != nil {
		return err
	}
	return unix.Rename(path+scrap, path)
}

func links(from, to string) error {
	if err := unix.Link(from, to); err != nil {
		return err
	}
	return unix.Unlink(to)
}

func reopensForWriting(f *facts) error {
	fd, err := unix.Open(f.granted("data"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return said("unreadable:" + answer(err))
	}
	defer unix.Close(fd)
	return open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY)
}

func mapsShared(f *facts) error {
	fd, err := unix.Open(f.granted("data"), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, len(grantText), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return unix.Munmap(m)
}

// writesOriginal writes to the copy, with success, and looks whether that is what it wrote to. The
// attacker has no way to see the original; the host looks again when the session is over.
func writesOriginal(f *facts) error {
	path := f.copied("data")
	if err := os.WriteFile(path, []byte("changed\n"), 0o644); err != nil {
		return err
	}
	if f.Outside {
		return os.WriteFile(path, []byte(grantText), 0o644)
	}
	return said("other-content")
}

func opensByHandle(f *facts) error {
	h, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, f.granted("data"), 0)
	if err != nil {
		return err
	}
	_ = mount
	dir, err := unix.Open(f.granted(""), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return said("unreadable:" + answer(err))
	}
	defer unix.Close(dir)
	fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func makesDevice(kind uint32, number uint64) func(*facts) error {
	return func(f *facts) error {
		path := f.copied("node")
		if err := unix.Mknod(path, kind|0o600, int(number)); err != nil {
			return err
		}
		return unix.Unlink(path)
	}
}

func givesAway(f *facts) error {
	path := f.copied("data")
	if err := unix.Lchown(path, 4242, 4242); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(f.Work, &st); err != nil {
		return err
	}
	return unix.Lchown(path, int(st.Uid), int(st.Gid))
}

// kernelFileAttempts reach for the kernel through files.
func kernelFileAttempts() []attempt {
	const masked = "empty " + hidden
	rows := []attempt{
		{name: "proc: enter init's root", refused: hidden, act: func(f *facts) error { return opens(procOf(f, "root"), unix.O_RDONLY)(f) }},
		{name: "proc: read init's environment", refused: hidden, act: func(f *facts) error { return reads(procOf(f, "environ"), "") }},
		{name: "proc: open init's memory", refused: hidden, act: func(f *facts) error { return open(procOf(f, "mem"), unix.O_RDWR) }},
		{name: "proc: list init's descriptors", refused: hidden, act: func(f *facts) error { return lists(procOf(f, "fd")) }},
		{name: "proc: open gloved's program through init", refused: hidden, reached: "success ETXTBSY",
			act: func(f *facts) error { return open(procOf(f, "exe"), unix.O_WRONLY) }},
		{name: "proc: take the core pattern", refused: readOnly, act: func(*facts) error { return rewrites("/proc/sys/kernel/core_pattern") }},
		{name: "proc: take the module loader", refused: readOnly + " " + notThere, lacking: notThere,
			act: func(*facts) error { return rewrites("/proc/sys/kernel/modprobe") }},
		{name: "proc: change a sysctl", refused: readOnly, act: func(*facts) error { return rewrites("/proc/sys/kernel/randomize_va_space") }},
		{name: "proc: set triggers on the host's pressure", refused: readOnly + " " + notThere, lacking: notThere + " EOPNOTSUPP",
			act: opens("/proc/pressure/memory", unix.O_RDWR)},
		{name: "proc: trigger sysrq", refused: readOnly + " " + notThere, lacking: notThere, act: opens("/proc/sysrq-trigger", unix.O_WRONLY)},
		{name: "proc: read kernel memory", refused: masked, lacking: "ENOENT EPERM", act: func(*facts) error { return reads("/proc/kcore", "") }},
		{name: "proc: read kernel symbols", refused: masked, lacking: notThere, act: func(*facts) error { return reads("/proc/kallsyms", "") }},
		{name: "proc: read the kernel's log", refused: masked, reached: "success EAGAIN", lacking: notThere,
			act: func(*facts) error { return reads("/proc/kmsg", "") }},
		{name: "proc: read the interrupts", refused: masked, lacking: notThere, act: func(*facts) error { return reads("/proc/interrupts", "") }},
		{name: "proc: read the keys", refused: masked, lacking: "ENOENT empty", act: func(*facts) error { return reads("/proc/keys", "") }},
		{name: "proc: see the host's mounts", refused: "nothing", act: seesMounts},
		{name: "proc: see the host's control groups", refused: "nothing", lacking: "nothing", act: seesGroups},
		{name: "proc: exempt oneself from the memory killer", refused: readOnly, lacking: "EACCES", act: func(*facts) error {
			return writes("/proc/self/oom_score_adj", "-1")
		}},
		{name: "proc: map one's own root user", refused: readOnly, act: mapsRoot},
		{name: "dev: use up the host's terminals", refused: "ENOSPC", act: func(*facts) error { return terminals(300) }},
		{name: "sys: look into /sys", refused: notThere, act: opens("/sys/kernel", unix.O_RDONLY)},
		{name: "sys: write to the control groups", refused: hidden, act: makesGroup},
		{name: "sys: reach firmware and debugging", refused: notThere, act: opens("/sys/fs", unix.O_RDONLY)},
	}
	for _, name := range []string{"mem", "kmsg", "port", "loop-control", "fuse", "kvm", "net/tun", "console", "vsock", "uinput", "mapper/control"} {
		rows = append(rows, attempt{name: "dev: open /dev/" + name, refused: notThere, lacking: "ENOENT ENODEV EPERM ENXIO EIO",
			act: opens("/dev/"+name, unix.O_RDONLY)})
	}
	return rows
}

// procOf is an entry of pid 1 inside and, outside, of the other session's harness: the same thing
// seen by one who may.
func procOf(f *facts, name string) string {
	if f.Outside {
		return fmt.Sprintf("/proc/%d/%s", f.Harness, name)
	}
	return "/proc/1/" + name
}

func lists(dir string) error {
	names, err := os.ReadDir(dir)
	if err == nil && len(names) == 0 {
		return said("empty")
	}
	return err
}

// rewrites writes to a file what it holds already.
func rewrites(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return writes(path, string(bytes.TrimSpace(old)))
}

func writes(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// seesMounts succeeds if a directory of the host shows in the mount table: those of gloved's world
// or of the test's own making, or the host's root by way of a mount's source.
func seesMounts(f *facts) error {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if point := fields[4]; point == "/sys" || point == "/root" || point == "/boot" || point == "/run" || f.Outside && point == "/" {
			return nil
		}
	}
	return said("nothing")
}

func seesGroups(*facts) error {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		// Seen from the root of a namespace of its own, a process is at "/".
		if fields := strings.SplitN(strings.TrimSpace(line), ":", 3); len(fields) == 3 && fields[2] != "/" {
			return nil
		}
	}
	return said("nothing")
}

func mapsRoot(f *facts) error {
	if f.Outside {
		return again(newUser(), roleNothing)
	}
	return writes("/proc/self/uid_map", "0 1000 1")
}

func makesGroup(*facts) error {
	const v1, v2 = "/sys/fs/cgroup/pids/" + scrap, "/sys/fs/cgroup/" + scrap
	for _, dir := range []string{v1, v2} {
		err := unix.Mkdir(dir, 0o700)
		if err == nil {
			return unix.Rmdir(dir)
		}
		if dir == v2 {
			return err
		}
	}
	return nil
}

// terminals opens that many at once.
func terminals(n int) error {
	for range n {
		fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
	}
	return nil
}
