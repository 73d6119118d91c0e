package main

import (
	"context"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/host"
)

// doctorReport is the JSON form of glove doctor.
type doctorReport struct {
	ConfigPath string       `json:"config_path,omitempty"`
	Healthy    bool         `json:"healthy"`
	Checks     []host.Check `json:"checks"`
}

func (a *app) doctorCommand() *cobra.Command {
	var config string
	var asJSON bool
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether sessions can run here, and how to mend what is missing",
		Long: `Look at everything a session needs of this machine: namespaces, control groups, system
call filters, Landlock, mounts, terminals, storage, ssh. Nothing is changed. With a
configuration (--config, or ~/.config/glove/config.json where there is one) also at what
that gloved is made of: its directories, key, policy, journals and socket.

Whatever does not pass has a fix: a line to paste where there is one. A warning says what
is weaker or missing while sessions still run.

Exit codes: 0 a session can run, 1 it cannot, 2 wrong command line.`,
		Example: `  glove doctor
  glove doctor --json
  glove doctor --config ~/.config/glove/config.json`,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.doctor(command.Context(), config, asJSON)
		},
	}
	command.Flags().StringVar(&config, "config", "", "also check the gloved of this configuration `file`")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	_ = command.MarkFlagFilename("config", "json") // the flag is there
	return command
}

func (a *app) doctor(ctx context.Context, config string, asJSON bool) error {
	if config == "" {
		config = a.ownConfig()
	}
	report := doctorReport{Checks: host.Checks(ctx)}
	if config != "" {
		path, err := filepath.Abs(config)
		if err != nil {
			return ui.Failf("config_unreadable", "%w", err)
		}
		report.ConfigPath = path
		report.Checks = append(report.Checks, a.checkConfig(ctx, path)...)
	}
	report.Healthy = host.Usable(report.Checks) == nil
	if asJSON {
		if err := a.JSON(report); err != nil {
			return err
		}
	} else {
		a.showDoctor(report)
	}
	if !report.Healthy {
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return nil
}

// checkLooks are how a status is shown; the word says what the colour says.
var checkLooks = map[host.Status]struct {
	word  string
	style ui.Style
}{
	host.Passed: {"ok", ui.Green}, host.Warning: {"warning", ui.Yellow}, host.Failed: {"FAILED", ui.Red},
}

func (a *app) showDoctor(report doctorReport) {
	var table ui.Table
	counts := map[host.Status]int{}
	for _, c := range report.Checks {
		counts[c.Status]++
		looks, known := checkLooks[c.Status]
		if !known {
			looks = checkLooks[host.Failed]
		}
		text := c.Message
		if c.Recovery != "" {
			text += "\nfix: " + c.Recovery
		}
		table.Row(looks.word, c.Code, text)
		table.Paint(0, looks.style)
	}
	table.Write(a.Out, "", a.OutColor)
	verdict, style := "Sessions can run here.", ui.Green
	switch {
	case !report.Healthy:
		verdict, style = "No session can run here until what failed is mended.", ui.Red
	case counts[host.Warning] > 0:
		verdict = "Sessions can run here; the warnings say what is missing."
	}
	a.Outf("\n%d ok, %d warnings, %d failed. %s\n", counts[host.Passed], counts[host.Warning],
		len(report.Checks)-counts[host.Passed]-counts[host.Warning], ui.Paint(a.OutColor, style, verdict))
}
