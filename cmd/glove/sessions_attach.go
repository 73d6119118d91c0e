package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// attachFlags are those of glove sessions attach.
type attachFlags struct {
	connectFlags
	view  bool
	force bool
	key   string
}

func (a *app) sessionsAttach() *cobra.Command {
	var f attachFlags
	command := &cobra.Command{
		Use:   "attach ID",
		Short: "Join a running session with this terminal",
		Long: `Join a running session with this terminal: its screen is rebuilt from what it has written,
it is told this terminal's size and asked to redraw, and keys go to it as they are. The
detach key (Ctrl-\, or what --detach-key says) leaves it running.

One glove of yours on this machine types into a session and decides its size; --force joins
it all the same. Any number watch with --view: no key is passed on (q and Ctrl-C leave too)
and the size stays, so that a terminal smaller than the session's shows it broken.

When gloved goes away, the session goes on: attach waits a minute for the next gloved, and
comes back to it.

Exit status: 0 after detaching, else the session's own, as with glove run; 125 when it
cannot be told, because there is no gloved any more or the end is not on record yet.`,
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
	command.Flags().BoolVar(&f.force, "force", false, "type into it even if another glove does")
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
	flags    attachFlags
	id       string
	view     bool
	key      byte
	keyName  string
	terminal *console.Terminal
	screen   *console.Screen
	feed     *console.Feed
	left     sync.Once

	mu   sync.Mutex
	conn *connection // of the moment
}

func (a *app) attach(ctx context.Context, f attachFlags, id string, key byte) (err error) {
	t := &attachment{app: a, flags: f, id: id, view: f.view, key: key, keyName: f.key, terminal: &console.Terminal{In: os.Stdin, Out: os.Stdout}}
	if err := t.open(ctx); err != nil {
		return err
	}
	defer t.shut()
	if id, err = meant(ctx, t.conn.client, id); err != nil {
		return err
	}
	t.id, t.feed.ID = id, id
	if !f.view && !f.force {
		pen, err := a.takePen(t.conn.what, id)
		if err != nil {
			return err
		}
		defer pen()
	}
	record, err := t.conn.client.SessionStatus(ctx, id)
	if err != nil {
		return protocolFailure(err)
	}
	if record.State != "running" && record.State != "stopping" {
		return ui.Fail("not_running", "session "+id+" is "+record.State, "glove sessions logs "+id+" prints what it wrote")
	}
	if err := t.rebuild(ctx); err != nil {
		return err
	}
	return t.join(ctx)
}

// open connects, with a screen and a feed for what comes over the connection.
func (t *attachment) open(ctx context.Context) error {
	rows, columns := t.terminal.Size()
	screen := console.NewScreen(rows, columns)
	feed := console.NewFeed(t.id, &screen.Modes)
	conn, err := t.sessionDial(ctx, t.flags.connectFlags, func(n client.Note) {
		defer t.restoreOnPanic()
		feed.Note(n)
	})
	if err != nil {
		screen.Close()
		return err
	}
	t.screen, t.feed = screen, feed
	t.mu.Lock()
	defer t.mu.Unlock()
	t.conn = conn
	return nil
}

// shut undoes open, if there is anything to undo. What there was to say has been said.
func (t *attachment) shut() {
	t.mu.Lock()
	conn := t.conn
	t.conn = nil
	t.mu.Unlock()
	if conn != nil {
		_ = conn.close()
		t.screen.Close()
	}
}

// rebuild finds out what the session shows now, without this terminal taking part.
func (t *attachment) rebuild(ctx context.Context) error {
	cursor, err := readTranscript(ctx, t.conn.client, t.id, t.screen.Write)
	if err == nil {
		t.feed.From(cursor)
	}
	return err
}

// show paints what the session shows and follows it from there.
func (t *attachment) show(ctx context.Context) error {
	paint := t.screen.Paint()
	t.screen.Out = t.Out
	if _, err := t.Out.Write([]byte(t.title() + paint)); err != nil {
		return ui.Failf("output_failed", "%w", err)
	}
	if err := t.feed.Follow(ctx, t.conn.client); err != nil {
		return protocolFailure(err)
	}
	return nil
}

func (t *attachment) join(ctx context.Context) error {
	if err := t.terminal.Raw(); err != nil {
		return ui.Failf("terminal_unusable", "%w", err)
	}
	defer t.leave()
	var refused *rpc.Error
	var failure *ui.Error
	if err := t.show(ctx); errors.As(err, &refused) || errors.As(err, &failure) && failure.Code == "output_failed" {
		return err
	} // else gloved is gone, as it may be at any time
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
	defer signal.Stop(signals)
	t.redraw(ctx)
	typed := make(chan error, 1)
	go func() {
		defer t.restoreOnPanic()
		typed <- t.keys(ctx)
	}()
	look := time.NewTicker(lookForEnd)
	defer look.Stop()
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
			typed = nil // the terminal is gone, which a signal tells
		case <-look.C:
			if t.overUnrecorded(ctx) {
				t.leave()
				return &ui.Error{Code: "end_not_on_record", Exit: exitOwnFailure, Message: "session " + t.id + " has ended; its end goes on record once the receipts are acknowledged",
					Next: "the controller pages and acknowledges them; without one: glove receipts acknowledge"}
			}
		case s := <-signals:
			if s != unix.SIGWINCH {
				_ = t.detached(ctx)
				return &ui.Silent{Exit: signalStatus(s)}
			}
			if !t.view {
				t.resize(ctx, 0)
			}
		case <-t.conn.client.Done():
			if left, err := t.comeBack(ctx, signals, typed); left || err != nil {
				return err
			}
		}
	}
}

