package ui

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Prepare gives a command tree our conventions: errors are printed by Run alone, a wrong
// flag or argument is a usage error, and a group without a subcommand shows its help.
func Prepare(root *cobra.Command, streams *Streams) {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return usageOf(command, err.Error())
	})
	each(root, func(command *cobra.Command) {
		command.DisableFlagsInUseLine = true
		command.SuggestionsMinimumDistance = 2
		if !command.Runnable() && command.HasSubCommands() {
			command.Args = cobra.ArbitraryArgs
			command.RunE = groupWithoutCommand
			return
		}
		wrapArgs(command)
	})
}

func each(command *cobra.Command, do func(*cobra.Command)) {
	do(command)
	for _, child := range command.Commands() {
		each(child, do)
	}
}

func groupWithoutCommand(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		message := fmt.Sprintf("%s has no command %q", command.CommandPath(), args[0])
		failure := usageOf(command, message)
		if near := command.SuggestionsFor(args[0]); len(near) > 0 {
			failure.Next = "did you mean " + strings.Join(near, " or ") + "?"
		}
		return failure
	}
	command.SetOut(command.ErrOrStderr())
	if err := command.Help(); err != nil {
		return err
	}
	return &Silent{Exit: ExitUsage}
}

// wrapArgs makes a wrong number of arguments a usage error.
func wrapArgs(command *cobra.Command) {
	check := command.Args
	if check == nil {
		check = cobra.NoArgs
	}
	command.Args = func(command *cobra.Command, args []string) error {
		if err := check(command, args); err != nil {
			return usageOf(command, inWords(command, args, err))
		}
		return nil
	}
}

// inWords says which argument is missing or too many, where the library counts them.
func inWords(command *cobra.Command, args []string, err error) string {
	text := err.Error()
	if !strings.HasPrefix(text, "accepts ") && !strings.HasPrefix(text, "requires ") {
		return text
	}
	var names []string // of the arguments that must be there
	for _, word := range strings.Fields(command.Use)[1:] {
		if strings.HasPrefix(word, "[") || strings.HasPrefix(word, "-") || strings.HasPrefix(word, "(") {
			break
		}
		names = append(names, strings.TrimSuffix(word, "..."))
	}
	switch {
	case len(args) < len(names):
		return command.CommandPath() + " needs " + strings.Join(names[len(args):], " and ")
	case len(names) > 0 && len(args) > len(names):
		return fmt.Sprintf("%s takes no more than %s: what is %q?", command.CommandPath(), strings.Join(names, " and "), args[len(names)])
	}
	return text
}

func usageOf(command *cobra.Command, message string) *Error {
	failure := Usage("%s", message)
	failure.Next = fmt.Sprintf("%s --help", command.CommandPath())
	return failure
}

// Run executes a prepared command tree and returns the exit code. Errors are printed
// here and nowhere else.
func Run(root *cobra.Command, streams *Streams, args []string) int {
	root.SetArgs(args)
	if err := helpForNothing(root, args); err != nil {
		streams.Report(root.Name(), err, wantsJSON(root, args))
		return ExitCode(err)
	}
	command, err := root.ExecuteC()
	if err != nil && strings.HasPrefix(err.Error(), "required flag(s)") {
		err = usageOf(command, err.Error())
	}
	streams.Report(root.Name(), err, wantsJSON(command, args))
	return ExitCode(err)
}

// helpForNothing refuses to explain a command that does not exist: the library would
// explain its parent instead, and call that a success.
func helpForNothing(root *cobra.Command, args []string) error {
	command, rest, err := root.Find(args)
	if err != nil || !command.HasSubCommands() || len(rest) == 0 || strings.HasPrefix(rest[0], "-") {
		return nil
	}
	if !slices.ContainsFunc(rest, func(s string) bool { return s == "-h" || s == "--help" }) {
		return nil
	}
	return groupWithoutCommand(command, rest)
}

// wantsJSON also looks at the raw arguments, because a command line that could not be
// parsed still says how its errors are wanted.
func wantsJSON(command *cobra.Command, args []string) bool {
	if command != nil {
		if flag := command.Flags().Lookup("json"); flag != nil && flag.Changed {
			return flag.Value.String() == "true"
		}
	}
	if end := slices.Index(args, "--"); end >= 0 {
		args = args[:end]
	}
	return slices.Contains(args, "--json")
}
