package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
	"gloved.dev/internal/ident"
	"gloved.dev/rpc/mcp"
	"gloved.dev/runtime/broker"
	"gloved.dev/runtime/gate"
)

func init() { extra = append(extra, codexCommand) }

func codexCommand(a *app) *cobra.Command {
	command := &cobra.Command{
		Use:   "codex",
		Short: "Gate a coding agent's writes to a workspace",
		Long: `Gate a coding agent's writes to a workspace.

An instance manifest, installed by the operator, fixes who acts, in which workspace, under
which policy and log. An agent says only what to change; each class of path it touches is an
action of its own, and nothing moves before all of them may.

What this does not do: a gate on writes confines nobody ("start" does, where it is used), and
says nothing about access lists, about programs that do not take the workspace's lock, or
about secrets inside the workspace, which the agent may read.`,
		Example: "  approval codex plan --manifest /opt/approval-codex/instances/team.json change.json\n" +
			"  approval codex apply --manifest /opt/approval-codex/instances/team.json change.json",
	}
	for _, sub := range []*cobra.Command{
		a.codexPlan(), a.codexApply(), a.codexServe(), a.codexRecover(), a.codexSettle(),
		a.codexStart(), a.codexSetup(), a.codexDoctor(),
	} {
		command.AddCommand(sub)
	}
	return grouped(groupRun, command)
}

// instance is the flags that every codex command shares.
type instance struct {
	manifest  string
	json      bool
	exclusive bool
}

func (i *instance) flags(command *cobra.Command) *cobra.Command {
	command.Flags().StringVar(&i.manifest, "manifest", "", "the instance manifest, an absolute `path`")
	command.Flags().BoolVar(&i.json, "json", false, "print one JSON document")
	_ = command.MarkFlagRequired("manifest") // the flag was added one line above
	return command
}

// load reads the manifest and makes its broker.
func (a *app) load(i *instance) (*broker.Manifest, *broker.Broker, error) {
	m, err := broker.LoadManifest(i.manifest)
	if err != nil {
		return nil, nil, err
	}
	if err := m.RunsHere(); err != nil {
		return nil, nil, err
	}
	g := gate.New(gate.Config{Log: m.Paths.Log, Policy: m.Paths.Policy, Clock: a.clock})
	b, err := broker.New(broker.Options{
		Instance: m.InstanceID, Workspace: m.Paths.Workspace, Evidence: broker.EvidenceDir(m.Paths.Log),
		RequireExclusive: i.exclusive, Gate: broker.NewGate(g, m.Actor()),
		Log: slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	return m, b, err
}

// refused reports a failure of a codex command: one JSON line on standard error, or text.
func (a *app) refused(i *instance, err error) error {
	code, exit := "io", gate.ExitIO
	var member any
	refusal, isRefusal := errors.AsType[*broker.Refusal](err)
	switch {
	case isRefusal:
		code, exit, member = refusal.Code, refusalExit(refusal), refusal
	case manifestError(err) != nil:
		code, exit = manifestError(err).Code, gate.ExitRefused
	case bundleError(err) != nil:
		code, exit = bundleError(err).Code, gate.ExitRefused
	default:
		if failure, ok := errors.AsType[*ui.Error](err); ok {
			code, exit = failure.Code, failure.Exit
		}
	}
	if !i.json {
		// The code is said once.
		out := &ui.Error{Code: code, Message: strings.TrimPrefix(err.Error(), code+": "), Exit: exit, Err: err}
		if isRefusal {
			out.Message, out.Next = refusal.Message, codexNext(code, refusal.Detail)
			if refusal.Detail != "" {
				out.Detail = append(out.Detail, "detail: "+refusal.Detail)
			}
			if refusal.Path != "" {
				out.Detail = append(out.Detail, "path: "+refusal.Path)
			}
			for _, key := range refusal.Pending {
				out.Detail = append(out.Detail, "waits: "+key)
			}
			if len(refusal.Pending) > 0 {
				out.Next = "approval show KEY, then approval grant KEY (or reject), then the same command again"
			}
		} else {
			out.Next = codexNext(code, "")
		}
		return out
	}
	if member == nil {
		member = map[string]string{"code": code, "message": strings.TrimPrefix(err.Error(), code+": ")}
	}
	line, merr := json.Marshal(map[string]any{"error": member}, json.Deterministic(true))
	if merr != nil {
		return merr
	}
	a.Errf("%s\n", line)
	return &ui.Silent{Exit: exit}
}

func manifestError(err error) *broker.ManifestError {
	e, _ := errors.AsType[*broker.ManifestError](err)
	return e
}

func bundleError(err error) *broker.BundleError {
	e, _ := errors.AsType[*broker.BundleError](err)
	return e
}

// refusalExit is 1, unless the log itself is the trouble: 3 for a torn one, 4 for one that cannot be
// read, written or locked in time.
func refusalExit(r *broker.Refusal) int {
	if _, ok := errors.AsType[*gate.Error](r.Err); ok {
		if exit := gate.ExitCode(r.Err); exit == gate.ExitTorn || exit == gate.ExitIO {
			return exit
		}
	}
	return gate.ExitRefused
}

func (a *app) codexPlan() *cobra.Command {
	i := &instance{}
	return i.flags(&cobra.Command{
		Use:   "plan FILE",
		Short: "Check a proposal; write nothing",
		Long: `Check a proposal as apply would, and stop before anything is written: the log is verified,
the policy and its attestation are checked, paths and preimages are compared with the
workspace. Prints the classes and the payload hash. FILE "-" is standard input.

A proposal has the operations, and the SHA-256 of the policy file it was made under:

  {"expected_policy_sha256": "64 hex digits", "operations": [
    {"kind": "create",  "path": "docs/a", "after_base64": "aGkK"},
    {"kind": "replace", "path": "docs/b", "expected_before_sha256": "...", "after_base64": "aGkK"},
    {"kind": "delete",  "path": "docs/c", "expected_before_sha256": "..."},
    {"kind": "move",    "from": "docs/d", "to": "docs/e", "expected_before_sha256": "..."}]}`,
		Example: "  approval codex plan --manifest /opt/approval-codex/instances/team.json change.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.withProposal(i, args[0], func(b *broker.Broker, proposal []byte) error {
				p, err := b.Plan(command.Context(), proposal)
				if err != nil {
					return err
				}
				if i.json {
					return a.line(p)
				}
				a.Outf("payload %s\n", p.PayloadHash)
				for _, e := range p.Endpoints {
					a.Outf("%s  %s\n", e.Class, ui.Printable(e.Path))
				}
				return nil
			})
		},
	})
}

