package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/strictjson"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc/wire"
)

// Exit statuses of a command that a limit ended.
const (
	exitTimeLimit   = 124 // as timeout(1)
	exitOtherLimit  = 123
	exitMemoryLimit = 137 // as the kernel's out-of-memory kill looks: 128 + SIGKILL
)

// limitStatus is the exit status by cause.
var limitStatus = map[string]int{
	receipt.CauseCPUTimeLimit: exitTimeLimit, receipt.CauseWallTimeLimit: exitTimeLimit, receipt.CauseMemoryLimit: exitMemoryLimit,
	receipt.CausePIDLimit: exitOtherLimit, receipt.CauseDiskLimit: exitOtherLimit, receipt.CauseTerminalOutputLimit: exitOtherLimit,
	receipt.CauseSupervisorError: exitOwnFailure,
}

// finish proves the receipt, reports it, and gives the command's exit status.
func (r *runner) finish(ctx context.Context) error {
	end := r.feed.End()
	if end.State != "exited" {
		rec, err := r.conn().SessionStatus(ctx, r.id)
		if err != nil {
			return r.explain("session_failed", err)
		}
		return &ui.Error{Code: "session_failed", Message: "the session ended without a receipt: " + rec.FailureCode, Detail: r.state.Complaints()}
	}
	envelope, err := r.proven(ctx)
	if err != nil {
		return err
	}
	if r.flags.receipt != "" {
		if err := writeReceipt(r.flags.receipt, envelope); err != nil {
			return err
		}
	}
	status := r.status(end, envelope.Resource)
	if r.feed.Lost() && !r.flags.quiet {
		r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Yellow, "glove: some output is missing: it came faster than it was read"))
	}
	if r.keys.Lost() && !r.flags.quiet {
		r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Yellow, "glove: some input may be missing: gloved was replaced while it was on its way"))
	}
	switch {
	case r.flags.asJSON:
		if err := r.receiptJSON(envelope, status, end.Signal); err != nil {
			return err
		}
	case !r.flags.quiet:
		r.receiptLine(envelope, end.Signal)
	}
	if status == 0 {
		return nil
	}
	return &ui.Silent{Exit: status}
}

// proven pages the whole chain, proves every link of it with the audit key, and returns
// the session's receipt.
func (r *runner) proven(ctx context.Context) (*receipt.Envelope, error) {
	anchor := receipt.Genesis(r.key.ID())
	for {
		page, err := r.conn().PageReceipts(ctx, wire.Anchor{KeyID: anchor.KeyID, Sequence: int64(anchor.Sequence), HeadHMAC: anchor.HeadHMAC}, wire.MaxPageLimit)
		if err != nil {
			return nil, r.explain("receipt_missing", err)
		}
		for _, raw := range page.Envelopes {
			var e receipt.Envelope
			if err := strictjson.Decode(raw, &e, strictjson.Limits{}); err != nil {
				return nil, ui.Failf("receipt_unproven", "%w", err)
			}
			want := receipt.Expectation{}
			if e.SessionID == r.id {
				want = receipt.Expectation{SessionID: r.id, ControllerPlanDigest: r.digest, RequireConfinement: true}
			}
			if anchor, err = r.key.Verify(anchor, e, want); err != nil {
				return nil, ui.Failf("receipt_unproven", "the receipt does not prove: %w", err)
			}
			if e.SessionID == r.id && e.Resource != nil {
				return &e, nil
			}
		}
		if !page.HasMore || len(page.Envelopes) == 0 {
			return nil, &ui.Error{Code: "receipt_missing", Message: "the session ended and there is no receipt of it", Detail: r.state.Complaints()}
		}
	}
}

func (r *runner) status(end wire.SessionEndedParams, resource *receipt.Resource) int {
	if limit, ok := limitStatus[resource.TerminationCause]; ok {
		return limit
	}
	switch {
	case r.ended != nil:
		return signalStatus(r.ended)
	case resource.ExitCode != nil:
		return int(*resource.ExitCode)
	case end.Signal > 0:
		return 128 + end.Signal
	}
	return exitMemoryLimit // killed, by nobody we know: 128 + SIGKILL
}

// runReport is the JSON form of the receipt line.
type runReport struct {
	OK         bool               `json:"ok"`
	SessionID  string             `json:"session_id"`
	Cause      string             `json:"termination_cause"`
	ExitCode   *int64             `json:"exit_code"` // the command's own; null when it did not exit by itself
	Signal     int                `json:"signal,omitzero"`
	ExitStatus int                `json:"exit_status"` // glove's
	StartedMS  uint64             `json:"started_at_ms"`
	FinishedMS uint64             `json:"finished_at_ms"`
	Limits     receipt.Limits     `json:"limits"`
	Observed   receipt.Observed   `json:"observed"`
	Mechanisms receipt.Mechanisms `json:"mechanisms"`
	Receipt    receiptReference   `json:"receipt"`
}

