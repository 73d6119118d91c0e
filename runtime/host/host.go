package host

import (
	"context"
	"fmt"
	"strings"
)

// Status is the outcome of a check.
type Status string

const (
	// Passed says that the prerequisite is met.
	Passed Status = "passed"
	// Warning says that sessions run, but something is weaker or not available.
	Warning Status = "warning"
	// Failed says that no managed session can run.
	Failed Status = "failed"
)

// Check is the outcome of looking at one prerequisite.
type Check struct {
	// Code is stable, lowercase, and names the prerequisite, not the outcome.
	Code string `json:"code"`
	// Status is the outcome.
	Status Status `json:"status"`
	// Message says in one line what was found.
	Message string `json:"message"`
	// Recovery is a line an operator can paste, or follow where there is nothing to
	// paste; empty when the check passed.
	Recovery string `json:"recovery"`
}

// Codes of checks, in the order [Checks] returns them.
const (
	CodePlatform          = "platform"
	CodeUserNamespaces    = "linux_user_namespaces"
	CodePIDNamespaces     = "linux_pid_namespaces"
	CodeMountNamespaces   = "linux_mount_namespaces"
	CodeNetworkNamespaces = "linux_network_namespaces"
	CodeOtherNamespaces   = "linux_ipc_uts_cgroup_namespaces"
	CodeCgroups           = "linux_cgroups"
	CodeSeccomp           = "linux_seccomp"
	CodeLandlock          = "linux_landlock"
	CodeMountAPI          = "linux_mount_api"
	CodePidfd             = "linux_pidfd"
	CodeMemfd             = "linux_memfd_sealing"
	CodeOpenat2           = "linux_openat2"
	CodePTY               = "linux_pty"
	CodeRetainedStorage   = "linux_retained_storage"
	CodeSSH               = "ssh"
)

// Checks looks at every prerequisite. It takes a few dozen milliseconds. A check
// that could not be made is a failed one. When ctx ends, the checks not yet made are
// failed.
func Checks(ctx context.Context) []Check { return checks(ctx) }

// Error is the refusal of [Usable]. Its code is "host_unusable".
type Error struct {
	// Failed are the failed checks, in order; never empty.
	Failed []Check
}

// Code returns the stable code of the error.
func (e *Error) Code() string { return "host_unusable" }

// Error names each failed check with what to do.
func (e *Error) Error() string {
	lines := make([]string, len(e.Failed))
	for i, c := range e.Failed {
		lines[i] = fmt.Sprintf("%s: %s (fix: %s)", c.Code, c.Message, c.Recovery)
	}
	return "host: no managed session can run: " + strings.Join(lines, "; ")
}

// Usable returns nil if a managed session could run here: something was checked and
// nothing failed. Otherwise it returns an [Error].
func Usable(list []Check) error {
	var bad []Check
	for _, c := range list {
		if c.Status != Passed && c.Status != Warning {
			bad = append(bad, c)
		}
	}
	if len(list) == 0 {
		bad = []Check{{CodePlatform, Failed, "nothing was checked", "glove doctor"}}
	}
	if bad != nil {
		return &Error{Failed: bad}
	}
	return nil
}

func pass(code, format string, args ...any) Check {
	return Check{Code: code, Status: Passed, Message: fmt.Sprintf(format, args...)}
}
