package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/safefile"
	"gloved.dev/policy"
)

func (a *app) policyCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Write, check and explain session policies",
		Long: `A session policy is your side of the bargain: which programs may run, on which of your
directories, with which limits. A controller's plan names entries of it and can name
nothing else. The file is yours alone (mode 0600); gloved reads it once, at its start.`,
		Example: `  glove policy detect --search-path /usr/local/bin
  glove policy generate --runtime codex --executable /usr/local/bin/codex --template-id codex-safe
  glove policy explain --file ~/.config/glove/session-policy.json`,
	}
	command.AddCommand(a.policyValidate(), a.policyExplain(), a.policyGenerate(), a.policyDigest(), a.policyDetect())
	return command
}

// policyPath makes what the user typed the absolute path that owner files are opened by.
func policyPath(file string) (string, error) {
	if file == "" {
		return "", ui.Usage("--file names the policy")
	}
	path, err := filepath.Abs(file)
	if err != nil {
		return "", ui.Failf("policy_file", "%w", err)
	}
	return path, nil
}

func (a *app) policyValidate() *cobra.Command {
	var file string
	var asJSON bool
	command := &cobra.Command{
		Use:   "validate --file FILE",
		Short: "Check a policy against every rule and against this host",
		Example: `  glove policy validate --file session-policy.json && echo good
  glove policy validate --file session-policy.json --json`,
		RunE: func(*cobra.Command, []string) error {
			path, err := policyPath(file)
			if err != nil {
				return err
			}
			loaded, err := policy.Load(path)
			if asJSON {
				if jsonErr := a.JSON(explanationOf(path, loaded, err)); jsonErr != nil {
					return jsonErr
				}
				return failedIf(err != nil)
			}
			if err != nil {
				return policyFailure(path, err)
			}
			document := loaded.Document()
			a.Outf("%s %s: revision %d, %s\n", ui.Paint(a.OutColor, ui.Green, "valid"), path,
				document.Revision, plural(uint64(len(document.RuntimeTemplates)), "template"))
			return nil
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "", "the policy `file` (required)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func failedIf(failed bool) error {
	if failed {
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return nil
}

// policyFailure says what is wrong with a policy, where, and what would mend it.
func policyFailure(path string, err error) error {
	var fault *policy.Error
	if !errors.As(err, &fault) {
		return ui.Failf("policy_invalid", "%w", err)
	}
	failure := &ui.Error{Code: fault.Code, Message: fault.Detail, Next: fault.Fix, Err: err}
	if fault.Err != nil {
		failure.Message += ": " + fault.Err.Error()
	}
	where := path
	if line := lineOf(path, fault.Pointer); line > 0 {
		where = fmt.Sprintf("%s:%d", path, line)
	}
	if fault.Pointer != "" {
		where += " at " + fault.Pointer
	}
	failure.Detail = []string{"in " + where}
	return failure
}

// lineOf is the line that a JSON pointer points at, 0 when the file or the place cannot
// be read: it only helps to find a fault that is named anyway.
func lineOf(path, pointer string) int {
	if pointer == "" {
		return 0
	}
	data, _, err := safefile.ReadOwner(path, policy.MaxDocument)
	if err != nil {
		return 0
	}
	return pointerLine(data, pointer)
}

// explanation is the JSON form of explain and validate.
type explanation struct {
	SchemaVersion int    `json:"schema_version"`
	Valid         bool   `json:"valid"`
	PolicyPath    string `json:"policy_path"`
	Code          string `json:"code"` // policy_valid or policy_invalid
	Message       string `json:"message"`
	Recovery      string `json:"recovery"`
	Fault         string `json:"fault,omitempty"`   // the stable code of what is wrong
	Pointer       string `json:"pointer,omitempty"` // where it is
	Line          int    `json:"line,omitzero"`

	Explanation *policy.Explanation     `json:"explanation,omitzero"`
	Plan        *policy.PlanExplanation `json:"plan,omitzero"`
}

func explanationOf(path string, loaded *policy.Policy, err error) explanation {
	out := explanation{SchemaVersion: 1, PolicyPath: path}
	if err == nil {
		out.Valid, out.Code = true, "policy_valid"
		out.Message = fmt.Sprintf("the policy is valid, revision %d", loaded.Revision())
		return out
	}
	out.Code, out.Message = "policy_invalid", err.Error()
	var fault *policy.Error
	if errors.As(err, &fault) {
		out.Message, out.Recovery, out.Fault, out.Pointer = fault.Detail, fault.Fix, fault.Code, fault.Pointer
		if fault.Err != nil {
			out.Message += ": " + fault.Err.Error()
		}
		out.Line = lineOf(path, fault.Pointer)
	}
	return out
}

// quantityBytes shows a size in the largest unit that is exact.
func quantityBytes(n uint64) string {
	for _, unit := range []struct {
		size uint64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= unit.size && n%unit.size == 0 {
			return fmt.Sprintf("%d %s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// quantityMS shows a time in the largest unit that is exact.
func quantityMS(n uint64) string {
	switch {
	case n >= 60_000 && n%60_000 == 0:
		return fmt.Sprintf("%d min", n/60_000)
	case n >= 1000 && n%1000 == 0:
		return fmt.Sprintf("%d s", n/1000)
	}
	return fmt.Sprintf("%d ms", n)
}

func listOr(items []string, none string) string {
	if len(items) == 0 {
		return none
	}
	return strings.Join(items, ", ")
}
