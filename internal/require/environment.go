package require

import "testing"

// A Kind is something that this kind of machine can never have, whatever is installed on it, and
// that another lane covers. The list below is closed: a test cannot make up its own exemption from
// GLOVE_TEST_REQUIRE=all, it has to be added here, where a reviewer sees it with its reason.
type Kind int

const (
	// CgroupV2 is a host on the pure unified hierarchy with the controllers cpu, memory and pids
	// in it. A host that mounts cgroup v1 has bound the controllers there until it is rebooted.
	CgroupV2 Kind = iota
	// CgroupV1 is a host with v1 hierarchies of cpuacct, memory and pids; the reverse of CgroupV2.
	CgroupV1
	// Unprivileged is a test process with an effective uid other than 0.
	Unprivileged
	// UserNamespaces is a kernel that lets a process without privilege make a user namespace; some
	// hosts forbid it by sysctl or by an AppArmor profile that no test may change.
	UserNamespaces
	// Landlock is a kernel built with the Landlock security module and booted with it enabled.
	Landlock
	// LoopDevices is a host with /dev/loop-control and free loop devices; containers often withhold
	// them.
	LoopDevices
	// KernelModules is a host whose kernel can load the filesystems and devices a test names.
	KernelModules
	// SystemdUser is a host on which systemd runs as PID 1 with a user manager for the test's uid.
	SystemdUser
	// RealRoot is root of the machine, as against root of a user namespace, in which some tests are
	// run once more.
	RealRoot
)

// reasons gives for each kind what is missing and where it is tested instead.
var reasons = map[Kind]struct{ missing, covered string }{
	CgroupV2:       {"a host on pure cgroup v2", "the VM lane (integration/vm) runs it"},
	CgroupV1:       {"a host with cgroup v1 controllers", "hosts that still mount v1, among them the build machines, run it"},
	Unprivileged:   {"an effective uid other than 0", "the VM lane (integration/vm) runs it as uid 1000"},
	UserNamespaces: {"a kernel that allows unprivileged user namespaces", "the VM lane (integration/vm) runs it"},
	Landlock:       {"a kernel with Landlock enabled", "the VM lane (integration/vm) runs it"},
	LoopDevices:    {"loop devices", "the VM lane (integration/vm) runs it"},
	KernelModules:  {"a kernel module", "the VM lane (integration/vm) runs it"},
	SystemdUser:    {"systemd with a user manager", "desktop and server hosts run it"},
	RealRoot:       {"root outside every user namespace", "the same test's own run as root runs it"},
}

// Missing says in words what the kind is and which lane covers a test that cannot have it here.
// An unknown kind gives the empty string.
func (k Kind) Missing() string {
	r, ok := reasons[k]
	if !ok {
		return ""
	}
	return r.missing + "; " + r.covered
}

// Environment ends the test because this kind of machine can never have kind. It is a skip under
// every mode, unlike [Skip], and prints where the test does run. A kind outside the closed list
// fails the test. Environment does not return.
func Environment(t testing.TB, kind Kind) {
	t.Helper()
	words := kind.Missing()
	if words == "" {
		t.Fatalf("require: kind %d is not in the closed list of internal/require", int(kind))
	}
	t.Skipf("environment: %s", words)
}
