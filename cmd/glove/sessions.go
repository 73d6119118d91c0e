package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

func (a *app) sessionsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "sessions",
		Aliases: []string{"session"},
		Short:   "List, watch, join and end the sessions of a gloved",
		Long: `Look at and join the sessions of a gloved: the one at --socket or --runtime-dir, the one
that --ssh reaches, or the one of your configuration (a resident gloved is asked; without
one, a gloved is started for the question, and sessions go on when it leaves).`,
		Example: `  glove sessions list
  glove sessions attach s-42             Ctrl-\ detaches; the session goes on
  glove sessions logs -f s-42
  glove sessions stop s-42`,
	}
	command.AddCommand(a.sessionsList(), a.sessionsShow(), a.sessionsStart(), a.sessionsAttach(), a.sessionsLogs(), a.sessionsStop(), a.sessionsCleanup())
	return command
}

// sessionDial opens the gloved and makes sure that ends can be put on record there: the
// receipt journal is opened by its first page, which acknowledges nothing.
func (a *app) sessionDial(ctx context.Context, f connectFlags, onNote func(client.Note)) (*connection, error) {
	if f.unsaid() && a.ownConfig() == "" {
		return nil, ui.Fail("no_gloved", "which gloved? there is no configuration of yours to find one by",
			"--runtime-dir DIR for a running one, --config FILE, or --ssh HOST")
	}
	c, err := a.connect(ctx, f, onNote)
	if err != nil {
		return nil, err
	}
	hello := c.client.Hello()
	if hello != nil && hello.Capabilities.ReceiptAudit != nil {
		_, err = c.client.PageReceipts(ctx, wire.Anchor{KeyID: hello.Capabilities.ReceiptAudit.KeyID, HeadHMAC: strings.Repeat("0", 64)}, 1)
		if err != nil && !errors.Is(err, rpc.SessionArchived) { // then the journal is open all the same
			return nil, errors.Join(protocolFailure(err), c.close())
		}
	}
	if hello != nil && !slices.Contains(hello.Capabilities.Methods, wire.MethodListSessions) {
		return nil, errors.Join(ui.Fail("no_sessions", c.what+" serves no sessions",
			"give it a session policy and a session store; glove doctor --config FILE tells what is missing"), c.close())
	}
	return c, nil
}

// protocolFailure is a refusal as people read it.
func protocolFailure(err error) error {
	var refused *rpc.Error
	if !errors.As(err, &refused) {
		return connectFailure(err)
	}
	failure := &ui.Error{Code: string(refused.Code), Message: refused.Message, Err: err}
	switch refused.Code {
	case rpc.SessionNotFound:
		failure.Next = "glove sessions list"
	case rpc.SessionArchived:
		failure.Next = "gloved's log, and gloved to its owner, names the archive: glove journal show ARCHIVE"
		if archive, ok := refused.Data["archive"].(string); ok {
			failure.Next = "its records are beside the session store: glove journal show " + archive
		}
	case rpc.MethodNotFound:
		failure.Next = "this gloved does not serve that: it has no runtime. glove doctor says what its host lacks"
	case rpc.AuditReconciliationRequired:
		failure.Next = "the controller pages and acknowledges the receipts; without one: glove receipts acknowledge"
	case rpc.InvalidSessionState:
		failure.Next = "glove sessions show ID tells its state"
	}
	return failure
}

// sessionAction is a command on one session.
func (a *app) sessionAction(f *connectFlags, do func(ctx context.Context, c *connection, id string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		c, err := a.sessionDial(command.Context(), *f, nil)
		if err != nil {
			return err
		}
		return errors.Join(onSession(command.Context(), c, args[0], do), c.close())
	}
}

// onSession does something to the session that an argument means, and says of a refusal
// what the session's state makes of it.
func onSession(ctx context.Context, c *connection, argument string, do func(ctx context.Context, c *connection, id string) error) error {
	id, err := meant(ctx, c.client, argument)
	if err != nil {
		return err
	}
	err = do(ctx, c, id)
	var failure *ui.Error
	if errors.As(err, &failure) && failure.Code == string(rpc.InvalidSessionState) {
		if s, statusErr := c.client.SessionStatus(ctx, id); statusErr == nil {
			failure.Message, failure.Next = "session "+id+" is "+s.State, wayOn(s)
		}
	}
	return err
}

