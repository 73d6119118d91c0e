package seccomp

import "golang.org/x/sys/unix"

// auditArch is AUDIT_ARCH_X86_64, the value of seccomp_data.arch for this binary.
const auditArch = unix.AUDIT_ARCH_X86_64

// native are the calls only this architecture has, admitted likewise.
var native = []uint32{
	unix.SYS_ACCESS, unix.SYS_ALARM, unix.SYS_CHMOD, unix.SYS_CHOWN, unix.SYS_CREAT, unix.SYS_DUP2,
	unix.SYS_EPOLL_CREATE, unix.SYS_EPOLL_WAIT, unix.SYS_EVENTFD, unix.SYS_FORK, unix.SYS_FUTIMESAT,
	unix.SYS_GETDENTS, unix.SYS_GETPGRP, unix.SYS_INOTIFY_INIT, unix.SYS_LCHOWN, unix.SYS_LINK, unix.SYS_LSTAT,
	unix.SYS_MKDIR, unix.SYS_MKNOD, unix.SYS_OPEN, unix.SYS_PAUSE, unix.SYS_PIPE, unix.SYS_POLL,
	unix.SYS_READLINK, unix.SYS_RENAME, unix.SYS_RMDIR, unix.SYS_SELECT, unix.SYS_SIGNALFD, unix.SYS_STAT,
	unix.SYS_SYMLINK, unix.SYS_TIME, unix.SYS_UNLINK, unix.SYS_URETPROBE, unix.SYS_UTIME, unix.SYS_UTIMES,
	unix.SYS_VFORK, unix.SYS_ARCH_PRCTL,
}
