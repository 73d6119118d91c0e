package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"gloved.dev/cmd/internal/console"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime/gate"
)

// watchEvery is how often the log is read again.
const watchEvery = time.Second

func (a *app) watchCommand() *cobra.Command {
	p := &place{}
	var as string
	command := p.placed(&cobra.Command{
		Use:   "watch",
		Short: "Decide what waits, on a full screen, from the keyboard",
		Long: `Show what waits for a person, and decide it from the keyboard. Enter shows exactly what a
question would do, as "approval show" does; only from there can it be granted (g) or
rejected (r), and granted only once all of it was on the screen. q goes back and leaves.`,
		Example: "  approval watch --as human:ada",
		RunE: func(command *cobra.Command, _ []string) error {
			in, okIn := a.In.(*os.File)
			out, okOut := a.Out.(*os.File)
			if !a.InTerm || !a.OutTerm || !okIn || !okOut {
				return &ui.Error{Code: "no-terminal", Message: "watch needs a terminal to draw on", Next: "approval queue", Exit: ui.ExitUsage}
			}
			if p.json {
				return ui.Usage("watch draws a screen; for a program there is: approval queue --json")
			}
			who, err := a.human(as)
			if err != nil {
				return err
			}
			g, err := a.gate(p)
			if err != nil {
				return err
			}
			w := &watch{gate: g, who: who, show: a.showText(g)}
			if err := w.refresh(); err != nil {
				return failure(err)
			}
			err = w.run(command.Context(), &console.Terminal{In: in, Out: out})
			for _, token := range w.tokens {
				a.Outf("%s\n", token)
			}
			return err
		},
	})
	command.Flags().StringVar(&as, "as", "", "who decides: `human:NAME` (default $APPROVAL_HUMAN)")
	return command
}

// showText renders a key as `approval show` does, for a screen.
func (a *app) showText(g *gate.Gate) func(v *gate.View, key string) (text string, grantable bool) {
	return func(v *gate.View, key string) (string, bool) {
		var out bytes.Buffer
		b := *a
		b.Streams = &ui.Streams{Out: &out, Err: &out, OutColor: a.OutColor}
		x := v.Action(key)
		if x == nil {
			return "the log does not have the key any more", false
		}
		b.showAction(v, g.Document(), x)
		payload, err := g.Payloads().Get(x.PayloadHash)
		if err != nil {
			return out.String() + "the payload cannot be shown, so do not grant it: " + ui.Printable(err.Error()), false
		}
		b.showPayload(payload)
		return out.String(), true
	}
}

// A page is what the screen shows.
type page int

const (
	pageList page = iota
	pageDetail
	pageGrant  // asks whether to grant
	pageReject // asks whether to reject
)

// A watch is the screen's state. It knows nothing of the terminal: keys go in, frames come out.
type watch struct {
	gate *gate.Gate
	who  string
	show func(v *gate.View, key string) (string, bool)

	view      *gate.View
	pending   []gate.Pending
	key       string // selected
	page      page
	text      string // of the detail
	grantable bool
	top       int  // first line of the detail on the screen
	seen      bool // its last line was on the screen
	note      string
	rows      int      // of the last frame
	tokens    []string // that grants printed, to be left on the screen in the end
}

// refresh reads the log again. What is being looked at stays, even when somebody else decided it.
func (w *watch) refresh() error {
	v, err := w.gate.View()
	if err != nil {
		return err
	}
	w.view, w.pending = v, v.Queue(w.gate.Document())
	if w.page == pageList && w.index() < 0 {
		w.key = ""
		if len(w.pending) > 0 {
			w.key = w.pending[0].ActionKey
		}
	}
	return nil
}

func (w *watch) index() int {
	for i, q := range w.pending {
		if q.ActionKey == w.key {
			return i
		}
	}
	return -1
}

