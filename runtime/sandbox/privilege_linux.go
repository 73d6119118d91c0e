package sandbox

import (
	"errors"
	"syscall"
	"unsafe"

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

// scope makes a raw system call on one thread or on all of the process.
type scope func(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno)

// thisThread is for a thread that is about to execute: its credentials, and no
// other thread's, are what the new program has. It must be locked.
func thisThread(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2 uintptr, err syscall.Errno) {
	return syscall.RawSyscall6(trap, a1, a2, a3, a4, a5, a6)
}

// noCaps are the arguments of capset(2); package-level, so that their addresses
// stay put while several threads use them.
var (
	noCapsHead = unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	noCaps     [2]unix.CapUserData
)

// dropAll takes every privilege for good: secure bits, bounding set, ambient set,
// then all capability sets, and sets no_new_privs.
func dropAll(on scope) error {
	prctl := func(what string, args ...uintptr) error {
		var a [5]uintptr
		copy(a[:], args)
		if _, _, errno := on(unix.SYS_PRCTL, a[0], a[1], a[2], a[3], a[4], 0); errno != 0 {
			return at(what, errno)
		}
		return nil
	}
	if err := prctl("secure bits", unix.PR_SET_SECUREBITS, lockedBits); err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		// Asking first: a call that fails on all threads is the scope's to report.
		_, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_SYS_ADMIN {
			break // one past the last capability this kernel has
		}
		if err == nil {
			err = prctl("bounding set", unix.PR_CAPBSET_DROP, c)
		}
		if err != nil {
			return at("bounding set", err)
		}
	}
	if err := prctl("ambient set", unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return err
	}
	head, data := uintptr(unsafe.Pointer(&noCapsHead)), uintptr(unsafe.Pointer(&noCaps[0]))
	if _, _, errno := on(unix.SYS_CAPSET, head, data, 0, 0, 0, 0); errno != 0 {
		return at("capability sets", errno)
	}
	return prctl("no_new_privs", unix.PR_SET_NO_NEW_PRIVS, 1)
}
