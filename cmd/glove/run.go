package main

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
)

// runFlags are those of glove run that say how to report, not what to run.
type runFlags struct {
	keep, asJSON, quiet, verbose bool
	receipt, gloved              string
}

const runLong = `Run a command in a sandbox and attach it to this terminal.

The command gets a copy of the current directory at /workspace, a home and a /tmp of
its own, the system's programs read-only, no network, and six limits that the kernel
enforces. Nothing it writes reaches this machine: copies, home and /tmp are gone when it
ends. What it did ends in a receipt, authenticated and checked before it is printed.

Which program runs: a name is looked for in /usr/local/bin, /usr/bin, /bin, /usr/sbin,
/sbin and /workspace/node_modules/.bin, then in your PATH. A program of the system or of
the current directory runs as it is there. Any other file is given to the sandbox by
itself, and a script with its package (the node_modules it lies in) and its interpreter;
what that makes readable is said before it starts.

Paths: --read PATH shows a file or directory read-only at the same path inside, --write
PATH puts a writable copy there that is thrown away at the end; either takes PATH:/PLACE
to put it elsewhere. Places of the system (/usr, /etc, /dev, ...) cannot be replaced.

Terminal: when standard input and output are both terminals the command has this one:
keys go to it as they are, Ctrl-C included, and its size follows. Otherwise its output
comes out unchanged (no line-end translation, no echo) and input ends when yours does;
inside there is still a terminal, so a program that asks will say it has one, and
standard error comes out with standard output.

Exit status: the command's own; 128+N when signal N ended it; 124 when it met the CPU or
wall time limit; 137 the memory limit; 123 another limit (processes, disk, output);
125 when glove could not run it; 126 and 127 when the command cannot be executed or is
not found; 2 when glove's own options are wrong. With --json the receipt's facts, or the
error, are one JSON line on standard error; standard output is the command's alone.`

const runExample = `  glove run -- sh                          a shell in a copy of this directory
  glove run --no-workspace -- python3      with nothing of yours
  glove run -- npx --no-install eslint .   what the project itself brings
  glove run --read ~/data --memory 2G --wall-time 10m -- make test
  git diff | glove run --quiet -- wc -l    in a pipe
  glove run --env OPENAI_API_KEY --receipt r.json -- codex --version`

func (a *app) runCommand() *cobra.Command {
	flags := runFlags{}
	request := localrun.Request{}
	command := &cobra.Command{
		Use:     "run [flags] -- COMMAND [ARG...]",
		Short:   "Run a command in a sandbox, attached to this terminal",
		Long:    runLong,
		Example: runExample,
		Args:    cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if err := checkRunArgs(command, args); err != nil {
				return err
			}
			request.Argv = args
			err := a.run(command.Context(), &request, &flags)
			return a.reportRun(err, flags.asJSON)
		},
	}
	f := command.Flags()
	f.SortFlags = false
	f.StringVar(&request.Workspace, "workspace", "", "copy this `directory` to /workspace instead of the current one")
	f.BoolVar(&request.NoWorkspace, "no-workspace", false, "copy nothing to /workspace")
	f.StringArrayVar(&request.Reads, "read", nil, "show `PATH[:/PLACE]` read-only (may be repeated)")
	f.StringArrayVar(&request.Writes, "write", nil, "put a throw-away writable copy of `PATH[:/PLACE]` there (may be repeated)")
	f.StringArrayVar(&request.Env, "env", nil, "pass on this environment variable, by `NAME` (may be repeated)")
	f.Var(&request.Limits.CPUTime, "cpu-time", "CPU `time` of all processes together")
	f.Var(&request.Limits.WallTime, "wall-time", "`time` from start to end")
	f.Lookup("cpu-time").DefValue = localrun.DefaultCPUTime.String()
	f.Lookup("wall-time").DefValue = localrun.DefaultWallTime.String()
	f.Var(&request.Limits.Memory, "memory", "memory of all processes together, a `size` (default 4G, at most half of the machine's)")
	f.Uint32Var(&request.Limits.PIDs, "pids", 0, "`number` of processes and threads at once (default 256)")
	f.Var(&request.Limits.Disk, "disk", "copies, home and /tmp together, a `size` (default: the copies and half of the memory)")
	f.Var(&request.Limits.Output, "output", "terminal output, a `size` (default 64M)")
	f.StringVar(&flags.receipt, "receipt", "", "write the whole verified receipt to this `file`")
	f.BoolVar(&flags.asJSON, "json", false, "report on standard error as one line of JSON")
	f.BoolVarP(&flags.quiet, "quiet", "q", false, "print no notes and no receipt line")
	f.BoolVarP(&flags.verbose, "verbose", "v", false, "say what is mounted, and the limits")
	f.BoolVar(&flags.keep, "keep", false, "keep the private state (journals, policy, log) and say where it is")
	f.StringVar(&flags.gloved, "gloved", "", "the gloved `program` to start (default: glove itself)")
	completeRun(command)
	return command
}

