package main

import (
	"os"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
)

// app is what every command needs: the streams and the process's surroundings. Commands
// are methods that return a cobra command, listed in root.
type app struct {
	*ui.Streams
	getenv func(string) string
	self   func() (string, error) // the running executable
}

func newApp(streams *ui.Streams) *app {
	return &app{Streams: streams, getenv: os.Getenv, self: os.Executable}
}

// Groups of commands in the help.
const (
	groupRun   = "run"
	groupTalk  = "talk"
	groupCheck = "check"
	groupOther = "other"
)

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "glove",
		Short: "Run coding agents in a sandbox that you, not they, control",
		Long: `glove is the operator's side of gloved, which runs coding agents in a sandbox
on your machine. A controller may only name what your policy allows; glove is how
you write that policy, look at what it permits, and check what was recorded.`,
		Example: `  glove run -- sh                 a shell in a sandbox, with a copy of this directory
  glove rpc                       talk to a gloved, with completion and history
  glove rpc capabilities          one question, one answer
  glove policy explain --file session-policy.json
  glove journal verify receipts.jsonl`,
		Args:    cobra.ArbitraryArgs,
		Version: version.Get().String(),
		RunE:    a.banner,
	}
	root.SetVersionTemplate("glove {{.Version}}\n")
	root.Flags().BoolP("version", "V", false, "print the version")
	root.AddGroup(
		&cobra.Group{ID: groupRun, Title: "Run and watch:"},
		&cobra.Group{ID: groupTalk, Title: "Talk to gloved:"},
		&cobra.Group{ID: groupCheck, Title: "Look and check:"},
		&cobra.Group{ID: groupOther, Title: "The rest:"},
	)
	root.SetHelpCommand(grouped(groupOther, helpCommand(root)))
	root.AddCommand(a.commands()...)
	ui.Prepare(root, a.Streams)
	return root
}

// commands are all of glove's commands, in the order of the help. A new one is added here.
func (a *app) commands() []*cobra.Command {
	return []*cobra.Command{
		grouped(groupRun, a.runCommand()),
		grouped(groupRun, a.sessionsCommand()),
		grouped(groupRun, a.statusCommand()),
		grouped(groupRun, a.receiptsCommand()),
		grouped(groupRun, a.daemonCommand()),
		grouped(groupCheck, a.doctorCommand()),
		grouped(groupCheck, a.fsckCommand()),
		grouped(groupTalk, a.rpcCommand()),
		grouped(groupTalk, a.transcriptCommand()),
		grouped(groupCheck, a.policyCommand()),
		grouped(groupCheck, a.journalCommand()),
		grouped(groupOther, a.versionCommand()),
		grouped(groupOther, a.completionCommand()),
		a.manCommand(),
	}
}

func grouped(id string, command *cobra.Command) *cobra.Command {
	command.GroupID = id
	return command
}

// banner is glove alone: what it is and what to try first.
func (a *app) banner(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		failure := ui.Usage("glove has no command %q", args[0])
		failure.Next = "glove --help"
		if near := command.SuggestionsFor(args[0]); len(near) > 0 {
			failure.Next = "did you mean: glove " + near[0]
		}
		return failure
	}
	a.Outf("%s %s\n\n", ui.Paint(a.OutColor, ui.Bold, "glove"), version.Version)
	a.Outf("%s\n\nTry:\n%s\n\n", command.Long, command.Example)
	a.Outf("All commands: glove --help\n")
	return nil
}

func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Help about any command",
		Example: "  glove help policy explain",
		Args:    cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			command, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				failure := ui.Usage("there is no command %q to explain", args)
				failure.Next = "glove --help"
				return failure
			}
			command.InitDefaultHelpFlag()
			return command.Help()
		},
	}
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  glove version --json",
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return a.JSON(version.Get())
			}
			a.Outf("glove %s\n", version.Get())
			return nil
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish|powershell",
		Short: "Print a shell's completion script",
		Long: `Print a script that makes your shell complete glove's commands and flags.
Load it from the shell's start-up file.`,
		Example: `  echo 'source <(glove completion bash)' >> ~/.bashrc
  glove completion zsh > "${fpath[1]}/_glove"
  glove completion fish > ~/.config/fish/completions/glove.fish`,
		ValidArgs: ui.Shells,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		RunE: func(command *cobra.Command, args []string) error {
			return ui.Completion(command.Root(), args[0], a.Out)
		},
	}
}