func (a *app) codexApply() *cobra.Command {
	i := &instance{}
	command := i.flags(&cobra.Command{
		Use:   "apply FILE",
		Short: "Apply a proposal, once everything in it may happen",
		Long: `Apply a proposal, once everything in it may happen. A class that needs a person is asked
about, and nothing is written; the identical proposal applies once a person has granted.

The outcome is read back from the workspace: ok, commit-not-applied, or commit-unknown, which
locks the workspace until a person has looked. FILE "-" is standard input.`,
		Example: "  approval codex apply --manifest /opt/approval-codex/instances/team.json change.json",
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.withProposal(i, args[0], func(b *broker.Broker, proposal []byte) error {
				r, err := b.Apply(command.Context(), proposal)
				if err != nil {
					return err
				}
				if i.json {
					return a.line(r)
				}
				a.Outf("applied %s (custody %s, %s)\n", strings.Join(r.Paths, ", "), r.Custody.Level, strings.Join(r.Custody.Notes, ", "))
				return nil
			})
		},
	})
	command.Flags().BoolVar(&i.exclusive, "require-exclusive-custody", false, "refuse where another user can write the workspace")
	return command
}

// withProposal reads a proposal and gives it to f with the instance's broker.
func (a *app) withProposal(i *instance, name string, f func(*broker.Broker, []byte) error) error {
	_, b, err := a.load(i)
	if err != nil {
		return a.refused(i, err)
	}
	proposal, err := a.readProposal(name)
	if err != nil {
		return a.refused(i, err)
	}
	if err := f(b, proposal); err != nil {
		return a.refused(i, err)
	}
	return nil
}

// readProposal reads a file, or standard input for "-". It carries no authority: only its size and
// that it is JSON are checked here.
func (a *app) readProposal(name string) ([]byte, error) {
	unreadable := func(why string) error {
		return &ui.Error{Code: "proposal-unreadable", Message: "the proposal cannot be read: " + why, Exit: gate.ExitIO}
	}
	in := a.In
	if name != "-" {
		f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return nil, unreadable(err.Error())
		}
		defer f.Close()
		if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
			return nil, unreadable("it is no regular file")
		}
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, broker.MaxProposal+1))
	switch {
	case err != nil:
		return nil, unreadable(err.Error())
	case len(data) > broker.MaxProposal:
		return nil, unreadable(fmt.Sprintf("it has more than %d bytes", broker.MaxProposal))
	case !validJSON(data):
		return nil, unreadable("it is no JSON")
	}
	return data, nil
}

// line prints one JSON document on one line.
func (a *app) line(v any) error {
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	a.Outf("%s\n", text)
	return nil
}

// codexServe takes its arguments literally, as the manifest's invocation fixes them.
func (a *app) codexServe() *cobra.Command {
	return &cobra.Command{
		Use:   "serve --manifest PATH",
		Short: "Serve the one tool to an agent over standard input and output",
		Long: `Serve the one tool, codex_workspace_apply, to an agent over standard input and output, as a
Model Context Protocol server. There are no other arguments: everything that decides is in
the manifest.`,
		Example:            "  approval codex serve --manifest /opt/approval-codex/instances/team.json",
		DisableFlagParsing: true,
		Args:               cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "--help" || args[0] == "-h") {
				return command.Help()
			}
			if len(args) != 2 || args[0] != "--manifest" || !ident.AbsPath(args[1]) {
				return ui.Usage("the arguments are exactly: codex serve --manifest PATH, with an absolute path")
			}
			i := &instance{manifest: args[1], json: true}
			_, b, err := a.load(i)
			if err != nil {
				return a.refused(i, err)
			}
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			return a.serve(ctx, b)
		},
	}
}

