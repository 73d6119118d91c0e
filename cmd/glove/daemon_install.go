package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/unit"
	"gloved.dev/runtime/host"
)

// installFlags are those of glove daemon install.
type installFlags struct {
	daemonFlags
	config, gloved string
	systemd        int
	print, force   bool
	json           bool
}

// installReport is the JSON form of what install and uninstall did.
type installReport struct {
	Unit    string `json:"unit"`
	Path    string `json:"path"`
	Manager string `json:"manager"`
	Config  string `json:"config,omitempty"`
	Gloved  string `json:"gloved,omitempty"`
	Changed bool   `json:"changed"`
	Enabled bool   `json:"enabled"`
	Next    string `json:"next,omitempty"`
}

func (a *app) daemonInstall() *cobra.Command {
	var f installFlags
	command := &cobra.Command{
		Use:   "install",
		Short: "Write gloved's unit and enable it",
		Long: `Write the unit gloved.service for this configuration and this gloved, and have systemd
start it at boot, or for a service of yours when you log in. Nothing is started yet. To
install again is harmless: a unit that is as it should be is not touched. A unit that
glove did not write, or that was changed since, is only replaced with --force.

The unit is written for the systemd that runs here; --systemd names another version.
Before 254 systemd could not start a delegated service while its sessions run; for those
the unit moves gloved into a scope of its own at each start.

Exit codes: 0 installed, 1 refused or failed, 2 wrong command line.`,
		Example: `  glove daemon install
  glove daemon install --print
  sudo glove daemon install --system --config /etc/glove/config.json`,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.installDaemon(command.Context(), f)
		},
	}
	f.addTo(command)
	command.Flags().StringVar(&f.config, "config", "", "the configuration `file` of this gloved (default: yours)")
	command.Flags().StringVar(&f.gloved, "gloved", "", "the gloved `program` to run (default: the one beside glove)")
	command.Flags().IntVar(&f.systemd, "systemd", 0, "write for this `version` of systemd (default: the one that runs)")
	command.Flags().BoolVar(&f.print, "print", false, "print the unit and change nothing")
	command.Flags().BoolVar(&f.print, "dry-run", false, "the same as --print")
	command.Flags().BoolVar(&f.force, "force", false, "replace a unit that glove did not write, or that was changed")
	command.Flags().BoolVar(&f.json, "json", false, "print one JSON document")
	_ = command.MarkFlagFilename("config", "json") // the flags are there
	_ = command.MarkFlagFilename("gloved")
	return command
}

func (a *app) installDaemon(ctx context.Context, f installFlags) error {
	s, err := a.service(f.daemonFlags)
	if err != nil {
		return err
	}
	if f.systemd != 0 && f.systemd < unit.MinSystemd {
		return ui.Usage("--systemd is at least %d", unit.MinSystemd)
	}
	config, options, err := a.configuration(f.config)
	if err != nil {
		return err
	}
	gloved, err := a.serviceProgram(f.gloved, s.user)
	if err != nil {
		return err
	}
	spec := unit.Spec{User: s.user, Systemd: f.systemd, Gloved: gloved, Config: config, Mounts: mountsOf(config, options)}
	m, err := a.manager(ctx, s, ownSupervision(gloved, config))
	switch {
	case err == nil && spec.Systemd == 0:
		spec.Systemd = m.version
	case err != nil && f.print && spec.Systemd == 0:
		spec.Systemd = unit.SubgroupSystemd
		a.Errf("glove: no systemd answers here; this is the unit for systemd %d and later (--systemd VERSION for another)\n", spec.Systemd)
	case err != nil && !f.print:
		return err
	}
	text, err := spec.Text()
	if err != nil {
		return &ui.Error{Code: "path_unusable", Message: err.Error(), Err: err, Next: "move it to where the path is plain, or link to it from there"}
	}
	if f.print {
		return a.printUnit(f, s, text)
	}
	report := installReport{Unit: unit.Name, Path: s.path, Manager: s.manager(), Config: config, Gloved: gloved}
	if report.Changed, err = a.writeUnit(s, text, f.force); err != nil {
		return err
	}
	if _, err := m.run(ctx, "daemon-reload"); err != nil {
		return s.managerFailure("install", err)
	}
	if _, err := m.run(ctx, "enable", "--quiet", "--", unit.Name); err != nil {
		return s.managerFailure("install", err)
	}
	report.Enabled = true
	state, err := m.state(ctx)
	if err != nil {
		return s.managerFailure("install", err)
	}
	switch {
	case !state.running():
		report.Next = "glove daemon start" + s.flag()
	case report.Changed:
		report.Next = "glove daemon restart" + s.flag()
	}
	return a.showInstalled(s, report, f.json)
}

func (s service) manager() string {
	if s.user {
		return "user"
	}
	return "system"
}

// mountsOf are the paths that must be there for gloved to start.
func mountsOf(config string, o daemon.Options) []string {
	out := []string{filepath.Dir(config)}
	for _, path := range []string{o.Journal, o.SessionStore, o.MaterializationRoot} {
		if path != "" {
			out = append(out, filepath.Dir(path))
		}
	}
	// The root needs no waiting for, and is no path for a unit.
	kept := out[:0]
	for _, path := range out {
		if path != "/" {
			kept = append(kept, path)
		}
	}
	return kept
}

