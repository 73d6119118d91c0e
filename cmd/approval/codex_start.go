package main

import (
	"errors"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/broker"
	"gloved.dev/runtime/gate"
	"gloved.dev/runtime/room"
)

func (a *app) codexStart() *cobra.Command {
	i := &instance{}
	var timeout time.Duration
	command := i.flags(&cobra.Command{
		Use:   "start [-- COMMAND ARG...]",
		Short: "Run a command in the confined room",
		Long: `Run a command in the confined room: it reads the canonical workspace and a disposable one,
writes the disposable one, and has no credentials, no network and no way out, for itself and
everything it starts. Without a command, say what the room is and make nothing.

There is no way to run it unconfined. A system without the mechanism refuses
(sandbox-unsupported). Standard output and error of the command are one stream.`,
		Example: "  approval codex start --manifest /opt/approval-codex/instances/team.json\n" +
			"  approval codex start --manifest /opt/approval-codex/instances/team.json -- sh",
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) > 0 && command.ArgsLenAtDash() != 0 {
				return ui.Usage("the command comes after --")
			}
			return a.start(command, i, timeout, args)
		},
	})
	command.Flags().DurationVar(&timeout, "timeout", room.DefaultTimeout, "end the room after this `time`")
	return command
}

func (a *app) start(command *cobra.Command, i *instance, timeout time.Duration, argv []string) error {
	m, err := broker.LoadManifest(i.manifest)
	if err == nil {
		err = m.RunsHere()
	}
	if err != nil {
		return a.refused(i, err)
	}
	o := room.Options{
		Canonical: m.Paths.Workspace, InstallRoot: m.Paths.InstallRoot, Policy: m.Paths.Policy, Log: m.Paths.Log,
		Home:   gate.New(gate.Config{Log: m.Paths.Log}).Home(),
		Getenv: a.getenv, Timeout: timeout,
	}
	if len(argv) == 0 {
		d, err := room.Describe(o)
		if err != nil {
			return a.roomRefused(i, err)
		}
		return a.line(d)
	}
	if os.Geteuid() == 0 {
		if o.UID, o.GID, err = userIDs(m.Principals.Codex); err != nil {
			return a.roomRefused(i, &room.Error{Code: room.CodeWorkspace, Message: "the system knows no user " + m.Principals.Codex, Err: err})
		}
		if o.UID == 0 {
			return a.roomRefused(i, &room.Error{Code: room.CodeWorkspace,
				Message: "you are root, and the manifest's principals.codex, whom the room would run as, is root too; name another user there, such as nobody"})
		}
	}
	ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	exit, err := room.Run(ctx, o, argv, os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		return a.roomRefused(i, err)
	}
	if exit != 0 {
		return &ui.Silent{Exit: exit}
	}
	return nil
}

func userIDs(name string) (uid, gid uint32, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, 0, err
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return 0, 0, err
	}
	group, err := strconv.ParseUint(u.Gid, 10, 32)
	return uint32(id), uint32(group), err
}

// roomRefused reports that nothing ran, or that it was ended.
func (a *app) roomRefused(i *instance, err error) error {
	e, ok := errors.AsType[*room.Error](err)
	if !ok {
		return a.refused(i, err)
	}
	out := &ui.Error{Code: e.Code, Message: e.Message, Exit: gate.ExitRefused, Next: codexNext(e.Code, ""), Err: err}
	if e.Err != nil {
		out.Detail = append(out.Detail, strings.TrimPrefix(e.Err.Error(), e.Code+": "))
	}
	return a.refusedAs(i, out)
}

func (a *app) refusedAs(i *instance, e *ui.Error) error {
	if !i.json {
		return e
	}
	return a.refused(i, e)
}

// validJSON reports whether data is one JSON text of any kind. What it means is judged later.
func validJSON(data []byte) bool {
	return jsontext.Value(data).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}
