package fsck

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gloved.dev/internal/safefile"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/runtime"
	"gloved.dev/runtime/cgroup"
	"gloved.dev/runtime/monitor"
)

const (
	// patience is how long what is about to go by itself (a monitor that undoes a
	// start, a process that is dying) may take before it is a finding.
	patience = 15 * time.Second
	// answer is how long a monitor that lives and cannot be reached, as it is about
	// to leave, may take to be gone.
	answer = 5 * time.Second
	// glance is how long a process whose group it has left may take to be gone.
	glance = time.Second
	pause  = 10 * time.Millisecond
)

// until waits, for at most d, for done to be true, and returns what it was last.
func until(ctx context.Context, d time.Duration, done func() (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return ok, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

func (k *check) dir(id string) string { return filepath.Join(k.Root, runtime.DirName(id)) }

// sessions compares every record with its monitor and its receipt.
func (k *check) sessions(ctx context.Context) error {
	if k.store == nil {
		return nil
	}
	k.receiptsOf()
	if k.Root == "" {
		return nil
	}
	now := uint64(max(k.Clock.Now().UnixMilli(), 0)) //nolint:gosec // not negative
	for _, r := range k.records {
		switch r.State {
		case session.Starting, session.Running, session.Stopping:
			if err := k.active(ctx, r); err != nil {
				return err
			}
		case session.Preparing:
			if r.AuthorizationExpired(now) {
				k.report(SessionExpired, r.SessionID, "its start can no longer come", "record it as failed/"+session.AuthorizationExpired, k.mend(r.SessionID))
			}
		}
	}
	return nil
}

// mend has the runtime take a session to its truthful end.
func (k *check) mend(id string) func(context.Context, *repairer) (string, error) {
	return func(ctx context.Context, r *repairer) (string, error) {
		rec, err := r.mend(ctx, id)
		switch {
		case err != nil:
			return "", err
		case rec.State == session.Exited:
			return fmt.Sprintf("recorded as exited with receipt %d", rec.Terminal.Sequence), nil
		case rec.State == session.Failed:
			return "recorded as failed/" + rec.FailureCode, nil
		}
		return "it is " + string(rec.State), nil
	}
}

// active compares a session that may have a process with what there is of it.
func (k *check) active(ctx context.Context, r session.Record) error {
	dir, _, err := safefile.OpenOwnerDir(k.dir(r.SessionID))
	switch {
	case errors.Is(err, safefile.ErrNotFound):
		return k.lost(ctx, r, true)
	case err != nil:
		k.lives[r.SessionID] = true // until its directory can be looked at
		k.report(DirectoryForeign, k.dir(r.SessionID), err.Error(), "nothing is done to it or to its session: make it yours, mode 0700, again", nil)
		return nil
	}
	defer dir.Close()
	if err := runtime.Foreign(r); err != nil && k.stillHeld(r.SessionID) {
		k.lives[r.SessionID] = true // it is not even greeted
		k.report(MonitorVersion, r.SessionID, err.Error(), "nothing is done to it: use the build that started it, or let it end", nil)
		return nil
	}
	var client *monitor.Client
	var status monitor.Status
	var silence error
	answered, err := until(ctx, answer, func() (bool, error) {
		alive, err := held(filepath.Join(k.dir(r.SessionID), monitor.LockName))
		if err != nil || !alive {
			return true, err
		}
		client, status, silence = monitor.Dial(ctx, dir, r.SessionID, runtime.PlaceOf(r).Key)
		return client != nil || !errors.Is(silence, &monitor.Error{Code: monitor.CodeGone}), nil
	})
	switch {
	case err != nil:
		return err
	case !answered || client == nil && silence != nil && k.stillHeld(r.SessionID):
		k.lives[r.SessionID] = true
		k.report(MonitorSilent, r.SessionID, fmt.Sprintf("a monitor holds its directory and cannot be taken at its word: %v", silence),
			"nothing is signalled: use the build that started the session, or look at the process that holds "+filepath.Join(k.dir(r.SessionID), monitor.LockName), nil)
		return nil
	case client == nil:
		return k.lost(ctx, r, false)
	}
	defer client.Close()
	return k.proven(r, status)
}

func (k *check) stillHeld(id string) bool {
	alive, err := held(filepath.Join(k.dir(id), monitor.LockName))
	return alive || err != nil
}

// proven compares a record with what its monitor says.
func (k *check) proven(r session.Record, status monitor.Status) error {
	k.lives[r.SessionID] = true
	switch {
	case r.State == session.Starting || status.State != monitor.StateRunning && status.State != monitor.StateEnded:
		k.report(StartUnfinished, r.SessionID, "its monitor is "+status.State+" and its gloved is gone", "have its monitor undo the start, and record the failure", k.mend(r.SessionID))
	case status.State == monitor.StateEnded:
		return k.ended(r)
	}
	return nil
}

func (k *check) ended(r session.Record) error {
	env, err := k.receipt(r)
	if err != nil {
		k.report(SessionEnded, r.SessionID, "it has ended and its receipt cannot be looked for: "+err.Error(), "mend "+k.Journal+" first", nil)
		return nil
	}
	if env != nil {
		k.report(ReceiptUnrecorded, r.SessionID, fmt.Sprintf("receipt %d says that it ended, its record that it is %s", env.Sequence, r.State),
			"record its end by the receipt", k.mend(r.SessionID))
		return nil
	}
	k.report(SessionEnded, r.SessionID, "it has ended; its record says that it is "+string(r.State), "make the receipt of what its monitor left, and record its end", k.mend(r.SessionID))
	return nil
}

func (k *check) receipt(r session.Record) (*receipt.Envelope, error) {
	if k.receipts == nil {
		return nil, errors.New("there is no receipt journal that proves")
	}
	return k.receipts.Lookup(r.SessionID, r.ControllerPlanDigest, r.ProfileDigest)
}

// lost says what is known of a session that has no monitor.
func (k *check) lost(ctx context.Context, r session.Record, missing bool) error {
	if r.State != session.Starting {
		_, err := monitor.ReadOutcome(k.dir(r.SessionID), r.SessionID, runtime.PlaceOf(r).Key)
		env, receiptErr := k.receipt(r)
		if err == nil || env != nil || receiptErr != nil {
			return k.ended(r)
		}
	}
	code, detail := SessionLost, "it is on record as "+string(r.State)+" and has no monitor"
	repair := "record it as failed/" + session.RecoveredWithoutProcess
	switch {
	case missing:
		code, detail = DirectoryMissing, "it is on record as "+string(r.State)+" and has no directory"
	case r.State == session.Starting:
		code = StartUnfinished
	}
	if r.Process != nil {
		what := cgroup.Mismatch
		if _, err := until(ctx, glance, func() (_ bool, err error) {
			what, err = cgroup.Observe(runtime.ProcessOf(*r.Process))
			return what != cgroup.Mismatch, err
		}); err != nil {
			return err
		}
		switch what {
		case cgroup.Mismatch:
			k.lives[r.SessionID] = true // nothing of it is touched
			k.report(ProcessMismatch, r.SessionID, fmt.Sprintf("process %d is not the one that was recorded", r.Process.PID),
				"nothing is signalled: find out what that process is; the session can be recorded as lost when it is gone", nil)
			return nil
		case cgroup.Exact:
			detail += fmt.Sprintf("; process %d still runs and is exactly the recorded one", r.Process.PID)
			repair = "end its control group and record it as failed/" + session.RecoveredTerminated
		}
	}
	k.report(code, r.SessionID, detail, repair, k.mend(r.SessionID))
	return nil
}
