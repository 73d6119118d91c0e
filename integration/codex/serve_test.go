package codex

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"gloved.dev/internal/require"
)

func (i *instance) serveCommand() *exec.Cmd {
	cmd := exec.Command(binary, "codex", "serve", "--manifest", i.manifest)
	cmd.Dir = i.dir + "/other"
	return cmd
}

// TestRealClientDrivesServe is the SDK's client with the real program over standard streams.
func TestRealClientDrivesServe(t *testing.T) {
	i := newInstance(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: i.serveCommand()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	list, err := session.ListTools(ctx, nil)
	if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != "codex_workspace_apply" {
		t.Fatalf("%+v %v", list, err)
	}
	call := func(args any) (*mcp.CallToolResult, string) {
		t.Helper()
		r, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "codex_workspace_apply", Arguments: args})
		if err != nil {
			t.Fatal(err)
		}
		return r, r.Content[0].(*mcp.TextContent).Text
	}
	before, err := os.ReadFile(i.log)
	i.must(err)
	drift := arguments(create("docs/a", "x"))
	drift["expected_policy_sha256"] = strings.Repeat("b", 64)
	if r, text := call(drift); !r.IsError || !strings.Contains(text, `"attestation-drift"`) {
		t.Fatalf("%s", text)
	}
	extra := arguments(create("docs/a", "x"))
	extra["token"] = "x"
	if r, text := call(extra); !r.IsError || !strings.Contains(text, `"input-invalid"`) || !strings.Contains(text, "token") {
		t.Fatalf("%s", text)
	}
	if after, err := os.ReadFile(i.log); err != nil || !bytes.Equal(before, after) {
		t.Fatal("refusals were logged")
	}
	if r, text := call(arguments(create("docs/a", "x"))); r.IsError || !strings.Contains(text, `"state":"after"`) {
		t.Fatalf("%s", text)
	}
	if got, err := os.ReadFile(i.ws + "/docs/a"); err != nil || string(got) != "x" {
		t.Fatalf("%q %v", got, err)
	}
	if r, text := call(arguments(create("AGENTS.md", "x"))); !r.IsError || !strings.Contains(text, `"approval-required"`) {
		t.Fatalf("%s", text)
	}
	if _, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "run", Arguments: map[string]any{}}); err == nil || !strings.Contains(err.Error(), "tool-not-allowed") {
		t.Fatalf("%v", err)
	}
}

// pythonClient is a client in another language, on nothing but a JSON parser.
const pythonClient = `
import json, subprocess, sys
p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
def ask(i, method, params):
    p.stdin.write((json.dumps({"jsonrpc": "2.0", "id": i, "method": method, "params": params}) + "\n").encode()); p.stdin.flush()
    while True:
        m = json.loads(p.stdout.readline())
        assert m["jsonrpc"] == "2.0"
        if m.get("id") == i: return m
ask(1, "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "py", "version": "1"}})
p.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
tools = ask(2, "tools/list", {})["result"]["tools"]
r = ask(3, "tools/call", {"name": "codex_workspace_apply", "arguments": json.load(open(sys.argv[-1] + ".args"))})["result"]
p.stdin.close()
print(json.dumps([[t["name"] for t in tools], r["structuredContent"]["state"], r.get("isError", False), p.wait()]))
`

func TestOtherLanguageDrivesServe(t *testing.T) {
	python := require.Tool(t, "python3")
	i := newInstance(t)
	i.must(os.WriteFile(i.manifest+".args", []byte(proposal(t, create("docs/py", "x"))), 0o644))
	out, err := exec.Command(python, append([]string{"-c", pythonClient}, i.serveCommand().Args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(out)); got != `[["codex_workspace_apply"], "after", false, 0]` {
		t.Fatal(got)
	}
}

// TestReq103And108ClientGoesAway closes the client's end while a call is on its way. Every line of
// standard output is JSON-RPC, and no lock stays without a journal.
func TestReq103And108ClientGoesAway(t *testing.T) {
	ran := 0
	for round := range 10 {
		i := newInstance(t)
		cmd := i.serveCommand()
		var out bytes.Buffer
		cmd.Stdout = &out
		in, err := cmd.StdinPipe()
		i.must(err)
		i.must(cmd.Start())
		frames := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}` + "\n" +
			`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" +
			`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"codex_workspace_apply","arguments":` + proposal(t, create("docs/gone", "x")) + `}}` + "\n"
		if round == 0 {
			frames = frames[:len(frames)-1] // the last frame is not finished: it never happened
		}
		_, err = in.Write([]byte(frames))
		i.must(err)
		if round >= 5 { // in the middle of its work
			i.awaitStart()
		}
		i.must(in.Close())
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			var m struct {
				Version string `json:"jsonrpc"`
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil || m.Version != "2.0" {
				t.Fatalf("standard output has %q", line)
			}
		}
		if r := i.codex("", "recover", "--json"); !strings.Contains(r.out, `"lock":"absent"`) {
			t.Fatalf("%+v", r)
		}
		log, err := os.ReadFile(i.log)
		i.must(err)
		if a, b := strings.Count(string(log), "execution.started"), strings.Count(string(log), "execution.completed"); a != b || round == 0 && a != 0 {
			t.Fatalf("%d started, %d completed", a, b)
		} else {
			ran += a
		}
	}
	if ran < 5 {
		t.Fatalf("only %d calls were at work when their client went", ran)
	}
}

// awaitStart waits until an execution has started.
func (i *instance) awaitStart() {
	i.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(time.Millisecond) {
		if log, err := os.ReadFile(i.log); err == nil && bytes.Contains(log, []byte("execution.started")) {
			return
		}
	}
	i.t.Fatal("nothing has started within a minute")
}
