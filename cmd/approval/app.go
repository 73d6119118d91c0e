package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
	"gloved.dev/internal/clock"
	alog "gloved.dev/journal/approval"
	"gloved.dev/runtime/gate"
)

// app is what every command needs: the streams and the process's surroundings.
type app struct {
	*ui.Streams
	getenv func(string) string
	clock  clock.Clock
}

func newApp(streams *ui.Streams) *app {
	return &app{Streams: streams, getenv: os.Getenv, clock: clock.System()}
}

// Groups of commands in the help.
const (
	groupDecide = "decide"
	groupRun    = "run"
	groupCheck  = "check"
	groupOther  = "other"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "approval",
		Short: "Ask a person before an agent acts, and keep proof of it",
		Long: `approval is a gate in front of what agents do. APPROVAL.md says, class by class, what
may happen by itself, what a person must grant, and what is not for agents at all. Every
question, decision and execution goes into a hash-chained log that anybody can verify.`,
		Example: `  approval init                   make .approval/ and an APPROVAL.md to edit
  approval policy attest --as human:ada
  approval queue                  what waits for a person
  approval show KEY               exactly what KEY would do
  approval grant KEY --as human:ada`,
		Args:    cobra.ArbitraryArgs,
		Version: version.Get().String(),
		RunE:    a.banner,
	}
	root.SetVersionTemplate("approval {{.Version}}\n")
	root.Flags().BoolP("version", "V", false, "print the version")
	root.AddGroup(
		&cobra.Group{ID: groupDecide, Title: "Decide:"},
		&cobra.Group{ID: groupRun, Title: "Run:"},
		&cobra.Group{ID: groupCheck, Title: "Look and check:"},
		&cobra.Group{ID: groupOther, Title: "The rest:"},
	)
	root.SetHelpCommand(grouped(groupOther, helpCommand(root)))
	root.AddCommand(a.commands()...)
	ui.Prepare(root, a.Streams)
	return root
}

// extra are commands that other files of the program add.
var extra []func(*app) *cobra.Command

// commands are the program's commands, in the order of the help.
func (a *app) commands() []*cobra.Command {
	all := []*cobra.Command{
		grouped(groupOther, a.initCommand()),
		grouped(groupDecide, a.queueCommand()),
		grouped(groupDecide, a.showCommand()),
		grouped(groupDecide, a.watchCommand()),
		grouped(groupDecide, a.grantCommand()),
		grouped(groupDecide, a.rejectCommand()),
		grouped(groupDecide, a.revokeCommand()),
		grouped(groupRun, a.runCommand()),
		grouped(groupRun, a.executionCommand()),
		grouped(groupCheck, a.statusCommand()),
		grouped(groupCheck, a.policyCommand()),
		grouped(groupCheck, a.logCommand()),
		grouped(groupOther, a.completionCommand()),
	}
	for _, more := range extra {
		all = append(all, more(a))
	}
	return all
}

// completionCommand prints completion scripts of the shells that can use one.
func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell's completion script",
		Long:  "Print a shell's completion script. It knows the commands and their flags.",
		Example: "  echo 'source <(approval completion bash)' >> ~/.bashrc\n" +
			"  approval completion fish > ~/.config/fish/completions/approval.fish",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: ui.Shells,
		RunE: func(command *cobra.Command, args []string) error {
			return ui.Completion(command.Root(), args[0], a.Out)
		},
	}
}

func grouped(id string, command *cobra.Command) *cobra.Command {
	command.GroupID = id
	return command
}

// banner is approval alone: what it is and what to try first.
func (a *app) banner(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		failure := ui.Usage("approval has no command %q", args[0])
		failure.Next = "approval --help"
		if near := command.SuggestionsFor(args[0]); len(near) > 0 {
			failure.Next = "did you mean: approval " + near[0]
		}
		return failure
	}
	a.Outf("%s %s\n\n", ui.Paint(a.OutColor, ui.Bold, "approval"), version.Version)
	a.Outf("%s\n\nTry:\n%s\n\nAll commands: approval --help\n", command.Long, command.Example)
	return nil
}

