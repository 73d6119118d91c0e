package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/unit"
	"gloved.dev/rpc/transport"
)

// exitStopped is the exit code of status for a service that does not run, as systemctl's.
const exitStopped = 3

// daemonReport is the JSON form of glove daemon status.
type daemonReport struct {
	Unit     string `json:"unit"`
	Manager  string `json:"manager"`
	Path     string `json:"path"`
	File     string `json:"file"` // ours, edited, foreign or absent
	Enabled  string `json:"enabled"`
	Active   string `json:"active"`
	Sub      string `json:"sub"`
	Result   string `json:"result"`
	PID      int    `json:"pid"`
	Restarts int    `json:"restarts"`
	Config   string `json:"config"`
	Socket   string `json:"socket"`
	Health   string `json:"health"`
	Problem  string `json:"problem,omitempty"`
	Running  bool   `json:"running"` // it runs and answers
}

func (a *app) daemonStatus() *cobra.Command {
	var f daemonFlags
	var config string
	var asJSON bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Tell whether gloved runs as a service, and answers",
		Long: `Tell what systemd knows of gloved's service, whose unit it is, and whether the process
answers on its socket. "glove status" tells more about the gloved itself.

Exit codes: 0 it runs and answers, 3 it does not run (as systemctl status has it), 1 it
runs and does not answer, or that cannot be told, 2 wrong command line.`,
		Example: `  glove daemon status
  glove daemon status --system --json`,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.showDaemon(command.Context(), f, config, asJSON)
		},
	}
	f.addTo(command)
	command.Flags().StringVar(&config, "config", "", "ask at the socket of this configuration `file` (default: the unit's)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	_ = command.MarkFlagFilename("config", "json") // the flag is there
	return command
}

func (a *app) showDaemon(ctx context.Context, f daemonFlags, config string, asJSON bool) error {
	s, err := a.service(f)
	if err != nil {
		return err
	}
	file, err := s.look()
	if err != nil {
		return err
	}
	if config == "" {
		config = file.Config
	} else if config, err = filepath.Abs(config); err != nil {
		return ui.Failf("config_unreadable", "%w", err)
	}
	m, err := a.manager(ctx, s, ownSupervision(file.Gloved, config))
	if err != nil {
		return err
	}
	state, err := m.state(ctx)
	if err != nil {
		return s.managerFailure("status", err)
	}
	report := daemonReport{Unit: unit.Name, Manager: s.manager(), Path: s.path, File: "absent", Enabled: state.enabled, Active: state.active,
		Sub: state.sub, Result: state.result, PID: state.pid, Restarts: state.restarts, Config: config}
	if file.exists {
		report.File = string(file.Origin)
	}
	a.askDaemon(ctx, state, &report)
	if asJSON {
		err = a.JSON(report)
	} else {
		a.printDaemon(s, &report)
	}
	switch {
	case err != nil:
		return err
	case report.Running:
		return nil
	case state.running():
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return &ui.Silent{Exit: exitStopped}
}

// askDaemon finds out whether the service's process answers.
func (a *app) askDaemon(ctx context.Context, state unitState, report *daemonReport) {
	if report.Config == "" {
		if state.running() {
			report.Problem = "the unit does not say which configuration it serves: name it with --config"
		}
		return
	}
	options, err := daemon.LoadConfig(report.Config)
	if err != nil {
		report.Problem = err.Error()
		return
	}
	report.Socket = filepath.Join(options.RuntimeDir, transport.SocketName)
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	if !state.running() {
		// Somebody else's gloved is why the service would not start.
		if pid, err := peerOf(ctx, options.RuntimeDir); err == nil {
			report.Problem = fmt.Sprintf("a gloved that is not this service (process %d) serves %s", pid, options.RuntimeDir)
		}
		return
	}
	health, err := a.healthOf(ctx, options.RuntimeDir, state.pid)
	if err != nil {
		report.Problem = err.Error()
		var failure *ui.Error
		if errors.As(err, &failure) {
			report.Problem = failure.Message
		}
		return
	}
	report.Health, report.Running = health.Status, true
}

func (a *app) printDaemon(s service, r *daemonReport) {
	var table ui.Table
	row := func(name, value string, style ui.Style) {
		table.Row(name, value)
		table.Paint(0, ui.Bold)
		table.Paint(1, style)
	}
	looks := map[string]string{"ours": "written by glove", "edited": "written by glove, changed since", "foreign": "not written by glove", "absent": "not installed"}
	row("unit", fmt.Sprintf("%s (%s service, %s)", r.Path, r.Manager, looks[r.File]), ui.Plain)
	style, state := ui.Yellow, r.Active
	if r.Sub != "" {
		state += " (" + r.Sub + ")"
	}
	if r.PID > 0 {
		state += fmt.Sprintf(", process %d", r.PID)
	}
	if r.Result != "" && r.Result != "success" {
		state += ", last result " + r.Result
	}
	if r.Restarts > 0 {
		state += fmt.Sprintf(", restarted %d times by itself", r.Restarts)
	}
	if r.Running {
		style = ui.Green
	}
	row("state", state, style)
	if r.Enabled != "" {
		row("at boot", r.Enabled, ui.Plain)
	}
	if r.Config != "" {
		row("config", r.Config, ui.Plain)
	}
	if r.Running {
		row("answers", fmt.Sprintf("%s, %s", r.Socket, r.Health), ui.Green)
	}
	if r.Problem != "" {
		row("problem", r.Problem, ui.Red)
	}
	next := ""
	switch {
	case r.File == "absent":
		next = "glove daemon install" + s.flag()
	case r.PID == 0 && r.Active != "activating":
		next = "glove daemon start" + s.flag()
	case !r.Running:
		next = s.journal()
	}
	table.Write(a.Out, "", a.OutColor)
	if next != "" {
		a.Outf("%s %s\n", ui.Paint(a.OutColor, ui.Cyan, "next:"), next)
	}
}
