package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"gloved.dev/runtime/broker"
)

// fake is an Applier that answers what it is told to.
type fake struct {
	calls  atomic.Int32
	result *broker.Result
	err    error
}

func (f *fake) Apply(context.Context, []byte) (*broker.Result, error) {
	f.calls.Add(1)
	return f.result, f.err
}

// serve starts a server and returns the client's ends of its streams.
func serve(t *testing.T, o Options) (io.WriteCloser, *bufio.Reader) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- Serve(t.Context(), inR, outW, o); outW.Close() }()
	t.Cleanup(func() {
		inW.Close()
		go io.Copy(io.Discard, outR)
		if err := <-done; err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("Serve: %v", err)
		}
	})
	return inW, bufio.NewReader(outR)
}

func connect(t *testing.T, o Options) *sdk.ClientSession {
	t.Helper()
	in, out := serve(t, o)
	client := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &sdk.IOTransport{Reader: io.NopCloser(out), Writer: in}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// TestReq009PublishedSchema compares what is listed with the exact schema.
func TestReq009PublishedSchema(t *testing.T) {
	s := connect(t, Options{Applier: &fake{}})
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 1 || list.Tools[0].Name != "codex_workspace_apply" {
		t.Fatalf("listed: %+v", list.Tools)
	}
	var want any
	if err := json.Unmarshal([]byte(InputSchema), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, list.Tools[0].InputSchema); diff != "" {
		t.Fatal(diff)
	}
	properties := want.(map[string]any)["properties"].(map[string]any)
	if len(properties) != 2 || properties["operations"] == nil || properties["expected_policy_sha256"] == nil {
		t.Fatalf("properties: %v", properties)
	}
}

// TestReq007OneNameAtCallTime calls names that are almost right.
func TestReq007OneNameAtCallTime(t *testing.T) {
	f := &fake{result: &broker.Result{OK: true}}
	s := connect(t, Options{Applier: f})
	for _, name := range []string{"run", "approval_run", "codex_workspace_apply ", "CODEX_WORKSPACE_APPLY", ""} {
		if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: map[string]any{}}); err == nil {
			t.Errorf("%q was called", name)
		}
	}
	if n := f.calls.Load(); n != 0 {
		t.Fatalf("%d calls came through", n)
	}
	if _, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: ToolName, Arguments: map[string]any{}}); err != nil || f.calls.Load() != 1 {
		t.Fatalf("the tool itself: %v", err)
	}
}

// TestReq008WidenedListOpensNothing lists a second tool; calling it is refused all the same.
func TestReq008WidenedListOpensNothing(t *testing.T) {
	f := &fake{result: &broker.Result{OK: true}}
	s := connect(t, Options{Applier: f, extra: []*sdk.Tool{{Name: "run", InputSchema: rawJSON(`{"type":"object"}`)}}})
	list, err := s.ListTools(t.Context(), nil)
	if err != nil || len(list.Tools) != 2 {
		t.Fatalf("the list was not widened: %v %v", list, err)
	}
	_, err = s.CallTool(t.Context(), &sdk.CallToolParams{Name: "run", Arguments: map[string]any{}})
	if err == nil || !strings.Contains(err.Error(), "tool-not-allowed") || f.calls.Load() != 0 {
		t.Fatalf("refused with %v after %d calls", err, f.calls.Load())
	}
}

// TestReq104RefusalIsAResult reads a refusal as a result with isError and the code.
func TestReq104RefusalIsAResult(t *testing.T) {
	f := &fake{err: &broker.Refusal{Code: broker.CodeApprovalRequired, Message: "ask", Pending: []string{"k"}}}
	s := connect(t, Options{Applier: f})
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: ToolName, Arguments: map[string]any{}})
	if err != nil || !r.IsError {
		t.Fatalf("%+v, %v", r, err)
	}
	var got struct {
		Error struct {
			Code    string
			Pending []string
		}
	}
	text := r.Content[0].(*sdk.TextContent).Text
	if err := json.Unmarshal([]byte(text), &got); err != nil || got.Error.Code != "approval-required" || got.Error.Pending[0] != "k" {
		t.Fatalf("%s: %v", text, err)
	}
	if strings.Contains(text, "\n") {
		t.Fatal("the text has more than one line")
	}
}

// TestReq105BadFramesChangeNothing sends a thousand damaged frames. The server answers the good one
// after them, every line it writes is a JSON-RPC object, and no call comes through.
func TestReq105BadFramesChangeNothing(t *testing.T) {
	f := &fake{}
	in, out := serve(t, Options{Applier: f})
	good := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"nobody","arguments":{}}}`
	seeds := []string{
		"", "{", "[]", "null", `"x"`, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, `[` + good + `]`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}`, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`,
		`{"jsonrpc":"2.0","id":{},"method":"ping"}`, `{"jsonrpc":"2.0","method":7}`, `{"jsonrpc":"2.0","id":9,"method":"ping","params":[1]}`,
		`{"jsonrpc":"2.0","id":9,"result":{}}`, `{"jsonrpc":"2.0","id":9,"method":"no/such"}`, "\x00\xff", strings.Repeat("[", 5000),
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":7}}`, good,
	}
	random := rand.New(rand.NewPCG(1, 2))
	go func() {
		for i := range 1000 {
			frame := []byte(seeds[i%len(seeds)])
			if len(frame) > 2 && i >= len(seeds) {
				frame[random.IntN(len(frame))] = byte(random.IntN(256))
			}
			in.Write(append(bytes.ReplaceAll(frame, []byte("\n"), nil), '\n'))
		}
		in.Write([]byte(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n"))
	}()
	for {
		line, err := out.ReadBytes('\n')
		if err != nil {
			t.Fatalf("the server ended: %v", err)
		}
		var m struct {
			Version string `json:"jsonrpc"`
			ID      any    `json:"id"`
			Result  any    `json:"result"`
		}
		if err := json.Unmarshal(line, &m); err != nil || m.Version != "2.0" {
			t.Fatalf("not JSON-RPC: %q", line)
		}
		if m.ID == "init" {
			if m.Result == nil {
				t.Fatalf("not initialized: %s", line)
			}
			break
		}
	}
	if f.calls.Load() != 0 {
		t.Fatal("a call came through")
	}
}

// TestFrameTooLong sends one frame over the bound, and one after it.
func TestFrameTooLong(t *testing.T) {
	in, out := serve(t, Options{Applier: &fake{}})
	go func() {
		part := bytes.Repeat([]byte("a"), 1<<20)
		for range maxFrame>>20 + 1 {
			in.Write(part)
		}
		fmt.Fprintf(in, "\n{}\n")
	}()
	for _, want := range []string{"-32700", "-32600"} {
		line, err := out.ReadString('\n')
		if err != nil || !strings.Contains(line, want) {
			t.Fatalf("%q, %v; want %s", line, err, want)
		}
	}
}
