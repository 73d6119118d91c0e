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
	alog "gloved.dev/journal/approval"
)

func (a *app) logCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "log",
		Short: "Verify, show and follow the event log",
		Long: `Verify, show and follow the event log. Nothing here writes, locks or creates.

The chain shows damage and loss in the middle. That records are missing off the end, or
that the whole file was rewritten, shows only against a head that you kept: --anchor.`,
		Example: "  approval log verify\n  approval log tail -f",
	}
	command.AddCommand(a.logVerify(), a.logShow(), a.logTail())
	return command
}

func (a *app) logVerify() *cobra.Command {
	p := &place{}
	var anchor string
	command := p.placed(&cobra.Command{
		Use:   "verify",
		Short: "Prove every record",
		Long: `Prove every record. Exit codes: 0 clean, 1 corrupt, 2 wrong command line, 3 torn tail
(bytes after the last complete record, which were never acknowledged), 4 unreadable.`,
		Example: "  approval log verify --json",
		RunE: func(*cobra.Command, []string) error {
			head, err := parseAnchor(anchor)
			if err != nil {
				return err
			}
			o := alog.VerifyOptions{Anchor: head}
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			// The tolerance decides only what is reported, so a policy that was never
			// attested may set it.
			if d := g.Document(); d.Policy != nil {
				o.Skew = d.Policy.Audit.SkewTolerance
			}
			v := alog.Verify(g.Log().Path(), o)
			if p.json {
				if err := a.JSON(v); err != nil {
					return err
				}
			} else {
				a.showVerdict(p.log, v)
			}
			if code := v.ExitCode(); code != 0 {
				return &ui.Silent{Exit: code}
			}
			return nil
		},
	})
	command.Flags().StringVar(&anchor, "anchor", "", "a head you trust, `SEQ:HASH`: the log must hold that record")
	return command
}

func parseAnchor(text string) (*journal.Head, error) {
	if text == "" {
		return nil, nil
	}
	seq, hash, ok := strings.Cut(text, ":")
	number, err := strconv.ParseUint(seq, 10, 64)
	if !ok || err != nil || number == 0 || !ident.Hex64(hash) {
		return nil, ui.Usage("--anchor is SEQ:HASH, a number from 1 and 64 lowercase hex digits")
	}
	return &journal.Head{Seq: number, Hash: hash}, nil
}

func (a *app) showVerdict(path string, v journal.Verdict) {
	style := ui.Green
	if v.Status != journal.StatusClean {
		style = ui.Red
	}
	a.Outf("%s  %s\n", ui.Paint(a.OutColor, style, string(v.Status)), path)
	switch {
	case v.Status == journal.StatusClean && v.Head == nil:
		a.Outf("  no records\n")
	case v.Status == journal.StatusClean:
		a.Outf("  %d records proven\n  head %d:%s\n", v.Records, v.Head.Seq, v.Head.Hash)
	case v.Status == journal.StatusTorn:
		a.Outf("  intact through record %d, then %d bytes at offset %d that were never acknowledged\n", v.Records, v.Bytes, v.Offset)
	case v.Status == journal.StatusCorrupt:
		seq := "unknown"
		if v.FirstBadSeq != nil {
			seq = strconv.FormatUint(*v.FirstBadSeq, 10)
		}
		a.Outf("  %s at line %d, offset %d, record %s\n  %s\n", v.Reason, v.Line, v.Offset, seq, ui.Printable(v.Message))
	default:
		a.Outf("  %s\n", ui.Printable(v.Message))
	}
	for _, n := range v.Anomalies {
		a.Outf("  %s %s at record %d: %v ms back\n", ui.Paint(a.OutColor, ui.Yellow, "note:"), n.Kind, n.Seq, n.Detail["skewMs"])
	}
}

var errEnough = errors.New("enough records were shown")

