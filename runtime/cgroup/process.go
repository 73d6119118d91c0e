package cgroup

// ProcessSchema is the version of [ProcessIdentity].
const ProcessSchema = 1

// ProcessIdentity names one process on one boot of one host. A PID alone is
// reused; start time and boot tell the incarnations apart, and the group says
// whether the process is still where its supervisor put it.
type ProcessIdentity struct {
	// Schema is [ProcessSchema].
	Schema uint8
	// PID is the process ID in the PID namespace of whoever identified it.
	PID int
	// BootID is /proc/sys/kernel/random/boot_id: 36 characters, a lowercase UUID.
	BootID string
	// StartTicks is field 22 of /proc/PID/stat, in clock ticks after boot.
	StartTicks uint64
	// Cgroup is the identity of the group the process is directly in; it equals
	// [Group.Identity] of that group.
	Cgroup Identity
}

// Observation is what has become of an identified process.
type Observation int

const (
	// Absent says that the process has ended: there is no such PID, or the host was
	// booted since, or all that is left is a zombie nobody has waited for.
	Absent Observation = iota + 1
	// Exact says that it is that process, still in its group.
	Exact
	// Mismatch says that the PID belongs to something else, or that the process has
	// left its group, or that it is hidden from us. It must not be signalled.
	Mismatch
)

// String returns "absent", "exact" or "mismatch".
func (o Observation) String() string {
	switch o {
	case Absent:
		return "absent"
	case Exact:
		return "exact"
	case Mismatch:
		return "mismatch"
	}
	return "unknown"
}

// Identify captures the identity of a running process. Start time and group are
// read twice and must agree, so that a process that ends or moves meanwhile is
// not described half and half. The caller must keep the PID from being reused
// (its own unreaped child, or a pidfd checked afterwards). Errors: [CodeNotFound],
// [CodeMismatch] for a process that changed meanwhile.
func Identify(pid int) (ProcessIdentity, error) { return identify(pid) }

// Observe tells what has become of a process. It has no side effects.
func Observe(id ProcessIdentity) (Observation, error) { return observe(id) }
