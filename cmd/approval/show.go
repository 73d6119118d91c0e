package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	policy "gloved.dev/policy/approval"
	"gloved.dev/runtime/broker"
	"gloved.dev/runtime/gate"
)

func (a *app) showCommand() *cobra.Command {
	p := &place{}
	return p.placed(&cobra.Command{
		Use:   "show KEY",
		Short: "Show exactly what a key would do",
		Long: `Show exactly what a key would do: what its task declares, where the question stands, and
the payload that a grant would be bound to, proven by its hash. Changes of a workspace are
shown as a diff. The beginning of a key is enough where only one begins so. Characters that a terminal would hide or reorder are shown as ⟨U+XXXX⟩.`,
		Example: "  approval show codex-workspace:team:5e1f\n  approval show deploy:42 --json",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			v, err := g.View()
			if err != nil {
				return failure(err)
			}
			name, err := key(v, args[0])
			if err != nil {
				return err
			}
			x := v.Action(name)
			d := g.Document()
			payload, missing := g.Payloads().Get(x.PayloadHash)
			if x.PayloadHash == "" {
				missing = errors.New("the declaration binds no payload")
			}
			if p.json {
				out := map[string]any{"ok": true, "action": statusOf(x, v, v.Lapsed(x, d)), "declaration": x.Declaration, "payload": payload}
				if missing != nil {
					out["payload"], out["payload_error"] = nil, missing.Error()
				}
				return a.JSON(out)
			}
			a.showAction(v, d, x)
			if missing != nil {
				return &ui.Error{Code: "payload-unavailable", Message: missing.Error(),
					Next: "do not grant what cannot be shown", Err: missing}
			}
			a.showPayload(payload)
			return nil
		},
	})
}

// showAction shows what the log and the policy say of a key.
func (a *app) showAction(v *gate.View, d *policy.Document, x *gate.Action) {
	row := func(name, value string) {
		a.Outf("%s %s\n", ui.Paint(a.OutColor, ui.Dim, fmt.Sprintf("%-10s", name)), value)
	}
	row("key", ui.Paint(a.OutColor, ui.Bold, revealPlain(x.Key)))
	row("task", revealPlain(x.Task))
	row("class", x.Class)
	if x.Summary != "" {
		row("says", reveal(x.Summary, a.OutColor))
	}
	if x.Cost != nil {
		row("costs", x.Cost.String()+" USD")
	}
	row("asked by", revealPlain(x.Declared.Actor))
	r := d.Resolve(x.Class, x.Reversible)
	why := r.Provenance
	if r.Pattern != "" {
		why += ", " + r.Pattern
	}
	row("policy", fmt.Sprintf("%s (%s)", r.Autonomy, why))
	if r.Approvers != nil {
		row("approvers", strings.Join(r.Approvers, ", "))
	}
	if err := v.CheckAttested(d); err != nil {
		row("", ui.Paint(a.OutColor, ui.Red, "the policy is not attested"))
	}
	s := statusOf(x, v, v.Lapsed(x, d))
	state := string(s.State)
	if x.Settled != nil {
		state += fmt.Sprintf(" by %s (record %d)", revealPlain(x.Settled.Actor), x.Settled.Seq)
	} else if x.Requested != nil {
		state += fmt.Sprintf(" (record %d)", x.Requested.Seq)
	}
	row("question", state)
	if s.Execution != "" {
		row("execution", s.Execution)
	}
	if x.PayloadHash != "" {
		row("payload", x.PayloadHash)
	}
	a.Outf("\n")
}

// showPayload shows a proven payload: a change of a workspace as a diff, a
// command as its arguments, anything else as JSON.
func (a *app) showPayload(payload jsontext.Value) {
	var kind struct {
		Schema string `json:"schema_version"`
	}
	if json.Unmarshal(payload, &kind) == nil && kind.Schema == broker.PayloadSchema {
		var change broker.Payload
		if err := json.Unmarshal(payload, &change, json.RejectUnknownMembers(true)); err == nil {
			a.showChange(change)
			return
		}
		a.Outf("%s\n", ui.Paint(a.OutColor, ui.Red, "the payload says that it is a workspace change and has not the form of one:"))
	}
	var command runPayload
	if json.Unmarshal(payload, &command, json.RejectUnknownMembers(true)) == nil && len(command.Argv) > 0 {
		a.Outf("runs, in %s:\n", reveal(command.Cwd, a.OutColor))
		for i, arg := range command.Argv {
			a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Dim, fmt.Sprintf("[%d]", i)), reveal(arg, a.OutColor))
		}
		return
	}
	// Indenting keeps every character as it is, so it is revealed line by line.
	text := append(jsontext.Value(nil), payload...)
	if err := text.Indent(); err != nil {
		text = payload
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		a.Outf("%s\n", styled(a.OutColor, ui.Plain, "", line))
	}
}
