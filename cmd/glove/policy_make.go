package main

import (
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/policy"
	"gloved.dev/policy/harness"
)

// generateFlags are what `policy generate` is told.
type generateFlags struct {
	runtime, executable, template, backend string
	search, arguments, environment         []string
	readOnly, aliases, destinations        []string
	whole                                  bool
	workspace                              string
}

func (a *app) policyGenerate() *cobra.Command {
	var f generateFlags
	command := &cobra.Command{
		Use:   "generate --runtime ID (--executable FILE | --search-path DIR...)",
		Short: "Print a runtime template with its digest",
		Long: `Print one entry for runtime_templates, ready to paste: the executable resolved to its
canonical path, the environment sorted, the digest calculated. What was resolved is said
on standard error.

--executable pins one file. --search-path names directories to look in at every launch,
in order, for the executable of a native adapter; directories that anyone but you or
root can write are refused.

--whole prints a session policy around the entry that is complete and offline: one profile
of limits, and, with --workspace DIR, that directory, copied to /workspace for each session.`,
		Example: `  glove policy generate --runtime codex --executable /usr/local/bin/codex --template-id codex-safe \
      --environment PATH=/usr/bin:/bin --path-alias workspace
  glove policy generate --runtime claude-code --search-path /usr/local/bin
  glove policy generate --whole --runtime shell --executable /bin/sh --workspace ~/project > policy.json`,
		RunE: func(*cobra.Command, []string) error { return a.generate(f) },
	}
	flags := command.Flags()
	flags.StringVar(&f.runtime, "runtime", "", "the runtime `ID` plans name (required)")
	flags.StringVar(&f.executable, "executable", "", "the `file` to run")
	flags.StringArrayVar(&f.search, "search-path", nil, "a `directory` to look in; repeatable, in order")
	flags.StringVar(&f.template, "template-id", "", "the template's `ID` (default: the runtime with \"-safe\")")
	flags.StringVar(&f.backend, "backend", string(policy.BackendLinux), "the sandbox `backend`")
	flags.StringArrayVar(&f.arguments, "argument", nil, "an `argument` for the program; repeatable, in order")
	flags.StringArrayVar(&f.environment, "environment", nil, "a `NAME=VALUE` for the program; repeatable")
	flags.StringArrayVar(&f.readOnly, "read-only-path", nil, "a `path` the program may read; repeatable")
	flags.StringArrayVar(&f.aliases, "path-alias", nil, "a path `alias` its plans may use; repeatable")
	flags.StringArrayVar(&f.destinations, "projection-destination", nil, "a library `destination` its plans may use; repeatable")
	flags.BoolVar(&f.whole, "whole", false, "print a whole session policy")
	flags.StringVar(&f.workspace, "workspace", "", "with --whole: the `directory` that is copied to /workspace")
	return command
}

// wholePolicy is the smallest policy around one template: its limits are a start, and its
// owner's to change.
func wholePolicy(t policy.Template, workspace string) policy.Document {
	const hour = 3_600_000
	limits := policy.Limits{CPUTimeMS: hour, MemoryBytes: 2 << 30, PIDs: 256, WallTimeMS: 8 * hour, DiskBytes: 1 << 30, TerminalOutputBytes: 64 << 20}
	read := policy.AccessEntry{Access: policy.AccessRead, Materialization: policy.MaterializeBind, Create: policy.CreateNever, Cleanup: policy.CleanupRetain}
	alias := policy.PathAlias{Alias: "none", HostPath: "/usr", TargetPath: localrun.WorkspaceTarget, MaxTTLSecs: 1, Access: []policy.AccessEntry{read}}
	if workspace != "" {
		alias = policy.PathAlias{Alias: "workspace", HostPath: workspace, TargetPath: localrun.WorkspaceTarget, MaxTTLSecs: limits.WallTimeMS / 1000,
			Access: []policy.AccessEntry{read, {Access: policy.AccessEphemeralWrite, Materialization: policy.MaterializeCopy,
				Create: policy.CreateEmptyDirectory, Cleanup: policy.CleanupRemove, MaxBytes: limits.DiskBytes / 2}}}
		t.AllowedAliases = append(t.AllowedAliases, alias.Alias)
	}
	return policy.Document{SchemaVersion: 1, Revision: 1, MaxPlanTTLMS: limits.WallTimeMS + hour,
		RuntimeTemplates: []policy.Template{t}, PathAliases: []policy.PathAlias{alias}, Destinations: []policy.Destination{},
		ResourceProfiles: []policy.Profile{policy.NewProfile("standard", limits)},
		EgressPolicyIDs:  []string{"no-network"}, ToolPolicyIDs: []string{"none"}, SecretHandles: []string{}}
}