const (
	// lookForEnd is how often a session is asked for that may have ended without an end
	// on record.
	lookForEnd = time.Second
	// backBound is how long a gloved that is gone is waited for, backPause how long
	// between two tries.
	backBound = time.Minute
	backPause = 250 * time.Millisecond
)

// comeBack waits for the next gloved where one is gone, and joins the session anew. It
// reports whether the person left meanwhile.
func (t *attachment) comeBack(ctx context.Context, signals <-chan os.Signal, typed <-chan error) (left bool, err error) {
	lost := t.conn.client.Err()
	t.feed.Silence()
	t.banner("gloved is gone; the session goes on. Waiting for the next gloved")
	bound := time.NewTimer(backBound)
	defer bound.Stop()
	pause := time.NewTicker(backPause)
	defer pause.Stop()
	for {
		if err = t.rejoin(ctx); err == nil {
			return false, nil
		}
		var refused *rpc.Error
		if errors.As(err, &refused) && refused.Code == rpc.SessionNotFound {
			t.leave()
			return false, protocolFailure(err)
		}
		select {
		case <-pause.C:
		case typing := <-typed:
			if errors.Is(typing, console.ErrDetached) || typing == nil {
				return true, t.detached(ctx)
			}
			typed = nil
		case s := <-signals:
			if s != unix.SIGWINCH {
				_ = t.detached(ctx)
				return true, &ui.Silent{Exit: signalStatus(s)}
			}
		case <-bound.C:
			t.leave()
			return false, &ui.Error{Code: "connection_lost", Exit: exitOwnFailure, Err: errors.Join(err, lost),
				Message: "gloved is gone and no other has come; the session goes on",
				Next:    "once there is a gloved: glove sessions attach " + t.id}
		}
	}
}

// rejoin does what attaching did at first. A session that ended meanwhile tells its end.
func (t *attachment) rejoin(ctx context.Context) error {
	t.shut()
	if err := t.open(ctx); err != nil {
		return err
	}
	err := t.rebuild(ctx)
	if err == nil {
		err = t.show(ctx)
	}
	if err == nil {
		t.redraw(ctx)
	}
	return err
}

// banner shows a line of ours on the last row, which the next painting takes away, and in
// the title.
func (t *attachment) banner(text string) {
	rows, columns := t.terminal.Size()
	if way := "; " + t.keyName + " leaves"; t.key != 0 {
		text += way
	}
	if len(text) > columns {
		text = text[:columns]
	}
	_, _ = fmt.Fprintf(t.Out, "\x1b7\x1b[%d;1H\x1b[0;7m%s\x1b[0m\x1b[K\x1b8\x1b]2;%s\x1b\\", rows, text, text)
}

// overUnrecorded reports whether the session has ended and its end cannot be told, because
// gloved waits for its receipts to be acknowledged.
func (t *attachment) overUnrecorded(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, backBound)
	defer cancel()
	c := t.conn.client
	health, err := c.Health(ctx)
	if err != nil || !slices.ContainsFunc(health.Components, func(h wire.ComponentHealth) bool { return h.Code == string(rpc.AuditReconciliationRequired) }) {
		return false
	}
	r, err := c.Attach(ctx, &wire.AttachParams{SessionID: t.id, Cursor: t.feed.Cursor(), MaxBytes: 1})
	if err != nil || !r.EOF {
		return false
	}
	record, err := c.SessionStatus(ctx, t.id)
	return err == nil && (record.State == "running" || record.State == "stopping")
}

// takePen makes this glove the one of its user's that types into a session, until it
// calls what is returned. The pen is a lock of the user's on this machine, however gloved
// is reached: the protocol knows no writer, since its controllers decide that.
func (a *app) takePen(gloved, id string) (func(), error) {
	dir, err := a.stateDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, ui.Failf("state_unusable", "%w", err)
	}
	path := filepath.Join(dir, "pen-"+digest.SHA256Hex([]byte(gloved + "\x00" + id))[:32])
	lock, err := safefile.LockFile(path)
	if errors.Is(err, safefile.ErrLocked) {
		return nil, ui.Fail("attached_elsewhere", "another glove of yours is attached to "+id+" and types into it",
			"detach there, or watch: glove sessions attach --view "+id+" (--force types all the same)")
	}
	if err != nil {
		return nil, ui.Failf("state_unusable", "%w", err)
	}
	return func() {
		_ = os.Remove(path) // before another can have it
		_ = lock.Unlock()
	}, nil
}

// keys passes keys on; a viewer's are only watched for the one that leaves.
func (t *attachment) keys(ctx context.Context) error {
	in := &console.Input{ID: t.id, Client: t.live}
	buf := make([]byte, 4096)
	for {
		n, err := t.In.Read(buf)
		data, leave := buf[:n], false
		for i, b := range data {
			if t.key != 0 && b == t.key || t.view && (b == 'q' || b == 0x03) {
				data, leave = data[:i], true
				break
			}
		}
		if !t.view {
			// What is typed while gloved is away is lost, as is what the session does not take.
			_ = in.Type(ctx, bytes.NewReader(data), 0)
		}
		switch {
		case leave:
			return console.ErrDetached
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// live is the connection of the moment. Keys do not wait for the next one.
func (t *attachment) live(context.Context) (*client.Client, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conn == nil {
		return nil, client.ErrClosed
	}
	return t.conn.client, nil // one that is lost says so
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
	if c, err := t.live(ctx); err == nil {
		_, _ = c.Detach(ctx, t.id, t.feed.Cursor()) // the connection ends in a moment anyway
	}
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
