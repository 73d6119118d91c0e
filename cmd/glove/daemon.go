package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	osuser "os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/unit"
)

func (a *app) daemonCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "daemon",
		Short: "Keep a gloved running as a systemd service",
		Long: `Install gloved as a service of systemd, and start, stop, restart and look at it. As
root it is a system service, for anybody else a service of their own systemd; --system and
--user say otherwise. Sessions outlive a stop, a restart and a crash of gloved.

Without systemd, run "gloved --config FILE" under your own supervisor: one that, to end it,
sends SIGTERM to that process alone, and leaves its control group in peace.`,
		Example: `  glove daemon install            write and enable the unit
  glove daemon start
  glove daemon status
  glove daemon install --print    only show the unit`,
	}
	command.AddCommand(a.daemonInstall(), a.daemonStart(), a.daemonStop(), a.daemonRestart(), a.daemonStatus(), a.daemonUninstall())
	return command
}

// daemonFlags are those of every subcommand: whose service it is.
type daemonFlags struct{ user, system bool }

func (f *daemonFlags) addTo(command *cobra.Command) {
	command.Flags().BoolVar(&f.user, "user", false, "a service of your own systemd (the default, unless you are root)")
	command.Flags().BoolVar(&f.system, "system", false, "a service of the system (the default for root)")
}

// A service is the unit of one manager.
type service struct {
	user bool
	dir  string // where its units are
	path string // of the unit file
}

// service finds out whose service the flags mean.
func (a *app) service(f daemonFlags) (service, error) {
	if f.user && f.system {
		return service{}, ui.Usage("--user and --system exclude each other")
	}
	if f.system || !f.user && os.Geteuid() == 0 {
		return service{dir: systemUnits, path: filepath.Join(systemUnits, unit.Name)}, nil
	}
	dir, err := a.configDir()
	if err != nil {
		return service{}, err
	}
	dir = filepath.Join(filepath.Dir(dir), "systemd", "user")
	return service{user: true, dir: dir, path: filepath.Join(dir, unit.Name)}, nil
}

// systemUnits is where an administrator's own system units belong.
const systemUnits = "/etc/systemd/system"

// flag is how a command line names the service again.
func (s service) flag() string {
	if s.user != (os.Geteuid() == 0) {
		return ""
	}
	if s.user {
		return " --user"
	}
	return " --system"
}

// journal is how to read what gloved said.
func (s service) journal() string {
	if s.user {
		return "journalctl --user -u " + unit.Name
	}
	return "journalctl -u " + unit.Name
}

// unitFile is what lies where the unit belongs.
type unitFile struct {
	unit.Inspection
	exists bool
	data   []byte // of a regular file
}

