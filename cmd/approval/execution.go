package main

import (
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/journal/approval"
	"gloved.dev/runtime/gate"
)

func (a *app) executionCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "execution",
		Short: "Settle executions whose end the log does not know",
		Long: `Settle executions whose end the log does not know. Both are for people: look at what the
execution really did, then say so, with a note.`,
		Example: "  approval execution resolve deploy:42 --outcome failed --note 'the host was down'\n" +
			"  approval execution reconcile deploy:43 --resolution executed --note 'both files are there'",
	}
	command.AddCommand(a.resolveCommand(), a.reconcileCommand())
	return command
}

func (a *app) resolveCommand() *cobra.Command {
	return a.settleCommand("resolve", "Close a start that has no outcome", "outcome", "completed or failed",
		[]string{"completed", "failed"}, func(g *gate.Gate, command *cobra.Command, in gate.Decision, word string) (approval.Record, error) {
			return g.Resolve(command.Context(), in, word == "completed")
		})
}

func (a *app) reconcileCommand() *cobra.Command {
	return a.settleCommand("reconcile", "Say what an execution of unknown effect did", "resolution", "executed or not-executed",
		[]string{approval.ReconciledExecuted, approval.ReconciledNotExecuted},
		func(g *gate.Gate, command *cobra.Command, in gate.Decision, word string) (approval.Record, error) {
			return g.Reconcile(command.Context(), in, word)
		})
}

func (a *app) settleCommand(verb, short, flag, words string, set []string,
	settle func(*gate.Gate, *cobra.Command, gate.Decision, string) (approval.Record, error)) *cobra.Command {
	p := &place{}
	var as, note, word string
	command := p.placed(&cobra.Command{
		Use:     verb + " KEY",
		Short:   short,
		Long:    short + ". Only a person may; the note is required. The key stays spent either way.",
		Example: "  approval execution " + verb + " deploy:42 --" + flag + " " + set[0] + " --note 'looked at the host' --as human:ada",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if word != set[0] && word != set[1] {
				return ui.Usage("--%s is %s", flag, words)
			}
			who, err := a.human(as)
			if err != nil {
				return err
			}
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			key, err := keyAt(g, args[0])
			if err != nil {
				return err
			}
			rec, err := settle(g, command, gate.Decision{Actor: who, Key: key, Note: note, Channel: channel}, word)
			if err != nil {
				return failure(err)
			}
			if p.json {
				return a.JSON(map[string]any{"ok": true, "action_key": key, flag: word, "seq": rec.Seq})
			}
			a.Outf("%s: %s (record %d)\n", revealPlain(key), word, rec.Seq)
			return nil
		},
	})
	command.Flags().StringVar(&word, flag, "", words)
	command.Flags().StringVar(&note, "note", "", "what you `found`; required")
	command.Flags().StringVar(&as, "as", "", "who says so: `human:NAME` (default $APPROVAL_HUMAN)")
	return command
}
