package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sys/unix"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/localrun"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
	"gloved.dev/journal/receipt"
	"gloved.dev/policy"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/wire"
)

// A runner takes one command from its policy to its receipt, as a controller would.
type runner struct {
	*app
	request *localrun.Request
	flags   *runFlags
	job     *localrun.Job
	state   *localrun.State
	key     *receipt.Key
	argv    []string // gloved's
	id      string
	digest  string // the controller's, of the plan

	terminal *console.Terminal // nil where a person is not at both ends
	modes    *console.Modes
	feed     *console.Feed
	signals  chan os.Signal
	ended    os.Signal // the signal that ended us; nil for none
	orphaned bool      // something may still run that we cannot reach

	keys *console.Input

	mu      sync.Mutex
	client  *client.Client
	gloved  *localrun.Gloved
	renewed chan struct{} // closed when client is another one
}

// run runs the request. What it returns carries the exit status.
func (a *app) run(ctx context.Context, request *localrun.Request, flags *runFlags) (err error) {
	if err := a.surroundings(request); err != nil {
		return err
	}
	if flags.receipt != "" {
		if err := checkReceipt(flags.receipt); err != nil {
			return err
		}
	}
	if err := a.enforceable(); err != nil {
		return err
	}
	job, err := localrun.NewJob(ctx, request)
	if err != nil {
		return err
	}
	r := &runner{app: a, request: request, flags: flags, job: job, id: "run-" + randomHex(8)}
	if r.argv, err = a.glovedCommand(flags.gloved); err != nil {
		return err
	}
	r.notes()
	// From here on there is something to clean up: signals are ours.
	r.signals = make(chan os.Signal, 8)
	for _, s := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT} {
		if !signal.Ignored(s) { // nohup, or a shell's background job: it stays so
			signal.Notify(r.signals, s)
		}
	}
	signal.Ignore(unix.SIGPIPE) // a reader that left is noticed by the failed write
	r.sweep(ctx)
	if r.state, err = localrun.NewState(job, a.getenv("XDG_RUNTIME_DIR")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.cleanup()) }()
	r.argv = append(r.argv, r.state.Arguments()...)
	if r.key, err = r.state.Key(); err != nil {
		return ui.Failf("no_private_state", "%w", err)
	}
	return r.session(ctx)
}

// surroundings fills in what the request inherits from us.
func (a *app) surroundings(r *localrun.Request) error {
	dir, err := os.Getwd()
	if err != nil && !r.NoWorkspace {
		return &ui.Error{Code: "no_directory", Message: "the current directory is gone: " + err.Error(), Next: "cd to another one, or --no-workspace"}
	}
	if r.NoWorkspace && r.Workspace != "" {
		return ui.Usage("--workspace and --no-workspace contradict each other")
	}
	r.Dir, r.Home, r.SearchPath = dir, a.getenv("HOME"), a.getenv("PATH")
	r.Root, r.Getenv = os.Geteuid() == 0, os.LookupEnv
	r.Interactive = a.InTerm && a.OutTerm
	return nil
}

func (r *runner) notes() {
	if r.flags.quiet || r.flags.asJSON {
		return
	}
	say := func(text string) { r.Errf("%s\n", ui.Paint(r.ErrColor, ui.Dim, "glove: "+ui.Printable(text))) }
	for _, note := range r.job.Notes {
		say(note)
	}
	if !r.flags.verbose {
		return
	}
	say("runs " + r.job.Executable)
	for _, m := range r.job.Mounts {
		say(m.Describe())
	}
	l := r.job.Limits
	say(fmt.Sprintf("limits: cpu %s, wall %s, memory %s, processes %d, disk %s, output %s",
		localrun.Span(time.Duration(l.CPUTimeMS)*time.Millisecond), localrun.Span(time.Duration(l.WallTimeMS)*time.Millisecond),
		localrun.Bytes(l.MemoryBytes), l.PIDs, localrun.Bytes(l.DiskBytes), localrun.Bytes(l.TerminalOutputBytes)))
}

// cleanup leaves nothing behind, or what was asked to be kept.
func (r *runner) cleanup() error {
	if c := r.conn(); c != nil {
		_ = c.Close() // its end is gloved's end, which Close waited for
	}
	if r.orphaned {
		// Without its key and records nobody could ever end it. The next run can.
		r.Errf("glove: %s stays: the session may still run. The next glove run ends it and cleans up\n", r.state.Dir)
		return r.state.Release()
	}
	if !r.flags.keep {
		if err := r.state.Remove(); err != nil {
			return ui.Failf("state_left_behind", "%w", err)
		}
		return nil
	}
	dir, err := r.state.Keep()
	if err != nil {
		return ui.Failf("state_left_behind", "%s: %w", dir, err)
	}
	if !r.flags.asJSON {
		r.Errf("glove: kept %s\n", dir)
		return nil
	}
	line, err := json.Marshal(map[string]string{"kept": dir})
	if err == nil {
		r.Errf("%s\n", line)
	}
	return err
}

