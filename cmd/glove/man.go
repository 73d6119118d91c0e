package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
)

// manCommand writes manual pages. It is hidden: packagers run it, people read the pages.
func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIRECTORY",
		Short:   "Write manual pages into a directory",
		Example: "  glove man /usr/local/share/man/man1",
		Hidden:  true,
		Args:    cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			pages := 0
			err := eachVisible(command.Root(), func(page *cobra.Command) error {
				pages++
				name := strings.ReplaceAll(page.CommandPath(), " ", "-") + ".1"
				return os.WriteFile(filepath.Join(args[0], name), manPage(page), 0o644)
			})
			if err != nil {
				return ui.Failf("man_not_written", "%w", err)
			}
			a.Outf("%d pages in %s\n", pages, args[0])
			return nil
		},
	}
}

func eachVisible(command *cobra.Command, do func(*cobra.Command) error) error {
	if command.Hidden {
		return nil
	}
	if err := do(command); err != nil {
		return err
	}
	for _, child := range command.Commands() {
		if err := eachVisible(child, do); err != nil {
			return err
		}
	}
	return nil
}

// manPage is a command's page in the man(7) macros. Pages carry no date, so that the
// same release always gives the same bytes.
func manPage(command *cobra.Command) []byte {
	var out bytes.Buffer
	name := strings.ReplaceAll(command.CommandPath(), " ", "-")
	fmt.Fprintf(&out, ".TH %s 1 \"\" \"glove %s\" \"Glove manual\"\n", strings.ToUpper(name), version.Version)
	fmt.Fprintf(&out, ".SH NAME\n%s \\- %s\n", roff(name), roff(command.Short))
	fmt.Fprintf(&out, ".SH SYNOPSIS\n.B %s\n", roff(command.UseLine()))
	text := command.Long
	if text == "" {
		text = command.Short + "."
	}
	fmt.Fprintf(&out, ".SH DESCRIPTION\n%s\n", roff(text))
	manCommands(&out, command)
	manFlags(&out, command)
	if command.Example != "" {
		fmt.Fprintf(&out, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(command.Example))
	}
	out.WriteString(".SH EXIT STATUS\n0 done, 1 failed or refused, 2 wrong command line, unless the description says otherwise.\n")
	manSeeAlso(&out, command)
	return out.Bytes()
}

func manCommands(out *bytes.Buffer, command *cobra.Command) {
	if !command.HasAvailableSubCommands() {
		return
	}
	out.WriteString(".SH COMMANDS\n")
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() {
			fmt.Fprintf(out, ".TP\n.B %s\n%s\n", roff(child.Use), roff(child.Short))
		}
	}
}

func manFlags(out *bytes.Buffer, command *cobra.Command) {
	command.InitDefaultHelpFlag()
	if !command.HasAvailableFlags() {
		return
	}
	out.WriteString(".SH OPTIONS\n")
	command.Flags().VisitAll(func(flag *pflag.Flag) {
		if flag.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(flag)
		short := ""
		if flag.Shorthand != "" {
			short = "-" + flag.Shorthand + ", "
		}
		fmt.Fprintf(out, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(short+"--"+flag.Name+" "+value)), roff(usage))
	})
}

func manSeeAlso(out *bytes.Buffer, command *cobra.Command) {
	var pages []string
	if parent := command.Parent(); parent != nil {
		pages = append(pages, parent.CommandPath())
	}
	for _, child := range command.Commands() {
		if child.IsAvailableCommand() {
			pages = append(pages, child.CommandPath())
		}
	}
	if len(pages) == 0 {
		return
	}
	out.WriteString(".SH SEE ALSO\n")
	for i, page := range pages {
		if i > 0 {
			out.WriteString(",\n")
		}
		fmt.Fprintf(out, ".BR %s (1)", roff(strings.ReplaceAll(page, " ", "-")))
	}
	out.WriteString("\n")
}

// roff escapes text so that no line of it is taken for a request.
func roff(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	text = strings.ReplaceAll(text, "-", `\-`)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
