package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/unit"
)

const (
	// managerBound is how long systemctl may take. A stop takes up to the unit's
	// TimeoutStopSec.
	managerBound = 40 * time.Second
	// maxManagerOutput bounds what is kept of its output.
	maxManagerOutput = 64 << 10
)

// A manager is systemd: the system's, or the user's own. What is decided is decided on
// exit codes and properties; what systemctl says to people is only passed on.
type manager struct {
	program string
	user    bool
	version int
}

// manager finds the systemd of a service. instead is the command to run where there is
// none.
func (a *app) manager(ctx context.Context, s service, instead string) (*manager, error) {
	program, err := exec.LookPath("systemctl")
	if err != nil {
		return nil, noSystemd("this machine has no systemd: there is no systemctl", instead)
	}
	m := &manager{program: program, user: s.user}
	properties, err := m.properties(ctx, "", "Version")
	if err != nil {
		var said *managerError
		if !errors.As(err, &said) {
			return nil, err
		}
		if !s.user {
			failure := noSystemd("systemctl is here, but no systemd answers it", instead)
			failure.Detail = said.detail()
			return nil, failure
		}
		failure := noSystemd("no systemd of yours answers", instead)
		if check := a.checkUserManager(); check.Recovery != "" {
			failure.Next = check.Recovery + "; or " + failure.Next
		}
		failure.Detail = said.detail()
		return nil, failure
	}
	m.version = leadingNumber(properties["Version"])
	if m.version < unit.MinSystemd {
		return nil, noSystemd(fmt.Sprintf("systemd %q is too old: the unit needs %d", properties["Version"], unit.MinSystemd), instead)
	}
	return m, nil
}

func noSystemd(why, instead string) *ui.Error {
	return &ui.Error{Code: "no_systemd", Message: why, Next: "run gloved under your own supervisor: " + instead}
}

// ownSupervision is the command for a supervisor other than systemd.
func ownSupervision(gloved, config string) string {
	if gloved == "" {
		gloved = "gloved"
	}
	if config == "" {
		config = "FILE"
	}
	return quote(gloved) + " --config " + quote(config)
}

// leadingNumber is the number at the start of a version such as "252.39-1~deb12u2".
func leadingNumber(text string) int {
	digits := text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// A managerError is a systemctl that did not do what it was asked.
type managerError struct {
	args   []string
	exit   int // -1: it did not end by itself
	said   string
	reason error
}

func (e *managerError) Error() string {
	if e.exit < 0 {
		return fmt.Sprintf("systemctl %s: %v", strings.Join(e.args, " "), e.reason)
	}
	return fmt.Sprintf("systemctl %s: exit status %d", strings.Join(e.args, " "), e.exit)
}

func (e *managerError) Unwrap() error { return e.reason }

// detail is what systemctl said, for people.
func (e *managerError) detail() []string {
	var lines []string
	for line := range strings.Lines(e.said) {
		if line = strings.TrimRight(line, "\n"); line != "" && len(lines) < 8 {
			lines = append(lines, "systemctl: "+line)
		}
	}
	return lines
}

// run runs one systemctl command and returns its standard output. Errors are of type
// *managerError.
func (m *manager) run(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, managerBound)
	defer cancel()
	if m.user {
		args = append([]string{"--user"}, args...)
	}
	cmd := exec.CommandContext(ctx, m.program, args...)
	cmd.Env = append(os.Environ(), "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	cmd.WaitDelay = time.Second
	out, errs := &capped{}, &capped{}
	cmd.Stdout, cmd.Stderr = out, errs
	err := cmd.Run()
	if err == nil {
		return out.String(), nil
	}
	failure := &managerError{args: args, exit: -1, said: errs.String(), reason: err}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		failure.reason = ctx.Err()
	case errors.As(err, &exit):
		failure.exit = exit.ExitCode()
	}
	return "", failure
}

// capped keeps the beginning of what is written and takes the rest without keeping it.
type capped struct{ buf bytes.Buffer }

func (c *capped) Write(b []byte) (int, error) {
	c.buf.Write(b[:min(len(b), maxManagerOutput-c.buf.Len())])
	return len(b), nil
}

func (c *capped) String() string { return c.buf.String() }

// properties asks for properties of a unit, or of the manager for the unit "".
func (m *manager) properties(ctx context.Context, name string, names ...string) (map[string]string, error) {
	args := []string{"show", "--property=" + strings.Join(names, ",")}
	if name != "" {
		args = append(args, "--", name)
	}
	out, err := m.run(ctx, args...)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
			found[name] = value
		}
	}
	return found, nil
}

// unitState is what systemd knows of the unit.
type unitState struct {
	load, active, sub, result, enabled string
	pid, exit, restarts                int
}

func (m *manager) state(ctx context.Context) (unitState, error) {
	p, err := m.properties(ctx, unit.Name, "LoadState", "ActiveState", "SubState", "Result", "UnitFileState", "MainPID", "ExecMainStatus", "NRestarts")
	if err != nil {
		return unitState{}, err
	}
	s := unitState{load: p["LoadState"], active: p["ActiveState"], sub: p["SubState"], result: p["Result"], enabled: p["UnitFileState"]}
	for name, to := range map[string]*int{"MainPID": &s.pid, "ExecMainStatus": &s.exit, "NRestarts": &s.restarts} {
		if *to, err = strconv.Atoi(p[name]); err != nil && p[name] != "" {
			return unitState{}, ui.Fail("systemd_unclear", fmt.Sprintf("systemctl says %s is %q", name, p[name]), "")
		}
	}
	if s.active == "" {
		return unitState{}, ui.Fail("systemd_unclear", "systemctl does not say in what state the unit is", "")
	}
	return s, nil
}

// running reports whether systemd has a main process for the unit.
func (s unitState) running() bool { return s.active == "active" && s.pid > 0 }

// managerFailure is a failed action as people read it.
func (s service) managerFailure(action string, err error) error {
	failure := &ui.Error{Code: "daemon_" + action + "_failed", Message: err.Error(), Err: err, Next: s.journal()}
	var said *managerError
	if errors.As(err, &said) {
		failure.Detail = said.detail()
	}
	return failure
}
