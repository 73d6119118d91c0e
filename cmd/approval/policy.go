package main

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	policy "gloved.dev/policy/approval"
)

//go:embed template.md
var template string

func (a *app) policyCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Attest the policy, and ask what it decides",
		Long: `APPROVAL.md holds one block fenced as "yaml approval-policy". It counts once a person has
attested the file, byte for byte; a changed file decides nothing until it is attested again.
A policy that cannot be understood exactly makes every class wait for a person.`,
		Example: "  approval policy explain README.md .github/workflows/ci.yml\n  approval policy attest --as human:ada",
	}
	command.AddCommand(a.policyAttest(), a.policyCheck(), a.policyExplain(), a.policyTemplate())
	return command
}

func (a *app) policyTemplate() *cobra.Command {
	return &cobra.Command{
		Use:     "template",
		Short:   "Print a policy to begin with",
		Example: "  approval policy template > APPROVAL.md",
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(a.Out, template)
			return err
		},
	}
}

func (a *app) policyAttest() *cobra.Command {
	p := &place{}
	var as string
	command := p.placed(&cobra.Command{
		Use:   "attest",
		Short: "Put the policy in force: say that you have read it as it is",
		Long: `Record that you have read the policy file as it is now. From then on it is in force, until
its bytes change. An invalid policy can be attested too; it makes every class manual.`,
		Example: "  approval policy attest --as human:ada",
		RunE: func(command *cobra.Command, _ []string) error {
			who, err := a.human(as)
			if err != nil {
				return err
			}
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			rec, d, err := g.Attest(command.Context(), who)
			if err != nil {
				return failure(err)
			}
			if p.json {
				return a.JSON(map[string]any{"ok": true, "seq": rec.Seq, "sha256": d.SHA256, "path": d.Path})
			}
			a.Outf("attested %s (record %d)\n  sha256 %s\n", d.Path, rec.Seq, d.SHA256)
			if d.Failure != nil {
				a.Outf("%s it is no valid policy, so every class is manual: %s\n", ui.Paint(a.OutColor, ui.Yellow, "note:"), ui.Printable(d.Failure.Error()))
			}
			return nil
		},
	})
	command.Flags().StringVar(&as, "as", "", "who attests: `human:NAME` (default $APPROVAL_HUMAN)")
	return command
}

// document reads the policy of the place; an unreadable file is exit code 4.
func (a *app) document(p *place) (*policy.Document, error) {
	g, err := a.gate(p)
	if err != nil {
		return nil, err
	}
	d := g.Document()
	if d.SHA256 == "" && d.Failure.Code == policy.CodeUnreadable {
		return nil, ioFailure(d.Failure)
	}
	return d, nil
}

// A checked is what `policy check` prints.
type checked struct {
	Class         string             `json:"class"`
	Reversible    *bool              `json:"reversible"`
	Outcome       outcome            `json:"outcome"`
	Provenance    string             `json:"provenance"`
	ManualBecause *string            `json:"manualBecause"`
	LoadFailure   *policy.Failure    `json:"loadFailure"`
	Matched       *string            `json:"matched"`
	Candidates    []policy.Candidate `json:"candidates"`
	DecisionPath  []string           `json:"decisionPath"`
}

type outcome struct {
	Autonomy  policy.Autonomy     `json:"autonomy"`
	Approvers *[]string           `json:"approvers"` // null: any person
	Limits    *map[string]float64 `json:"limits"`    // null: none
}

func checkedOf(r policy.Resolution, reversible *bool) checked {
	c := checked{Class: r.Class, Reversible: reversible, Provenance: r.Provenance, LoadFailure: r.Failure,
		Outcome:    outcome{Autonomy: r.Autonomy},
		Candidates: append([]policy.Candidate{}, r.Candidates...), DecisionPath: append([]string{}, r.Steps...)}
	if because := r.ManualBecause(); because != "" {
		c.ManualBecause = &because
	}
	if r.Pattern != "" {
		c.Matched = &r.Pattern
	}
	if r.Approvers != nil {
		c.Outcome.Approvers = &r.Approvers
	}
	if r.Limits != nil {
		limits := map[string]float64{}
		for _, l := range r.Limits {
			limits[l.Name] = l.Value
		}
		c.Outcome.Limits = &limits
	}
	return c
}

