package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	alog "gloved.dev/journal/approval"
	"gloved.dev/runtime/gate"
)

// channel is what the log says of where a decision was made.
const channel = "cli"

func (a *app) queueCommand() *cobra.Command {
	p := &place{}
	return p.placed(&cobra.Command{
		Use:     "queue",
		Short:   "List the questions that wait for a person",
		Long:    "List the questions that wait for a person, the oldest first. Lapsed ones are not among them.",
		Example: "  approval queue\n  approval queue --json --log /srv/gate/log/events.jsonl",
		RunE: func(*cobra.Command, []string) error {
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			v, err := g.View()
			if err != nil {
				return failure(err)
			}
			pending := v.Queue(g.Document())
			if p.json {
				return a.JSON(map[string]any{"ok": true, "pending": pending})
			}
			a.showQueue(pending)
			a.noLogYet(v, g)
			return nil
		},
	})
}

// noLogYet says that the place has no log at all: the place may be the wrong one.
func (a *app) noLogYet(v *gate.View, g *gate.Gate) {
	if v.Head.Seq == 0 {
		a.Outf("there is no log yet at %s; another place: --log FILE\n", ui.Printable(g.Log().Path()))
	}
}

func (a *app) showQueue(pending []gate.Pending) {
	if len(pending) == 0 {
		a.Outf("nothing waits for a person\n")
		return
	}
	table := &ui.Table{Head: []string{"KEY", "CLASS", "USD", "ASKED BY", "LEFT"}}
	for _, q := range pending {
		left := "no limit"
		if q.TTLRemainingMS != nil {
			left = (time.Duration(*q.TTLRemainingMS) * time.Millisecond).Round(time.Second).String()
		}
		class := q.Class
		if q.PolicyDrift {
			class += "\nasked under another policy"
		}
		table.Row(revealPlain(q.ActionKey), class, q.Cost.String(), revealPlain(q.Actor), left)
	}
	table.Write(a.Out, "", a.OutColor)
	a.Outf("%s approval show KEY\n", ui.Paint(a.OutColor, ui.Cyan, "next:"))
}

// deciders are the three decisions.
type decider struct {
	verb, short, long, done string
	decide                  func(*gate.Gate, context.Context, gate.Decision) (gate.Decided, error)
}

func (a *app) grantCommand() *cobra.Command {
	return a.decideCommand(decider{
		verb: "grant", short: "Let an action happen, once", done: "granted",
		long: `Let an action happen, once. You grant the exact payload that "approval show KEY" shows.

A plain action's token is printed once and kept nowhere: pass it to whoever runs the
action. An action that a broker asked for has no token; the broker uses the grant itself.`,
		decide: (*gate.Gate).Grant,
	})
}

func (a *app) rejectCommand() *cobra.Command {
	return a.decideCommand(decider{
		verb: "reject", short: "Turn a question down", done: "rejected",
		long:   "Turn a question down. The same action can be asked for again, as a new question.",
		decide: (*gate.Gate).Reject,
	})
}

func (a *app) revokeCommand() *cobra.Command {
	return a.decideCommand(decider{
		verb: "revoke", short: "Take a grant back before it is used", done: "revoked",
		long:   "Take a grant back before it is used. What was started cannot be revoked.",
		decide: (*gate.Gate).Revoke,
	})
}

// decisionTries is how often a decision that another writer's record got in the way of is made again.
const decisionTries = 8

// decideAgain decides, and when another record came first decides again from the whole log as it then
// is: the gate itself never repeats an append. What is decided stays the same, since a key is bound to
// one payload; whether it still can be is judged anew each time.
func decideAgain(ctx context.Context, decide func(*gate.Gate, context.Context, gate.Decision) (gate.Decided, error),
	g *gate.Gate, in gate.Decision) (out gate.Decided, err error) {
	for range decisionTries {
		out, err = decide(g, ctx, in)
		e, ok := errors.AsType[*gate.Error](err)
		if !ok || e.Code != gate.CodeAppendFailed || e.Detail != alog.CodeHeadMoved {
			break
		}
	}
	return out, err
}

func (a *app) decideCommand(d decider) *cobra.Command {
	p := &place{}
	var as, note string
	command := p.placed(&cobra.Command{
		Use:     d.verb + " KEY",
		Short:   d.short,
		Long:    d.long,
		Example: "  approval " + d.verb + " deploy:42 --as human:ada --note 'as discussed'",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
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
			out, err := decideAgain(command.Context(), d.decide, g, gate.Decision{Actor: who, Key: key, Note: note, Channel: channel})
			if err != nil {
				return failure(err)
			}
			return a.showDecided(p, d, key, out)
		},
	})
	command.Flags().StringVar(&as, "as", "", "who decides: `human:NAME` (default $APPROVAL_HUMAN)")
	command.Flags().StringVar(&note, "note", "", "why, for the `log`")
	return command
}

func (a *app) showDecided(p *place, d decider, key string, out gate.Decided) error {
	if p.json {
		m := map[string]any{"ok": true, "decision": d.verb, "state": out.State, "action_key": key, "seq": out.Record.Seq}
		if out.Token != "" {
			m["token"] = out.Token
		}
		return a.JSON(m)
	}
	a.Outf("%s %s (record %d)\n", ui.Paint(a.OutColor, ui.Bold, d.done), revealPlain(key), out.Record.Seq)
	if out.Token != "" {
		a.Outf("token, shown once: %s\n", out.Token)
	}
	return nil
}
