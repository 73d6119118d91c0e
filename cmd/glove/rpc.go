package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// maxParamsBytes bounds parameters that are read from a file: a frame's bound.
const maxParamsBytes = 1 << 20

// rpcFlags are what `glove rpc` is told.
type rpcFlags struct {
	connectFlags
	asJSON  bool
	autoKey bool
	raw     bool
}

func (a *app) rpcCommand() *cobra.Command {
	var f rpcFlags
	command := &cobra.Command{
		Use:   "rpc [METHOD [JSON|NAME=VALUE...|@FILE|-]]",
		Short: "Talk to a gloved: one question, or a conversation",
		Long: `With a METHOD, ask one question and print the answer; exit 1 when it is an error.
Without one, hold a conversation: Tab completes methods and members, the history is
kept, notifications are shown as they come. Type :help there.

The gloved is, in this order: the one at --socket or --runtime-dir, the one --ssh
reaches, one started with --config (or with your config.json, if there is one), else a
fresh one with a private temporary state that is removed at the end: try anything.

Parameters are JSON, or NAME=VALUE pairs whose values are JSON or else plain text, or
@FILE, or - for standard input. A method that changes something needs an
"idempotency_key"; --auto-key makes one up.`,
		Example: `  glove rpc
  glove rpc capabilities
  glove rpc --policy session-policy.json validate_plan plan=@plan.json
  glove rpc --policy session-policy.json --auto-key create_session @create.json
  glove rpc --runtime-dir /run/user/1000/glove session_status session_id=s-1
  glove rpc --ssh build-host health
  printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"health"}' | glove rpc --raw`,
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			switch {
			case f.raw && len(args) > 0:
				return ui.Usage("--raw sends the lines of standard input; it takes no method")
			case f.raw:
				return a.rawConversation(ctx, f)
			case len(args) > 0:
				return a.ask(ctx, f, args[0], args[1:])
			case !a.InTerm || !a.OutTerm:
				return a.batch(ctx, f)
			}
			return a.converse(f)
		},
		ValidArgsFunction: a.completeMethods,
	}
	flags := command.Flags()
	f.addTo(flags)
	flags.BoolVar(&f.asJSON, "json", false, "print the answer as one line of JSON, and errors as JSON")
	flags.BoolVar(&f.autoKey, "auto-key", false, "make up an idempotency key where one is needed and none is given")
	flags.BoolVar(&f.raw, "raw", false, "send lines as they are typed and show frames as they come")
	return command
}

// completeMethods completes METHOD for the shell: those a fresh gloved has.
func (a *app) completeMethods(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return knownMethods, cobra.ShellCompDirectiveNoFileComp
}

// knownMethods are what the shell completes; which of them a gloved has, it says itself.
var knownMethods = []string{
	wire.MethodCapabilities, wire.MethodHealth, wire.MethodDiscover,
	wire.MethodPageReceipts, wire.MethodAcknowledgeReceipts, wire.MethodValidatePlan,
	wire.MethodCreateSession, wire.MethodSessionStatus, wire.MethodListSessions,
	wire.MethodStartSession, wire.MethodAttach, wire.MethodWriteStdin, wire.MethodResize,
	wire.MethodSignal, wire.MethodDetach, wire.MethodStopSession, wire.MethodCleanupSession,
	wire.MethodRotateJournals,
}

// ask is one question.
func (a *app) ask(ctx context.Context, f rpcFlags, method string, arguments []string) error {
	params, err := a.params(arguments)
	if err != nil {
		return err
	}
	connection, err := a.connect(ctx, f.connectFlags, nil)
	if err != nil {
		return err
	}
	defer func() { _ = connection.close() }() // the answer, or its error, is what counts
	return a.call(ctx, connection.client, f, method, params)
}

// call sends one request and prints its answer.
func (a *app) call(ctx context.Context, c *client.Client, f rpcFlags, method string, params []byte) error {
	var result jsontext.Value
	err := c.Call(ctx, method, params, &result)
	// The server, not a list kept here, says which methods need a key.
	if f.autoKey && needsKey(err) {
		key := newKey()
		a.Errf("%s idempotency_key %s\n", ui.Paint(a.ErrColor, ui.Dim, "using"), key)
		err = c.Call(ctx, method, params, &result, client.WithKey(key))
	}
	if err != nil {
		return callFailure(err)
	}
	return a.showResult(result, f.asJSON)
}

// needsKey reports whether the server refused a request for its missing key.
func needsKey(err error) bool {
	var refusal *rpc.Error
	return errors.As(err, &refusal) && refusal.Code == rpc.InvalidParams &&
		refusal.Data["reason"] == "missing" && refusal.Data["pointer"] == "/idempotency_key"
}

func newKey() string { return "glove-" + randomHex(12) }

func newSecret() string { return randomHex(32) }

func randomHex(bytes int) string {
	raw := make([]byte, bytes)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(raw)
}

