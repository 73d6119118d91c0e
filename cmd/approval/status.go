package main

import (
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/gate"
)

// A keyStatus is one key of the log as status shows it.
type keyStatus struct {
	ActionKey   string     `json:"action_key"`
	Task        string     `json:"task"`
	Class       string     `json:"class"`
	State       gate.State `json:"state"`
	Execution   string     `json:"execution,omitzero"` // started, completed, failed, indeterminate, reconciled
	PayloadHash string     `json:"payload_hash,omitzero"`
}

func executionOf(x *gate.Action) string {
	switch {
	case x.Started == nil:
		return ""
	case x.Ended == nil:
		return "started"
	case x.Reconciled != nil:
		return "reconciled"
	}
	return string(x.Ended.Event)[len("execution."):]
}

func statusOf(x *gate.Action, v *gate.View, lapsed bool) keyStatus {
	s := keyStatus{ActionKey: x.Key, Task: x.Task, Class: x.Class, State: x.State(), Execution: executionOf(x), PayloadHash: x.PayloadHash}
	if lapsed {
		s.State = gate.StateExpired
	}
	return s
}

func (a *app) statusCommand() *cobra.Command {
	p := &place{}
	var all bool
	command := p.placed(&cobra.Command{
		Use:   "status [KEY]",
		Short: "Show where keys stand, and what needs a person",
		Long: `Show where keys stand: first the policy's attestation, then what was started and has no
outcome, then what has an unknown effect, then the keys that are not settled. --all shows
every key.`,
		Example: "  approval status\n  approval status deploy:42 --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			v, err := g.View()
			if err != nil {
				return failure(err)
			}
			d := g.Document()
			only := ""
			if len(args) == 1 {
				if only, err = key(v, args[0]); err != nil {
					return err
				}
			}
			rows := []keyStatus{}
			for _, name := range v.Order {
				x := v.Action(name)
				s := statusOf(x, v, v.Lapsed(x, d))
				if only != "" && name != only || only == "" && !all && settled(s) {
					continue
				}
				rows = append(rows, s)
			}
			attested := v.CheckAttested(d)
			if p.json {
				dangling, unknown := v.Unsettled()
				return a.JSON(map[string]any{"ok": true, "attested": attested == nil, "policy_sha256": d.SHA256,
					"head": v.Head, "keys": rows, "dangling": append([]string{}, dangling...), "indeterminate": append([]string{}, unknown...)})
			}
			a.showStatus(v, attested, rows)
			a.noLogYet(v, g)
			return nil
		},
	})
	command.Flags().BoolVar(&all, "all", false, "show settled keys too")
	return command
}

// settled keys need nothing and wait for nothing.
func settled(s keyStatus) bool {
	switch s.Execution {
	case "started", "indeterminate":
		return false
	case "":
		return s.State != gate.StateRequested && s.State != gate.StateGranted
	}
	return true
}

func (a *app) showStatus(v *gate.View, attested error, rows []keyStatus) {
	if attested == nil {
		_, seq := v.Attested()
		a.Outf("policy   %s by record %d\n", ui.Paint(a.OutColor, ui.Green, "attested"), seq)
	} else {
		a.Outf("policy   %s  %s\n", ui.Paint(a.OutColor, ui.Red, "not attested"), ui.Printable(attested.Error()))
	}
	a.Outf("log      %d records\n", v.Head.Seq)
	dangling, unknown := v.Unsettled()
	for _, key := range dangling {
		a.Outf("%s %s was started and has no outcome: approval execution resolve\n", ui.Paint(a.OutColor, ui.Yellow, "dangling"), revealPlain(key))
	}
	for _, key := range unknown {
		a.Outf("%s  the effect of %s is unknown: approval execution reconcile\n", ui.Paint(a.OutColor, ui.Red, "unknown"), revealPlain(key))
	}
	if len(rows) == 0 {
		a.Outf("no key waits for anything\n")
		return
	}
	table := &ui.Table{Head: []string{"KEY", "CLASS", "QUESTION", "EXECUTION"}}
	for _, s := range rows {
		table.Row(revealPlain(s.ActionKey), s.Class, string(s.State), s.Execution)
	}
	table.Write(a.Out, "", a.OutColor)
}
