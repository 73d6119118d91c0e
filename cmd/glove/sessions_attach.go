package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/client"
)

// attachFlags are those of glove sessions attach.
type attachFlags struct {
	connectFlags
	view bool
	key  string
}

func (a *app) sessionsAttach() *cobra.Command {
	var f attachFlags
	command := &cobra.Command{
		Use:   "attach ID",
		Short: "Join a running session with this terminal",
		Long: `Join a running session with this terminal: its screen is rebuilt from what it has written,
it is told this terminal's size and asked to redraw, and keys go to it as they are. The
detach key (Ctrl-\, or what --detach-key says) leaves it running. Several may attach at
once; with --view one only watches: no key is passed on and the size stays.

Exit status: 0 after detaching, else the session's own, as with glove run.`,
		Example: `  glove sessions attach s-42
  glove sessions attach --view s-42
  glove sessions attach --detach-key ctrl-] s-42`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			key, err := parseKey(f.key)
			if err != nil {
				return err
			}
			if !a.InTerm || !a.OutTerm {
				return usageNextError("glove sessions logs -f "+args[0], "attach needs a terminal for input and output")
			}
			return a.attach(command.Context(), f, args[0], key)
		},
		ValidArgsFunction: a.completeSessions(&f.connectFlags),
	}
	f.addTo(command.Flags())
	command.Flags().BoolVar(&f.view, "view", false, "only watch")
	command.Flags().StringVar(&f.key, "detach-key", `ctrl-\`, "the `key` that detaches: ctrl- and a letter or one of [ ] ^ _ \\, or none")
	return command
}

// parseKey reads ctrl-X; 0 is no key.
func parseKey(text string) (byte, error) {
	if text == "none" {
		return 0, nil
	}
	name, ok := strings.CutPrefix(strings.ToLower(text), "ctrl-")
	if ok && len(name) == 1 {
		if c := strings.ToUpper(name)[0]; c >= 'A' && c <= '_' {
			return c & 0x1f, nil
		}
	}
	return 0, usageNextError(`--detach-key ctrl-]`, "--detach-key %q is no key", text)
}

// An attachment is one terminal joined to one session.
type attachment struct {
	*app
	id       string
	view     bool
	key      byte
	keyName  string
	terminal *console.Terminal
	screen   *console.Screen
	feed     *console.Feed
	conn     *connection
	left     sync.Once
}

func (a *app) attach(ctx context.Context, f attachFlags, id string, key byte) (err error) {
	t := &attachment{app: a, id: id, view: f.view, key: key, keyName: f.key, terminal: &console.Terminal{In: os.Stdin, Out: os.Stdout}}
	rows, columns := t.terminal.Size()
	t.screen = console.NewScreen(rows, columns)
	defer t.screen.Close()
	t.feed = console.NewFeed(id, &t.screen.Modes)
	if t.conn, err = a.sessionDial(ctx, f.connectFlags, t.onNote); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.conn.close()) }()
	record, err := t.conn.client.SessionStatus(ctx, id)
	if err != nil {
		return protocolFailure(err)
	}
	if record.State != "running" && record.State != "stopping" {
		return ui.Fail("not_running", "session "+id+" is "+record.State, "glove sessions logs "+id+" prints what it wrote")
	}
	// What it shows now, without this terminal taking part.
	cursor, err := readTranscript(ctx, t.conn.client, id, t.screen.Write)
	if err != nil {
		return err
	}
	t.feed.From(cursor)
	return t.join(ctx)
}

func (t *attachment) onNote(n client.Note) {
	defer t.restoreOnPanic()
	t.feed.Note(n)
}

func (t *attachment) join(ctx context.Context) error {
	if err := t.terminal.Raw(); err != nil {
		return ui.Failf("terminal_unusable", "%w", err)
	}
	defer t.leave()
	paint := t.screen.Paint()
	t.screen.Out = t.Out
	if _, err := t.Out.Write([]byte(t.title() + paint)); err != nil {
		return ui.Failf("output_failed", "%w", err)
	}
	if err := t.feed.Follow(ctx, t.conn.client); err != nil {
		return protocolFailure(err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
	defer signal.Stop(signals)
	t.redraw(ctx)
	typed := make(chan error, 1)
	go func() {
		defer t.restoreOnPanic()
		typed <- t.keys(ctx)
	}()
	for {
		select {
		case <-t.feed.Ended():
			return t.ended()
		case <-t.feed.Failed():
			return ui.Failf("output_failed", "%w", t.feed.Err())
		case err := <-typed:
			if errors.Is(err, console.ErrDetached) || err == nil {
				return t.detached(ctx)
			}
			typed = nil // the end is being told, or the connection is gone
		case s := <-signals:
			if s != unix.SIGWINCH {
				_ = t.detached(ctx)
				return &ui.Silent{Exit: signalStatus(s)}
			}
			if !t.view {
				t.resize(ctx, 0)
			}
		case <-t.conn.client.Done():
			return connectFailure(t.conn.client.Err())
		}
	}
}

// keys passes keys on; a viewer's are only watched for the one that leaves.
func (t *attachment) keys(ctx context.Context) error {
	if !t.view {
		in := &console.Input{ID: t.id, Client: t.live}
		return in.Type(ctx, t.In, t.key)
	}
	buf := make([]byte, 256)
	for {
		n, err := t.In.Read(buf)
		for _, b := range buf[:n] {
			if b == t.key || b == 'q' || b == 0x03 {
				return console.ErrDetached
			}
		}
		if err != nil {
			return err
		}
	}
}

// live is the one connection there is; a lost one is the end of attaching.
func (t *attachment) live(context.Context) (*client.Client, error) {
	select {
	case <-t.conn.client.Done():
		return nil, t.conn.client.Err()
	default:
		return t.conn.client, nil
	}
}

// redraw makes a full-screen program draw itself anew: it is told a size that is not
// ours, then ours, for the same size twice would be no news.
func (t *attachment) redraw(ctx context.Context) {
	if t.view {
		return
	}
	t.resize(ctx, 1)
	t.resize(ctx, 0)
}

func (t *attachment) resize(ctx context.Context, less int) {
	rows, columns := t.terminal.Size()
	_ = t.conn.client.Resize(ctx, t.id, max(1, rows-less), columns) // it may just have ended
}

// title tells in the window's title, which takes no room of the session's, how to leave;
// untitle brings the old one back (xterm's title stack).
func (t *attachment) title() string {
	way := t.keyName + " detaches"
	switch {
	case t.view:
		way = "watching; q leaves"
	case t.key == 0:
		way = "no detach key"
	}
	return "\x1b[22;2t\x1b]2;" + ui.Printable(t.id) + " (" + way + ")\x1b\\"
}

const untitle = "\x1b[23;2t"

func (t *attachment) leave() {
	t.left.Do(func() {
		_, _ = t.Out.Write([]byte(t.screen.Reset() + untitle)) // a terminal that is gone needs no reset
	})
	t.terminal.Restore()
}

func (t *attachment) restoreOnPanic() {
	if p := recover(); p != nil {
		t.terminal.Restore()
		panic(p)
	}
}

func (t *attachment) detached(ctx context.Context) error {
	t.feed.Silence()
	t.leave()
	_, _ = t.conn.client.Detach(ctx, t.id, t.feed.Cursor()) // the connection ends in a moment anyway
	t.Errf("\nglove: detached; the session goes on. To come back: glove sessions attach %s\n", t.id)
	return nil
}

func (t *attachment) ended() error {
	t.leave()
	end := t.feed.End()
	status := 0
	switch limit, met := limitStatus[end.TerminationCause]; {
	case met:
		status = limit
	case end.ExitCode != nil:
		status = *end.ExitCode
	case end.Signal > 0:
		status = 128 + end.Signal
	}
	words := strings.ReplaceAll(end.TerminationCause, "_", " ")
	if words == "" {
		words = end.State
	}
	t.Errf("\nglove: the session has ended: %s\n", words)
	if status == 0 {
		return nil
	}
	return &ui.Silent{Exit: status}
}
