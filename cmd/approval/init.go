package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	policy "gloved.dev/policy/approval"
)

func (a *app) initCommand() *cobra.Command {
	var dir string
	var asJSON bool
	command := &cobra.Command{
		Use:   "init",
		Short: "Make .approval/ and, where there is none, an APPROVAL.md to edit",
		Long: `Make .approval/, private to you, and write an APPROVAL.md to begin with where there is no
policy yet. What exists is left as it is. Nothing is in force until a person attests it.`,
		Example: "  approval init\n  approval init --dir /srv/project",
		RunE: func(*cobra.Command, []string) error {
			made, err := initialise(dir)
			if err != nil {
				return ioFailure(err)
			}
			if asJSON {
				return a.JSON(map[string]any{"ok": true, "created": append([]string{}, made...)})
			}
			for _, path := range made {
				a.Outf("made %s\n", path)
			}
			if len(made) == 0 {
				a.Outf("everything was there\n")
			}
			a.Outf("%s read and edit APPROVAL.md, then: approval policy attest --as human:NAME\n", ui.Paint(a.OutColor, ui.Cyan, "next:"))
			return nil
		},
	}
	command.Flags().StringVar(&dir, "dir", ".", "the project's `folder`")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

// initialise makes what is missing and returns the paths it made.
func initialise(dir string) (made []string, err error) {
	for _, path := range []string{".approval", ".approval/log", ".approval/payloads"} {
		path = filepath.Join(dir, path)
		switch err := os.Mkdir(path, 0o700); {
		case err == nil:
			made = append(made, path)
		case !errors.Is(err, fs.ErrExist):
			return made, err
		}
	}
	for _, name := range policy.FileNames {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return made, nil
		}
	}
	path := filepath.Join(dir, policy.FileNames[0])
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return made, err
	}
	_, err = f.WriteString(template)
	return append(made, path), errors.Join(err, f.Close())
}