// look reads the unit file, if there is one. A link is somebody else's work: systemctl
// itself makes one to mask a unit.
func (s service) look() (unitFile, error) {
	f, err := os.OpenFile(s.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return unitFile{}, nil
	case errors.Is(err, unix.ELOOP):
		return unitFile{exists: true, Inspection: unit.Inspection{Origin: unit.Foreign}}, nil
	case err != nil:
		return unitFile{}, unitUnreadable(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return unitFile{}, unitUnreadable(err)
	}
	found := unitFile{exists: true, Inspection: unit.Inspection{Origin: unit.Foreign}}
	if !info.Mode().IsRegular() {
		return found, nil
	}
	found.data, err = io.ReadAll(io.LimitReader(f, unit.MaxBytes+1))
	if err != nil {
		return unitFile{}, unitUnreadable(err)
	}
	if len(found.data) <= unit.MaxBytes {
		found.Inspection = unit.Inspect(found.data)
	}
	return found, nil
}

func unitUnreadable(err error) error {
	return &ui.Error{Code: "unit_unreadable", Message: err.Error(), Err: err}
}

// installed is the unit file, which must be there.
func (s service) installed(flags string) (unitFile, error) {
	file, err := s.look()
	if err == nil && !file.exists {
		err = ui.Fail("daemon_not_installed", "there is no "+s.path, "glove daemon install"+flags)
	}
	return file, err
}

// configuration finds the configuration a new unit is to name, and reads it.
func (a *app) configuration(given string) (string, daemon.Options, error) {
	if given == "" {
		if given = a.ownConfig(); given == "" {
			return "", daemon.Options{}, ui.Fail("no_configuration", "there is no configuration of yours",
				"write one to ~/.config/glove/config.json, or name one with --config; gloved --help lists what may be in it")
		}
	}
	path, err := filepath.Abs(given)
	if err != nil {
		return "", daemon.Options{}, ui.Failf("config_unreadable", "%w", err)
	}
	options, err := daemon.LoadConfig(path)
	if err != nil {
		failure := &ui.Error{Code: "config_invalid", Message: err.Error(), Err: err, Next: "glove doctor --config " + quote(path)}
		var wrong *daemon.UsageError
		if errors.As(err, &wrong) && wrong.Next != "" {
			failure.Next = wrong.Next
		}
		return "", daemon.Options{}, failure
	}
	return path, options, nil
}

// serviceProgram is the gloved that a unit may name: a file that only its owner, who is
// the service's user or root, can change, and that only such users can replace.
func (a *app) serviceProgram(given string, user bool) (string, error) {
	if given == "" {
		self, err := a.self()
		if err != nil {
			return "", ui.Failf("gloved_not_found", "cannot tell where glove itself is: %w", err)
		}
		given = filepath.Join(filepath.Dir(self), "gloved")
	}
	path, err := filepath.Abs(given)
	if err == nil {
		err = executable(path)
	}
	if err != nil {
		return "", ui.Fail("gloved_not_found", err.Error(), "build one (go build -o DIRECTORY ./cmd/glove ./cmd/gloved), or name it with --gloved")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", ui.Failf("gloved_not_found", "%w", err)
	}
	who := owner{group: noGroup}
	if user {
		who = owner{uid: uint32(os.Geteuid()), group: privateGroup()} //nolint:gosec // never negative on Unix
	}
	for _, start := range []string{path, real} {
		if err := who.trusts(start); err != nil {
			return "", ui.Fail("gloved_untrusted", err.Error(), "install gloved where only its user and root can write, such as /usr/local/bin")
		}
	}
	return path, nil
}

// An owner is a service's user, and the group that has no other member.
type owner struct{ uid, group uint32 }

// noGroup is no group's number.
const noGroup = ^uint32(0)

// privateGroup is the user's own group where each user has one of the same name, as most
// distributions have it: there files are writable for the group by default.
func privateGroup() uint32 {
	me, err := osuser.Current()
	if err != nil {
		return noGroup
	}
	group, err := osuser.LookupGroupId(me.Gid)
	if err != nil || group.Name != me.Username {
		return noGroup
	}
	gid, err := strconv.ParseUint(group.Gid, 10, 32)
	if err != nil || gid == 0 {
		return noGroup
	}
	return uint32(gid)
}

// trusts checks that nobody but the owner and root can change path or what leads to it. A
// directory that all may write in will do if it is sticky: an entry of ours stays ours.
func (o owner) trusts(path string) error {
	for at := path; ; at = filepath.Dir(at) {
		var st unix.Stat_t
		if err := unix.Stat(at, &st); err != nil {
			return &os.PathError{Op: "stat", Path: at, Err: err}
		}
		if st.Uid != o.uid && st.Uid != 0 {
			return fmt.Errorf("%s belongs to user %d, who could change what the service runs", at, st.Uid)
		}
		writers := st.Mode & 0o022
		if st.Gid == o.group {
			writers &^= 0o020
		}
		sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
		if writers != 0 && !sticky {
			return fmt.Errorf("%s can be written by others than its owner (mode %04o)", at, st.Mode&0o7777)
		}
		if at == "/" {
			return nil
		}
	}
}