func (a *app) logShow() *cobra.Command {
	p := &place{}
	var from, limit uint64
	var key string
	command := p.logged(&cobra.Command{
		Use:     "show",
		Short:   "Print records, proven as they are read",
		Long:    "Print records, proven as they are read. With --json every record is one line, exactly as it hashes.",
		Example: "  approval log show --from 10 --limit 5\n  approval log show --key deploy:42 --json",
		RunE: func(*cobra.Command, []string) error {
			shown := uint64(0)
			return a.walk(p.log, func(e journal.Entry, r alog.Record) error {
				if e.Seq < from || key != "" && r.ActionKey != key {
					return nil
				}
				if limit > 0 && shown == limit {
					return errEnough
				}
				shown++
				return a.showRecord(e, r, p.json)
			})
		},
	})
	command.Flags().Uint64Var(&from, "from", 1, "the first `SEQ` to show")
	command.Flags().Uint64Var(&limit, "limit", 0, "show at most this `many` (0: all)")
	command.Flags().StringVar(&key, "key", "", "only records of this `KEY`")
	return command
}

// walk proves the log and hands out its records; it ends as verify would.
func (a *app) walk(path string, fn func(journal.Entry, alog.Record) error) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return ioFailure(err)
	}
	return walkEnd(alog.Walk(path, fn))
}

func walkEnd(err error) error {
	var torn *journal.TornError
	var corrupt *journal.CorruptError
	switch {
	case err == nil, errors.Is(err, errEnough), errors.Is(err, os.ErrNotExist):
		return nil
	case errors.As(err, &torn):
		return &ui.Error{Code: alog.CodeLogTornTail, Message: err.Error(), Exit: journal.ExitTorn, Err: err}
	case errors.As(err, &corrupt):
		return &ui.Error{Code: alog.CodeLogCorrupt, Message: err.Error(), Exit: journal.ExitCorrupt, Err: err}
	}
	return &ui.Error{Code: alog.CodeLogUnreadable, Message: err.Error(), Exit: journal.ExitUnreadable, Err: err}
}

func (a *app) showRecord(e journal.Entry, r alog.Record, asJSON bool) error {
	if asJSON {
		_, err := fmt.Fprintf(a.Out, "%s\n", e.Canonical())
		return err
	}
	name := r.ActionKey
	if name == "" {
		name = r.Task
	}
	_, err := fmt.Fprintf(a.Out, "%s  %s  %-22s  %s  %s  %s\n",
		ui.Paint(a.OutColor, ui.Bold, fmt.Sprintf("%6d", r.Seq)),
		ui.Paint(a.OutColor, ui.Dim, r.TS.UTC().Format("2006-01-02T15:04:05.000Z")),
		r.Event, revealPlain(r.Actor), revealPlain(name), ui.Paint(a.OutColor, ui.Dim, revealPlain(string(r.Payload))))
	return err
}

// maxTail bounds the records kept in memory.
const maxTail = 1000

func (a *app) logTail() *cobra.Command {
	p := &place{}
	var count uint64
	var follow bool
	command := p.logged(&cobra.Command{
		Use:     "tail",
		Short:   "Print the last records, and with -f the ones that follow",
		Example: "  approval log tail -n 3\n  approval log tail -f -n 0",
		RunE: func(command *cobra.Command, _ []string) error {
			if count > maxTail {
				return ui.Usage("-n is at most %d", maxTail)
			}
			ctx, stop := signal.NotifyContext(command.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.tail(ctx, p, int(count), follow)
		},
	})
	command.Flags().Uint64VarP(&count, "lines", "n", 10, "`how many` records")
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on as records are written; end with Ctrl-C")
	return command
}

func (a *app) tail(ctx context.Context, p *place, count int, follow bool) error {
	type shown struct {
		e journal.Entry
		r alog.Record
	}
	var last []shown
	end := uint64(0)
	path, err := filepath.Abs(p.log)
	if err != nil {
		return ioFailure(err)
	}
	err = alog.Walk(path, func(e journal.Entry, r alog.Record) error {
		end = e.Seq
		if count > 0 {
			if len(last) == count {
				last = last[1:]
			}
			last = append(last, shown{e, r})
		}
		return nil
	})
	if follow && errors.Is(err, journal.ErrTornTail) { // a writer may be in the middle of a line
		err = nil
	}
	for _, s := range last {
		if showErr := a.showRecord(s.e, s.r, p.json); showErr != nil {
			return showErr
		}
	}
	if err != nil || !follow {
		return walkEnd(err)
	}
	return walkEnd(alog.Follow(ctx, path, func(e journal.Entry, r alog.Record) error {
		if e.Seq <= end {
			return nil
		}
		return a.showRecord(e, r, p.json)
	}))
}
