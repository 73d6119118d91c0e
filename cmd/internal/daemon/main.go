package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"gloved.dev/cmd/internal/version"
	"gloved.dev/rpc/service"
	"gloved.dev/rpc/transport"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// Main is gloved: it reads the command line, serves until it is told to end, and returns
// the exit code. args are the arguments without the program's name. On Linux the process
// must already have called sandbox.Main.
func Main(args []string) int {
	options, what, err := parse(args)
	if err != nil {
		return report(os.Stderr, err)
	}
	switch what {
	case actHelp:
		writeHelp(os.Stdout)
		return exitOK
	case actVersion:
		fmt.Printf("gloved %s\n", version.Get())
		return exitOK
	case actServe:
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return report(os.Stderr, run(ctx, options, newLogger(os.Stderr, options.Verbose)))
}

// newLogger writes text for people and JSON lines for machines.
func newLogger(out *os.File, verbose bool) *slog.Logger {
	level := slog.LevelInfo
	if verbose {
		level = slog.LevelDebug
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	if term.IsTerminal(int(out.Fd())) {
		return slog.New(slog.NewTextHandler(out, handlerOptions))
	}
	return slog.New(slog.NewJSONHandler(out, handlerOptions))
}

// report prints why gloved did not run, or stopped, and returns the exit code.
func report(out io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	code, next, exit := "failed", "", exitFailed
	var wrong *UsageError
	var unavailable *service.UnavailableError
	var failed *startError
	switch {
	case errors.As(err, &wrong):
		code, next, exit = "usage", wrong.Next, exitUsage
	case errors.As(err, &unavailable):
		code, next, exit = "option_unavailable", "leave it out", exitUsage
	case errors.As(err, &failed):
		code, next = failed.code, failed.next
	}
	fmt.Fprintf(out, "gloved: %s: %v\n", code, err)
	if next != "" {
		fmt.Fprintf(out, "  next: %s\n", next)
	}
	return exit
}

// buildFailure gives a failed construction its code and next step.
func buildFailure(err error) error {
	var failed *service.BuildError
	if !errors.As(err, &failed) {
		return err
	}
	switch failed.Option {
	case "--session-policy":
		return &startError{code: "session_policy_invalid", err: err, next: "glove policy explain --file FILE shows the fault and its place"}
	case "--session-store":
		return &startError{code: "session_store_failed", err: err, next: storeAdvice(err)}
	case "--materialization-root":
		return &startError{code: "runtime_unavailable", err: err, next: "glove doctor says what this machine lacks for managed sessions"}
	case "--audit-key":
		return &startError{code: "audit_key_invalid", err: err, next: "an audit key is 64 hex digits in a 0600 file: (umask 077; openssl rand -hex 32 > FILE)"}
	}
	return &startError{code: "build_failed", err: err}
}

// lockFailure explains that another gloved is running.
func lockFailure(dir string, err error) error {
	if !errors.Is(err, transport.ErrLocked) {
		return &startError{code: "runtime_directory_unusable", err: fmt.Errorf("%s: %w", dir, err)}
	}
	by, resident := holder(dir)
	next := "wait until its connection ends; a gloved that many can reach is started with --runtime-dir and without --stdio"
	if resident {
		next = "connect to it (glove rpc --runtime-dir " + dir + "), or end it first"
	}
	return &startError{code: "already_running", err: fmt.Errorf("%s is in use%s", dir, by), next: next}
}