// conn is the connection of the moment.
func (r *runner) conn() *client.Client {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.client
}

// live is a connection that is there, waited for where a lost one is being replaced.
func (r *runner) live(ctx context.Context) (*client.Client, error) {
	for {
		r.mu.Lock()
		c, renewed := r.client, r.renewed
		r.mu.Unlock()
		select {
		case <-c.Done():
		default:
			return c, nil
		}
		select {
		case <-renewed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// connect starts gloved and makes it trust us: the receipts are paged and acknowledged,
// which is what lets sessions start.
func (r *runner) connect(ctx context.Context) error {
	log, err := r.state.OpenLog()
	if err != nil {
		return ui.Failf("no_private_state", "%w", err)
	}
	g, err := localrun.StartGloved(r.argv, log)
	if err = errors.Join(err, log.Close()); err != nil {
		return ui.Failf("gloved_not_started", "%w", err)
	}
	c, err := client.New(ctx, g, client.Options{
		Name: wire.Implementation{Name: "glove", Version: version.Get().Build()}, OnNote: r.onNote})
	if err != nil {
		return r.explain("gloved_not_started", err)
	}
	r.skewed("the gloved of this run", c.Hello()) // only one that --gloved named can be another
	r.mu.Lock()
	r.client, r.gloved = c, g
	if r.renewed != nil {
		close(r.renewed)
	}
	r.renewed = make(chan struct{})
	r.mu.Unlock()
	page, err := c.PageReceipts(ctx, r.genesis(), 1)
	if err == nil {
		_, err = c.AcknowledgeReceipts(ctx, "ack-"+randomHex(8), page.LocalAnchor)
	}
	if err != nil {
		return r.explain("gloved_not_ready", err)
	}
	return nil
}

func (r *runner) onNote(n client.Note) {
	defer r.restoreOnPanic()
	r.feed.Note(n)
}

func (r *runner) genesis() wire.Anchor {
	a := receipt.Genesis(r.key.ID())
	return wire.Anchor{KeyID: a.KeyID, HeadHMAC: a.HeadHMAC}
}

// session takes the command through the protocol.
func (r *runner) session(ctx context.Context) error {
	var out = r.Out
	if r.request.Interactive {
		r.terminal = &console.Terminal{In: os.Stdin, Out: os.Stdout}
		r.modes = &console.Modes{Out: r.Out}
		out = r.modes
	}
	r.feed = console.NewFeed(r.id, out)
	defer r.restore()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := r.attached(ctx); err != nil {
		return err
	}
	r.restore()
	return r.finish(ctx)
}

// start takes the session to running. Copying may take long; a signal ends it.
func (r *runner) start(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.connect(ctx); err != nil {
		return err
	}
	var failure error
	over := make(chan struct{})
	go func() {
		defer r.restoreOnPanic()
		defer close(over)
		failure = r.launch(ctx)
	}()
	select {
	case <-over:
		return failure
	case r.ended = <-r.signals:
		// A monitor that loses its gloved before the start is complete undoes it.
		r.gloved.Kill()
		<-over // what it says of the connection that we cut is no news
		if err := r.undone(ctx); err != nil {
			return err
		}
		return &ui.Error{Code: "interrupted", Message: "stopped before the command had begun; nothing ran", Exit: signalStatus(r.ended)}
	}
}

// undone makes sure that a start which was cut off at its very end leaves nothing
// running either: another gloved looks, and stops what there is.
func (r *runner) undone(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sweepTime)
	defer cancel()
	_ = r.conn().Close() // its gloved was killed
	if err := r.connect(ctx); err != nil {
		r.orphaned = true
		return err
	}
	rec, err := r.conn().SessionStatus(ctx, r.id)
	if err != nil || rec.State != "running" && rec.State != "stopping" {
		return nil // it was never created, or it is over
	}
	return r.stop(ctx)
}

func (r *runner) launch(ctx context.Context) error {
	c := r.conn()
	r.digest = policy.ControllerDigest(r.job.Plan)
	rec, err := c.CreateSession(ctx, "create", &wire.CreateSessionParams{SessionID: r.id, ControllerPlanDigest: r.digest, Plan: r.job.Plan})
	if err != nil {
		return r.explain("session_not_created", err)
	}
	size := &wire.ResizeParams{SessionID: r.id, Rows: 24, Columns: 80, Transparent: r.terminal == nil}
	if r.terminal != nil {
		size.Rows, size.Columns = r.terminal.Size()
	}
	if err := c.Call(ctx, wire.MethodResize, size, nil); err != nil {
		return r.explain("session_not_started", err)
	}
	progress := r.progress()
	defer progress.done()
	now := max(time.Now().UnixMilli(), rec.CreatedAtMS)
	_, err = c.StartSession(ctx, "start", wire.StartAuthorization{SchemaVersion: 1, AuthorizationID: "run",
		SessionID: r.id, ControllerPlanDigest: r.digest, PlanContentDigest: rec.PlanContentDigest,
		ApprovedAtMS: now, ExpiresAtMS: now + authorizationMS})
	if err != nil {
		return r.explain("session_not_started", err)
	}
	return nil
}

// authorizationMS is how long our own start is authorized: it follows at once.
const authorizationMS = 100_000

// attached joins the terminal to the session until that has ended.
func (r *runner) attached(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shape := make(chan os.Signal, 4)
	if r.terminal != nil {
		signal.Notify(shape, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
		defer signal.Stop(shape)
		if err := r.terminal.Raw(); err != nil {
			return errors.Join(ui.Failf("terminal_unusable", "%w", err), r.stop(ctx))
		}
	}
	if err := r.feed.Follow(ctx, r.conn()); err != nil {
		return errors.Join(r.explain("session_not_attached", err), r.stop(ctx))
	}
	r.keys = &console.Input{ID: r.id, Client: r.live}
	go r.input(ctx)
	if r.terminal != nil {
		r.resize(ctx) // it may have changed while copying
	}
	failed := r.feed.Failed()
	stopped := make(chan error, 1)
	for {
		select {
		case <-r.feed.Ended():
			return nil
		case <-failed:
			failed = nil // whoever read our output has left: as with any writer to a pipe
			r.end(ctx, unix.SIGPIPE, stopped)
		case s := <-r.signals:
			r.end(ctx, s, stopped)
		case err := <-stopped:
			if err != nil {
				return err
			}
		case s := <-shape:
			r.shape(ctx, s)
		case <-r.conn().Done():
			if err := r.reconnect(ctx); err != nil {
				return err
			}
		}
	}
}

// end stops the session, once, because of a signal to us.
func (r *runner) end(ctx context.Context, s os.Signal, stopped chan<- error) {
	if r.ended != nil {
		return
	}
	r.ended = s
	go func() {
		defer r.restoreOnPanic()
		stopped <- r.stop(ctx)
	}()
}

func (r *runner) stop(ctx context.Context) error {
	if _, err := r.conn().StopSession(ctx, "stop", r.id); err != nil {
		select {
		case <-r.conn().Done(): // gloved itself is gone; the next one is asked again
			return nil
		default:
		}
		return r.explain("session_not_stopped", err)
	}
	return nil
}

// input sends what is typed, or what a file or pipe holds.
func (r *runner) input(ctx context.Context) {
	defer r.restoreOnPanic()
	if r.terminal != nil {
		_ = r.keys.Type(ctx, r.In, 0) // a session that has ended takes no input, which is no failure
		return
	}
	_ = r.keys.Pour(ctx, r.In)
}

func (r *runner) resize(ctx context.Context) {
	rows, columns := r.terminal.Size()
	_ = r.conn().Resize(ctx, r.id, rows, columns) // the session may just have ended
}

// shape follows the terminal: its size, and the shell's job control from outside.
func (r *runner) shape(ctx context.Context, s os.Signal) {
	switch s {
	case unix.SIGTSTP:
		r.terminal.Restore()
		_ = unix.Kill(unix.Getpid(), unix.SIGSTOP) // we may; SIGCONT goes on
	case unix.SIGCONT:
		_ = r.terminal.Raw() // in the background it fails; the next SIGCONT tries again
		fallthrough
	default:
		r.resize(ctx)
	}
}

// maxReconnects bounds how often a gloved that dies is replaced.
const maxReconnects = 3

// reconnect starts another gloved where one died: the session runs on under its monitor,
// which the new one adopts, and no byte of output is missed.
func (r *runner) reconnect(ctx context.Context) (err error) {
	lost := r.conn().Err()
	for range maxReconnects {
		_ = r.conn().Close()
		if err = r.connect(ctx); err == nil {
			err = r.feed.Follow(ctx, r.conn())
		}
		if err == nil {
			if r.ended != nil {
				return r.stop(ctx)
			}
			return nil
		}
	}
	r.orphaned = true
	return r.explain("connection_lost", errors.Join(err, lost))
}

func (r *runner) restore() {
	if r.terminal == nil {
		return
	}
	if r.modes != nil {
		if text := r.modes.Reset(); text != "" {
			_, _ = r.Out.Write([]byte(text)) // a terminal that is gone needs no reset
		}
	}
	r.terminal.Restore()
}

// restoreOnPanic is deferred by every goroutine, so that a crash of ours does not leave
// the person with a terminal that echoes nothing.
func (r *runner) restoreOnPanic() {
	if p := recover(); p != nil {
		if r.terminal != nil {
			r.terminal.Restore()
		}
		panic(p)
	}
}

func signalStatus(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitOwnFailure
}
