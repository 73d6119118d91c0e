package cgroup

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// killer ends the members of a group without the kernel's help.
type killer struct {
	e      *env
	dirs   []*dir                  // every hierarchy's directory of the group
	member func([]membership) bool // is a process with these memberships ours?
	freeze func()                  // stop members from forking, best effort
	thaw   func()                  // let them run again, or they could not die
}

// run makes passes until no member is left or KillBound has passed. At the bound
// it succeeds if every member has been signalled: one in uninterruptible sleep
// dies when it wakes, and waiting for it is Destroy's business.
func (k *killer) run() error {
	end := time.Now().Add(KillBound)
	for {
		left, err := k.pass()
		if left == 0 && err == nil {
			return nil
		}
		if time.Now().After(end) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// pass signals every member once and returns how many there were.
func (k *killer) pass() (left int, err error) {
	if pids, err := k.pids(); err == nil && len(pids) == 0 {
		return 0, nil // nobody is left who could fork
	}
	k.freeze()
	defer k.thaw()
	pids, err := k.pids()
	if err != nil {
		return 0, fail(CodeIO, "kill", "cgroup.procs", err)
	}
	for _, pid := range pids {
		err = errors.Join(err, k.one(pid))
	}
	return len(pids), err
}

func (k *killer) pids() ([]int, error) {
	var all []int
	for _, d := range k.dirs {
		pids, err := d.pids()
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// one signals a process that is still a member once we hold it. The order matters:
// after the pidfd is open, a PID reused by a stranger either fails the check, or
// the check saw the stranger and the signal goes to the dead process.
func (k *killer) one(pid int) error {
	if pid == 0 {
		// In a PID namespace we cannot see into.
		return fail(CodeIO, "kill", "pid 0", unix.ESRCH)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil // gone, or the number is a thread's by now
	}
	if err != nil {
		return fail(CodeIO, "pidfd_open", strconv.Itoa(pid), err)
	}
	defer unix.Close(fd)
	ms, err := k.e.membership(pid)
	if isNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !k.member(ms) {
		return nil // exiting, or not ours
	}
	err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fail(CodeIO, "kill", strconv.Itoa(pid), err)
	}
	return nil
}
