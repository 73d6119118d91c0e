package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/host"
)

// scopedVariable marks a glove that was already put into a scope of its own. It says
// nothing that anybody could gain by setting it.
const scopedVariable = "GLOVE_IN_SCOPE"

// enforceable makes sure, before anything is made, that control groups can be used. It
// must be called in this process: on a delegated cgroup v2 it moves us aside, and gloved
// with us. Where a systemd user manager can delegate a group, glove executes itself once
// more in a scope of its own.
func (a *app) enforceable() error {
	groups, err := cgroup.Detect()
	if err == nil {
		return groups.Close()
	}
	var typed *cgroup.Error
	if errors.As(err, &typed) && (typed.Code == cgroup.CodeNotDelegated || typed.Code == cgroup.CodeBusy) &&
		os.Geteuid() != 0 && a.getenv(scopedVariable) == "" {
		if err := a.reexecuteScoped(); err != nil {
			return err
		}
	}
	return a.unenforceable(err)
}

// reexecuteScoped does not return when it succeeds. nil means that there is no manager.
func (a *app) reexecuteScoped() error {
	run := a.getenv("XDG_RUNTIME_DIR")
	if _, err := os.Stat(filepath.Join(run, "systemd", "private")); run == "" || err != nil {
		return nil
	}
	tool, err := exec.LookPath("systemd-run")
	if err != nil {
		return nil
	}
	self, err := a.self()
	if err != nil {
		return ui.Failf("scope_failed", "%w", err)
	}
	argv := append([]string{"systemd-run", "--user", "--scope", "--quiet", "--collect", "-p", "Delegate=yes", "--", self}, os.Args[1:]...)
	err = syscall.Exec(tool, argv, append(os.Environ(), scopedVariable+"=1"))
	return ui.Failf("scope_failed", "systemd-run: %w", err)
}

// unenforceable says which limits could not be enforced, why, and what to do.
func (a *app) unenforceable(cause error) error {
	failure := &ui.Error{Code: "limits_unenforceable", Err: cause,
		Message: "CPU time, memory and processes cannot be limited here, so nothing was run: " + cause.Error(), Next: "glove doctor"}
	for _, c := range host.Checks(context.Background()) {
		if c.Code == host.CodeCgroups && c.Status == host.Failed {
			failure.Message = "CPU time, memory and processes cannot be limited here, so nothing was run: " + c.Message
			failure.Next = c.Recovery
		}
	}
	return failure
}

// Steps of a start, by the runtime's names: copying and binding what is granted, and
// becoming the command, the last one.
const (
	grantsStep = "grants"
	execStep   = "exec"
)

// explain turns a failure of the protocol into what a person can act on: a prerequisite
// that this host lacks, if there is one, else the server's answer with what gloved's
// own log says about it.
func (r *runner) explain(code string, err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	failure := &ui.Error{Code: code, Message: err.Error(), Err: err}
	var refused *rpc.Error
	if errors.As(err, &refused) {
		failure.Message = refused.Message
		if step, ok := refused.Data["step"].(string); ok {
			failure.Message += " (step " + step + ")"
			if step == grantsStep {
				failure.Next = "a copy holds files, directories and links that you can read, and is as large as --disk allows; remove what it cannot hold, or copy less: --workspace DIR, --no-workspace"
			}
			if step == execStep {
				return &ui.Error{Code: "command_not_executable", Exit: localrun.ExitNotExecutable, Err: err,
					Message: r.job.Executable + " cannot be executed: it is no program of this machine, or what it is loaded with is not there inside",
					Next:    "file " + quote(r.job.Executable) + " tells what it is; ldd what it needs"}
			}
		}
	}
	failure.Detail = r.state.Complaints()
	var unusable *host.Error
	if errors.As(host.Usable(host.Checks(context.Background())), &unusable) {
		failure.Code, failure.Message = unusable.Code(), "this host cannot confine a session, so nothing was run"
		failure.Detail = nil
		for _, c := range unusable.Failed {
			failure.Detail = append(failure.Detail, c.Message)
			failure.Next += "\n" + c.Recovery
		}
		failure.Next = failure.Next[1:]
	}
	return failure
}
