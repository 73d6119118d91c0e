package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
	"gloved.dev/runtime/fsck"
)

// exitUnchecked is fsck's exit code when it could not compare.
const exitUnchecked = 3

// fsckReport is the JSON form of glove fsck.
type fsckReport struct {
	ConfigPath string         `json:"config_path"`
	Healthy    bool           `json:"healthy"` // nothing is left that disagrees
	Repaired   []fsck.Finding `json:"repaired"`
	Left       []fsck.Finding `json:"left"`
}

func (a *app) fsckCommand() *cobra.Command {
	var config string
	var yes, asJSON bool
	command := &cobra.Command{
		Use:   "fsck",
		Short: "Compare gloved's records with this host, and repair what disagrees",
		Long: `Compare what a gloved has on record with what is on this host: both journals with each
other, and sessions with their monitors, processes, control groups, directories, sockets
and host users. Mounts and loop devices are looked for too: gloved makes none on the host,
what sessions see are detached mounts of their monitors.

Each disagreement is printed with its repair. Where everything agrees nothing is printed:
sessions that go on under their monitors without a gloved agree. Nothing is changed
without --yes. With it, what can be repaired here is, by the ways gloved itself has: a lost
session gets its truthful end, an ended one its receipt, and what nobody needs is removed.
What bears our names and is not provably ours is reported and never touched. No receipt is
acknowledged for a controller, made up, or taken out of the chain.

It does not run beside a gloved: stop that first. Sessions go on meanwhile.

Exit codes: 0 everything agrees, or all was repaired; 1 disagreements are left; 2 wrong
command line; 3 it could not be compared, as when a gloved runs.`,
		Example: `  glove fsck
  glove fsck --yes
  glove fsck --config ~/.config/glove/config.json --json`,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.fsck(ctx, config, yes, asJSON)
		},
	}
	command.Flags().StringVar(&config, "config", "", "the configuration `file` of the gloved (default: yours)")
	command.Flags().BoolVar(&yes, "yes", false, "repair what can be repaired")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	_ = command.MarkFlagFilename("config", "json") // the flag is there
	return command
}

func (a *app) fsck(ctx context.Context, config string, yes, asJSON bool) (err error) {
	if config == "" {
		config = a.ownConfig()
	}
	if config == "" {
		return unchecked("no_configuration", errors.New("there is no configuration of yours to find a gloved's state by"), "--config FILE")
	}
	path, err := filepath.Abs(config)
	if err != nil {
		return unchecked("config_unreadable", err, "")
	}
	options, err := daemon.LoadConfig(path)
	if err != nil {
		return unchecked("config_unreadable", err, "glove doctor --config "+quote(path))
	}
	lock, err := options.HoldState(yes)
	if err != nil {
		return uncheckedState(err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	report := fsckReport{ConfigPath: path, Repaired: []fsck.Finding{}}
	c := fsck.Config{AuditKey: options.AuditKey, Journal: options.Journal, Store: options.SessionStore,
		Root: options.MaterializationRoot, UIDRange: options.SessionUIDs}
	c.Sockets, c.Notes = options.RunFiles()
	if yes {
		err = a.fsckRepair(ctx, c, &report, asJSON)
	} else {
		report.Left, err = fsck.Check(ctx, c)
	}
	if err != nil {
		return uncheckedState(err)
	}
	return a.fsckVerdict(report, yes, asJSON)
}

func (a *app) fsckRepair(ctx context.Context, c fsck.Config, report *fsckReport, asJSON bool) error {
	tell := func(f fsck.Finding) {
		if !asJSON && f.Done != "" {
			a.showFinding(f)
		}
	}
	done, err := fsck.Repair(ctx, c, tell)
	report.Repaired, report.Left = done.Repaired, done.Left
	return err
}

// fsckVerdict prints what is left and gives the exit code.
func (a *app) fsckVerdict(report fsckReport, yes, asJSON bool) error {
	report.Healthy = len(report.Left) == 0
	if report.Left == nil {
		report.Left = []fsck.Finding{}
	}
	if asJSON {
		if err := a.JSON(report); err != nil {
			return err
		}
	} else {
		a.showLeft(report, yes)
	}
	if !report.Healthy {
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return nil
}

func (a *app) showLeft(report fsckReport, yes bool) {
	repairable := 0
	for _, f := range report.Left {
		a.showFinding(f)
		if f.Repairable {
			repairable++
		}
	}
	switch {
	case yes && len(report.Repaired)+len(report.Left) > 0:
		a.Outf("\n%d repaired, %d left\n", len(report.Repaired), len(report.Left))
	case repairable > 0:
		a.Outf("\n%s, %d of them repairable\n%s glove fsck --yes --config %s\n", plural(uint64(len(report.Left)), "disagreement"), repairable,
			ui.Paint(a.OutColor, ui.Cyan, "next:"), quote(report.ConfigPath))
	case len(report.Left) > 0:
		a.Outf("\n%s, none of which can be repaired from here\n", plural(uint64(len(report.Left)), "disagreement"))
	}
}

func (a *app) showFinding(f fsck.Finding) {
	style := ui.Yellow
	switch {
	case f.Done != "":
		style = ui.Green
	case f.Failed != "" || !f.Repairable:
		style = ui.Red
	}
	a.Outf("%s  %s\n  %s\n", ui.Paint(a.OutColor, style, f.Code), ui.Printable(f.Subject), ui.Printable(f.Detail))
	switch {
	case f.Done != "":
		a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Green, "done:"), ui.Printable(f.Done))
	case f.Failed != "":
		a.Outf("  %s to %s: %s\n", ui.Paint(a.OutColor, ui.Red, "failed"), ui.Printable(f.Repair), ui.Printable(f.Failed))
	case f.Repairable:
		a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Cyan, "repair:"), ui.Printable(f.Repair))
	default:
		a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Cyan, "not repaired here:"), ui.Printable(f.Repair))
	}
}

// unchecked is the failure to compare at all.
func unchecked(code string, err error, next string) error {
	return &ui.Error{Code: code, Message: err.Error(), Next: next, Exit: exitUnchecked, Err: err}
}

// uncheckedState says why a gloved's state could not be compared.
func uncheckedState(err error) error {
	var held *daemon.HeldError
	switch {
	case errors.As(err, &held):
		return unchecked("already_running", err, held.Next)
	case errors.Is(err, safefile.ErrLocked), errors.Is(err, journal.ErrLocked):
		return unchecked("in_use", err, "a gloved of another configuration uses this state; glove status shows one, and it must be stopped first")
	}
	return unchecked("not_compared", err, "glove doctor says what is wrong with the configuration or the host")
}
