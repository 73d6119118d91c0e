package safefile

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// CheckPeer returns the user that connected the other end of a Unix socket
// (LOCAL_PEERCRED); macOS gives the PID by LOCAL_PEERPID.
func CheckPeer(conn *net.UnixConn) (uid uint32, pid int32, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Xucred
	var peer int
	var serr error
	if err := raw.Control(func(fd uintptr) {
		if cred, serr = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED); serr != nil {
			return
		}
		peer, serr = unix.GetsockoptInt(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERPID)
	}); err != nil {
		return 0, 0, err
	}
	if serr != nil {
		return 0, 0, fmt.Errorf("peer credentials: %w", serr)
	}
	return cred.Uid, int32(peer), nil
}
