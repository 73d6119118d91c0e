package monitor

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"gloved.dev/runtime/sandbox"
)

// holderName is the argv[0] of a process that does nothing but be in a user
// namespace until its standard input ends.
const holderName = "gloved-namespace"

func holdNamespace() { _, _ = io.Copy(io.Discard, os.Stdin) }

// mapOwner makes a detached mount show what uid and gid own as owned by the
// session's host user, by an ID-mapped mount (MOUNT_ATTR_IDMAP: Linux 5.12;
// which filesystems can differs by version). What others own shows as nobody's
// and keeps the permissions everybody has.
func mapOwner(mount *os.File, uid, gid, sessionUID, sessionGID uint32) error {
	ns, err := userNamespace(
		syscall.SysProcIDMap{ContainerID: int(uid), HostID: int(sessionUID), Size: 1},
		syscall.SysProcIDMap{ContainerID: int(gid), HostID: int(sessionGID), Size: 1})
	if err != nil {
		return err
	}
	defer ns.Close()
	conn, err := mount.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) {
		failed = unix.MountSetattr(int(fd), "", unix.AT_EMPTY_PATH,
			&unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	}); err != nil {
		return err
	}
	return os.NewSyscallError("mount_setattr", failed)
}

// userNamespace returns a user namespace with these maps. A process has to be
// born into it; it is gone when this returns.
func userNamespace(uids, gids syscall.SysProcIDMap) (_ *os.File, err error) {
	exe, err := sandbox.SealedExe()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", exe.Fd()), Args: []string{holderName}, Dir: "/", Env: []string{"GOMAXPROCS=1"},
		SysProcAttr: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{uids}, GidMappings: []syscall.SysProcIDMap{gids},
		},
	}
	until, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		until.Close()
		_ = cmd.Wait() // it says nothing
	}()
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
}