func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about any command",
		Example: "  approval help policy explain",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			command, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				failure := ui.Usage("there is no command %q to explain", args)
				failure.Next = "approval --help"
				return failure
			}
			command.InitDefaultHelpFlag()
			return command.Help()
		},
	}
}

// place is where a command's log and policy are.
type place struct {
	log, policy, dir string
	json             bool
}

// placed gives a command the flags that say where the log and the policy are.
func (p *place) placed(command *cobra.Command) *cobra.Command {
	p.logged(command)
	command.Flags().StringVar(&p.policy, "policy", "", "the policy `file`, over --dir")
	command.Flags().StringVar(&p.dir, "dir", ".", "the `folder` with APPROVAL.md")
	return command
}

// logged gives a command the flags of one that needs the log alone.
func (p *place) logged(command *cobra.Command) *cobra.Command {
	command.Flags().StringVar(&p.log, "log", filepath.Join(".approval", "log", "events.jsonl"), "the event log's `file`")
	command.Flags().BoolVar(&p.json, "json", false, "print one JSON document")
	return command
}

// gate opens the gate of the place.
func (a *app) gate(p *place) (*gate.Gate, error) {
	log, err := filepath.Abs(p.log)
	if err != nil {
		return nil, ioFailure(err)
	}
	c := gate.Config{Log: log, Clock: a.clock}
	if p.policy != "" {
		c.Policy, err = filepath.Abs(p.policy)
	} else {
		c.Dir, err = filepath.Abs(p.dir)
	}
	if err != nil {
		return nil, ioFailure(err)
	}
	return gate.New(c), nil
}

// minPrefix is how much of a key must be typed at least.
const minPrefix = 4

// key finds the key that a person means: the one of exactly that name, else the
// only one that begins so. Keys of workspace changes carry a digest; typing all
// of it helps nobody.
func key(v *gate.View, typed string) (string, error) {
	if v.Action(typed) != nil {
		return typed, nil
	}
	var found []string
	for _, k := range v.Order {
		if len(typed) >= minPrefix && strings.HasPrefix(k, typed) {
			found = append(found, k)
		}
	}
	switch len(found) {
	case 0:
		return "", failure(&gate.Error{Code: gate.CodeActionNotRegistered, Message: fmt.Sprintf("no task declares the key %q", typed)})
	case 1:
		return found[0], nil
	}
	return "", &ui.Error{Code: "key-ambiguous", Message: fmt.Sprintf("%d keys begin with %q", len(found), typed),
		Detail: found[:min(len(found), 10)], Next: "type more of it"}
}

// keyAt is key in the log as it is now.
func keyAt(g *gate.Gate, typed string) (string, error) {
	v, err := g.View()
	if err != nil {
		return "", failure(err)
	}
	return key(v, typed)
}

// human is who decides: --as, else APPROVAL_HUMAN. A bad --as never falls back.
func (a *app) human(as string) (string, error) {
	source := "--as"
	if as == "" {
		as, source = a.getenv("APPROVAL_HUMAN"), "APPROVAL_HUMAN"
	}
	if as == "" {
		return "", &ui.Error{Code: "usage", Message: "who decides? Name yourself", Next: "--as human:NAME, or APPROVAL_HUMAN=human:NAME", Exit: ui.ExitUsage}
	}
	if !alog.IsHuman(as) {
		return "", &ui.Error{Code: "usage", Message: source + " must be human:NAME here", Exit: ui.ExitUsage}
	}
	return as, nil
}

// actor is who acts: --as, else APPROVAL_AGENT, else APPROVAL_HUMAN.
func (a *app) actor(as string) (string, error) {
	for _, who := range []string{as, a.getenv("APPROVAL_AGENT"), a.getenv("APPROVAL_HUMAN")} {
		if who == "" {
			continue
		}
		kind, _, ok := alog.ActorKind(who)
		if !ok || kind == alog.System {
			return "", &ui.Error{Code: "usage", Message: "an actor is agent:NAME or human:NAME", Exit: ui.ExitUsage}
		}
		return who, nil
	}
	return "", &ui.Error{Code: "usage", Message: "who acts?", Next: "--as agent:NAME, or APPROVAL_AGENT=agent:NAME", Exit: ui.ExitUsage}
}