// wayOn is what to do about a session whose state does not allow what was asked.
func wayOn(s *wire.Session) string {
	switch s.State {
	case "created", "preparing", "starting":
		return "it has not run, and there is nothing to stop or to read; one whose start does not come is forgotten once its plan has expired and the journals are rotated"
	case "exited", "failed":
		return "it is over, and its output was removed by cleanup, or it had none: glove sessions show " + s.SessionID + " has its record"
	}
	return "glove sessions stop " + s.SessionID + " ends it"
}

// maxNamed is how many sessions an ambiguous prefix names.
const maxNamed = 5

// meant finds the session that an argument means: the one of that id, or the only one
// whose id begins so.
func meant(ctx context.Context, c *client.Client, argument string) (string, error) {
	_, err := c.SessionStatus(ctx, argument)
	var refused *rpc.Error
	if !errors.As(err, &refused) || refused.Code != rpc.SessionNotFound {
		return argument, nil // or whatever is wrong is said when it is used
	}
	list, listErr := allSessions(ctx, c)
	if listErr != nil {
		return argument, protocolFailure(err)
	}
	var ids []string
	for _, s := range list {
		if strings.HasPrefix(s.SessionID, argument) {
			ids = append(ids, s.SessionID)
		}
	}
	switch {
	case len(ids) == 0:
		return argument, protocolFailure(err)
	case len(ids) == 1:
		return ids[0], nil
	}
	slices.Sort(ids)
	more := ""
	if len(ids) > maxNamed {
		ids, more = ids[:maxNamed], ", …"
	}
	return argument, ui.Fail("ambiguous_session", fmt.Sprintf("more than one session begins with %q", argument), "one of "+strings.Join(ids, ", ")+more)
}

// completeSessions completes an ID by asking the gloved that the flags mean.
func (a *app) completeSessions(f *connectFlags) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(command *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c, err := a.sessionDial(ctx, *f, nil)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer func() { _ = c.close() }()      // there is nobody to tell
		list, _ := allSessions(ctx, c.client) // nothing to complete with, then
		ids := make([]string, len(list))
		for i, s := range list {
			ids[i] = s.SessionID + "\t" + s.State
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}

func allSessions(ctx context.Context, c *client.Client) ([]wire.Session, error) {
	all := []wire.Session{}
	for after := ""; ; {
		page, err := c.ListSessions(ctx, &wire.ListSessionsParams{After: after})
		if err != nil {
			return nil, protocolFailure(err)
		}
		all = append(all, page.Sessions...)
		if after = page.Next; after == "" {
			return all, nil
		}
	}
}

// states are all states of a session, in the order of its life.
var states = []string{"created", "preparing", "starting", "running", "stopping", "exited", "failed"}

func (a *app) sessionsList() *cobra.Command {
	var f connectFlags
	var asJSON, quiet bool
	var state []string
	command := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List sessions, the newest first",
		Example: `  glove sessions list
  glove sessions list --state running,stopping
  glove sessions list --json | jq -r '.[].session_id'`,
		RunE: func(command *cobra.Command, _ []string) error {
			for _, s := range state {
				if !slices.Contains(states, s) {
					return usageNextError("one of "+strings.Join(states, ", "), "--state %q is no state", s)
				}
			}
			c, err := a.sessionDial(command.Context(), f, nil)
			if err != nil {
				return err
			}
			list, err := allSessions(command.Context(), c.client)
			if err = errors.Join(err, c.close()); err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(s wire.Session) bool { return state != nil && !slices.Contains(state, s.State) })
			slices.SortStableFunc(list, func(x, y wire.Session) int { return int(min(1, max(-1, y.CreatedAtMS-x.CreatedAtMS))) })
			return a.showSessions(list, asJSON, quiet)
		},
	}
	f.addTo(command.Flags())
	command.Flags().StringSliceVar(&state, "state", nil, "only these `states`, separated by commas")
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	command.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the ids alone")
	_ = command.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return command
}

func usageNextError(next, format string, args ...any) error {
	failure := ui.Usage(format, args...)
	failure.Next = next
	return failure
}

func (a *app) showSessions(list []wire.Session, asJSON, quiet bool) error {
	switch {
	case asJSON:
		return a.JSON(list)
	case quiet:
		for _, s := range list {
			a.Outf("%s\n", s.SessionID)
		}
		return nil
	case len(list) == 0:
		a.Outf("There are no such sessions.\n")
		return nil
	}
	a.sessionTable(list).Write(a.Out, "", a.OutColor)
	return nil
}

