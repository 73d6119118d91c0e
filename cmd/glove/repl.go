package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/reeflective/readline"
	"golang.org/x/term"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
)

// replCommand is one of the conversation's own commands.
type replCommand struct {
	name        string
	about       string
	takesMethod bool
}

var replCommands = []replCommand{
	{":help", "how this works", false},
	{":methods", "the methods this gloved has", false},
	{":describe", "the parameters, result and errors of a method", true},
	{":json", "switch between indented and one-line answers", false},
	{":key", "switch making up idempotency keys on and off", false},
	{":quit", "end (Ctrl-D does too)", false},
}

// repl is one conversation.
type repl struct {
	app        *app
	flags      rpcFlags
	connection *connection
	document   *rpc.Document
	shell      *readline.Shell
	history    *history

	mu      sync.Mutex
	editing bool // the line editor has the terminal
}

// converse holds a conversation on the terminal.
func (a *app) converse(f rpcFlags) error {
	f.autoKey = true // shown when used; :key switches it off
	r := &repl{app: a, flags: f}
	ctx := context.Background()
	connection, err := a.connect(ctx, f.connectFlags, r.note)
	if err != nil {
		return err
	}
	r.connection = connection
	defer r.endOnSignal()()
	err = r.run(ctx)
	return errors.Join(err, connection.close())
}

// endOnSignal leaves nothing behind when the terminal goes away or somebody ends glove in
// the middle of a line, where the line editor would not notice. It returns what stops it.
func (r *repl) endOnSignal() (stop func()) {
	before, stateErr := term.GetState(int(os.Stdin.Fd()))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGTERM)
	disarm := context.AfterFunc(ctx, func() {
		_ = r.connection.close() // there is nobody left to tell
		if stateErr == nil {
			_ = term.Restore(int(os.Stdin.Fd()), before)
		}
		os.Exit(ui.ExitFailed)
	})
	return func() {
		disarm()
		cancel()
	}
}

func (r *repl) run(ctx context.Context) error {
	document, err := r.connection.client.Discover(ctx)
	if err != nil {
		return callFailure(err)
	}
	r.document = document
	r.openHistory()
	r.shell = readline.NewShell()
	r.shell.Prompt.Primary(func() string { return ui.Paint(r.app.OutColor, ui.Bold, "glove>") + " " })
	r.shell.History.Delete()
	r.shell.History.Add("glove rpc", r.history)
	// Tab first completes what all candidates share and lists them, then goes through them.
	for _, keymap := range []string{"emacs", "emacs-standard", "vi-insert"} {
		_ = r.shell.Config.Bind(keymap, "\t", "menu-complete", false) // a keymap that is not there is not used
	}
	_ = r.shell.Config.Set("menu-complete-display-prefix", true) // the user's inputrc may have it otherwise
	complete := &completer{methods: document.Methods, commands: replCommands}
	r.shell.Completer = func(line []rune, cursor int) readline.Completions {
		return completions(complete.complete(string(line[:cursor])), string(line[:cursor]))
	}
	hello := r.connection.client.Hello()
	r.app.Outf("%s %s, protocol %d: %s\n", ui.Printable(hello.Server.Name), ui.Printable(hello.Server.Version),
		hello.ProtocolVersion, r.connection.what)
	r.app.Outf("Tab completes, :help explains, Ctrl-D ends.\n")
	defer func() {
		if err := r.history.save(); err != nil {
			r.app.Errf("the history was not kept: %v\n", err)
		}
	}()
	return r.loop(ctx)
}

func (r *repl) openHistory() {
	path := ""
	if dir, err := r.app.stateDir(); err == nil {
		path = filepath.Join(dir, "rpc-history")
	}
	kept, err := openHistory(path)
	if err != nil {
		r.app.Errf("the history is not kept: %v\n", err)
	}
	r.history = kept
}

func (r *repl) loop(ctx context.Context) error {
	for {
		if err := r.connection.client.Err(); err != nil {
			return connectFailure(err)
		}
		line, err := r.read()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, readline.ErrInterrupt):
			continue
		case err != nil:
			return err
		}
		line = strings.TrimSpace(line)
		if line == ":quit" || line == ":q" || line == "exit" || line == "quit" {
			return nil
		}
		if line != "" {
			r.do(ctx, line)
		}
	}
}

func (r *repl) read() (string, error) {
	r.setEditing(true)
	defer r.setEditing(false)
	return r.shell.Readline()
}

func (r *repl) setEditing(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.editing = on
}

// note shows a notification when it comes: above the prompt while a line is typed.
func (r *repl) note(n client.Note) {
	text := fmt.Sprintf("%s %s %s\n", ui.Paint(r.app.OutColor, ui.Yellow, "<--"), ui.Printable(n.Method),
		ui.Printable(string(n.Params)))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.editing {
		_, _ = r.shell.PrintTransientf("%s", strings.ReplaceAll(text, "%", "%%"))
		return
	}
	r.app.Outf("%s", text)
}

