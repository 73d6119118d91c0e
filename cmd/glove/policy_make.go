package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
	"gloved.dev/policy"
	"gloved.dev/policy/harness"
)

// generateFlags are what `policy generate` is told.
type generateFlags struct {
	runtime, executable, template, backend string
	search, arguments, environment         []string
	readOnly, aliases, destinations        []string
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
root can write are refused.`,
		Example: `  glove policy generate --runtime codex --executable /usr/local/bin/codex --template-id codex-safe \
      --environment PATH=/usr/bin:/bin --path-alias workspace
  glove policy generate --runtime claude-code --search-path /usr/local/bin`,
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
	return command
}

func (a *app) generate(f generateFlags) error {
	template, err := f.build()
	if err != nil {
		return err
	}
	resolved := template.Launch.ExecutablePath
	if template.Launch.Discovery != "" {
		adapter, _ := harness.Lookup(f.runtime) // build made sure that it is one
		found, err := harness.NewFinder().Discover(adapter, template.Launch.SearchPaths)
		if err != nil {
			return discoveryFailure(err)
		}
		resolved = found
	}
	if fault := policy.CheckLaunch(*template.Launch); fault != nil {
		return &ui.Error{Code: fault.Code, Message: fault.Detail, Detail: []string{"at /launch" + fault.Pointer}, Next: fault.Fix}
	}
	template.AdapterDigest = policy.LaunchDigest(*template.Launch)
	if err := a.JSON(template); err != nil {
		return err
	}
	a.Errf("executable  %s\ndigest      %s\n", ui.Printable(resolved), template.AdapterDigest)
	return nil
}

func discoveryFailure(err error) error {
	failure := &ui.Error{Code: "executable_not_found", Message: err.Error(), Err: err}
	var missing *harness.NotFoundError
	if errors.As(err, &missing) {
		failure.Message = "no search path has a trusted executable for " + missing.RuntimeID
		for _, root := range missing.Roots {
			failure.Detail = append(failure.Detail, root.String())
		}
		failure.Next = "pin it with --executable, or use directories that only you or root can write"
	}
	return failure
}

// build is the template without its digest.
func (f generateFlags) build() (*policy.Template, error) {
	if f.runtime == "" || !ident.ID(f.runtime) {
		return nil, ui.Usage("--runtime is needed: an identifier of A-Z a-z 0-9 - _ : .")
	}
	if (f.executable == "") == (len(f.search) == 0) {
		return nil, ui.Usage("exactly one of --executable and --search-path is needed")
	}
	if !policy.Backend(f.backend).Known() {
		return nil, ui.Usage("--backend is one of %v", policy.Backends())
	}
	id := f.template
	if id == "" {
		id = f.runtime + "-safe"
	}
	if !ident.ID(id) {
		return nil, ui.Usage("--template-id is 1 to 128 of A-Z a-z 0-9 - _ : .")
	}
	launch := &policy.Launch{Arguments: orEmpty(f.arguments), Environment: orEmpty(f.environment)}
	slices.Sort(launch.Environment)
	var err error
	if launch.ReadOnlyPaths, err = absoluteAll("--read-only-path", f.readOnly); err != nil {
		return nil, err
	}
	if f.executable != "" {
		launch.ExecutablePath, err = canonicalExecutable(f.executable)
	} else {
		launch.Discovery = f.runtime
		launch.SearchPaths, err = canonicalRoots(f.runtime, f.search)
	}
	if err != nil {
		return nil, err
	}
	return &policy.Template{ID: id, RuntimeID: f.runtime, Backend: policy.Backend(f.backend),
		AllowedAliases: orEmpty(f.aliases), AllowedDestinations: orEmpty(f.destinations), Launch: launch}, nil
}

func orEmpty(items []string) []string { return append([]string{}, items...) }

func absoluteAll(flag string, paths []string) ([]string, error) {
	for _, path := range paths {
		if !ident.AbsPath(path) {
			return nil, ui.Usage("%s needs an absolute path without . , .. or doubled slashes, got %q", flag, path)
		}
	}
	return orNil(paths), nil
}

// orNil keeps an optional member out of the document.
func orNil(items []string) []string {
	if len(items) == 0 {
		return nil
	}
	return slices.Clone(items)
}

func canonicalExecutable(given string) (string, error) {
	path, err := canonical(given)
	if err == nil {
		err = executable(path)
	}
	if err != nil {
		return "", ui.Fail("executable_not_found", err.Error(), "name the program's own file")
	}
	return path, nil
}

func canonical(given string) (string, error) {
	path, err := filepath.Abs(given)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func canonicalRoots(runtime string, roots []string) ([]string, error) {
	if _, ok := harness.Lookup(runtime); !ok {
		return nil, ui.Fail("runtime_not_native",
			fmt.Sprintf("%q is no native adapter, so it cannot be searched for", runtime),
			"pin it with --executable; native adapters are "+strings.Join(harness.RuntimeIDs(), ", "))
	}
	out := make([]string, len(roots))
	for i, root := range roots {
		path, err := canonical(root)
		if err != nil {
			return nil, ui.Failf("search_path_unusable", "%w", err)
		}
		out[i] = path
	}
	return out, nil
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
			digests, err := digestsOf(data)
			if err != nil {
				return err
			}
			if asJSON {
				return a.JSON(map[string]any{"schema_version": 1, "digests": digests})
			}
			for _, d := range digests {
				a.Outf("%s %s\n", d.ID, d.Digest)
			}
			return nil
		},
	}
	command.Flags().StringVarP(&file, "file", "f", "-", "the document `file`")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

type launchDigest struct {
	ID     string `json:"id"`
	Digest string `json:"digest"`
}

// digestsOf finds the launches of a document by what it has: a policy has
// runtime_templates, a template has runtime_template_id or launch, a launch neither.
func digestsOf(data []byte) ([]launchDigest, error) {
	var document map[string]jsontext.Value
	if err := strictjson.Decode(data, &document, strictjson.Limits{MaxBytes: policy.MaxDocument}); err != nil {
		return nil, documentFault("", err)
	}
	templates, isPolicy := document["runtime_templates"]
	_, hasID := document["runtime_template_id"]
	_, hasLaunch := document["launch"]
	switch {
	case isPolicy:
		return policyDigests(templates)
	case hasID || hasLaunch:
		one, err := templateDigest("", document)
		if err == nil && one == nil {
			err = ui.Fail("no_launch", "the template has no launch, so there is nothing to digest", "")
		}
		if err != nil {
			return nil, err
		}
		return []launchDigest{*one}, nil
	}
	digest, err := digestLaunch("", data)
	return []launchDigest{{ID: "-", Digest: digest}}, err
}

func policyDigests(templates jsontext.Value) ([]launchDigest, error) {
	const at = "/runtime_templates"
	var list []map[string]jsontext.Value
	if err := strictjson.Decode(templates, &list, strictjson.Limits{MaxBytes: policy.MaxDocument}); err != nil {
		return nil, documentFault(at, err)
	}
	out := []launchDigest{}
	for i, template := range list {
		one, err := templateDigest(fmt.Sprintf("%s/%d", at, i), template)
		if err != nil {
			return nil, err
		}
		if one != nil {
			out = append(out, *one)
		}
	}
	if len(out) == 0 {
		return nil, ui.Fail("no_launch", "no template has a launch, so there is nothing to digest", "")
	}
	return out, nil
}

// templateDigest is nil for a template without a launch.
func templateDigest(at string, template map[string]jsontext.Value) (*launchDigest, error) {
	var id string
	if err := strictjson.Decode(template["runtime_template_id"], &id, strictjson.Limits{}); err != nil || !ident.ID(id) {
		return nil, ui.Fail("document_invalid", at+"/runtime_template_id is no identifier", "")
	}
	launch, ok := template["launch"]
	if !ok {
		return nil, nil
	}
	digest, err := digestLaunch(at+"/launch", launch)
	return &launchDigest{ID: id, Digest: digest}, err
}

func digestLaunch(at string, data []byte) (string, error) {
	var launch policy.Launch
	if err := strictjson.Decode(data, &launch, strictjson.Limits{MaxBytes: policy.MaxDocument}); err != nil {
		return "", documentFault(at, err)
	}
	if fault := policy.CheckLaunch(launch); fault != nil {
		return "", &ui.Error{Code: fault.Code, Message: fault.Detail, Detail: []string{"at " + at + fault.Pointer}, Next: fault.Fix}
	}
	return policy.LaunchDigest(launch), nil
}

func documentFault(at string, err error) error {
	failure := &ui.Error{Code: "document_invalid", Message: err.Error(), Err: err}
	var fault *strictjson.Error
	if errors.As(err, &fault) && at+fault.Pointer != "" {
		failure.Detail = []string{"at " + at + fault.Pointer}
	}
	return failure
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
			roots, err := absoluteAll("--search-path", search)
			if err != nil {
				return err
			}
			found := harness.Detect(roots)
			if asJSON {
				return a.JSON(map[string]any{"schema_version": 1, "search_paths": roots, "harnesses": found})
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
