package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/ident"
	"gloved.dev/journal"
)

func (a *app) journalCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "journal",
		Short: "Verify, show, follow, repair and rotate hash-chained logs",
		Long: `Every durable record of gloved is in a hash-chained log: one JSON object a line, each
with seq, prev, hash and alg "sha256/jcs". These commands read any such log, ours or
another tool's, and need no lock: a running gloved is not disturbed.

A chain shows damage and loss in the middle. That records are missing off the end, or
that the whole file was rewritten, shows only against a head you kept: --anchor.`,
		Example: `  glove journal verify ~/.local/state/glove/receipts.jsonl
  glove journal tail -f sessions.jsonl`,
	}
	command.AddCommand(a.journalVerify(), a.journalShow(), a.journalTail(), a.journalRepair(), a.journalRotate())
	return command
}

func (a *app) journalVerify() *cobra.Command {
	var anchor string
	var asJSON bool
	command := &cobra.Command{
		Use:   "verify FILE",
		Short: "Prove every record of a log",
		Long: `Prove every record of a log, and every archive that it was rotated into: they are
looked for beside it. Nothing is written, locked or created.

Exit codes: 0 clean, 1 corrupt, 2 wrong command line, 3 torn tail (bytes after the last
complete record, which were never acknowledged), 4 unreadable or not there.`,
		Example: `  glove journal verify receipts.jsonl
  glove journal verify --anchor 42:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 receipts.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			head, err := parseAnchor(anchor)
			if err != nil {
				return err
			}
			// The verdict holds the error's text.
			verdict, _ := journal.VerifyFile(args[0], journal.VerifyOptions{Anchor: head})
			if _, err := os.Lstat(args[0]); errors.Is(err, os.ErrNotExist) && verdict.Status == journal.StatusClean {
				return &ui.Error{Code: "no_log", Message: "there is no log at " + ui.Printable(args[0]), Exit: exitUnreadable,
					Next: "check the path; gloved makes a log with its first record, and one that was there must be looked for"}
			}
			if asJSON {
				if err := a.JSON(verdict); err != nil {
					return err
				}
			} else {
				a.showVerdict(args[0], verdict)
			}
			return exitWith(verdict.ExitCode())
		},
	}
	command.Flags().StringVar(&anchor, "anchor", "", "a head you trust, `SEQ:HASH`: the log must hold that record")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

// exitUnreadable is the exit code of a log that cannot be read.
const exitUnreadable = 4

func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &ui.Silent{Exit: code}
}

func parseAnchor(text string) (*journal.Head, error) {
	if text == "" {
		return nil, nil
	}
	seq, hash, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(seq, 10, 64)
	if !ok || err != nil || number == 0 || !ident.Hex64(hash) {
		return nil, ui.Usage("--anchor is SEQ:HASH, a number from 1 and 64 lowercase hex digits; got %q", text)
	}
	return &journal.Head{Seq: number, Hash: hash}, nil
}

func (a *app) showVerdict(path string, verdict journal.Verdict) {
	style := ui.Green
	if verdict.Status != journal.StatusClean {
		style = ui.Red
	}
	a.Outf("%s  %s\n", ui.Paint(a.OutColor, style, string(verdict.Status)), ui.Printable(path))
	switch verdict.Status {
	case journal.StatusClean:
		if verdict.Head == nil {
			a.Outf("  no records\n")
			return
		}
		a.Outf("  %s proven\n  head %d:%s\n", plural(verdict.Records, "record"), verdict.Head.Seq, verdict.Head.Hash)
		for _, archive := range verdict.Archives {
			a.Outf("  archive %s: %s proven\n", ui.Printable(archive.Name), plural(archive.Records, "record"))
		}
	case journal.StatusTorn:
		a.Outf("  %s proven, then %s at offset %d, never acknowledged\n",
			plural(verdict.Records, "record"), plural(verdict.Bytes, "byte"), verdict.Offset)
		a.Outf("  %s glove journal repair %s\n", ui.Paint(a.OutColor, ui.Cyan, "next:"), shown(path))
	case journal.StatusCorrupt:
		if verdict.Archive != "" {
			a.showArchiveFault(path, verdict)
			return
		}
		a.Outf("  %s at line %d, offset %d%s\n", verdict.Reason, verdict.Line, verdict.Offset, badSeq(verdict))
		a.Outf("  %s\n", ui.Printable(verdict.Message))
		a.Outf("  %s nothing can be cut safely: keep the file, and compare it with a copy or a trusted head\n",
			ui.Paint(a.OutColor, ui.Cyan, "next:"))
	default:
		a.Outf("  %s\n", ui.Printable(verdict.Message))
	}
	for _, anomaly := range verdict.Anomalies {
		a.Outf("  %s %s at record %d\n", ui.Paint(a.OutColor, ui.Yellow, "note:"), anomaly.Kind, anomaly.Seq)
	}
}

// showArchiveFault is for a log that proves, and names an archive that does not.
func (a *app) showArchiveFault(path string, verdict journal.Verdict) {
	a.Outf("  %s of the log itself are good\n  %s\n", plural(verdict.Records, "record"), ui.Printable(verdict.Message))
	next := "keep all files, and compare the archive with a copy"
	switch verdict.Reason {
	case journal.ReasonArchiveUnnamed:
		next = "keep all files, and look for the newest copy of " + ui.Printable(path)
	case journal.ReasonArchiveMissing:
		next = "put " + ui.Printable(verdict.Archive) + " back beside " + ui.Printable(path)
	}
	a.Outf("  %s %s\n", ui.Paint(a.OutColor, ui.Cyan, "next:"), next)
}

// shown is a path as a word of a command line that is printed: whoever named the file may
// have put what moves a cursor into its name.
func shown(path string) string { return ui.Printable(quote(path)) }

func badSeq(verdict journal.Verdict) string {
	if verdict.FirstBadSeq == nil {
		return ""
	}
	return fmt.Sprintf(" (record %d)", *verdict.FirstBadSeq)
}

func plural[N int64 | uint64](n N, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func (a *app) journalShow() *cobra.Command {
	var from, limit uint64
	var asJSON bool
	command := &cobra.Command{
		Use:   "show FILE",
		Short: "Print the records of a log, proven as they are read",
		Long: `Print the records of a log, each proven before it is shown. At the first line that
does not verify it stops, says why, and exits as "glove journal verify" would.

With --json every record is one line, exactly as it hashes.`,
		Example: `  glove journal show sessions.jsonl
  glove journal show --json --from 10 --limit 5 sessions.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			shown := uint64(0)
			err := journal.Walk(args[0], func(entry journal.Entry) error {
				if entry.Seq < from {
					return nil
				}
				if limit > 0 && shown == limit {
					return errEnough
				}
				shown++
				return a.showEntry(entry, asJSON)
			})
			return a.walkEnd(args[0], err)
		},
	}
	command.Flags().Uint64Var(&from, "from", 1, "the first `SEQ` to show")
	command.Flags().Uint64Var(&limit, "limit", 0, "show at most this `many` (0: all)")
	command.Flags().BoolVar(&asJSON, "json", false, "print canonical JSON lines")
	return command
}

