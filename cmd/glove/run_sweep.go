package main

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/wire"
)

// sweepTime bounds cleaning up after one killed run.
const sweepTime = 20 * time.Second

// sweep cleans up after runs that were killed with SIGKILL: their sessions run on under
// their monitors, and nobody would ever look at them again. What fails here is tried
// again by the next run and keeps nothing from running now.
func (r *runner) sweep(ctx context.Context) {
	for _, state := range localrun.Abandoned(r.getenv("XDG_RUNTIME_DIR")) {
		if err := r.sweepOne(ctx, state); err != nil && !r.flags.quiet && !r.flags.asJSON {
			r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Dim, "glove: what a killed run left in "+state.Dir+" could not be cleaned up: "+ui.Printable(err.Error())))
		}
	}
}

func (r *runner) sweepOne(ctx context.Context, state *localrun.State) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	past := &runner{app: r.app, flags: &runFlags{quiet: true}, state: state, feed: console.NewFeed("", r.Err), ended: unix.SIGKILL}
	program, err := r.glovedCommand(r.flags.gloved)
	if err != nil {
		return err
	}
	past.argv = append(program, state.Arguments()...)
	if past.key, err = state.Key(); err != nil {
		return past.cleanup() // it was killed before it had begun
	}
	if err := past.connect(ctx); err != nil {
		return err
	}
	list, err := allSessions(ctx, past.conn())
	for _, s := range list {
		if err == nil && s.State != "exited" && s.State != "failed" && s.State != "created" {
			_, err = past.conn().StopSession(ctx, "sweep-"+randomHex(8), s.SessionID)
		}
	}
	if err != nil {
		return err
	}
	if !r.flags.quiet && !r.flags.asJSON {
		past.tellSwept(ctx, list)
	}
	return past.cleanup()
}

// tellSwept says what becomes of a killed run's session: that it is over, and what its
// receipt says, of which nothing is kept. A receipt that cannot be had is told as such.
func (r *runner) tellSwept(ctx context.Context, list []wire.Session) {
	for _, s := range list {
		if s.State == "created" {
			continue // it had not begun
		}
		r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Dim, "glove: an earlier run, begun "+ago(s.CreatedAtMS)+", was killed; its session is ended and removed. Its receipt:"))
		r.id, r.digest = s.SessionID, s.ControllerPlanDigest
		envelope, err := r.proven(ctx)
		if err != nil {
			r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Dim, "glove: "+ui.Printable(err.Error())))
			continue
		}
		r.receiptLine(envelope, 0)
	}
}
