package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// rotateFlags are those of glove journal rotate.
type rotateFlags struct {
	config, runtimeDir, acknowledged string
	dryRun, asJSON                   bool
}

func (a *app) journalRotate() *cobra.Command {
	var f rotateFlags
	command := &cobra.Command{
		Use:   "rotate",
		Short: "Put away what has ended, into archives beside the journals",
		Long: `Seal the session store and the receipt journal into archives beside them, and go on in
new files that begin with what is live: sessions that have not ended, that were not cleaned
up, or whose receipt is not acknowledged, and receipts that are not acknowledged. A new file
commits to its archive, and "glove journal verify" follows it there. A gloved rotates by
itself (rotate_at in its configuration); this is for doing it now.

A running gloved is asked to do it. Without one the journals are rotated here, under its
lock, and then only you know what your controller has acknowledged: --acknowledged.

Exit codes: 0 done or nothing to do, 1 a journal could not be rotated and stays in use,
2 wrong command line.`,
		Example: `  glove journal rotate --dry-run
  glove journal rotate --runtime-dir /run/user/1000/glove`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return a.rotate(command.Context(), f) },
	}
	flags := command.Flags()
	flags.StringVar(&f.config, "config", "", "the configuration `file` of the gloved whose journals are meant (default: yours)")
	flags.StringVar(&f.runtimeDir, "runtime-dir", "", "the runtime `directory` of a running gloved")
	flags.StringVar(&f.acknowledged, "acknowledged", "", "without a running gloved: the receipt up to which your controller has acknowledged, `SEQ:HMAC`")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only count what would be archived")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) rotate(ctx context.Context, f rotateFlags) error {
	acknowledged, err := parseAcknowledged(f.acknowledged)
	if err != nil {
		return err
	}
	if f.config != "" && f.runtimeDir != "" {
		return ui.Usage("--config and --runtime-dir name different gloveds; give one of them")
	}
	var done []wire.JournalRotation
	if f.runtimeDir != "" {
		done, err = a.rotateRunning(ctx, f.runtimeDir, f)
	} else {
		done, err = a.rotateConfigured(ctx, acknowledged, f)
	}
	if err != nil {
		return err
	}
	if f.asJSON {
		if err := a.JSON(wire.RotateJournalsResult{Journals: done}); err != nil {
			return err
		}
	} else {
		a.showRotations(done, f.dryRun)
	}
	for _, one := range done {
		if one.Failure != "" {
			return &ui.Silent{Exit: ui.ExitFailed}
		}
	}
	return nil
}

func parseAcknowledged(text string) (*receipt.Anchor, error) {
	head, err := parseAnchor(text)
	if err != nil {
		return nil, ui.Usage("--acknowledged is SEQ:HMAC, a number from 1 and 64 lowercase hex digits; got %q", text)
	}
	if head == nil {
		return nil, nil
	}
	return &receipt.Anchor{Sequence: head.Seq, HeadHMAC: head.Hash}, nil
}

// rotateConfigured takes the gloved's lock and rotates here, or, where one runs,
// asks it.
func (a *app) rotateConfigured(ctx context.Context, acknowledged *receipt.Anchor, f rotateFlags) ([]wire.JournalRotation, error) {
	if f.config == "" {
		f.config = a.ownConfig()
	}
	if f.config == "" {
		return nil, ui.Fail("no_gloved", "whose journals? there is no configuration of yours to find them by",
			"--config FILE, or --runtime-dir DIR for a running gloved")
	}
	config, err := filepath.Abs(f.config)
	if err != nil {
		return nil, ui.Failf("config_unreadable", "%w", err)
	}
	options, err := daemon.LoadConfig(config)
	if err != nil {
		return nil, ui.Failf("config_invalid", "%w", err)
	}
	done, err := options.Rotate(ctx, slog.New(slog.DiscardHandler), acknowledged, f.dryRun)
	switch {
	case err == nil:
		return done, nil
	case !errors.Is(err, transport.ErrLocked):
		return nil, ui.Failf("rotate_failed", "%w", err)
	}
	if _, statErr := os.Stat(filepath.Join(options.RuntimeDir, transport.SocketName)); options.RuntimeDir == "" || statErr != nil {
		return nil, &ui.Error{Code: "in_use", Message: err.Error(), Err: err,
			Next: "it serves one connection and rotates by itself; try again when that has ended"}
	}
	return a.rotateRunning(ctx, options.RuntimeDir, f)
}

// rotateRunning asks a gloved over its socket, as its owner.
func (a *app) rotateRunning(ctx context.Context, dir string, f rotateFlags) ([]wire.JournalRotation, error) {
	if f.acknowledged != "" {
		return nil, ui.Usage("a running gloved knows what was acknowledged to it; leave --acknowledged out")
	}
	c, err := a.connect(ctx, connectFlags{runtimeDir: dir}, nil)
	if err != nil {
		return nil, err
	}
	done, err := c.client.RotateJournals(ctx, "rotate-"+randomHex(8), f.dryRun)
	if err != nil {
		return nil, errors.Join(protocolFailure(err), c.close())
	}
	return done.Journals, c.close()
}

func (a *app) showRotations(done []wire.JournalRotation, dry bool) {
	noun := map[string]string{wire.JournalReceipts: "receipt", wire.JournalSessions: "session"}
	for _, one := range done {
		a.Outf("%s: ", ui.Paint(a.OutColor, ui.Bold, one.Name))
		what := fmt.Sprintf("%s, %s; %s and %s stay", plural(one.Archived, noun[one.Name]), localrun.Bytes(one.Bytes),
			plural(one.Kept, noun[one.Name]), localrun.Bytes(one.KeptBytes))
		switch {
		case one.Failure != "":
			a.Outf("%s: the old journal stays in use\n  %s\n", ui.Paint(a.OutColor, ui.Red, "failed"), ui.Printable(one.Failure))
		case one.Reason == wire.RotateUnpaged:
			a.Outf("nothing was opened: no controller has paged the receipts yet\n")
		case one.Reason != "":
			a.Outf("nothing to archive, %s stay\n", plural(one.Kept, noun[one.Name]))
		case dry:
			a.Outf("would archive %s\n", what)
		default:
			a.Outf("archived %s, in %s\n", what, ui.Printable(one.Archive))
		}
	}
}
