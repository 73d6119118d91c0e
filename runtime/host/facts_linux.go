package host

import (
	"os"

	"golang.org/x/sys/unix"
)

// facts is what was found out about this machine. Judging is separate (judge), so
// that every combination can be tested without the machine that has it.
type facts struct {
	kernel string // release, for messages
	root   bool   // effective uid 0

	// namespaces holds the outcome of making a user namespace with each of the others
	// in it and using a privilege there; nil is success.
	userNS, pidNS, mountNS, netNS, otherNS error
	sysctl                                 sysctls

	cgroup          error // of cgroup.Detect
	cgroupMechanism string
	cgroupBase      string

	seccompFilter  error
	seccompActions []string // missing of those needed

	landlockABI int
	landlockErr error

	mountAPI map[string]error // per system call, nil if there

	pidfd, memfd, openat2, pty error

	loop error
	mkfs error
	ssh  error
}

// sysctls are the settings that commonly forbid namespaces; empty when absent.
type sysctls struct {
	userNSClone  string // kernel.unprivileged_userns_clone (Debian's patch)
	maxUserNS    string // user.max_user_namespaces
	apparmorUser string // kernel.apparmor_restrict_unprivileged_userns (Ubuntu 23.10)
	memfdNoexec  string // vm.memfd_noexec (Linux 6.3)
	inAContainer bool   // a container runtime left its mark
	underSystemd bool   // systemd is the service manager
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
