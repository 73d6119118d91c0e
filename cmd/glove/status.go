package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/journal/session"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// statusReport is the JSON form of glove status.
type statusReport struct {
	Server   wire.Implementation      `json:"server"`
	Target   string                   `json:"target"`
	Serving  string                   `json:"serving,omitempty"` // for people: a resident gloved, or one for this question
	Health   *wire.Health             `json:"health"`
	Backends []wire.BackendCapability `json:"backends"`
	Methods  int                      `json:"methods"`
	Receipts *wire.Anchor             `json:"receipts,omitempty"`
	Journals []journalStatus          `json:"journals"`
	Counts   map[string]int           `json:"sessions_by_state"`
	Active   []wire.Session           `json:"active_sessions"`
}

// journalStatus is how full a journal is.
type journalStatus struct {
	Name     string `json:"name"`
	Path     string `json:"path"`
	Bytes    int64  `json:"bytes"`
	Capacity int64  `json:"capacity_bytes"`
	Records  uint64 `json:"records"`
	Most     uint64 `json:"capacity_records,omitempty"` // 0: only bytes are bounded
	Fill     int    `json:"fill_percent"`
	Archives uint64 `json:"archives"`
	RotateAt int    `json:"rotate_at_percent"` // 0: never by itself
}

// nearlyFull is the fill in percent from which on a journal that is not rotated by
// itself needs its owner.
const nearlyFull = 90

// measure looks at the file.
func (j *journalStatus) measure() error {
	seen, err := journal.Peek(j.Path)
	j.Bytes, j.Records, j.Archives = seen.Bytes, seen.Records, seen.Archives
	j.Fill = int(j.Bytes * 100 / j.Capacity)
	if j.Most > 0 {
		j.Fill = max(j.Fill, int(j.Records*100/j.Most)) //nolint:gosec // a percentage
	}
	return err
}

// needsOwner reports whether the journal will refuse new work before long, and
// nothing but its owner can help.
func (j *journalStatus) needsOwner() bool { return j.Fill >= nearlyFull && j.RotateAt == 0 }

func (j *journalStatus) String() string {
	text := fmt.Sprintf("%s: %s of %s", j.Name, localrun.Bytes(j.Bytes), localrun.Bytes(j.Capacity))
	if j.Most > 0 {
		text += fmt.Sprintf(", %d of %d records", j.Records, j.Most)
	}
	text += fmt.Sprintf(", %d %% full", j.Fill)
	if j.Archives > 0 {
		text += ", " + plural(j.Archives, "archive")
	}
	return text + " (" + j.Path + ")"
}

func (a *app) statusCommand() *cobra.Command {
	var f connectFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "status",
		Short: "One page about a gloved: health, sessions, receipts, journals",
		Long: `One page about a gloved: what it is, whether it can do its work, the sessions that run,
the head of its receipts and, where its configuration is known, how full its journals are.

Exit codes: 0 ready, 1 not ready or not reachable, 2 wrong command line.`,
		Example: `  glove status
  glove status --runtime-dir /run/user/1000/glove --json`,
		RunE: func(command *cobra.Command, _ []string) error {
			return a.status(command.Context(), f, asJSON)
		},
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) status(ctx context.Context, f connectFlags, asJSON bool) error {
	if f.unsaid() && a.ownConfig() == "" {
		return ui.Fail("no_gloved", "which gloved? there is no configuration of yours to find one by",
			"--runtime-dir DIR for a running one, --config FILE, or --ssh HOST")
	}
	c, err := a.connect(ctx, f, nil)
	if err != nil {
		return err
	}
	report, err := gatherStatus(ctx, c)
	if report != nil {
		report.Serving = a.serving(f)
	}
	if err = errors.Join(err, c.close()); err != nil {
		return err
	}
	report.Journals = a.journalStatuses(f)
	if asJSON {
		err = a.JSON(report)
	} else {
		a.showStatus(report)
	}
	if err == nil && report.Health.Status != wire.StatusReady {
		return &ui.Silent{Exit: ui.ExitFailed}
	}
	return err
}

// serving says whether a resident gloved answers, as far as that can be known here.
func (a *app) serving(f connectFlags) string {
	options := daemon.Options{RuntimeDir: f.runtimeDir}
	switch config := f.config; {
	case f.runtimeDir != "":
	case f.socket != "" || f.ssh != "" || f.policy != "":
		return ""
	default:
		if config == "" {
			config = a.ownConfig()
		}
		var err error
		if options, err = daemon.LoadConfig(config); err != nil {
			return "" // connecting has said so already
		}
	}
	if who := options.Resident(); who != "" {
		return who
	}
	return "no resident gloved runs; this one was started for the question"
}

