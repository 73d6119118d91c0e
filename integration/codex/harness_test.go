package codex

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gloved.dev/internal/require"
)

// TestCodexListsOneTool configures a real Codex CLI with the manifest's invocation and asks its app
// server which tools there are. No model and no network take part.
func TestCodexListsOneTool(t *testing.T) {
	codex := os.Getenv("GLOVE_TEST_CODEX") // where CI put it, apart from everybody's PATH
	if codex == "" {
		var err error
		if codex, err = exec.LookPath("codex"); err != nil {
			require.Skip(t, "codex is missing; npm install -g @openai/codex")
		}
	}
	i := newInstance(t)
	home := filepath.Join(i.dir, "codex-home")
	i.must(os.Mkdir(home, 0o700))
	config := fmt.Sprintf("[mcp_servers.approval_codex]\ncommand = %q\nargs = [\"codex\", \"serve\", \"--manifest\", %q]\n", binary, i.manifest)
	i.must(os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	cmd := exec.Command(codex, "app-server")
	cmd.Env = append(os.Environ(), "CODEX_HOME="+home)
	cmd.Dir = i.dir + "/other"
	in, err := cmd.StdinPipe()
	i.must(err)
	out, err := cmd.StdoutPipe()
	i.must(err)
	i.must(cmd.Start())
	defer func() { in.Close(); cmd.Process.Kill(); cmd.Wait() }()
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"clientInfo":{"name":"test","version":"1"}}}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"initialized"}`)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"mcpServerStatus/list","params":{}}`)
	var answer struct {
		ID     int
		Result struct {
			Data []struct {
				Name  string
				Tools map[string]any
			}
		}
	}
	for lines := bufio.NewReader(out); answer.ID != 2; {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			t.Fatalf("codex ended: %v", err)
		}
		i.must(json.Unmarshal(line, &answer))
	}
	if d := answer.Result.Data; len(d) != 1 || d[0].Name != "approval_codex" || len(d[0].Tools) != 1 || d[0].Tools["codex_workspace_apply"] == nil {
		t.Fatalf("codex lists %+v", d)
	}
}