func (a *app) policyCheck() *cobra.Command {
	p := &place{}
	var word string
	command := p.placed(&cobra.Command{
		Use:     "check CLASS",
		Short:   "Say what the policy decides for a class, and by which rule",
		Long:    "Say what the policy decides for a class, and by which rule. Exit code 0 also when there is no valid policy: then it decides manual.",
		Example: "  approval policy check files.write.workspace --reversible false",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !policy.Class(args[0]) {
				return ui.Usage("%q is no class: lowercase words with dots between them, no wildcard", args[0])
			}
			var reversible *bool
			switch word {
			case "":
			case "true", "false":
				yes := word == "true"
				reversible = &yes
			default:
				return ui.Usage("--reversible is true or false")
			}
			d, err := a.document(p)
			if err != nil {
				return err
			}
			r := d.Resolve(args[0], reversible)
			if p.json {
				return a.JSON(checkedOf(r, reversible))
			}
			a.showResolution(r)
			return nil
		},
	})
	command.Flags().StringVar(&word, "reversible", "", "what the action declares: `true` or false")
	return command
}

func (a *app) showResolution(r policy.Resolution) {
	a.Outf("%s  %s\n", ui.Paint(a.OutColor, ui.Bold, r.Class), a.autonomy(r.Autonomy))
	for _, step := range r.Steps {
		a.Outf("  %s\n", ui.Printable(step))
	}
	for _, l := range r.Limits {
		a.Outf("  limit %s %v\n", l.Name, l.Value)
	}
	if r.Approvers != nil {
		a.Outf("  granted by: %s\n", strings.Join(r.Approvers, ", "))
	}
	if len(r.Candidates) < 2 {
		return
	}
	table := &ui.Table{Head: []string{"RULE", "LINE", "AUTONOMY", ""}}
	for _, c := range r.Candidates {
		verdict := "loses by " + c.TieBreak
		if c.Winner {
			verdict = "decides by " + c.TieBreak
		}
		table.Row(c.Pattern, fmt.Sprint(c.Line), string(c.Autonomy), verdict)
	}
	table.Write(a.Out, "  ", a.OutColor)
}

func (a *app) autonomy(x policy.Autonomy) string {
	style := ui.Yellow
	switch {
	case x == policy.HumanOnly:
		style = ui.Red
	case !x.NeedsPerson():
		style = ui.Green
	}
	return ui.Paint(a.OutColor, style, string(x))
}

// An explained is one path of `policy explain`.
type explained struct {
	policy.PathClass
	Decision checked `json:"decision"`
}

func (a *app) policyExplain() *cobra.Command {
	p := &place{}
	return p.placed(&cobra.Command{
		Use:   "explain PATH...",
		Short: "Say, for each path, its class, why, and what the policy decides",
		Long: `Say, for each path of the workspace, the class of writing it, why it has that class, and
what the policy decides. A write through the broker counts as one that cannot be taken
back. Paths are relative to the workspace and are not looked up.`,
		Example: "  approval policy explain src/main.go APPROVAL.md",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := a.document(p)
			if err != nil {
				return err
			}
			no := false
			out := []explained{}
			for _, path := range args {
				if strings.HasPrefix(path, "/") {
					return ui.Usage("%s: paths are relative to the workspace", path)
				}
				if slices.Contains(strings.Split(path, "/"), "..") {
					return ui.Usage("%s: a path with .. is not looked up, and no change may have one", path)
				}
				class := d.ClassOf(path)
				r := d.Resolve(class.Class, &no)
				out = append(out, explained{class, checkedOf(r, &no)})
				if !p.json {
					a.showExplained(class, r)
				}
			}
			if !p.json {
				return nil
			}
			return a.JSON(map[string]any{"ok": true, "policy_sha256": d.SHA256, "paths": out})
		},
	})
}

func (a *app) showExplained(c policy.PathClass, r policy.Resolution) {
	why := "nothing protects it"
	switch {
	case c.BuiltIn:
		why = "built-in protection: " + c.Entry
	case c.Protected:
		why = "protected_paths: " + c.Entry
	}
	a.Outf("%s\n  class   %s (%s)\n  policy  %s\n", ui.Paint(a.OutColor, ui.Bold, revealPlain(c.Path)), c.Class, revealPlain(why), a.autonomy(r.Autonomy))
	for _, step := range r.Steps {
		a.Outf("          %s\n", ui.Printable(step))
	}
}
