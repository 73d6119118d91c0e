package main

import (
	"errors"
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
			if err == nil && plan != "" {
				if out.Plan, err = a.judgePlan(loaded, plan); err != nil {
					return err
				}
			}
			if asJSON {
				err = a.JSON(out)
			} else {
				a.showPolicy(path, *out.Policy, out.Plan)
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

// planVerdict says whether a plan is admitted and, if not, what stands against it.
type planVerdict struct {
	Admitted             bool   `json:"admitted"`
	PlanContentDigest    string `json:"plan_content_digest,omitempty"`
	ControllerPlanDigest string `json:"controller_plan_digest,omitempty"`
	Reason               string `json:"reason,omitempty"`
	Pointer              string `json:"pointer,omitempty"` // into the plan
	Message              string `json:"message,omitempty"`
	PolicyPointer        string `json:"policy_pointer,omitempty"`
	PolicyLine           int    `json:"policy_line,omitempty"`
	Detail               string `json:"detail,omitempty"`
}

func (a *app) judgePlan(loaded *policy.Policy, name string) (*planVerdict, error) {
	data, err := a.readAll(name, policy.MaxDocument)
	if err != nil {
		return nil, ui.Failf("plan_unreadable", "%w", err)
	}
	plan, err := policy.DecodePlan(data)
	var accepted policy.Accepted
	if err == nil {
		accepted, err = loaded.Validate(plan, time.Now(), nil)
	}
	if err == nil {
		return &planVerdict{Admitted: true, PlanContentDigest: accepted.ContentDigest,
			ControllerPlanDigest: accepted.ControllerDigest}, nil
	}
	verdict := &planVerdict{Message: err.Error()}
	var refusal *policy.PlanError
	if errors.As(err, &refusal) {
		verdict.Reason, verdict.Pointer, verdict.Message = string(refusal.Reason), refusal.Pointer, refusal.Message
		verdict.PolicyPointer, verdict.Detail = refusal.PolicyPointer, refusal.Detail
		if refusal.Err != nil {
			verdict.Detail = strings.TrimPrefix(verdict.Detail+": "+refusal.Err.Error(), ": ")
		}
	}
	return verdict, nil
}

func (a *app) showPolicy(path string, d policy.Document, plan *planVerdict) {
	a.Outf("%s  %s\n", ui.Paint(a.OutColor, ui.Green, "valid"), path)
	a.Outf("revision %d; a plan may live %s\n", d.Revision, quantityMS(d.MaxPlanTTLMS))
	for _, template := range d.RuntimeTemplates {
		a.showTemplate(d, template)
	}
	a.showProfiles(d)
	a.showLists(d)
	if plan != nil {
		a.showPlan(path, plan)
	}
}

func (a *app) heading(text string) {
	a.Outf("\n%s\n", ui.Paint(a.OutColor, ui.Bold, text))
}

func (a *app) showTemplate(d policy.Document, t policy.Template) {
	a.heading("template " + t.ID)
	table := &ui.Table{}
	table.Row("runtime", t.RuntimeID+" on "+string(t.Backend))
	switch {
	case t.Launch == nil:
		table.Row("runs", "nothing: without a launch its plans validate and never start")
	case t.Launch.Discovery != "":
		table.Row("runs", "the "+t.Launch.Discovery+" found in "+strings.Join(t.Launch.SearchPaths, ", ")+argumentText(t.Launch.Arguments))
	default:
		table.Row("runs", t.Launch.ExecutablePath+argumentText(t.Launch.Arguments))
	}
	if t.Launch != nil {
		table.Row("environment", listLines(t.Launch.Environment, "empty"))
		table.Row("sees read-only", listLines(t.Launch.ReadOnlyPaths, "nothing more"))
	}
	var paths []string
	for _, alias := range t.AllowedAliases {
		paths = append(paths, aliasLines(d, alias)...)
	}
	table.Row("may be given", listLines(paths, "no path"))
	var destinations []string
	for _, name := range t.AllowedDestinations {
		for _, destination := range d.Destinations {
			if destination.Alias == name {
				destinations = append(destinations, name+" at "+destination.TargetPath)
			}
		}
	}
	table.Row("libraries", listLines(destinations, "none"))
	table.Row("digest", t.AdapterDigest)
	table.Write(a.Out, "  ", a.OutColor)
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

// aliasLines says what a template may do with one path alias, a line for each access.
func aliasLines(d policy.Document, name string) []string {
	for _, alias := range d.PathAliases {
		if alias.Alias != name {
			continue
		}
		var lines []string
		for _, entry := range alias.Access {
			lines = append(lines, fmt.Sprintf("%s: %s as %s, %s, for %s", name, alias.HostPath,
				alias.TargetPath, accessText(entry), quantityMS(alias.MaxTTLSecs*1000)))
		}
		return lines
	}
	return []string{name + ": not defined in path_aliases, so no plan can use it"}
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

func (a *app) showProfiles(d policy.Document) {
	a.heading("resource profiles (a plan must ask for exactly one of these)")
	table := &ui.Table{Head: []string{"PROFILE", "CPU", "MEMORY", "PIDS", "WALL", "DISK", "OUTPUT"}}
	for _, p := range d.ResourceProfiles {
		table.Row(p.ID, quantityMS(p.CPUTimeMS), quantityBytes(p.MemoryBytes), fmt.Sprint(p.PIDs),
			quantityMS(p.WallTimeMS), quantityBytes(p.DiskBytes), quantityBytes(p.TerminalOutputBytes))
	}
	table.Write(a.Out, "  ", a.OutColor)
}

func (a *app) showLists(d policy.Document) {
	a.heading("named by plans")
	table := &ui.Table{}
	var egress []string
	for _, id := range d.EgressPolicyIDs {
		egress = append(egress, egressLine(d, id))
	}
	table.Row("network", listLines(egress, "no egress policy: no plan is admitted"))
	table.Row("tools", listOr(d.ToolPolicyIDs, "no tool policy: no plan is admitted"))
	var secrets []string
	for _, handle := range d.SecretHandles {
		secrets = append(secrets, secretLine(d, handle))
	}
	table.Row("secrets", listLines(secrets, "none"))
	table.Write(a.Out, "  ", a.OutColor)
}

func egressLine(d policy.Document, id string) string {
	for _, entry := range d.EgressPolicies {
		if entry.PolicyID != id {
			continue
		}
		var targets []string
		for _, written := range entry.Targets {
			target := written.Target()
			text := fmt.Sprintf("%s:%d", target.Host, target.Port)
			if target.AllowPrivate {
				text += " (private addresses too)"
			}
			targets = append(targets, text)
		}
		return id + ": " + listOr(targets, "no target")
	}
	if id == "no-network" || id == "deny-all" {
		return id + ": no network"
	}
	return id + ": no targets are defined, so it cannot be launched"
}

func secretLine(d policy.Document, handle string) string {
	var uses []string
	for _, mount := range d.SecretMounts {
		if mount.Handle == handle {
			uses = append(uses, fmt.Sprintf("%s as %s for %s", mount.SourcePath, mount.TargetPath, mount.RuntimeID))
		}
	}
	return handle + ": " + listOr(uses, "no mount is defined, so it cannot be launched")
}

func (a *app) showPlan(path string, plan *planVerdict) {
	if plan.Admitted {
		a.heading("the plan would be admitted")
		table := &ui.Table{}
		table.Row("plan_content_digest", plan.PlanContentDigest)
		table.Row("controller_plan_digest", plan.ControllerPlanDigest+"  (BLAKE3, what a controller sends)")
		table.Write(a.Out, "  ", a.OutColor)
		return
	}
	a.heading("the plan would be refused: " + plan.Reason)
	table := &ui.Table{}
	table.Row("why", plan.Message)
	if plan.Pointer != "" {
		table.Row("in the plan", plan.Pointer)
	}
	if plan.PolicyPointer != "" {
		where := plan.PolicyPointer
		if line := lineOf(path, plan.PolicyPointer); line > 0 {
			where += fmt.Sprintf("  (%s:%d)", path, line)
		}
		table.Row("in the policy", where)
	}
	if plan.Detail != "" {
		table.Row("because", plan.Detail)
	}
	table.Write(a.Out, "  ", a.OutColor)
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
