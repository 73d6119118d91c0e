package safefile

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// CheckPeer returns the user and process that connected the other end of a
// Unix socket, as the kernel recorded them at connect time (SO_PEERCRED). The
// PID is for diagnostics only: it may have been reused since.
func CheckPeer(conn *net.UnixConn) (uid uint32, pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) {
		cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, 0, err
	}
	if serr != nil {
		return 0, 0, fmt.Errorf("peer credentials: %w", serr)
	}
	return cred.Uid, cred.Pid, nil
}
