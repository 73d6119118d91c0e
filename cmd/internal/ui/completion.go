package ui

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Shells are those that Completion knows.
var Shells = []string{"bash", "zsh", "fish", "powershell"}

// bashWords stands in for the one function that the script for bash wants of the
// bash-completion package, on machines without it. Words with ":" or "=" in them stay in
// pieces, as bash takes them apart.
const bashWords = `# For a bash without the bash-completion package.
if ! declare -F _get_comp_words_by_ref >/dev/null; then
    _get_comp_words_by_ref() {
        words=("${COMP_WORDS[@]}")
        cword=$COMP_CWORD
        cur=${words[cword]}
        prev=${words[cword-1]}
    }
fi

`

// Completion writes a shell's completion script for a command tree.
func Completion(root *cobra.Command, shell string, out io.Writer) error {
	switch shell {
	case "bash":
		if _, err := io.WriteString(out, bashWords); err != nil {
			return err
		}
		return root.GenBashCompletionV2(out, true)
	case "zsh":
		return root.GenZshCompletion(out)
	case "fish":
		return root.GenFishCompletion(out, true)
	case "powershell":
		return root.GenPowerShellCompletionWithDesc(out)
	}
	return fmt.Errorf("no completion for the shell %q", shell)
}
