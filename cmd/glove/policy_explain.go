package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/policy"
)

func (a *app) policyExplain() *cobra.Command {
	var file, plan string
	var asJSON bool
	command := &cobra.Command{
		Use:   "explain --file FILE",
		Short: "Show what a policy permits, or what is wrong with it",
		Long: `Show, template by template, what a policy lets a controller do. An invalid policy is
explained by its fault: where it is and what would mend it.

With --plan, say whether that plan would be admitted now, and if not, which line of the
policy stands against it. Exit code 1 when the policy is invalid or the plan refused.`,
		Example: `  glove policy explain --file session-policy.json
  glove policy explain --file session-policy.json --plan plan.json`,
		RunE: func(*cobra.Command, []string) error {
			path, err := policyPath(file)
			if err != nil {
				return err
			}
			loaded, err := policy.Load(path)
			if err != nil && !asJSON {
				return policyFailure(path, err)
			}
			out := explanationOf(path, loaded, err)
			if err == nil {
				explained := policy.Explain(loaded)
				out.Explanation = &explained
			}
			if err == nil && plan != "" {
				if out.Plan, err = a.judgePlan(loaded, plan); err != nil {
					return err
				}
			}
			if asJSON {
				err = a.JSON(out)
			} else {
				a.showPolicy(path, *out.Explanation, out.Plan)
			}
			if err != nil {
				return err
			}
			return failedIf(!out.Valid || out.Plan != nil && !out.Plan.Admitted)
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "the policy `file` (required)")
	command.Flags().StringVar(&plan, "plan", "", "judge this plan `file` too (\"-\" is standard input)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) judgePlan(loaded *policy.Policy, name string) (*policy.PlanExplanation, error) {
	data, err := a.readAll(name, policy.MaxDocument)
	if err != nil {
		return nil, ui.Failf("plan_unreadable", "%w", err)
	}
	explained := policy.ExplainPlan(loaded, data, time.Now(), nil)
	return &explained, nil
}

func (a *app) showPolicy(path string, x policy.Explanation, plan *policy.PlanExplanation) {
	a.Outf("%s  %s\n", ui.Paint(a.OutColor, ui.Green, "valid"), path)
	a.Outf("revision %d; a plan may live %s\n", x.Revision, quantityMS(x.MaxPlanTTLMS))
	for _, template := range x.Templates {
		a.showTemplate(template)
	}
	a.showProfiles(x.Profiles)
	a.showNamed(x)
	a.showNotes(path, x.Notes)
	if plan != nil {
		a.showPlan(path, plan)
	}
}

func (a *app) heading(text string) {
	a.Outf("\n%s\n", ui.Paint(a.OutColor, ui.Bold, ui.Printable(text)))
}

func (a *app) showTemplate(t policy.TemplateExplanation) {
	state := "can be launched"
	if !t.Launchable {
		state = "cannot be launched (see the notes)"
	}
	a.heading("template " + t.ID + ": " + state)
	table := &ui.Table{}
	table.Row("runtime", t.RuntimeID+" on "+string(t.Backend))
	table.Row("runs", templateCommand(t))
	table.Row("environment", listLines(t.Environment, "empty"))
	table.Row("sees read-only", listLines(t.ReadOnlyPaths, "nothing more"))
	var paths []string
	for _, path := range t.Paths {
		paths = append(paths, fmt.Sprintf("%s: %s as %s, %s, for at most %s", path.Alias, path.HostPath,
			path.TargetPath, accessText(path.Use), quantityMS(path.MaxTTLSecs*1000)))
	}
	table.Row("may be given", listLines(paths, "no path"))
	var destinations []string
	for _, destination := range t.Destinations {
		destinations = append(destinations, destination.Alias+" at "+destination.TargetPath)
	}
	table.Row("libraries", listLines(destinations, "none"))
	var secrets []string
	for _, secret := range t.Secrets {
		if secret.Mounted {
			secrets = append(secrets, fmt.Sprintf("%s: %s as %s", secret.Handle, secret.SourcePath, secret.TargetPath))
		}
	}
	table.Row("secrets", listLines(secrets, "none"))
	table.Row("digest", t.AdapterDigest)
	table.Write(a.Out, "  ", a.OutColor)
	a.showNotes("", t.Notes)
}

func templateCommand(t policy.TemplateExplanation) string {
	executable := t.Executable
	switch {
	case executable == "" && t.Discovered:
		executable = "the " + t.RuntimeID + " in " + strings.Join(t.SearchPaths, ", ") + " (not found now)"
	case executable == "":
		return "nothing"
	case t.Discovered:
		executable += " (found now in " + strings.Join(t.SearchPaths, ", ") + ")"
	}
	return executable + argumentText(t.Arguments)
}

func argumentText(arguments []string) string {
	var out strings.Builder
	for _, argument := range arguments {
		if argument == "" || strings.ContainsAny(argument, " \t\n'\"\\") {
			fmt.Fprintf(&out, " %q", argument)
		} else {
			out.WriteString(" " + argument)
		}
	}
	return out.String()
}

func listLines(items []string, none string) string {
	if len(items) == 0 {
		return none
	}
	return strings.Join(items, "\n")
}

func accessText(e policy.AccessEntry) string {
	after := "kept afterwards"
	if e.Cleanup == policy.CleanupRemove {
		after = "removed afterwards"
	}
	switch e.Access {
	case policy.AccessRead:
		return "read only"
	case policy.AccessDirectWrite:
		return "direct write (never launched)"
	}
	return fmt.Sprintf("writes to a %s of at most %s, %s", e.Materialization, quantityBytes(e.MaxBytes), after)
}

func (a *app) showProfiles(profiles []policy.Profile) {
	a.heading("resource profiles: a plan asks for exactly one of these")
	table := &ui.Table{Head: []string{"PROFILE", "CPU", "MEMORY", "PIDS", "WALL", "DISK", "OUTPUT"}}
	for _, p := range profiles {
		table.Row(p.ID, quantityMS(p.CPUTimeMS), quantityBytes(p.MemoryBytes), fmt.Sprint(p.PIDs),
			quantityMS(p.WallTimeMS), quantityBytes(p.DiskBytes), quantityBytes(p.TerminalOutputBytes))
	}
	table.Write(a.Out, "  ", a.OutColor)
}

func (a *app) showNamed(x policy.Explanation) {
	a.heading("a plan names one network and one tool policy")
	table := &ui.Table{}
	var egress []string
	for _, e := range x.Egress {
		egress = append(egress, e.PolicyID+": "+egressText(e))
	}
	table.Row("network", listLines(egress, "none is listed, so no plan is admitted"))
	table.Row("tools", listOr(x.ToolPolicyIDs, "none is listed, so no plan is admitted"))
	table.Write(a.Out, "  ", a.OutColor)
}

func egressText(e policy.EgressExplanation) string {
	if !e.Launchable {
		return "no targets are defined, so it cannot be launched"
	}
	var targets []string
	for _, target := range e.Targets {
		text := fmt.Sprintf("%s:%d", target.Host, target.Port)
		if target.AllowPrivate {
			text += " (private addresses too)"
		}
		targets = append(targets, text)
	}
	return listOr(targets, "no network")
}

func (a *app) showNotes(path string, notes []policy.Note) {
	for _, note := range notes {
		where := note.Pointer
		if line := lineOf(path, note.Pointer); path != "" && line > 0 {
			where = fmt.Sprintf("%s (line %d)", note.Pointer, line)
		}
		a.Outf("  %s %s\n        at %s\n", ui.Paint(a.OutColor, ui.Yellow, "note:"), ui.Printable(note.Text), where)
	}
}

func (a *app) showPlan(path string, plan *policy.PlanExplanation) {
	table := &ui.Table{}
	if plan.Admitted {
		a.heading("the plan would be admitted")
		table.Row("plan_content_digest", plan.ContentDigest)
		table.Row("controller_plan_digest", plan.ControllerDigest+"  (BLAKE3, what a controller sends)")
		if !plan.Launchable {
			table.Row("but its launch fails", plan.LaunchDetail)
			if plan.LaunchPolicyPointer != "" {
				table.Row("in the policy", policyPlace(path, plan.LaunchPolicyPointer))
			}
		}
		table.Write(a.Out, "  ", a.OutColor)
		return
	}
	a.heading("the plan would be refused: " + string(plan.Reason))
	table.Row("why", plan.Message)
	for _, row := range []struct{ name, text string }{
		{"in the plan", plan.Pointer},
		{"in the policy", policyPlace(path, plan.PolicyPointer)},
		{"there", plan.PolicyValue},
		{"because", plan.Detail},
		{"fix", plan.Fix},
	} {
		if row.text != "" {
			table.Row(row.name, row.text)
		}
	}
	table.Write(a.Out, "  ", a.OutColor)
}

func policyPlace(path, pointer string) string {
	if line := lineOf(path, pointer); line > 0 {
		return fmt.Sprintf("%s  (%s:%d)", pointer, path, line)
	}
	return pointer
}

// pointerLine is the 1-based line of data that a JSON pointer points at; where the place
// does not exist, that of the nearest one around it; 0 when data is not JSON so far.
func pointerLine(data []byte, pointer string) int {
	decoder := jsontext.NewDecoder(strings.NewReader(string(data)))
	best, found := int64(-1), 0
	for {
		token, err := decoder.ReadToken()
		if err != nil {
			break
		}
		at := string(decoder.StackPointer())
		around := at == pointer || at == "" || strings.HasPrefix(pointer, at+"/")
		closing := token.Kind() == '}' || token.Kind() == ']'
		if around && !closing && (best < 0 || len(at) > found) {
			best, found = decoder.InputOffset(), len(at)
		}
	}
	if best < 0 {
		return 0
	}
	return 1 + strings.Count(string(data[:best]), "\n")
}