// Keys, as readKeys names them.
const (
	keyUp, keyDown, keyPageUp, keyPageDown = "up", "down", "pageup", "pagedown"
	keyEnter, keyBack, keyQuit, keyPasted  = "enter", "back", "quit", "pasted"
)

// press takes one key and reports whether the person leaves.
func (w *watch) press(ctx context.Context, key string) (leave bool) {
	switch key {
	case keyQuit:
		return true
	case keyPasted:
		w.note = "several keys came at once; one at a time, please"
		return false
	}
	switch w.page {
	case pageList:
		return w.pressList(key)
	case pageDetail:
		w.pressDetail(key)
	default:
		w.pressConfirm(ctx, key)
	}
	return false
}

func (w *watch) pressList(key string) (leave bool) {
	w.note = ""
	switch i := w.index(); key {
	case "q", keyBack:
		return true
	case keyUp, "k":
		if i > 0 {
			w.key = w.pending[i-1].ActionKey
		}
	case keyDown, "j":
		if i >= 0 && i < len(w.pending)-1 {
			w.key = w.pending[i+1].ActionKey
		}
	case keyEnter:
		if i >= 0 {
			w.text, w.grantable = w.show(w.view, w.key)
			w.page, w.top, w.seen = pageDetail, 0, false
		}
	}
	return false
}

func (w *watch) pressDetail(key string) {
	w.note = ""
	step := max(w.rows-2, 1)
	switch key {
	case "q", keyBack:
		w.page = pageList
	case keyUp, "k":
		w.top--
	case keyDown, "j", keyEnter:
		w.top++
	case keyPageUp, "b":
		w.top -= step
	case keyPageDown, " ":
		w.top += step
	case "g":
		switch {
		case !w.grantable:
			w.note = "what cannot be shown cannot be granted here"
		case !w.seen:
			w.note = "there is more below: see all of it first (space)"
		default:
			w.page = pageGrant
		}
	case "r":
		w.page = pageReject
	}
}

func (w *watch) pressConfirm(ctx context.Context, key string) {
	decide, done := (*gate.Gate).Grant, "granted"
	if w.page == pageReject {
		decide, done = (*gate.Gate).Reject, "rejected"
	}
	if key != "y" {
		w.page, w.note = pageDetail, "nothing was decided"
		return
	}
	out, err := decideAgain(ctx, decide, w.gate, gate.Decision{Actor: w.who, Key: w.key, Channel: channel})
	w.page = pageList
	switch {
	case err != nil:
		w.page, w.note = pageDetail, "refused: "+revealPlain(err.Error())
	case out.Token != "":
		w.tokens = append(w.tokens, fmt.Sprintf("%s %s\ntoken, shown once: %s", done, revealPlain(w.key), out.Token))
		w.note = fmt.Sprintf("%s %s; its token is printed when you leave", done, revealPlain(w.key))
	default:
		w.note = done + " " + revealPlain(w.key)
	}
	if err := w.refresh(); err != nil {
		w.note = revealPlain(err.Error())
	}
}

// frame draws the screen: rows lines of at most cols columns.
func (w *watch) frame(rows, cols int, color bool) []string {
	w.rows = rows
	body := max(rows-2, 1)
	var lines []string
	title := fmt.Sprintf("approval: %d waiting, you are %s", len(w.pending), revealPlain(w.who))
	help := "↑↓ choose  enter look  q leave"
	switch w.page {
	case pageList:
		lines = w.list(body, cols, color)
	default:
		lines = w.detail(body, cols)
		help = "space more  g grant  r reject  q back"
	}
	switch w.page {
	case pageGrant:
		help = "GRANT " + revealPlain(w.key) + "?  y yes  any other key no"
	case pageReject:
		help = "REJECT " + revealPlain(w.key) + "?  y yes  any other key no"
	}
	if w.note != "" {
		help = w.note
	}
	out := []string{ui.Paint(color, ui.Bold, ansi.Truncate(title, cols, "…"))}
	out = append(out, lines...)
	for len(out) < rows-1 {
		out = append(out, "")
	}
	return append(out[:max(rows-1, 1)], ui.Paint(color, ui.Cyan, ansi.Truncate(help, cols, "…")))
}