type receiptReference struct {
	Sequence uint64 `json:"sequence"`
	Digest   string `json:"digest"`
	HMAC     string `json:"hmac"`
	KeyID    string `json:"key_id"`
	Verified bool   `json:"verified"`
}

func (r *runner) receiptJSON(e *receipt.Envelope, status, signal int) error {
	res := e.Resource
	line, err := json.Marshal(runReport{
		OK: status == 0, SessionID: e.SessionID, Cause: res.TerminationCause, ExitCode: res.ExitCode, Signal: signal, ExitStatus: status,
		StartedMS: res.StartedAtMS, FinishedMS: res.FinishedAtMS, Limits: res.ConfiguredLimits, Observed: res.Observed, Mechanisms: res.Mechanisms,
		Receipt: receiptReference{Sequence: e.Sequence, Digest: e.ReceiptDigest, HMAC: e.ThisHMAC, KeyID: e.KeyID, Verified: true},
	})
	if err != nil {
		return err
	}
	r.Errf("%s\n", line)
	return nil
}

// causeWords say how it ended, for people.
var causeWords = map[string]string{
	receipt.CauseCPUTimeLimit: "met the CPU time limit", receipt.CauseWallTimeLimit: "met the wall time limit",
	receipt.CauseMemoryLimit: "met the memory limit", receipt.CausePIDLimit: "met the process limit",
	receipt.CauseDiskLimit: "filled the disk", receipt.CauseTerminalOutputLimit: "met the output limit",
	receipt.CauseSupervisorError: "lost its supervisor",
}

// limitOf names the column that met its limit, to be shown as such.
var limitOf = map[string]string{
	receipt.CauseCPUTimeLimit: "cpu", receipt.CauseWallTimeLimit: "wall", receipt.CauseMemoryLimit: "mem",
	receipt.CausePIDLimit: "pids", receipt.CauseDiskLimit: "disk", receipt.CauseTerminalOutputLimit: "out",
}

func (r *runner) receiptLine(e *receipt.Envelope, signal int) {
	res, o, l := e.Resource, e.Resource.Observed, e.Resource.ConfiguredLimits
	style, words := ui.Green, causeWords[res.TerminationCause]
	switch {
	case res.ExitCode != nil:
		if words = fmt.Sprintf("exited %d", *res.ExitCode); *res.ExitCode != 0 {
			style = ui.Yellow
		}
	case words == "" && r.ended != nil:
		words, style = "stopped", ui.Yellow
	case words == "" && signal > 0:
		words, style = fmt.Sprintf("ended by signal %d", signal), ui.Red
	case words == "":
		words, style = "killed", ui.Red
	default:
		style = ui.Red
	}
	parts := []string{ui.Paint(r.ErrColor, style, words)}
	for _, u := range []struct{ name, used, limit string }{
		{"cpu", span(o.CPUTimeMS), span(l.CPUTimeMS)},
		{"mem", localrun.Bytes(o.PeakMemoryBytes).String(), localrun.Bytes(l.MemoryBytes).String()},
		{"pids", fmt.Sprint(o.PeakPIDs), fmt.Sprint(l.PIDs)},
		{"wall", span(o.WallTimeMS), span(l.WallTimeMS)},
		{"disk", localrun.Bytes(o.DiskBytes).String(), localrun.Bytes(l.DiskBytes).String()},
		{"out", localrun.Bytes(o.TerminalOutputBytes).String(), localrun.Bytes(l.TerminalOutputBytes).String()},
	} {
		text := fmt.Sprintf("%s %s/%s", u.name, u.used, u.limit)
		if limitOf[res.TerminationCause] == u.name {
			text = ui.Paint(r.ErrColor, ui.Red, text)
		}
		parts = append(parts, text)
	}
	parts = append(parts, fmt.Sprintf("receipt %d:%s", e.Sequence, e.ReceiptDigest[:12]))
	r.Errf("%s %s\n", ui.Paint(r.ErrColor, ui.Bold, "glove:"), strings.Join(parts, ui.Paint(r.ErrColor, ui.Dim, " · ")))
}

func span(ms uint64) string {
	d := time.Duration(ms) * time.Millisecond
	if d >= 100*time.Millisecond {
		d = d.Round(10 * time.Millisecond)
	}
	return localrun.Span(d).String()
}
