package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	policy "gloved.dev/policy/approval"
	"gloved.dev/runtime/gate"
)

// runPayload is what a person decides on when a command is to run.
type runPayload struct {
	Argv []string `json:"argv"`
	Cwd  string   `json:"cwd"`
}

// exitNotRunnable is the exit code for a command that could not be run, and
// exitSignal what a signal's number is added to: the shells' convention.
const (
	exitNotRunnable = 127
	exitSignal      = 128
)

// tokenEnv may hold the token instead of --token, which other users of the host
// can see in the list of processes.
const tokenEnv = "APPROVAL_TOKEN"

type runFlags struct {
	place
	as, token, class, task, summary string
	reversible                      bool
}

func (a *app) runCommand() *cobra.Command {
	f := &runFlags{}
	command := f.placed(&cobra.Command{
		Use:   "run KEY [--class CLASS] [--token TOKEN] -- COMMAND [ARGUMENT...]",
		Short: "Run a command as the policy and a person allow",
		Long: `Run a command as the policy and a person allow. The key is bound to the exact arguments and
the folder it runs in, and is good for one start, even if the command fails.

The first time, --class declares the key (in the task --task, else one of the key's name).
Where the policy asks a person, the question is put and the exit code is 5; once it is
granted, run the same line with the --token that the grant printed.

The command is not confined: whoever grants it lets it reach the world as you can. Otherwise the
exit code is the command's own: 128 and the number for a signal, 127 when it
cannot be run. Variables that hold the gate's own secrets are not passed on.`,
		Example: "  approval run deploy:42 --class deploy.site --as agent:ci -- ./deploy.sh production\n" +
			"  approval run deploy:42 --token 5f0c… --as agent:ci -- ./deploy.sh production",
		Args: cobra.MinimumNArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			if command.ArgsLenAtDash() != 1 {
				return ui.Usage("put -- between the KEY and the COMMAND")
			}
			return a.run(command.Context(), f, args[0], args[1:])
		},
	})
	command.Flags().StringVar(&f.as, "as", "", "who acts: agent:`NAME` or human:NAME (default $APPROVAL_AGENT, $APPROVAL_HUMAN)")
	command.Flags().StringVar(&f.token, "token", "", "the `token` that the grant printed (default $APPROVAL_TOKEN, which others cannot see)")
	command.Flags().StringVar(&f.class, "class", "", "declare the key with this `class`")
	command.Flags().StringVar(&f.task, "task", "", "the `task` that declares the key (default: the key)")
	command.Flags().StringVar(&f.summary, "summary", "", "what the command does, for the `person` who decides")
	command.Flags().BoolVar(&f.reversible, "reversible", false, "declare that the action can be taken back")
	return command
}

func (a *app) run(ctx context.Context, f *runFlags, key string, argv []string) error {
	who, err := a.actor(f.as)
	if err != nil {
		return err
	}
	g, err := a.gate(&f.place)
	if err != nil {
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return ioFailure(err)
	}
	canonical, hash, err := gate.SealPayload(runPayload{Argv: argv, Cwd: cwd})
	if err != nil {
		return ui.Usage("the command has no exact form in the log: %v", err)
	}
	if err := a.declare(ctx, g, f, who, key, hash); err != nil {
		return failure(err)
	}
	if f.token == "" {
		f.token = a.getenv(tokenEnv)
	}
	if f.token == "" {
		answer, err := g.Request(ctx, gate.Question{Actor: who, Key: key, Channel: channel, Payload: canonical})
		if err != nil && gate.Code(err) != gate.CodeDuplicateRequest {
			return failure(err)
		}
		if err != nil || !answer.Proceed {
			e, _ := errors.AsType[*gate.Error](err)
			if e != nil && e.State == gate.StateGranted {
				return &ui.Error{Code: gate.CodeTokenRequired, Message: key + " was granted, and needs the token that the grant printed",
					Next: "the same line with --token TOKEN; a lost token can only be revoked (approval revoke " + key + ")", Exit: gate.ExitToken}
			}
			return failure(&gate.Error{Code: gate.CodeTokenRequired, Message: fmt.Sprintf("%s waits for a person: approval show %s", key, key)})
		}
	}
	if _, err := g.Start(ctx, gate.Start{Actor: who, Key: key, Token: f.token, PayloadHash: hash}); err != nil {
		return failure(err)
	}
	code := a.child(ctx, argv, secretNames(g.Document()))
	if _, err := g.Finish(context.WithoutCancel(ctx), gate.Finish{Actor: who, Key: key, ExitCode: code}); err != nil {
		a.Errf("approval: the command ended with %d, and the log could not be told:\n", code)
		return failure(err)
	}
	if code != 0 {
		return &ui.Silent{Exit: code}
	}
	return nil
}

// declare registers the key's task the first time it is used with --class.
func (a *app) declare(ctx context.Context, g *gate.Gate, f *runFlags, who, key, hash string) error {
	v, err := g.View()
	if err != nil || v.Action(key) != nil || f.class == "" {
		return err
	}
	if f.task == "" {
		f.task = key
	}
	_, err = g.Register(ctx, gate.Registration{Actor: who, Task: f.task, Channel: channel, Envelope: gate.Envelope{
		Origin: gate.Origin{App: "approval-run", CreatedBy: who}, State: "proposed",
		Actions: []gate.Declaration{{Class: f.class, Key: key, Summary: f.summary, Reversible: &f.reversible, PayloadHash: hash}},
	}})
	return err
}

// secretNames are the environment variables that hold the gate's own secrets.
func secretNames(d *policy.Document) []string {
	names := []string{"APPROVAL_TG_TOKEN", "APPROVAL_TG_CHAT", "APPROVAL_VAULT_PASSPHRASE", "APPROVAL_HUMAN", "APPROVAL_SENDER_KEY", tokenEnv}
	if d.Policy == nil {
		return names
	}
	names = append(names, d.Policy.VaultEnv, d.Policy.Audit.SecretEnv)
	for _, c := range d.Policy.Channels {
		names = append(names, c.ChatIDEnv, c.TokenEnv)
	}
	return names
}

// child runs the command with our own streams and returns its exit code.
func (a *app) child(ctx context.Context, argv, withhold []string) int {
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdin, command.Stdout, command.Stderr = a.In, a.Out, a.Err
	command.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return slices.Contains(withhold, name)
	})
	// A terminal sends its signals to the whole group: the child ends by them, and
	// we stay to write down how.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, os.Interrupt, syscall.SIGQUIT)
	defer signal.Stop(ignored)
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return exitSignal + int(status.Signal())
		}
		return exit.ExitCode()
	}
	a.Errf("approval: %s\n", ui.Printable(err.Error()))
	return exitNotRunnable
}