func (w *watch) list(rows, cols int, color bool) []string {
	if len(w.pending) == 0 {
		return []string{"", "nothing waits for a person"}
	}
	first := max(0, w.index()-rows+1)
	var out []string
	for _, q := range w.pending[first:min(len(w.pending), first+max(rows, 0))] {
		left := ""
		if q.TTLRemainingMS != nil {
			left = "  " + (time.Duration(*q.TTLRemainingMS) * time.Millisecond).Round(time.Second).String() + " left"
		}
		line := fmt.Sprintf("%s  %s%s", q.Class, revealPlain(q.ActionKey), left)
		mark, style := "  ", ui.Plain
		if q.ActionKey == w.key {
			mark, style = "> ", ui.Bold
		}
		out = append(out, ui.Paint(color, style, ansi.Truncate(mark+line, cols, "…")))
	}
	return out
}

// detail shows a part of the text. Long lines are wrapped, never cut: what is not shown could be
// the point.
func (w *watch) detail(rows, cols int) []string {
	text := strings.ReplaceAll(strings.TrimSuffix(w.text, "\n"), "\t", "    ")
	lines := strings.Split(ansi.Hardwrap(text, max(cols, 1), true), "\n")
	w.top = max(0, min(w.top, len(lines)-rows))
	end := min(len(lines), w.top+max(rows, 0))
	w.seen = w.seen || end == len(lines)
	return lines[w.top:end]
}

// run draws frames and takes keys until the person leaves.
func (w *watch) run(ctx context.Context, t *console.Terminal) error {
	if err := t.Raw(); err != nil {
		return ioFailure(err)
	}
	defer t.Restore()
	fmt.Fprint(t.Out, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(t.Out, "\x1b[?25h\x1b[?1049l")
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	keys := make(chan string)
	go readKeys(ctx, t.In, keys)
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		rows, cols := t.Size()
		fmt.Fprint(t.Out, "\x1b[H"+strings.Join(w.frame(rows, cols, ui.ColorAllowed(os.Getenv)), "\x1b[K\r\n")+"\x1b[K\x1b[J")
		select {
		case <-ctx.Done():
			return nil
		case <-resized:
		case <-tick.C:
			if err := w.refresh(); err != nil {
				w.note = revealPlain(err.Error())
			}
		case key, open := <-keys:
			if !open || w.press(ctx, key) {
				return nil
			}
		}
	}
}

// sequences are what terminals send for the keys with names.
var sequences = map[string]string{
	"\x1b[A": keyUp, "\x1bOA": keyUp, "\x1b[B": keyDown, "\x1bOB": keyDown, "\x1b[5~": keyPageUp, "\x1b[6~": keyPageDown,
	"\x1b[D": keyBack, "\x1bOD": keyBack, "\x1b[C": keyEnter, "\x1bOC": keyEnter, "\x1b": keyBack, "\x7f": keyBack, "\b": keyBack,
	"\r": keyEnter, "\n": keyEnter, "\x03": keyQuit, "\x04": keyQuit,
}

// readKeys names what is typed until the input ends. More than one key at once is text that was
// pasted or played in, and decides nothing (keyPasted).
func readKeys(ctx context.Context, in *os.File, keys chan<- string) {
	defer close(keys)
	buf := make([]byte, 64)
	for {
		n, err := in.Read(buf)
		if err != nil {
			return
		}
		key, named := sequences[string(buf[:n])]
		switch {
		case named:
		case n == 1 && buf[0] >= ' ' && buf[0] < 0x7f:
			key = string(buf[:1])
		default:
			key = keyPasted
		}
		select {
		case keys <- key:
		case <-ctx.Done():
			return
		}
	}
}