func (a *app) serve(ctx context.Context, b *broker.Broker) error {
	err := mcp.Serve(ctx, io.NopCloser(a.In), nopWriteCloser{a.Out}, mcp.Options{
		Applier: b, Version: version.Version, Log: slog.New(slog.NewTextHandler(a.Err, nil)),
	})
	if err != nil {
		return ioFailure(err)
	}
	return nil
}

type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }

func (a *app) codexRecover() *cobra.Command {
	i := &instance{}
	return i.flags(&cobra.Command{
		Use:   "recover",
		Short: "Say what an unfinished change left; change nothing",
		Long: `Say what an unfinished change left: none, before, after or mixed. Nothing is changed, no lock
is taken. Before and after are settled by the next apply. Mixed waits for a person: decide by
hand what the workspace should hold, then reconcile every action (approval execution
reconcile), then: approval codex settle. Exit code 1 for mixed.`,
		Example: "  approval codex recover --manifest /opt/approval-codex/instances/team.json --json",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, b, err := a.load(i)
			if err != nil {
				return a.refused(i, err)
			}
			r, err := b.Recover(command.Context())
			if err != nil {
				return a.refused(i, err)
			}
			if i.json {
				err = a.line(r)
			} else {
				a.showRecovery(r)
			}
			if err == nil && !r.OK {
				err = &ui.Silent{Exit: gate.ExitRefused}
			}
			return err
		},
	})
}

func (a *app) showRecovery(r *broker.Report) {
	a.Outf("state %s (lock %s, journal %s)\n", r.State, r.Lock, r.Journal)
	for _, e := range r.Endpoints {
		a.Outf("  %-6s %s\n", e.State, ui.Printable(e.Path))
	}
	for _, key := range r.Actions {
		a.Outf("  action %s\n", ui.Printable(key))
	}
	a.Outf("%s\n", r.Advice)
}

func (a *app) codexSettle() *cobra.Command {
	i := &instance{}
	return i.flags(&cobra.Command{
		Use:   "settle",
		Short: "Close an unfinished change that the log or the workspace has settled",
		Long: `Close an unfinished change: append the outcome that the workspace shows, or, once a person has
reconciled every action of a mixed one, move its journal and preimages to the gate's home as
evidence, and free the workspace. The next apply does the same by itself. No file of the
workspace is changed.`,
		Example: "  approval codex settle --manifest /opt/approval-codex/instances/team.json",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, b, err := a.load(i)
			if err == nil {
				err = b.Release(command.Context())
			}
			if err != nil {
				return a.refused(i, err)
			}
			if i.json {
				return a.line(map[string]any{"ok": true})
			}
			a.Outf("nothing is unfinished\n")
			return nil
		},
	})
}

func (a *app) codexSetup() *cobra.Command {
	i := &instance{}
	var check bool
	command := &cobra.Command{
		Use:   "setup FOLDER",
		Short: "Write the templates of an instance, or check them",
		Long: `Write the templates of an instance into a new folder, or, with --check, prove that a folder
holds exactly them. Templates do nothing: no user, service, configuration or policy is touched.`,
		Example: "  approval codex setup ./codex-templates\n  approval codex setup --check ./codex-templates",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir, err := filepath.Abs(args[0])
			if err != nil {
				return ioFailure(err)
			}
			if !check {
				if err := broker.WriteBundle(dir); err != nil {
					return ioFailure(err)
				}
			}
			r, err := broker.CheckBundle(dir)
			if err != nil {
				return a.refused(i, err)
			}
			if i.json {
				return a.line(r)
			}
			a.Outf("%s: %s\n", dir, strings.Join(r.Files, ", "))
			return nil
		},
	}
	command.Flags().BoolVar(&check, "check", false, "only read and compare")
	command.Flags().BoolVar(&i.json, "json", false, "print one JSON document")
	return command
}

func (a *app) codexDoctor() *cobra.Command {
	i := &instance{}
	var strict bool
	command := i.flags(&cobra.Command{
		Use:   "doctor --strict",
		Short: "Find what keeps an installation from enforcing anything",
		Long: `Find what keeps an installation from enforcing anything: by owners, modes and names. No
program of the manifest is run. That nothing was found proves nothing about access lists.`,
		Example: "  approval codex doctor --strict --manifest /opt/approval-codex/instances/team.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if !strict {
				return ui.Usage("doctor has one way to look: --strict")
			}
			d := broker.Doctor(i.manifest)
			if i.json {
				if err := a.line(d); err != nil {
					return err
				}
			} else {
				for _, f := range d.Findings {
					a.Outf("%s %s %s: %s\n", f.Code, f.Name, ui.Printable(f.Path), f.Message)
				}
				a.Outf("%d findings; %s\n", len(d.Findings), strings.Join(d.Notes, ", "))
			}
			if !d.OK {
				return &ui.Silent{Exit: gate.ExitRefused}
			}
			return nil
		},
	})
	command.Flags().BoolVar(&strict, "strict", false, "fail on any finding")
	return command
}
