package host

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"gloved.dev/runtime/cgroup"
	"golang.org/x/sys/unix"
)

const (
	fixKernel    = "install a Linux kernel of version 5.14 or later"
	fixContainer = "outside a container, or start the container with: --security-opt seccomp=unconfined --security-opt apparmor=unconfined --cap-add SYS_ADMIN"
)

// judge turns facts into checks. It has no side effects.
func judge(f facts) []Check {
	return []Check{
		pass(CodePlatform, "Linux %s", f.kernel),
		judgeUserNS(f),
		judgeNS(f, CodePIDNamespaces, "PID", f.pidNS),
		judgeNS(f, CodeMountNamespaces, "mount", f.mountNS),
		judgeNS(f, CodeNetworkNamespaces, "network", f.netNS),
		judgeNS(f, CodeOtherNamespaces, "IPC, UTS and cgroup", f.otherNS),
		judgeCgroup(f),
		judgeSeccomp(f),
		judgeLandlock(f),
		judgeMountAPI(f),
		judgeCall(f, CodePidfd, "process descriptors (pidfd, Linux 5.3)", f.pidfd),
		judgeMemfd(f),
		judgeCall(f, CodeOpenat2, "safe path resolution (openat2, Linux 5.6)", f.openat2),
		judgePTY(f),
		judgeRetained(f),
		judgeSSH(f),
	}
}

// judgeUserNS finds which of the known switches is to blame, most specific first.
func judgeUserNS(f facts) Check {
	if f.userNS == nil {
		return pass(CodeUserNamespaces, "user namespaces can be made and used")
	}
	c := Check{Code: CodeUserNamespaces, Status: Failed, Message: "no user namespace can be used: " + f.userNS.Error()}
	switch s := f.sysctl; {
	case s.maxUserNS == "0":
		c.Message += " (user.max_user_namespaces is 0)"
		c.Recovery = "sudo sysctl -w user.max_user_namespaces=15000"
	case !f.root && s.userNSClone == "0":
		c.Message += " (kernel.unprivileged_userns_clone is 0)"
		c.Recovery = "sudo sysctl -w kernel.unprivileged_userns_clone=1"
	case !f.root && s.apparmorUser == "1":
		c.Message += " (AppArmor restricts unprivileged user namespaces)"
		c.Recovery = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	case errors.Is(f.userNS, unix.ENOSPC):
		c.Message += " (too many exist, or they are nested too deeply)"
		c.Recovery = "sudo sysctl -w user.max_user_namespaces=15000"
	case errors.Is(f.userNS, unix.EINVAL), errors.Is(f.userNS, unix.ENOSYS):
		c.Recovery = "use a kernel built with CONFIG_USER_NS=y"
	case s.inAContainer:
		c.Recovery = "run " + fixContainer
	default:
		c.Recovery = "run outside a container or chroot, or as root"
	}
	return c
}

// judgeNS judges a namespace made inside a user namespace.
func judgeNS(f facts, code, name string, err error) Check {
	switch {
	case err == nil:
		return pass(code, "%s namespaces can be made", name)
	case f.userNS != nil:
		return Check{code, Failed, name + " namespaces need a user namespace first",
			"see " + CodeUserNamespaces}
	}
	c := Check{Code: code, Status: Failed, Message: "no " + name + " namespace can be made: " + err.Error()}
	switch {
	case errors.Is(err, unix.ENOSPC):
		c.Recovery = "raise the limit: sudo sysctl -w user.max_" + sysctlName(code) + "_namespaces=15000"
	case errors.Is(err, unix.EINVAL):
		c.Recovery = fixKernel + ", built with CONFIG_NAMESPACES=y and every kind below it"
	case f.sysctl.inAContainer:
		c.Recovery = "run " + fixContainer
	case !f.root && f.sysctl.apparmorUser == "1":
		c.Recovery = "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
	default:
		c.Recovery = "run outside a container or chroot, or as root"
	}
	return c
}

func sysctlName(code string) string {
	switch code {
	case CodePIDNamespaces:
		return "pid"
	case CodeMountNamespaces:
		return "mnt"
	case CodeNetworkNamespaces:
		return "net"
	}
	return "ipc"
}

// judgeCgroup passes on the remedy that goes with the failure.
func judgeCgroup(f facts) Check {
	if f.cgroup == nil {
		return pass(CodeCgroups, "limits go through %s below %s", f.cgroupMechanism, f.cgroupBase)
	}
	c := Check{Code: CodeCgroups, Status: Failed, Message: f.cgroup.Error()}
	var typed *cgroup.Error
	if errors.As(f.cgroup, &typed) {
		short := *typed
		short.Fix = "" // said in Recovery
		c.Message, c.Recovery = short.Error(), typed.Fix
	}
	if c.Recovery == "" {
		c.Recovery = "mount -t cgroup2 cgroup2 /sys/fs/cgroup, or run as root"
	}
	if typed != nil && !f.root && f.sysctl.underSystemd &&
		(typed.Code == cgroup.CodeNotDelegated || typed.Code == cgroup.CodeBusy) {
		c.Recovery = "systemd-run --user --scope -p Delegate=yes glove run -- COMMAND; for a service that outlives the login: loginctl enable-linger"
	}
	return c
}

