package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/transcript"
)

func (a *app) transcriptCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "transcript",
		Short: "Check, record and replay golden transcripts",
		Long: `A transcript is a conversation with gloved, written down: "-->" lines go to the
server, "<--" lines are expected back, "$ gloved …" starts one. Each is run against a
fresh gloved in a private state directory, whose parts are ${AUDIT_KEY}, ${JOURNAL},
${POLICY}, ${STORE}, ${WORKSPACE}, ${RUNTIME} and ${NOW} (milliseconds).

Expected values are exact; "<int>", "<hex64>", "<base64>", "<time>", "<string>",
"<bool>" and "<any>" match what changes, and "<NAME=hex64>" keeps it as ${NAME}.
The policy of x.transcript is x.policy.json beside it, else default.policy.json.`,
		Example: `  glove transcript check testdata/transcripts
  glove transcript replay testdata/transcripts/health.transcript`,
	}
	command.AddCommand(a.transcriptCheck(), a.transcriptRecord(), a.transcriptReplay())
	return command
}

func (a *app) transcriptCheck() *cobra.Command {
	var gloved string
	var asJSON bool
	command := &cobra.Command{
		Use:   "check FILE|DIRECTORY...",
		Short: "Run transcripts and compare every answer",
		Example: `  glove transcript check testdata/transcripts
  glove transcript check --gloved ./gloved create.transcript`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			launcher, err := a.launcher(gloved)
			if err != nil {
				return err
			}
			paths, err := transcriptPaths(args)
			if err != nil {
				return err
			}
			return a.checkAll(paths, transcript.Options{Launcher: launcher}, asJSON)
		},
	}
	command.Flags().StringVar(&gloved, "gloved", "", "the gloved `program` to run (default: glove itself)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) launcher(gloved string) (transcript.Launcher, error) {
	command, err := a.glovedCommand(gloved)
	return transcript.Launcher{Command: command}, err
}

func transcriptPaths(args []string) ([]string, error) {
	var paths []string
	for _, arg := range args {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, ui.Fail("transcript_unreadable", err.Error(), "name .transcript files, or a directory of them")
		}
		if !info.IsDir() {
			paths = append(paths, arg)
			continue
		}
		found, err := filepath.Glob(filepath.Join(arg, "*.transcript"))
		if err != nil || len(found) == 0 {
			return nil, ui.Fail("transcript_unreadable", arg+" has no .transcript files", "")
		}
		slices.Sort(found)
		paths = append(paths, found...)
	}
	return paths, nil
}

type checkedTranscript struct {
	Path    string `json:"path"`
	OK      bool   `json:"ok"`
	Millis  int64  `json:"milliseconds"`
	Failure string `json:"failure,omitempty"`
}

