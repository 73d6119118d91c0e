package monitor

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// watchWall calls expired once when d has passed on the boot-time clock, which
// goes on while the machine sleeps: a suspended host gives nobody extra time.
// (timerfd with CLOCK_BOOTTIME: Linux 3.15.)
func watchWall(d time.Duration, expired func()) (stop func(), err error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	// A zero value would disarm the timer.
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(d.Nanoseconds(), 1))}
	if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("timerfd_settime", err)
	}
	timer := os.NewFile(uintptr(fd), "wall clock")
	go func() {
		var ticks [8]byte
		if _, err := timer.Read(ticks[:]); err == nil {
			expired()
		}
	}()
	return func() { timer.Close() }, nil
}