// do runs one line. What fails is said; the conversation goes on.
func (r *repl) do(ctx context.Context, line string) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	var err error
	if strings.HasPrefix(line, ":") {
		err = r.command(line)
	} else {
		err = r.ask(ctx, line)
	}
	if errors.Is(err, context.Canceled) {
		r.app.Errf("no longer waiting; the request may still take effect\n")
		return
	}
	r.app.Report("glove", err, false)
}

func (r *repl) ask(ctx context.Context, line string) error {
	if strings.HasPrefix(line, "{") {
		failure := ui.Usage("a line is a method and its parameters, not a whole frame")
		failure.Next = "glove rpc --raw sends frames as they are typed"
		return failure
	}
	method, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	arguments := []string{rest}
	if rest == "" {
		arguments = nil
	} else if !strings.HasPrefix(rest, "{") {
		arguments = strings.Fields(rest)
	}
	if rest == "-" {
		return ui.Usage("standard input is this conversation; use @FILE")
	}
	params, err := r.app.params(arguments)
	if err != nil {
		return err
	}
	return r.app.call(ctx, r.connection.client, r.flags, method, params)
}

func (r *repl) command(line string) error {
	name, rest, _ := strings.Cut(line, " ")
	switch name {
	case ":help":
		r.help()
	case ":methods":
		table := &ui.Table{}
		for _, method := range r.document.Methods {
			table.Row(method.Name, method.Summary)
		}
		table.Write(r.app.Out, "  ", r.app.OutColor)
	case ":describe":
		return r.describe(strings.TrimSpace(rest))
	case ":json":
		r.flags.asJSON = !r.flags.asJSON
		r.app.Outf("answers on one line: %v\n", r.flags.asJSON)
	case ":key":
		r.flags.autoKey = !r.flags.autoKey
		r.app.Outf("idempotency keys made up where needed: %v\n", r.flags.autoKey)
	default:
		failure := ui.Usage("there is no command %s here", name)
		failure.Next = ":help"
		return failure
	}
	return nil
}

func (r *repl) help() {
	r.app.Outf(`A line is a method and its parameters:
  health
  session_status session_id=s-1             NAME=VALUE: JSON, else text; a.b=1 goes into a
  session_status {"session_id":"s-1"}       or one JSON object
  validate_plan plan=@plan.json             @FILE puts a file there
Methods that change something need an idempotency_key; one is made up and shown
unless you give it. Your own commands:
`)
	table := &ui.Table{}
	for _, command := range replCommands {
		table.Row(command.name, command.about)
	}
	table.Write(r.app.Out, "  ", r.app.OutColor)
}

func (r *repl) describe(name string) error {
	for _, method := range r.document.Methods {
		if method.Name != name {
			continue
		}
		r.app.Outf("%s: %s\n", ui.Paint(r.app.OutColor, ui.Bold, method.Name), method.Summary)
		table := &ui.Table{}
		for _, param := range method.Params {
			table.Row(param.Name, describeParam(param))
		}
		table.Write(r.app.Out, "  ", r.app.OutColor)
		if method.Result != nil {
			var names []string
			for _, m := range schemaMembers(method.Result.Schema) {
				names = append(names, m.name)
			}
			r.app.Outf("returns %s\n", listOr(names, "nothing"))
		}
		var codes []string
		for _, refusal := range method.Errors {
			codes = append(codes, string(refusal.Data.Code))
		}
		r.app.Outf("refuses with %s\n", ui.Printable(strings.Join(codes, " ")))
		return nil
	}
	return ui.Fail("no_such_method", fmt.Sprintf("this gloved has no method %q", name), ":methods lists them")
}

// completions are candidates in readline's form; line ends at the cursor.
func completions(candidates []candidate, line string) readline.Completions {
	word := line[strings.LastIndexAny(line, " \t\n")+1:]
	values := make([]readline.Completion, len(candidates))
	for i, c := range candidates {
		values[i] = readline.Completion{Value: c.value, Display: c.display, Description: c.about}
	}
	out := readline.CompleteRaw(values)
	out.PREFIX = word
	return out
}

// batch answers requests from a pipe, one "METHOD PARAMS" a line, and fails when any did.
func (a *app) batch(ctx context.Context, f rpcFlags) error {
	connection, err := a.connect(ctx, f.connectFlags, a.batchNote)
	if err != nil {
		return err
	}
	r := &repl{app: a, flags: f, connection: connection}
	failed := false
	scanner := bufio.NewScanner(a.In)
	scanner.Buffer(nil, maxParamsBytes)
	for ctx.Err() == nil && scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := r.ask(ctx, line); err != nil {
			failed = true
			a.Report("glove", err, f.asJSON)
		}
	}
	if err := scanner.Err(); err != nil {
		return errors.Join(ui.Failf("input_unreadable", "%w", err), connection.close())
	}
	return errors.Join(failedIf(failed), connection.close())
}

func (a *app) batchNote(n client.Note) {
	a.Errf("<-- %s %s\n", ui.Printable(n.Method), ui.Printable(string(n.Params)))
}

// terminalSafe is a frame without its end, and without what a terminal could obey.
func terminalSafe(line []byte, term bool) string {
	line = bytes.TrimRight(line, "\r\n")
	if !term {
		return string(line)
	}
	return ui.Printable(string(line))
}
