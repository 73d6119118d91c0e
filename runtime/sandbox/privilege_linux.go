package sandbox

import (
	"golang.org/x/sys/unix"
)

// lockedBits are the secure bits of everything inside: uid 0 means nothing, a change
// of uid changes no capability, nothing is kept over one, no ambient capability can
// be raised, and none of this can be undone (linux/securebits.h).
const lockedBits = secNoRoot | secNoRoot<<1 | secNoFixup | secNoFixup<<1 | secKeepCaps<<1 |
	secNoAmbient | secNoAmbient<<1

const (
	secNoRoot    = 1 << 0 // SECBIT_NOROOT; each bit's lock is the next bit
	secNoFixup   = 1 << 2 // SECBIT_NO_SETUID_FIXUP
	secKeepCaps  = 1 << 4 // SECBIT_KEEP_CAPS
	secNoAmbient = 1 << 6 // SECBIT_NO_CAP_AMBIENT_RAISE
)

// dropAll takes every privilege from the calling thread for good: secure bits,
// bounding set, ambient set, then all capability sets, and no_new_privs. The thread
// must be locked, and must be the one that executes: its credentials, and nobody
// else's, are what the new program has.
func dropAll() error {
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, lockedBits, 0, 0, 0); err != nil {
		return at("secure bits", err)
	}
	for c := uintptr(0); ; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL && c > unix.CAP_SYS_ADMIN {
			break // one past the last capability this kernel has
		}
		if err != nil {
			return at("bounding set", err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return at("ambient set", err)
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		return at("capability sets", err)
	}
	return at("no_new_privs", unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
}
