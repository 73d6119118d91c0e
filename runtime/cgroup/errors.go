package cgroup

import (
	"fmt"
	"strings"
)

// Stable codes of [Error].
const (
	// CodeUnsupported says that this operating system has no control groups.
	CodeUnsupported = "unsupported"
	// CodeNoMount says that no usable cgroup filesystem is mounted.
	CodeNoMount = "no_cgroup_mount"
	// CodeMissingController says that a needed controller is not available where
	// groups would be made; Name is the controller.
	CodeMissingController = "missing_controller"
	// CodeNotDelegated says that this process may not create groups; Name is the
	// file or directory that refused.
	CodeNotDelegated = "not_delegated"
	// CodeBusy says that other processes live in the delegated group, so that
	// its controllers cannot be handed down.
	CodeBusy = "busy"
	// CodeInvalid says that an argument is outside its grammar or bounds.
	CodeInvalid = "invalid"
	// CodeExists says that a group of that name exists already.
	CodeExists = "exists"
	// CodeNotFound says that there is no such group or process.
	CodeNotFound = "not_found"
	// CodeMismatch says that a group or process exists but is not the one meant.
	CodeMismatch = "mismatch"
	// CodeNotEnforced says that the kernel did not take a limit as written.
	CodeNotEnforced = "not_enforced"
	// CodeQuarantined says that a group would not empty within the bound and was
	// left in place; Name is the group.
	CodeQuarantined = "quarantined"
	// CodeTooLarge says that a control file or directory exceeded its bound.
	CodeTooLarge = "too_large"
	// CodeSyntax says that a kernel file did not have the documented form.
	CodeSyntax = "syntax"
	// CodeClosed says that the group or host was closed.
	CodeClosed = "closed"
	// CodeIO is any other failure of the kernel interface.
	CodeIO = "io"
)

// Error is the error type of this package.
type Error struct {
	// Code is one of the stable codes above.
	Code string
	// Op names the step that failed, such as "enable_controllers".
	Op string
	// Name is the controller, control file, group or path concerned; may be empty.
	Name string
	// Fix is a line an operator can follow; empty when there is none.
	Fix string
	// Err is the cause, often a syscall.Errno; may be nil.
	Err error
}

// Error describes the failure for an operator.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cgroup: ")
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(e.Code)
	if e.Name != "" {
		fmt.Fprintf(&b, " (%s)", e.Name)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Fix != "" {
		b.WriteString("; fix: " + e.Fix)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an [Error] of the same code, so that errors.Is
// works with the sentinels of this package.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Sentinels for errors.Is.
var (
	// ErrQuarantined matches a [Group.Destroy] that gave up on a group that would
	// not empty, for example for a process in uninterruptible sleep.
	ErrQuarantined error = &Error{Code: CodeQuarantined}
	// ErrMismatch matches a refusal to adopt something by a wrong identity.
	ErrMismatch error = &Error{Code: CodeMismatch}
	// ErrNotFound matches a group or process that does not exist.
	ErrNotFound error = &Error{Code: CodeNotFound}
	// ErrExists matches a [Host.Create] under a name already taken.
	ErrExists error = &Error{Code: CodeExists}
)

func fail(code, op, name string, err error) *Error {
	return &Error{Code: code, Op: op, Name: name, Err: err}
}