func gatherStatus(ctx context.Context, c *connection) (*statusReport, error) {
	health, err := c.client.Health(ctx)
	if err != nil {
		return nil, protocolFailure(err)
	}
	hello := c.client.Hello()
	report := &statusReport{Server: hello.Server, Target: c.what, Health: health, Backends: hello.Capabilities.Backends,
		Methods: len(hello.Capabilities.Methods), Counts: map[string]int{}, Active: []wire.Session{}, Journals: []journalStatus{}}
	if audit := hello.Capabilities.ReceiptAudit; audit != nil {
		report.Receipts = receiptHead(ctx, c.client, audit.KeyID)
	}
	list, err := allSessions(ctx, c.client)
	var missing *ui.Error
	if errors.As(err, &missing) && missing.Code == "method_not_found" {
		err = nil // no store was configured
	}
	for _, s := range list {
		report.Counts[s.State]++
		if s.State != "exited" && s.State != "failed" {
			report.Active = append(report.Active, s)
		}
	}
	return report, err
}

// receiptHead is where the chain ends; nil when it cannot be told.
func receiptHead(ctx context.Context, c *client.Client, keyID string) *wire.Anchor {
	page, err := c.PageReceipts(ctx, wire.Anchor{KeyID: keyID, HeadHMAC: strings.Repeat("0", 64)}, 1)
	if err == nil {
		return &page.LocalAnchor
	}
	var refused *rpc.Error
	if !errors.As(err, &refused) || refused.Code != rpc.SessionArchived {
		return nil // health says why
	}
	head, _ := refused.Data["local_anchor"].(map[string]any)
	out := &wire.Anchor{KeyID: keyID}
	out.HeadHMAC, _ = head["head_hmac"].(string)
	sequence, _ := head["sequence"].(float64)
	out.Sequence = int64(sequence)
	return out
}

// journalStatuses looks at the files of a configuration that is known here.
func (a *app) journalStatuses(f connectFlags) []journalStatus {
	out := []journalStatus{}
	config := f.config
	if config == "" && f.unsaid() {
		config = a.ownConfig()
	}
	if config == "" {
		return out
	}
	options, err := daemon.LoadConfig(config)
	if err != nil {
		return out // connecting has said so already
	}
	for _, j := range journalsOf(options) {
		if _, err := os.Stat(j.Path); err == nil && j.measure() == nil { // doctor says what is wrong with one
			out = append(out, j)
		}
	}
	return out
}

func journalsOf(o daemon.Options) []journalStatus {
	return []journalStatus{
		{Name: wire.JournalReceipts, Path: o.Journal, Capacity: receipt.DefaultMaxBytes, RotateAt: o.RotateAt},
		{Name: wire.JournalSessions, Path: o.SessionStore, Capacity: session.DefaultMaxBytes, Most: session.DefaultMaxRecords, RotateAt: o.RotateAt},
	}
}

func (a *app) showStatus(r *statusReport) {
	var table ui.Table
	row := func(name, value string, style ui.Style) {
		table.Row(name, value)
		table.Paint(0, ui.Bold)
		table.Paint(1, style)
	}
	row("gloved", fmt.Sprintf("%s %s, %s, %d methods", r.Server.Name, r.Server.Version, r.Target, r.Methods), ui.Plain)
	if r.Serving != "" {
		row("", r.Serving, ui.Dim)
	}
	style := ui.Green
	if r.Health.Status != wire.StatusReady {
		style = ui.Yellow
	}
	row("health", r.Health.Status, style)
	for _, part := range r.Health.Components {
		if part.Code != "" {
			row("", part.Name+": "+part.Code, ui.Yellow)
		}
		if part.Code == string(rpc.AuditReconciliationRequired) {
			row("", "next: the controller pages and acknowledges the receipts; without one: glove receipts acknowledge", ui.Cyan)
		}
	}
	for _, b := range r.Backends {
		e := b.ResourceEnforcement
		row("enforcement", fmt.Sprintf("cpu %s, memory %s, processes %s, wall %s, disk %s, output %s",
			e.CPUTime, e.Memory, e.PIDs, e.WallTime, e.Disk, e.TerminalOutput), ui.Plain)
	}
	if len(r.Backends) == 0 {
		row("enforcement", "no runtime: sessions cannot be started", ui.Yellow)
	}
	if r.Receipts != nil {
		row("receipts", fmt.Sprintf("%d, head %s, key %s", r.Receipts.Sequence, r.Receipts.HeadHMAC[:min(16, len(r.Receipts.HeadHMAC))],
			r.Receipts.KeyID[:min(16, len(r.Receipts.KeyID))]), ui.Plain)
	}
	for _, j := range r.Journals {
		style := ui.Plain
		if j.needsOwner() {
			style = ui.Yellow
		}
		row("journal", j.String(), style)
	}
	var counts []string
	for _, state := range states {
		if n := r.Counts[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if counts == nil {
		counts = []string{"none"}
	}
	row("sessions", strings.Join(counts, ", "), ui.Plain)
	table.Write(a.Out, "", a.OutColor)
	if len(r.Active) > 0 {
		a.Outf("\n")
		a.sessionTable(r.Active).Write(a.Out, "", a.OutColor)
	}
}