func (a *app) showResult(result jsontext.Value, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(a.Out, "%s\n", bytes.TrimSpace(result))
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s\n", prettyJSON(result, a.OutColor))
	return err
}

// callFailure is a failed call as a person reads it.
func callFailure(err error) error {
	var refusal *rpc.Error
	if !errors.As(err, &refusal) {
		return connectFailure(err)
	}
	out := &ui.Error{Code: string(refusal.Code), Message: refusal.Message, Err: err, Next: callAdvice(refusal)}
	if len(refusal.Data) > 0 {
		if data, err := json.Marshal(refusal.Data, json.Deterministic(true)); err == nil {
			out.Detail = append(out.Detail, "data "+string(data))
		}
	}
	return out
}

// callAdvice is what usually helps, for the errors that newcomers meet first.
func callAdvice(refusal *rpc.Error) string {
	switch refusal.Code {
	case rpc.MethodNotFound:
		return "glove rpc capabilities lists what this gloved was built with; --policy FILE adds validate_plan and sessions"
	case rpc.InvalidPlan:
		return "glove policy explain --file POLICY --plan PLAN names the line that stands against it"
	case rpc.AuditReconciliationFailed:
		return "a controller that has seen nothing pages from sequence 0 with 64 zeros and the key_id of capabilities"
	case rpc.AuditReconciliationRequired:
		return "page_receipts, then acknowledge_receipts with the local_anchor it returned"
	}
	if needsKey(refusal) {
		return "give idempotency_key=NAME, or let --auto-key make one up"
	}
	return ""
}

// params are the parameters as the command line gives them: nothing, JSON, NAME=VALUE
// pairs, @FILE or -.
func (a *app) params(arguments []string) ([]byte, error) {
	if len(arguments) == 0 {
		return []byte("{}"), nil
	}
	first := strings.TrimSpace(arguments[0])
	if len(arguments) == 1 && (first == "-" || strings.HasPrefix(first, "@")) {
		data, err := a.readAll(strings.TrimPrefix(first, "@"), maxParamsBytes)
		if err != nil {
			return nil, ui.Failf("params_unreadable", "%w", err)
		}
		return checkParams(data)
	}
	if strings.HasPrefix(first, "{") {
		return checkParams([]byte(strings.Join(arguments, " ")))
	}
	return a.pairParams(arguments)
}

func checkParams(data []byte) ([]byte, error) {
	value := jsontext.Value(bytes.TrimSpace(data))
	if !value.IsValid() || value.Kind() != '{' {
		failure := ui.Fail("params_invalid", "the parameters are not one JSON object", "")
		var probe map[string]jsontext.Value
		if err := json.Unmarshal(value, &probe); err != nil {
			failure.Detail = []string{err.Error()}
		}
		return nil, failure
	}
	return value, nil
}

// pairParams makes an object of NAME=VALUE pairs. a.b=1 sets b within a.
func (a *app) pairParams(pairs []string) ([]byte, error) {
	root := map[string]any{}
	for _, pair := range pairs {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, ui.Usage("parameters are JSON, NAME=VALUE pairs, @FILE or -; got %q", pair)
		}
		value, err := a.pairValue(text)
		if err != nil {
			return nil, err
		}
		path := strings.Split(name, ".")
		object := root
		for _, step := range path[:len(path)-1] {
			inner, ok := object[step].(map[string]any)
			if !ok {
				inner = map[string]any{}
				object[step] = inner
			}
			object = inner
		}
		object[path[len(path)-1]] = value
	}
	return json.Marshal(root, json.Deterministic(true))
}

// pairValue is JSON where the text is JSON, the contents of a file for @FILE, else the
// text itself.
func (a *app) pairValue(text string) (any, error) {
	if file, isFile := strings.CutPrefix(text, "@"); isFile {
		data, err := a.readAll(file, maxParamsBytes)
		if err != nil {
			return nil, ui.Failf("params_unreadable", "%w", err)
		}
		text = string(data)
	}
	if value := jsontext.Value(strings.TrimSpace(text)); value.IsValid() {
		return value, nil
	}
	return text, nil
}

// prettyJSON indents JSON for people, with colour where it is on. Control characters
// never reach the terminal: JSON escapes most, Printable the rest.
func prettyJSON(value jsontext.Value, color bool) string {
	indented := slices.Clone(value)
	if err := indented.Indent(jsontext.WithIndent("  ")); err != nil {
		return ui.Printable(string(value))
	}
	text := ui.Printable(string(indented))
	if !color {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = paintMember(line)
	}
	return strings.Join(lines, "\n")
}

// paintMember colours the name of a member and leaves its value plain.
func paintMember(line string) string {
	body := strings.TrimLeft(line, " ")
	if !strings.HasPrefix(body, `"`) {
		return line
	}
	end := stringEnd(body, 0)
	if end < 0 || !strings.HasPrefix(body[end+1:], ":") {
		return line
	}
	indent := line[:len(line)-len(body)]
	return indent + ui.Paint(true, ui.Cyan, body[:end+1]) + body[end+1:]
}
