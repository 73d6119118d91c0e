package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/unit"
	"gloved.dev/internal/safefile"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

const (
	// readyBound is how long a started gloved may take to answer: it reads its journals
	// and settles what happened while it was away first.
	readyBound = 30 * time.Second
	readyPoll  = 25 * time.Millisecond
)

// controlReport is the JSON form of what start, stop and restart did.
type controlReport struct {
	Unit    string `json:"unit"`
	Manager string `json:"manager"`
	Action  string `json:"action"`
	PID     int    `json:"pid,omitempty"`
	Health  string `json:"health,omitempty"`
	Socket  string `json:"socket,omitempty"`
}

func (a *app) daemonStart() *cobra.Command {
	return a.daemonControl("start", "Start gloved and wait until it answers",
		`Start the installed gloved and wait until it answers on its socket. One that runs already
is left alone.

Exit codes: 0 it runs and answers, 1 it does not, 2 wrong command line.`)
}

func (a *app) daemonStop() *cobra.Command {
	return a.daemonControl("stop", "Stop gloved; sessions go on",
		`Stop gloved. Sessions go on under their monitors, and the next gloved adopts them: "glove
sessions stop ID", before, ends one. At the next boot gloved starts again; see uninstall.

Exit codes: 0 it is stopped, 1 it is not, 2 wrong command line.`)
}

func (a *app) daemonRestart() *cobra.Command {
	return a.daemonControl("restart", "Stop and start gloved, as after an upgrade; sessions go on",
		`Stop gloved and start it again, as after an upgrade or a change of its configuration, and
wait until it answers. Sessions go on meanwhile, and are adopted.

Exit codes: 0 it runs and answers, 1 it does not, 2 wrong command line.`)
}

func (a *app) daemonControl(verb, short, long string) *cobra.Command {
	var f daemonFlags
	var asJSON bool
	command := &cobra.Command{
		Use: verb, Short: short, Long: long,
		Example: "  glove daemon " + verb + "\n  sudo glove daemon " + verb + " --system",
		RunE: func(command *cobra.Command, _ []string) error {
			return a.controlDaemon(command.Context(), f, verb, asJSON)
		},
	}
	f.addTo(command)
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) controlDaemon(ctx context.Context, f daemonFlags, verb string, asJSON bool) error {
	s, err := a.service(f)
	if err != nil {
		return err
	}
	file, err := s.look()
	if err != nil {
		return err
	}
	m, err := a.manager(ctx, s, ownSupervision(file.Gloved, file.Config))
	if err != nil {
		return err
	}
	if file, err = s.installed(s.flag()); err != nil {
		return err
	}
	report := controlReport{Unit: unit.Name, Manager: s.manager(), Action: verb}
	if verb != "stop" {
		// Earlier failures must not keep systemd from trying again. There may be none.
		_, _ = m.run(ctx, "reset-failed", "--", unit.Name)
	}
	if _, err := m.run(ctx, verb, "--", unit.Name); err != nil {
		return s.managerFailure(verb, err)
	}
	if verb == "stop" {
		if asJSON {
			return a.JSON(report)
		}
		a.Outf("gloved is stopped; sessions go on\n")
		return nil
	}
	if err := a.awaitReady(ctx, s, m, file.Config, &report); err != nil {
		return err
	}
	if asJSON {
		return a.JSON(report)
	}
	a.Outf("gloved runs (process %d)", report.PID)
	if report.Socket != "" {
		a.Outf(", answers at %s and is %s", report.Socket, report.Health)
	}
	a.Outf("\n")
	return nil
}

// awaitReady waits until the service's own process answers.
func (a *app) awaitReady(ctx context.Context, s service, m *manager, config string, report *controlReport) error {
	dir := ""
	if options, err := daemon.LoadConfig(config); err == nil {
		dir = options.RuntimeDir
	}
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	var last error
	for {
		state, err := m.state(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			return s.managerFailure(report.Action, err)
		case err == nil && (state.active == "failed" || state.active == "inactive" || state.sub == "auto-restart"):
			return ui.Fail("daemon_"+report.Action+"_failed", "gloved ended: "+state.reason(), s.journal())
		case err == nil && state.running() && dir == "":
			report.PID = state.pid // a unit that is not ours says not where to ask
			return nil
		case err == nil && state.running():
			report.PID = state.pid
			var health *wire.Health
			if health, last = a.healthOf(ctx, dir, state.pid); last == nil {
				report.Health, report.Socket = health.Status, filepath.Join(dir, transport.SocketName)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			failure := ui.Fail("daemon_"+report.Action+"_failed", fmt.Sprintf("gloved does not answer within %v", readyBound), s.journal())
			if last != nil {
				failure.Detail = []string{last.Error()}
			}
			return failure
		case <-time.After(readyPoll):
		}
	}
}

// reason says why the unit is not running.
func (s unitState) reason() string {
	switch {
	case s.result == "exit-code" && s.exit != 0:
		return fmt.Sprintf("exit status %d", s.exit)
	case s.result != "" && s.result != "success":
		return s.result
	}
	return s.active
}

// errOther is an answer from a gloved that is not the service's.
var errOther = errors.New("another gloved answers there")

// healthOf asks the gloved of a runtime directory how it is, and makes sure that it is
// the process pid, where pid is not 0: a gloved that somebody started by hand keeps the
// service from starting, and must not be taken for it.
func (a *app) healthOf(ctx context.Context, dir string, pid int) (*wire.Health, error) {
	if pid != 0 {
		who, err := peerOf(ctx, dir)
		if err != nil {
			return nil, err
		}
		if who != pid {
			return nil, fmt.Errorf("%w: process %d", errOther, who)
		}
	}
	c, err := a.connect(ctx, connectFlags{runtimeDir: dir}, nil)
	if err != nil {
		return nil, err
	}
	health, err := c.client.Health(ctx)
	if err = errors.Join(err, c.close()); err != nil {
		return nil, err
	}
	return health, nil
}

// peerOf is the process that listens at a runtime directory's socket.
func peerOf(ctx context.Context, dir string) (int, error) {
	conn, err := transport.Dial(ctx, filepath.Join(dir, transport.SocketName))
	if err != nil {
		return 0, err
	}
	_, pid, err := safefile.CheckPeer(conn)
	return int(pid), errors.Join(err, conn.Close())
}