func judgeSeccomp(f facts) Check {
	switch {
	case f.seccompFilter != nil:
		return Check{CodeSeccomp, Failed, "system call filters are not available: " + f.seccompFilter.Error(),
			"use a kernel built with CONFIG_SECCOMP_FILTER=y"}
	case len(f.seccompActions) > 0:
		return Check{CodeSeccomp, Failed, "filter actions are missing: " + strings.Join(f.seccompActions, ", "), fixKernel}
	}
	return pass(CodeSeccomp, "system call filters with the needed actions are available")
}

// judgeLandlock warns only: it is the second of two layers, and the receipt says
// which were in force.
func judgeLandlock(f facts) Check {
	switch {
	case errors.Is(f.landlockErr, unix.EOPNOTSUPP):
		return Check{CodeLandlock, Warning, "Landlock is built in but not enabled; sessions have one file layer instead of two",
			"add landlock to the boot parameter: lsm=landlock,$(cat /sys/kernel/security/lsm)"}
	case f.landlockErr != nil:
		return Check{CodeLandlock, Warning, "Landlock is not available (" + f.landlockErr.Error() + "); sessions have one file layer instead of two",
			"use a kernel of version 5.13 or later built with CONFIG_SECURITY_LANDLOCK=y"}
	}
	return pass(CodeLandlock, "Landlock ABI %d", f.landlockABI)
}

func judgeMountAPI(f facts) Check {
	var missing []string
	for name, err := range f.mountAPI {
		if err != nil {
			missing = append(missing, name)
		}
	}
	slices.Sort(missing)
	switch {
	case len(f.mountAPI) == 0:
		return Check{CodeMountAPI, Failed, "the mount calls were not looked at", "glove doctor"}
	case missing != nil:
		return Check{CodeMountAPI, Failed, "system calls are missing: " + strings.Join(missing, ", "),
			fixKernel + " (mount_setattr came with 5.12)"}
	}
	return pass(CodeMountAPI, "the file-descriptor mount calls are available")
}

// judgeCall judges one plain system call.
func judgeCall(f facts, code, name string, err error) Check {
	switch {
	case err == nil:
		return pass(code, "%s: available", name)
	case errors.Is(err, unix.ENOSYS), !f.sysctl.inAContainer:
		return Check{code, Failed, name + ": " + err.Error(), fixKernel}
	}
	return Check{code, Failed, name + ": " + err.Error(), "run " + fixContainer}
}

func judgeMemfd(f facts) Check {
	if f.memfd != nil && f.sysctl.memfdNoexec == "2" {
		return Check{CodeMemfd, Failed, "executable memory files are forbidden: " + f.memfd.Error(),
			"sudo sysctl -w vm.memfd_noexec=1"}
	}
	return judgeCall(f, CodeMemfd, "sealed memory files (memfd_create)", f.memfd)
}

func judgePTY(f facts) Check {
	if f.pty == nil {
		return pass(CodePTY, "a terminal pair can be opened")
	}
	return Check{CodePTY, Failed, "no terminal pair can be opened: " + f.pty.Error(),
		"sudo mount -t devpts devpts /dev/pts -o gid=5,mode=620,ptmxmode=666 && sudo ln -sfn pts/ptmx /dev/ptmx"}
}

// judgeRetained warns only: sessions without retained copies do without.
func judgeRetained(f facts) Check {
	const lost = "; retained copies are not available: "
	switch {
	case errors.Is(f.mkfs, fs.ErrNotExist):
		return Check{CodeRetainedStorage, Warning, "mkfs.ext4 is not installed" + lost + "no formatter",
			"sudo apt-get install e2fsprogs   (or: sudo dnf install e2fsprogs)"}
	case f.mkfs != nil:
		return Check{CodeRetainedStorage, Warning, "mkfs.ext4 is not to be trusted" + lost + f.mkfs.Error(),
			"sudo chown root:root /usr/sbin/mke2fs && sudo chmod 755 /usr/sbin/mke2fs"}
	case errors.Is(f.loop, unix.EACCES), errors.Is(f.loop, unix.EPERM):
		return Check{CodeRetainedStorage, Warning, "loop devices are not ours to use" + lost + f.loop.Error(),
			"run gloved as root for policies with retained copies"}
	case f.loop != nil:
		return Check{CodeRetainedStorage, Warning, "there are no loop devices" + lost + f.loop.Error(),
			"sudo modprobe loop"}
	}
	return pass(CodeRetainedStorage, "loop devices and mkfs.ext4 are available")
}

func judgeSSH(f facts) Check {
	if f.ssh == nil {
		return pass(CodeSSH, "an ssh client is installed")
	}
	return Check{CodeSSH, Warning, "no ssh client is installed; remote control from here is not available",
		"sudo apt-get install openssh-client   (or: sudo dnf install openssh-clients)"}
}