var errEnough = errors.New("enough records were shown")

// walkEnd turns the end of a walk into what is printed and the exit code.
func (a *app) walkEnd(path string, err error) error {
	var torn *journal.TornError
	var corrupt *journal.CorruptError
	switch {
	case err == nil, errors.Is(err, errEnough), errors.Is(err, os.ErrClosed):
		return nil
	case errors.As(err, &torn):
		return &ui.Error{Code: "torn_tail", Message: err.Error(), Exit: journal.ExitTorn, Next: "glove journal repair " + quote(path)}
	case errors.As(err, &corrupt):
		return &ui.Error{Code: "corrupt", Message: err.Error(), Exit: journal.ExitCorrupt, Next: "glove journal verify " + quote(path)}
	}
	var refused *journal.Error
	if errors.As(err, &refused) && refused.Code == journal.CodeRotated {
		return &ui.Error{Code: "rotated", Message: "the journal was rotated: " + refused.Detail, Next: "glove journal tail -f " + quote(path)}
	}
	return &ui.Error{Code: "unreadable", Message: err.Error(), Exit: journal.ExitUnreadable}
}

func (a *app) showEntry(entry journal.Entry, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(a.Out, "%s\n", entry.Canonical())
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s  %s  %s  %s\n",
		ui.Paint(a.OutColor, ui.Bold, fmt.Sprintf("%6d", entry.Seq)),
		ui.Paint(a.OutColor, ui.Dim, entry.TS.UTC().Format(timeLayout)),
		ui.Paint(a.OutColor, ui.Dim, entry.Hash[:12]),
		ui.Printable(string(entry.Body())))
	return err
}