// printUnit prints the unit as it would be written.
func (a *app) printUnit(f installFlags, s service, text string) error {
	if f.json {
		return a.JSON(map[string]string{"unit": unit.Name, "path": s.path, "manager": s.manager(), "text": text})
	}
	_, err := fmt.Fprint(a.Out, text)
	return err
}

// writeUnit puts the unit in its place, and reports whether that changed anything.
func (a *app) writeUnit(s service, text string, force bool) (changed bool, err error) {
	file, err := s.look()
	if err != nil {
		return false, err
	}
	if file.exists && string(file.data) == text {
		return false, nil
	}
	if file.exists && file.Origin != unit.Ours && !force {
		why := "glove did not write " + s.path
		if file.Origin == unit.Edited {
			why = s.path + " was changed after glove wrote it"
		}
		return false, ui.Fail("unit_not_ours", why, "keep additions in a drop-in ("+s.systemctl("edit")+"), or replace it with --force")
	}
	if err = os.MkdirAll(s.dir, 0o755); err == nil {
		err = replaceFile(s.dir, s.path, []byte(text))
	}
	if err != nil {
		return false, s.notWritten(err)
	}
	return true, nil
}

func (s service) systemctl(verb string) string {
	if s.user {
		return "systemctl --user " + verb + " " + unit.Name
	}
	return "systemctl " + verb + " " + unit.Name
}

func (s service) notWritten(err error) error {
	failure := &ui.Error{Code: "unit_not_written", Message: err.Error(), Err: err}
	if errors.Is(err, os.ErrPermission) && !s.user {
		failure.Next = "a system service is root's to install: sudo glove daemon install --system --config FILE"
	}
	return failure
}

// replaceFile puts data in the place of path, in dir, at once and for good. systemd reads
// units that everybody may read, and complains of others.
func replaceFile(dir, path string, data []byte) error {
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (a *app) showInstalled(s service, report installReport, asJSON bool) error {
	if asJSON {
		return a.JSON(report)
	}
	did := "wrote"
	if !report.Changed {
		did = "unchanged:"
	}
	a.Outf("%s %s (%s service, enabled)\n", did, s.path, s.manager())
	a.Outf("  runs %s --config %s\n", report.Gloved, report.Config)
	if check := checkLinger(); s.user && check.Status != host.Passed {
		a.Outf("  %s %s: %s\n", ui.Paint(a.OutColor, ui.Yellow, "note:"), check.Message, check.Recovery)
	}
	if report.Next != "" {
		a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Cyan, "next:"), report.Next)
	}
	return nil
}

func (a *app) daemonUninstall() *cobra.Command {
	var f daemonFlags
	var force, asJSON bool
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Stop gloved, and disable and remove its unit",
		Long: `Stop gloved, and disable and remove the unit that "glove daemon install" wrote. Sessions
go on; configuration, journals and receipts stay. A unit that glove did not write, or that
was changed since, is only removed with --force.

Exit codes: 0 there is no unit now, 1 refused or failed, 2 wrong command line.`,
		Example: `  glove daemon uninstall
  sudo glove daemon uninstall --system`,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.uninstallDaemon(command.Context(), f, force, asJSON)
		},
	}
	f.addTo(command)
	command.Flags().BoolVar(&force, "force", false, "also remove a unit that glove did not write, or that was changed")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) uninstallDaemon(ctx context.Context, f daemonFlags, force, asJSON bool) error {
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
	report := installReport{Unit: unit.Name, Path: s.path, Manager: s.manager(), Config: file.Config, Gloved: file.Gloved}
	if !file.exists {
		return a.showUninstalled(report, asJSON)
	}
	if file.Origin != unit.Ours && !force {
		return ui.Fail("unit_not_ours", "glove did not write "+s.path+" as it is", "look at it ("+s.systemctl("cat")+"), then remove it with --force")
	}
	if _, err := m.run(ctx, "disable", "--now", "--quiet", "--", unit.Name); err != nil {
		return s.managerFailure("uninstall", err)
	}
	if err := os.Remove(s.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return &ui.Error{Code: "unit_not_removed", Message: err.Error(), Err: err}
	}
	if err := syncDir(s.dir); err != nil {
		return &ui.Error{Code: "unit_not_removed", Message: err.Error(), Err: err}
	}
	report.Changed = true
	if _, err := m.run(ctx, "daemon-reload"); err != nil {
		return s.managerFailure("uninstall", err)
	}
	return a.showUninstalled(report, asJSON)
}

func (a *app) showUninstalled(report installReport, asJSON bool) error {
	switch {
	case asJSON:
		return a.JSON(report)
	case report.Changed:
		a.Outf("removed %s; sessions go on\n", report.Path)
		if report.Config != "" {
			a.Outf("  kept %s and what it names\n", report.Config)
		}
	default:
		a.Outf("nothing to remove: there is no %s\n", report.Path)
	}
	return nil
}
