package ui

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"gloved.dev/internal/require"
)

// TestBashCompletesByItself: without the bash-completion package, what the script does is
// complete, and not complain.
func TestBashCompletesByItself(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		require.Skip(t, "bash is not installed")
	}
	root := &cobra.Command{Use: "tool"}
	root.AddCommand(&cobra.Command{Use: "sessions", Run: func(*cobra.Command, []string) {}})
	var script bytes.Buffer
	if err := Completion(root, "bash", &script); err != nil {
		t.Fatal(err)
	}
	// The program that the script asks is a function here.
	script.WriteString(`
compopt() { :; } # it is for a shell that completes
tool() { printf 'sessions\tList\n:4\n'; }
COMP_WORDS=(tool sess); COMP_CWORD=1; COMP_LINE="tool sess"; COMP_POINT=9; COMP_TYPE=9
__start_tool tool sess tool
printf '<%s>' "${COMPREPLY[@]}"
`)
	cmd := exec.Command("bash", "--norc", "--noprofile", "-s")
	cmd.Stdin = &script
	out, err := cmd.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "<sessions>" {
		t.Errorf("%v, %q", err, out)
	}
}