func (a *app) journalTail() *cobra.Command {
	var count uint64
	var follow, asJSON bool
	command := &cobra.Command{
		Use:   "tail FILE",
		Short: "Print the last records of a log, and with -f the ones that follow",
		Example: `  glove journal tail sessions.jsonl
  glove journal tail -f -n 0 receipts.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			if count > maxTail {
				return ui.Usage("-n is at most %d", maxTail)
			}
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.tail(ctx, args[0], int(count), follow, asJSON)
		},
	}
	command.Flags().Uint64VarP(&count, "lines", "n", 10, "`how many` records")
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on as records are written; end with Ctrl-C")
	command.Flags().BoolVar(&asJSON, "json", false, "print canonical JSON lines")
	return command
}

// maxTail bounds the records kept in memory.
const maxTail = 1000

// timeLayout is how times are shown: that of the records themselves.
const timeLayout = "2006-01-02T15:04:05.000Z"

func (a *app) tail(ctx context.Context, path string, count int, follow, asJSON bool) error {
	var last []journal.Entry
	end := uint64(0)
	err := journal.Walk(path, func(entry journal.Entry) error {
		end = entry.Seq
		if count == 0 {
			return nil
		}
		if len(last) == count {
			last = last[1:]
		}
		last = append(last, entry.Clone())
		return nil
	})
	// A writer may be in the middle of a line: with -f that is no fault.
	if follow && errors.Is(err, journal.ErrTornTail) {
		err = nil
	}
	for _, entry := range last {
		if showErr := a.showEntry(entry, asJSON); showErr != nil {
			return showErr
		}
	}
	if err != nil || !follow {
		return a.walkEnd(path, err)
	}
	return a.walkEnd(path, journal.Follow(ctx, path, func(entry journal.Entry) error {
		if entry.Seq <= end {
			return nil
		}
		return a.showEntry(entry, asJSON)
	}))
}

func (a *app) journalRepair() *cobra.Command {
	var yes, dryRun, asJSON bool
	command := &cobra.Command{
		Use:   "repair FILE",
		Short: "Show, and with --yes cut, a torn tail",
		Long: `A crash can leave bytes after the last complete record: a record that was being
written and was never acknowledged. gloved refuses to open such a journal until its
owner decides. This command shows what is there; with --yes it saves the bytes beside
the file and then cuts them. A complete line that does not verify is never cut.`,
		Example: `  glove journal repair sessions.jsonl
  glove journal repair --yes sessions.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if yes && dryRun {
				return ui.Fail("repair_conflicting_flags", "--dry-run and --yes exclude each other", "")
			}
			path, err := filepath.Abs(args[0])
			if err != nil {
				return ui.Failf("repair_failed", "%w", err)
			}
			report, err := journal.Repair(nil, path, yes)
			if err != nil {
				return repairError(path, err)
			}
			if asJSON {
				return a.JSON(report)
			}
			a.showRepair(path, report)
			return nil
		},
	}
	command.Flags().BoolVar(&yes, "yes", false, "cut the torn tail, keeping its bytes beside the file")
	command.Flags().BoolVar(&dryRun, "dry-run", false, "only show (the default)")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func repairError(path string, err error) error {
	var corrupt *journal.CorruptError
	switch {
	case errors.As(err, &corrupt):
		return &ui.Error{Code: "corrupt", Message: err.Error(),
			Next: "a complete line is never cut: keep the file and compare it with a copy", Err: err}
	case errors.Is(err, journal.ErrLocked):
		return &ui.Error{Code: "in_use", Message: "a running process writes " + path, Next: "stop it first", Err: err}
	}
	return &ui.Error{Code: "repair_failed", Message: err.Error(), Err: err}
}

func (a *app) showRepair(path string, report journal.RepairReport) {
	if !report.Torn {
		a.Outf("nothing to repair: %s, and no byte after them\n", plural(report.Records, "record"))
		return
	}
	a.Outf("complete: %s; no record: %s at offset %d:\n", plural(report.Records, "record"), plural(report.Bytes, "byte"), report.Offset)
	a.Outf("  %q\n", report.Preview)
	if report.Kept != "" {
		a.Outf("cut; the bytes are kept in %s\n", ui.Printable(report.Kept))
		return
	}
	a.Outf("%s glove journal repair --yes %s\n", ui.Paint(a.OutColor, ui.Cyan, "next:"), shown(path))
}