func (a *app) generate(f generateFlags) error {
	if f.runtime == "" {
		return ui.Usage("--runtime is needed")
	}
	if (f.executable == "") == (len(f.search) == 0) {
		return ui.Usage("exactly one of --executable and --search-path is needed")
	}
	executable, err := absolute(f.executable)
	if err != nil {
		return err
	}
	search := make([]string, len(f.search))
	for i, directory := range f.search {
		if search[i], err = absolute(directory); err != nil {
			return err
		}
	}
	made, err := policy.Generate(policy.GenerateOptions{
		RuntimeID: f.runtime, TemplateID: f.template, Backend: policy.Backend(f.backend),
		Executable: executable, SearchPaths: search, Arguments: f.arguments, Environment: f.environment,
		ReadOnlyPaths: f.readOnly, PathAliases: f.aliases, ProjectionDestinations: f.destinations,
	})
	if err != nil {
		return documentFailure(err)
	}
	var document any = made.Template
	switch {
	case f.whole:
		workspace, err := absolute(f.workspace)
		if err != nil {
			return err
		}
		document = wholePolicy(made.Template, workspace)
	case f.workspace != "":
		return usageNextError("--whole", "--workspace goes with --whole")
	}
	if err := a.JSON(document); err != nil {
		return err
	}
	a.Errf("executable  %s\ndigest      %s\n", ui.Printable(made.Executable), made.Digest)
	return nil
}

// absolute makes a path that was typed absolute; "" stays.
func absolute(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return "", ui.Failf("path_unusable", "%w", err)
	}
	return full, nil
}

// documentFailure says where in a document, which has no file of its own, a fault is.
func documentFailure(err error) error {
	var fault *policy.Error
	if !errors.As(err, &fault) {
		return ui.Failf("document_invalid", "%w", err)
	}
	failure := &ui.Error{Code: fault.Code, Message: fault.Detail, Next: fault.Fix, Err: err}
	var missing *harness.NotFoundError
	switch {
	case errors.As(err, &missing):
		for _, root := range missing.Roots {
			failure.Detail = append(failure.Detail, root.String())
		}
	case fault.Err != nil:
		failure.Message += ": " + fault.Err.Error()
	}
	if fault.Pointer != "" {
		failure.Detail = append(failure.Detail, "at "+fault.Pointer)
	}
	return failure
}

func (a *app) policyDigest() *cobra.Command {
	var file string
	var asJSON bool
	command := &cobra.Command{
		Use:   "digest [--file FILE|-]",
		Short: "Print the digest of a launch, a template or every template of a policy",
		Long: `Print one "ID DIGEST" line for each launch in a document: a launch object (its ID is
"-"), one runtime template, or a whole policy. The document is read from standard input
unless --file names one; it needs no adapter_command_digest, for that is what this is for.`,
		Example: `  glove policy digest --file session-policy.json
  echo '{"executable_path":"/usr/bin/true","arguments":[],"environment":[]}' | glove policy digest`,
		RunE: func(*cobra.Command, []string) error {
			data, err := a.readAll(file, policy.MaxDocument)
			if err != nil {
				return ui.Failf("document_unreadable", "%w", err)
			}
			lines, err := policy.DigestLines(data)
			if err != nil {
				return documentFailure(err)
			}
			if asJSON {
				return a.JSON(map[string]any{"schema_version": 1, "digests": digestDocuments(lines)})
			}
			a.showDigests(lines)
			return nil
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "-", "the document `file`")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func digestDocuments(lines []policy.DigestLine) []map[string]string {
	out := make([]map[string]string, len(lines))
	for i, line := range lines {
		out[i] = map[string]string{"id": line.ID, "digest": line.Digest}
		if line.Declared != "" {
			out[i]["declared"] = line.Declared
		}
	}
	return out
}

// showDigests prints what scripts read on standard output, and what people should notice
// on standard error.
func (a *app) showDigests(lines []policy.DigestLine) {
	for _, line := range lines {
		a.Outf("%s %s\n", line.ID, line.Digest)
		if line.Declared != "" && line.Declared != line.Digest {
			a.Errf("%s %s declares another digest, %s\n", ui.Paint(a.ErrColor, ui.Yellow, "note:"), line.ID, line.Declared)
		}
	}
}

func (a *app) policyDetect() *cobra.Command {
	var search []string
	var asJSON bool
	command := &cobra.Command{
		Use:   "detect --search-path DIR...",
		Short: "Look for coding agents in directories you name",
		Long: `Look for the executables of the native adapters in the given directories, in order.
PATH is never used, nothing is run, and no judgement is made whether what is found may
be trusted: a launch makes it.`,
		Example: `  glove policy detect --search-path /usr/local/bin --search-path "$HOME/.local/bin"`,
		RunE: func(*cobra.Command, []string) error {
			if len(search) == 0 {
				return ui.Usage("--search-path names at least one directory")
			}
			for _, directory := range search {
				if !ident.AbsPath(directory) {
					return ui.Usage("--search-path needs an absolute path without . , .. or doubled slashes, got %q", directory)
				}
			}
			found := harness.Detect(search)
			if asJSON {
				return a.JSON(map[string]any{"schema_version": 1, "search_paths": search, "harnesses": found})
			}
			table := &ui.Table{Head: []string{"RUNTIME", "EXECUTABLE", "FOUND"}}
			for _, d := range found {
				if d.Available {
					table.Row(d.RuntimeID, d.ExecutableName, d.ResolvedExecutable)
					table.Paint(2, ui.Green)
				} else {
					table.Row(d.RuntimeID, d.ExecutableName, "no ("+d.Diagnostic+")")
					table.Paint(2, ui.Dim)
				}
			}
			table.Write(a.Out, "", a.OutColor)
			return nil
		},
	}
	command.Flags().StringArrayVar(&search, "search-path", nil, "a `directory` to look in; repeatable, in order (required)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}
