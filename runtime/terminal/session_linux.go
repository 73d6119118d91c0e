package terminal

import (
	"errors"

	"golang.org/x/sys/unix"
)

// inSession says whether the process group really is one of the terminal's
// session. A session's number stays taken while its leader lives, and once the
// leader is gone the terminal has no session; a group's number stays taken
// while it has a member, though its leader may be gone (ESRCH).
func inSession(master, group int) bool {
	session, err := unix.IoctlGetInt(master, unix.TIOCGSID)
	if err != nil || session <= 1 {
		return false
	}
	of, err := unix.Getsid(group)
	return errors.Is(err, unix.ESRCH) || err == nil && of == session
}
