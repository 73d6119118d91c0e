package cgroup

import (
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

func identify(pid int) (ProcessIdentity, error) {
	if pid < 1 {
		return ProcessIdentity{}, fail(CodeInvalid, "identify", "pid", nil)
	}
	e := realEnv()
	boot, err := e.bootID()
	if err != nil {
		return ProcessIdentity{}, err
	}
	first, dead, err := e.snapshot(pid, boot)
	if err != nil {
		return ProcessIdentity{}, err
	}
	second, dead2, err := e.snapshot(pid, boot)
	if err != nil {
		return ProcessIdentity{}, err
	}
	if dead || dead2 {
		return ProcessIdentity{}, fail(CodeNotFound, "identify", strconv.Itoa(pid), nil)
	}
	if first != second {
		return ProcessIdentity{}, fail(CodeMismatch, "identify", strconv.Itoa(pid), nil)
	}
	return first, nil
}

func (e *env) bootID() (string, error) {
	const name = "sys/kernel/random/boot_id"
	data, err := e.readProc(name)
	if err != nil {
		return "", fail(CodeIO, "read_boot_id", name, err)
	}
	boot, err := parseBootID(data)
	if err != nil {
		return "", fail(CodeSyntax, "read_boot_id", name, err)
	}
	return boot, nil
}

// snapshot reads an identity once, and whether all of the process's threads have ended.
func (e *env) snapshot(pid int, boot string) (id ProcessIdentity, dead bool, err error) {
	st, err := e.stat(pid)
	if err != nil {
		return id, false, err
	}
	id = ProcessIdentity{Schema: ProcessSchema, PID: pid, BootID: boot, StartTicks: st.start}
	if st.dead() {
		// A zombie's group is not told truthfully, and no longer matters.
		return id, true, nil
	}
	id.Cgroup, err = e.groupOf(pid)
	return id, false, err
}

// dead tells a zombie from a process whose first thread has ended before others.
func (s procStat) dead() bool {
	return s.state == 'X' || s.state == 'x' || s.state == 'Z' && s.threads <= 1
}

func (e *env) stat(pid int) (procStat, error) {
	name := strconv.Itoa(pid) + "/stat"
	data, err := e.readProc(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return procStat{}, fail(CodeNotFound, "read_stat", name, err)
	}
	if err != nil {
		return procStat{}, fail(CodeIO, "read_stat", name, err)
	}
	st, err := parseStat(data)
	if err != nil {
		return procStat{}, fail(CodeSyntax, "read_stat", name, err)
	}
	return st, nil
}

func observe(id ProcessIdentity) (Observation, error) {
	if id.Schema != ProcessSchema || id.PID < 1 || id.PID > 1<<30 {
		return 0, fail(CodeInvalid, "observe", "identity", nil)
	}
	e := realEnv()
	boot, err := e.bootID()
	if err != nil {
		return 0, err
	}
	if boot != id.BootID {
		return Absent, nil
	}
	now, dead, err := e.snapshot(id.PID, boot)
	switch {
	case isNotFound(err):
		return e.confirmAbsent(id.PID)
	case err != nil:
		return 0, err
	case now.StartTicks != id.StartTicks:
		return Mismatch, nil
	case dead:
		return Absent, nil
	case now.Cgroup != id.Cgroup:
		return Mismatch, nil
	}
	return Exact, nil
}

// confirmAbsent asks the kernel as well: procfs mounted with hidepid=2 shows other
// users' processes as missing.
func (e *env) confirmAbsent(pid int) (Observation, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case err == nil:
		unix.Close(fd)
		return Mismatch, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		return Mismatch, nil // the number is a thread's of some process
	case errors.Is(err, unix.ESRCH):
		return Absent, nil
	}
	return 0, fail(CodeIO, "pidfd_open", strconv.Itoa(pid), err)
}