// completeRun says what may stand where, for the shells.
func completeRun(command *cobra.Command) {
	command.ValidArgsFunction = func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 || word == "" || strings.Contains(word, "/") {
			return nil, cobra.ShellCompDirectiveDefault // the command's own arguments, or a file
		}
		return localrun.Commands(word), cobra.ShellCompDirectiveNoFileComp
	}
	for _, name := range []string{"workspace"} {
		_ = command.MarkFlagDirname(name) // the flag is there
	}
	none := func(values ...string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return values, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for name, values := range map[string][]string{
		"cpu-time": {"1m", "10m", "1h"}, "wall-time": {"10m", "1h", "8h"}, "memory": {"1G", "2G", "4G", "8G"},
		"disk": {"1G", "2G", "4G"}, "output": {"16M", "64M", "256M"}, "pids": {"64", "256", "1024"},
	} {
		_ = command.RegisterFlagCompletionFunc(name, none(values...)) // the flag is there
	}
	_ = command.RegisterFlagCompletionFunc("env", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return environmentNames(), cobra.ShellCompDirectiveNoFileComp
	})
}

func environmentNames() []string {
	var names []string
	for _, entry := range os.Environ() {
		for i := range entry {
			if entry[i] == '=' && i > 0 {
				names = append(names, entry[:i])
				break
			}
		}
	}
	slices.Sort(names)
	return names
}

// checkRunArgs demands the -- that keeps glove's flags from the command's.
func checkRunArgs(command *cobra.Command, args []string) error {
	dash := command.ArgsLenAtDash()
	if dash == 0 && len(args) > 0 && args[0] != "" {
		return nil
	}
	failure := ui.Usage("there is no command to run")
	failure.Next = "glove run -- COMMAND [ARG...]"
	if dash != 0 && len(args) > 0 && args[0] != "" {
		failure.Message = "the command comes after --, so that its options are not taken for glove's"
		failure.Next = "glove run -- " + args[0] + " ..."
	}
	return failure
}

// exitOwnFailure is glove's own failure, as env(1) and timeout(1) have it.
const exitOwnFailure = 125

// reportRun gives glove's own failures their exit status and, because standard output is
// the command's, prints them as JSON to standard error.
func (a *app) reportRun(err error, asJSON bool) error {
	var silent *ui.Silent
	if err == nil || errors.As(err, &silent) {
		return err
	}
	var failure *ui.Error
	if !errors.As(err, &failure) {
		failure = &ui.Error{Code: "failed", Message: err.Error(), Err: err}
	}
	if failure.Exit == 0 {
		failure.Exit = exitOwnFailure
	}
	if !asJSON {
		return failure
	}
	line, err := json.Marshal(map[string]any{"ok": false, "exit_status": failure.Exit, "error": map[string]any{
		"code": failure.Code, "message": failure.Message, "next": failure.Next, "detail": failure.Detail}}, json.Deterministic(true))
	if err != nil {
		return failure
	}
	a.Errf("%s\n", line)
	return &ui.Silent{Exit: failure.Exit}
}