func (a *app) checkAll(paths []string, options transcript.Options, asJSON bool) error {
	results := make([]checkedTranscript, 0, len(paths))
	failed := 0
	for _, path := range paths {
		result := checkOne(path, options)
		results = append(results, result)
		if !result.OK {
			failed++
		}
		if !asJSON {
			a.showChecked(result)
		}
	}
	if asJSON {
		if err := a.JSON(map[string]any{"ok": failed == 0, "transcripts": results}); err != nil {
			return err
		}
	} else {
		a.Outf("%d of %d transcripts hold\n", len(paths)-failed, len(paths))
	}
	if failed > 0 {
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return nil
}

func checkOne(path string, options transcript.Options) checkedTranscript {
	start := time.Now()
	file, err := transcript.Load(path)
	if err == nil {
		err = transcript.Check(file, options)
	}
	result := checkedTranscript{Path: path, OK: err == nil, Millis: time.Since(start).Milliseconds()}
	if err != nil {
		result.Failure = err.Error()
	}
	return result
}

func (a *app) showChecked(result checkedTranscript) {
	if result.OK {
		a.Outf("%s %s\n", ui.Paint(a.OutColor, ui.Green, "ok  "), result.Path)
		return
	}
	a.Outf("%s %s\n%s\n", ui.Paint(a.OutColor, ui.Red, "FAIL"), result.Path, ui.Printable(result.Failure))
}

func (a *app) transcriptRecord() *cobra.Command {
	var gloved, requests string
	var exact bool
	command := &cobra.Command{
		Use:   "record FILE [-- GLOVED-OPTION...]",
		Short: "Write down what gloved answers",
		Long: `Run FILE's "-->" lines against a fresh gloved and rewrite its "<--" lines with what
came; comments stay. Values that change from run to run become matchers and variables.

With --requests, FILE is made from a file of requests, one JSON object a line ("-" is
standard input), sent to "gloved --stdio" with the options after "--"; the default
options are a receipt key and journal, and a policy and store if there is a policy
beside FILE.

A recording holds what gloved did, right or wrong. Read it before you keep it.`,
		Example: `  glove transcript record testdata/transcripts/health.transcript
  glove transcript record new.transcript --requests requests.jsonl
  glove transcript record new.transcript --requests - -- --stdio --audit-key '${AUDIT_KEY}' --journal '${JOURNAL}'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			launcher, err := a.launcher(gloved)
			if err != nil {
				return err
			}
			file, err := a.toRecord(args[0], args[1:], requests)
			if err != nil {
				return err
			}
			recorded, err := transcript.Record(file, transcript.Options{Launcher: launcher}, exact)
			if err != nil {
				return ui.Fail("transcript_not_recorded", err.Error(), "")
			}
			if err := os.WriteFile(args[0], recorded.Bytes(), 0o644); err != nil {
				return ui.Failf("transcript_not_recorded", "%w", err)
			}
			a.Outf("recorded %s; read it before you keep it\n", args[0])
			return nil
		},
	}
	command.Flags().StringVar(&gloved, "gloved", "", "the gloved `program` to run (default: glove itself)")
	command.Flags().StringVar(&requests, "requests", "", "make the transcript from this `file` of requests")
	command.Flags().BoolVar(&exact, "exact", false, "keep every value as it came, without matchers")
	return command
}

// toRecord is the transcript to play: the file itself, or one made from requests.
func (a *app) toRecord(path string, options []string, requests string) (*transcript.File, error) {
	if requests == "" {
		if len(options) > 0 {
			return nil, ui.Usage("gloved's options come from the transcript; they go with --requests only")
		}
		return loadTranscript(path)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return nil, ui.Fail("transcript_exists", path+" exists", "record it without --requests, or choose another name")
	}
	text, err := a.readAll(requests, transcript.MaxFileBytes)
	if err != nil {
		return nil, ui.Failf("requests_unreadable", "%w", err)
	}
	if len(options) == 0 {
		options = defaultGlovedOptions(path)
	}
	file, err := transcript.FromRequests(path, options, text)
	if err != nil {
		return nil, ui.Failf("requests_unreadable", "%w", err)
	}
	return file, nil
}

func defaultGlovedOptions(path string) []string {
	options := []string{"--stdio", "--audit-key", "${AUDIT_KEY}", "--journal", "${JOURNAL}"}
	for _, policy := range []string{strings.TrimSuffix(path, ".transcript") + ".policy.json",
		filepath.Join(filepath.Dir(path), "default.policy.json")} {
		if _, err := os.Stat(policy); err == nil {
			return append(options, "--session-policy", "${POLICY}", "--session-store", "${STORE}")
		}
	}
	return options
}

func loadTranscript(path string) (*transcript.File, error) {
	file, err := transcript.Load(path)
	if err != nil {
		return nil, ui.Failf("transcript_unreadable", "%w", err)
	}
	return file, nil
}

// readAll reads a named file, or standard input for "-", up to limit bytes.
func (a *app) readAll(name string, limit int64) ([]byte, error) {
	input := a.In
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		input = file
	} else {
		name = "standard input"
	}
	data, err := io.ReadAll(io.LimitReader(input, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, ui.Failf("too_large", "%s is larger than %d bytes", name, limit)
	}
	return data, nil
}

func (a *app) transcriptReplay() *cobra.Command {
	var gloved string
	command := &cobra.Command{
		Use:     "replay FILE",
		Short:   "Run a transcript and show what is said, without comparing",
		Example: "  glove transcript replay testdata/transcripts/create.transcript",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			launcher, err := a.launcher(gloved)
			if err != nil {
				return err
			}
			file, err := loadTranscript(args[0])
			if err != nil {
				return err
			}
			err = transcript.Replay(file, transcript.Options{Launcher: launcher}, a.showEvent)
			if err != nil {
				return ui.Fail("replay_failed", err.Error(), "")
			}
			return nil
		},
	}
	command.Flags().StringVar(&gloved, "gloved", "", "the gloved `program` to run (default: glove itself)")
	return command
}

func (a *app) showEvent(event transcript.Event) error {
	marker, style, text := "", ui.Dim, event.Text
	switch event.Kind {
	case transcript.Command:
		marker, style = "$ ", ui.Bold
	case transcript.Send:
		marker, style = "--> ", ui.Blue
	case transcript.SendEOF:
		marker, style, text = "--> ", ui.Blue, "<eof>"
	case transcript.Expect:
		marker, style = "<-- ", ui.Green
	case transcript.ExpectEOF:
		marker, style, text = "<-- ", ui.Green, "<eof>"
	}
	a.Outf("%s%s\n", ui.Paint(a.OutColor, style, marker), ui.Printable(text))
	return nil
}