func (a *app) sessionTable(list []wire.Session) *ui.Table {
	table := &ui.Table{Head: []string{"ID", "STATE", "CREATED", "RAN FOR", "END", "RECEIPT"}}
	for _, s := range list {
		receipt := ""
		if s.Receipt != nil {
			receipt = fmt.Sprintf("%d:%s", s.Receipt.Sequence, s.Receipt.Digest[:min(12, len(s.Receipt.Digest))])
		}
		table.Row(s.SessionID, strings.TrimSuffix(s.State+" "+s.Issue, " "), ago(s.CreatedAtMS), ranFor(s), endOf(s), receipt)
		table.Paint(1, stateStyle[s.State])
	}
	return table
}

var stateStyle = map[string]ui.Style{"running": ui.Green, "preparing": ui.Cyan, "starting": ui.Cyan, "stopping": ui.Yellow, "failed": ui.Red, "exited": ui.Dim}

func ago(ms int64) string {
	d := time.Since(time.UnixMilli(ms))
	switch {
	case ms == 0:
		return ""
	case d < -time.Second:
		return "in " + localrun.Span(-d.Round(time.Second)).String()
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", max(0, int(d.Seconds())))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return time.UnixMilli(ms).Format("2006-01-02 15:04")
}

func ranFor(s wire.Session) string {
	end := s.FinishedAtMS
	switch {
	case s.StartedAtMS == 0:
		return ""
	case end == 0:
		end = time.Now().UnixMilli()
	}
	return localrun.Span(time.Duration(max(0, end-s.StartedAtMS)) * time.Millisecond).String()
}

func endOf(s wire.Session) string {
	switch {
	case s.FailureCode != "":
		return s.FailureCode
	case s.ExitCode != nil:
		return fmt.Sprintf("exit %d", *s.ExitCode)
	}
	return strings.ReplaceAll(s.TerminationCause, "_", " ")
}

func (a *app) sessionsShow() *cobra.Command {
	var f connectFlags
	var asJSON bool
	command := &cobra.Command{
		Use:     "show ID",
		Short:   "Show one session's record",
		Example: `  glove sessions show s-42`,
		Args:    cobra.ExactArgs(1),
		RunE: a.sessionAction(&f, func(ctx context.Context, c *connection, id string) error {
			s, err := c.client.SessionStatus(ctx, id)
			if err != nil {
				return protocolFailure(err)
			}
			if asJSON {
				return a.JSON(s)
			}
			a.showSession(s)
			return nil
		}),
		ValidArgsFunction: a.completeSessions(&f),
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) showSession(s *wire.Session) {
	var table ui.Table
	row := func(name, value string) {
		if value != "" {
			table.Row(name, value)
			table.Paint(0, ui.Bold)
		}
	}
	moment := func(ms int64) string {
		if ms == 0 {
			return ""
		}
		return time.UnixMilli(ms).Format("2006-01-02 15:04:05.000 MST") + " (" + ago(ms) + ")"
	}
	row("session", s.SessionID)
	row("state", s.State)
	if s.Issue != "" {
		row("not usable here", s.Issue+": its monitor is of another build of gloved; start that one again to use or to stop it, or let it end: its end is put on record")
	}
	row("created", moment(s.CreatedAtMS))
	row("started", moment(s.StartedAtMS))
	row("finished", moment(s.FinishedAtMS))
	row("ran for", ranFor(*s))
	row("end", endOf(*s))
	row("plan expires", moment(s.ExpiresAtMS))
	row("policy revision", fmt.Sprint(s.PolicyRevision))
	verified := ""
	if s.ControllerDigestVerified {
		verified = " (verified)"
	}
	row("plan", s.PlanContentDigest)
	row("controller's plan", s.ControllerPlanDigest+verified)
	row("profile", s.ProfileDigest)
	if s.Receipt != nil {
		row("receipt", fmt.Sprintf("%d:%s", s.Receipt.Sequence, s.Receipt.Digest))
	}
	table.Write(a.Out, "", a.OutColor)
}

func (a *app) sessionsLogs() *cobra.Command {
	var f connectFlags
	var follow, raw bool
	command := &cobra.Command{
		Use:   "logs ID",
		Short: "Print what a session wrote to its terminal",
		Long: `Print what a session has written to its terminal, as far back as it is kept. On a terminal
only text is printed: what would move your cursor, rename your window or ask your terminal
questions is left out. In a pipe the bytes come as they are.`,
		Example: `  glove sessions logs s-42
  glove sessions logs -f s-42
  glove sessions logs s-42 > transcript`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			return a.logs(command.Context(), f, args[0], follow, raw)
		},
		ValidArgsFunction: a.completeSessions(&f),
	}
	f.addTo(command.Flags())
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the session ends")
	command.Flags().BoolVar(&raw, "raw", false, "print the bytes as they are, also on a terminal")
	return command
}

func (a *app) logs(ctx context.Context, f connectFlags, id string, follow, raw bool) (err error) {
	out := a.Out
	if a.OutTerm && !raw {
		out = &console.Plain{Out: a.Out}
	}
	feed := console.NewFeed(id, out)
	c, err := a.sessionDial(ctx, f, feed.Note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	return onSession(ctx, c, id, func(ctx context.Context, c *connection, id string) error {
		return printLog(ctx, c, feed, id, follow, out.Write)
	})
}

// printLog prints a session's output from the oldest byte kept, and maybe what comes.
func printLog(ctx context.Context, c *connection, feed *console.Feed, id string, follow bool, write func([]byte) (int, error)) error {
	feed.ID = id
	if follow {
		if err := feed.Follow(ctx, c.client); err != nil {
			return protocolFailure(err)
		}
		select {
		case <-feed.Ended():
		case <-feed.Failed():
			return ui.Failf("output_failed", "%w", feed.Err())
		case <-c.client.Done():
			return connectFailure(c.client.Err())
		case <-ctx.Done():
		}
		return nil
	}
	_, err := readTranscript(ctx, c.client, id, write)
	return err
}

// readTranscript reads what there is of a session's output, from the oldest byte kept,
// and returns the cursor after it.
func readTranscript(ctx context.Context, c *client.Client, id string, write func([]byte) (int, error)) (int64, error) {
	cursor := int64(0)
	for {
		r, err := c.Attach(ctx, &wire.AttachParams{SessionID: id, Cursor: cursor, MaxBytes: wire.MaxAttachBytes})
		if err != nil {
			return cursor, protocolFailure(err)
		}
		if cursor = r.NextCursor; len(r.Data) == 0 {
			return cursor, nil
		}
		if _, err := write(r.Data); err != nil {
			return cursor, ui.Failf("output_failed", "%w", err)
		}
	}
}

func (a *app) sessionsStop() *cobra.Command {
	var f connectFlags
	var asJSON bool
	command := &cobra.Command{
		Use:   "stop ID",
		Short: "End a session: TERM, a grace of five seconds, then KILL of everything in it",
		Long: `End a session: its processes are asked to end, and after five seconds they are killed.
The command returns when the end, with its receipt, is on record.`,
		Example: `  glove sessions stop s-42`,
		Args:    cobra.ExactArgs(1),
		RunE: a.sessionAction(&f, func(ctx context.Context, c *connection, id string) error {
			s, err := c.client.StopSession(ctx, "glove-"+randomHex(16), id)
			return a.changed(s, err, asJSON)
		}),
		ValidArgsFunction: a.completeSessions(&f),
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

func (a *app) sessionsCleanup() *cobra.Command {
	var f connectFlags
	var asJSON bool
	command := &cobra.Command{
		Use:     "cleanup ID",
		Short:   "Remove the output and files of an ended session; its record and receipt stay",
		Example: `  glove sessions cleanup s-42`,
		Args:    cobra.ExactArgs(1),
		RunE: a.sessionAction(&f, func(ctx context.Context, c *connection, id string) error {
			s, err := c.client.CleanupSession(ctx, id, client.WithKey("glove-"+randomHex(16)))
			return a.changed(s, err, asJSON)
		}),
		ValidArgsFunction: a.completeSessions(&f),
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return command
}

// changed reports a session after what was done to it.
func (a *app) changed(s *wire.Session, err error, asJSON bool) error {
	switch {
	case err != nil:
		return protocolFailure(err)
	case asJSON:
		return a.JSON(s)
	}
	a.Outf("%s is %s", s.SessionID, s.State)
	if end := endOf(*s); end != "" {
		a.Outf(" (%s)", end)
	}
	a.Outf("\n")
	return nil
}
