package mcp

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"gloved.dev/runtime/broker"
)

// ToolName is the name of the one tool.
const ToolName = "codex_workspace_apply"

// allowed is the whole list of names that can be called.
var allowed = map[string]bool{ToolName: true}

// InputSchema is the JSON Schema of the tool's arguments, as published. A caller can say nothing
// else, because nothing else was ever published.
const InputSchema = `{"type":"object","additionalProperties":false,` +
	`"required":["operations","expected_policy_sha256"],"properties":{` +
	`"operations":{"type":"array","minItems":1,"maxItems":64,"items":{"oneOf":[` +
	`{"type":"object","additionalProperties":false,"required":["kind","path","after_base64"],"properties":{` +
	`"kind":{"const":"create"},"path":{"type":"string"},"after_base64":{"type":"string"}}},` +
	`{"type":"object","additionalProperties":false,"required":["kind","path","expected_before_sha256","after_base64"],"properties":{` +
	`"kind":{"const":"replace"},"path":{"type":"string"},"expected_before_sha256":{"type":"string","pattern":"^[0-9a-f]{64}$"},"after_base64":{"type":"string"}}},` +
	`{"type":"object","additionalProperties":false,"required":["kind","path","expected_before_sha256"],"properties":{` +
	`"kind":{"const":"delete"},"path":{"type":"string"},"expected_before_sha256":{"type":"string","pattern":"^[0-9a-f]{64}$"}}},` +
	`{"type":"object","additionalProperties":false,"required":["kind","from","to","expected_before_sha256"],"properties":{` +
	`"kind":{"const":"move"},"from":{"type":"string"},"to":{"type":"string"},"expected_before_sha256":{"type":"string","pattern":"^[0-9a-f]{64}$"}}}` +
	`]}},` +
	`"expected_policy_sha256":{"type":"string","pattern":"^[0-9a-f]{64}$"}}}`

const description = "Apply a set of file changes (create, replace, delete, move) to the workspace, all or nothing. " +
	"Paths are relative to the workspace; contents are base64. expected_policy_sha256 is the SHA-256 of the policy " +
	"file the change was prepared under. approval-required means that a person has been asked: call again with the " +
	"identical arguments once they have decided."

// An Applier applies proposals; *broker.Broker is one.
type Applier interface {
	Apply(ctx context.Context, proposal []byte) (*broker.Result, error)
}

// Options make a server.
type Options struct {
	Applier Applier
	// Version is the program's version, told to clients.
	Version string
	// Log receives diagnostics, never standard output. Nil discards them.
	Log *slog.Logger

	// extra are tools that a test adds to the listing.
	extra []*sdk.Tool
}

// Serve answers one client on the two streams until in ends, ctx is done, or out fails. A call that
// has started its work finishes it before Serve returns.
func Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser, o Options) error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	t := &tool{applier: o.Applier, log: o.Log}
	server := sdk.NewServer(&sdk.Implementation{Name: "approval-codex", Version: o.Version}, &sdk.ServerOptions{
		Logger: o.Log,
		// The tools never change, and nothing is logged to the client.
		Capabilities: &sdk.ServerCapabilities{Tools: &sdk.ToolCapabilities{}},
	})
	server.AddReceivingMiddleware(onlyAllowed)
	server.AddTool(&sdk.Tool{Name: ToolName, Description: description, InputSchema: rawJSON(InputSchema)}, t.call)
	for _, e := range o.extra {
		server.AddTool(e, t.call)
	}
	w := &lockedWriter{w: out}
	err := server.Run(ctx, &sdk.IOTransport{Reader: newFilter(in, w, o.Log), Writer: w, MaxLineLength: maxFrame})
	t.wait() // the library may return while a call is at work
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// onlyAllowed refuses, at the time of the call, every name but the one.
func onlyAllowed(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if call, ok := req.(*sdk.CallToolRequest); ok && (call.Params == nil || !allowed[call.Params.Name]) {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: broker.CodeToolNotAllowed + ": there is one tool, " + ToolName}
		}
		return next(ctx, method, req)
	}
}

// A tool is the one tool. Calls run one at a time.
type tool struct {
	mu      sync.Mutex
	applier Applier
	log     *slog.Logger
}

func (t *tool) wait() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

func (t *tool) call(ctx context.Context, req *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	if !allowed[req.Params.Name] {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: broker.CodeToolNotAllowed}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	result, err := t.applier.Apply(ctx, req.Params.Arguments)
	if err == nil {
		return answer(result, false)
	}
	refusal := broker.AsRefusal(err, broker.CodeCommitUnknown)
	t.log.Info("refused", "code", refusal.Code, "detail", refusal.Detail, "error", refusal.Err)
	return answer(map[string]any{"error": refusal}, true)
}

// answer gives one object twice: as text for a model, and structured for a program.
func answer(v any, isError bool) (*sdk.CallToolResult, error) {
	text, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return nil, err
	}
	exit := 0
	if isError {
		exit = 1
	}
	return &sdk.CallToolResult{
		Content:           []sdk.Content{&sdk.TextContent{Text: string(text)}},
		StructuredContent: rawJSON(text), IsError: isError,
		Meta: sdk.Meta{"approval.md/exit_code": exit},
	}, nil
}

// rawJSON is JSON text that the library's encoder passes on as it is.
type rawJSON []byte

// MarshalJSON returns the text.
func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }
