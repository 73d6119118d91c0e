package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/cmd/internal/version"
	"gloved.dev/internal/safefile"
	"gloved.dev/rpc"
	"gloved.dev/rpc/client"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// connectFlags say which gloved to talk to.
type connectFlags struct {
	socket, runtimeDir string
	ssh, remote        string
	config, policy     string
	gloved             string
}

func (f *connectFlags) addTo(flags *pflag.FlagSet) {
	flags.StringVar(&f.socket, "socket", "", "the socket `path` of a running gloved; its bootstrap-secret lies beside it")
	flags.StringVar(&f.runtimeDir, "runtime-dir", "", "the runtime `directory` of a running gloved")
	flags.StringVar(&f.ssh, "ssh", "", "the `host` to reach a gloved on, through ssh")
	flags.StringVar(&f.remote, "remote-command", "gloved --stdio --config ~/.config/glove/config.json", "what ssh runs there: a shell `command`")
	flags.StringVar(&f.config, "config", "", "start a gloved with this configuration `file`")
	flags.StringVar(&f.policy, "policy", "", "start a temporary gloved with this session policy `file`, and a session store")
	flags.StringVar(&f.gloved, "gloved", "", "the gloved `program` to start (default: glove itself)")
}

// unsaid reports that no flag names a gloved.
func (f connectFlags) unsaid() bool {
	return f.socket == "" && f.runtimeDir == "" && f.ssh == "" && f.config == "" && f.policy == ""
}

// check refuses two answers to the same question.
func (f connectFlags) check() error {
	var given []string
	for _, flag := range []struct{ name, value string }{
		{"--socket", f.socket}, {"--runtime-dir", f.runtimeDir}, {"--ssh", f.ssh},
		{"--config", f.config}, {"--policy", f.policy},
	} {
		if flag.value != "" {
			given = append(given, flag.name)
		}
	}
	if len(given) > 1 {
		return ui.Usage("%s name different gloveds; give one of them", strings.Join(given, " and "))
	}
	return nil
}

// connection is an open client and what it leaves to clean up.
type connection struct {
	client *client.Client
	what   string // for people: whom we talk to
	clean  func() error
}

// close ends the connection and removes what was made for it.
func (c *connection) close() error {
	return errors.Join(c.client.Close(), c.clean())
}

// target is how to reach a gloved: a socket, or a command that speaks on its stdio.
type target struct {
	socket string // with the secret beside it
	argv   []string
	what   string
	clean  func() error
}

func nothing() error { return nil }

// target finds out whom the flags mean. What it makes is removed by clean.
func (a *app) target(f connectFlags) (*target, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	for _, path := range []*string{&f.socket, &f.runtimeDir} {
		if *path == "" {
			continue
		}
		whole, err := filepath.Abs(*path)
		if err != nil {
			return nil, ui.Failf("path_unusable", "%w", err)
		}
		*path = whole
	}
	switch {
	case f.socket != "":
		return &target{socket: f.socket, what: "the gloved at " + f.socket, clean: nothing}, nil
	case f.runtimeDir != "":
		return &target{socket: filepath.Join(f.runtimeDir, transport.SocketName),
			what: "the gloved at " + f.runtimeDir, clean: nothing}, nil
	case f.ssh != "":
		if strings.HasPrefix(f.ssh, "-") {
			return nil, ui.Usage("--ssh is a host, and no host begins with \"-\"")
		}
		return &target{argv: []string{"ssh", "-T", "--", f.ssh, f.remote}, what: "a gloved on " + f.ssh, clean: nothing}, nil
	}
	program, err := a.glovedCommand(f.gloved)
	if err != nil {
		return nil, err
	}
	config := f.config
	if config == "" && f.policy == "" {
		config = a.ownConfig()
	}
	if config != "" {
		path, err := filepath.Abs(config)
		if err != nil {
			return nil, ui.Failf("config_unreadable", "%w", err)
		}
		return &target{argv: append(program, "--stdio", "--config", path), what: "a gloved with " + path, clean: nothing}, nil
	}
	return a.temporaryTarget(program, f.policy)
}

// ownConfig is the user's configuration file, or "" where there is none.
func (a *app) ownConfig() string {
	dir, err := a.configDir()
	if err != nil {
		return ""
	}
	path := filepath.Join(dir, "config.json")
	if _, err := os.Lstat(path); err != nil {
		return ""
	}
	return path
}

// temporaryTarget is a gloved whose whole state is new and goes with it.
func (a *app) temporaryTarget(program []string, policy string) (*target, error) {
	dir, err := os.MkdirTemp("", "glove-rpc-")
	if err != nil {
		return nil, ui.Failf("no_temporary_state", "%w", err)
	}
	clean := func() error { return os.RemoveAll(dir) }
	key := filepath.Join(dir, "audit.key")
	if err := safefile.WriteOwner(key, []byte(newSecret()+"\n")); err != nil {
		return nil, errors.Join(ui.Failf("no_temporary_state", "%w", err), clean())
	}
	argv := append(program, "--stdio", "--audit-key", key, "--journal", filepath.Join(dir, "receipts.jsonl"))
	what := "a temporary gloved; nothing of it is kept"
	if policy != "" {
		path, err := filepath.Abs(policy)
		if err != nil {
			return nil, errors.Join(ui.Failf("policy_file", "%w", err), clean())
		}
		argv = append(argv, "--session-policy", path, "--session-store", filepath.Join(dir, "sessions.jsonl"))
		what = "a temporary gloved with " + path + "; nothing of it is kept"
	}
	return &target{argv: argv, what: what, clean: clean}, nil
}

// connect opens the gloved the flags mean. onNote gets its notifications.
func (a *app) connect(ctx context.Context, f connectFlags, onNote func(client.Note)) (*connection, error) {
	to, err := a.target(f)
	if err != nil {
		return nil, err
	}
	options := client.Options{OnNote: onNote, Name: wire.Implementation{Name: "glove", Version: version.Get().Build()}}
	var c *client.Client
	if to.socket != "" {
		options.Secret, err = transport.ReadSecret(filepath.Dir(to.socket))
		if err == nil {
			c, err = client.DialSocket(ctx, to.socket, options)
		}
	} else {
		c, err = client.SpawnStdio(ctx, to.argv, options)
	}
	if err != nil {
		return nil, errors.Join(connectFailure(err), to.clean())
	}
	a.skewed(to.what, c.Hello())
	return &connection{client: c, what: to.what, clean: to.clean}, nil
}

// skewed says when a gloved is of another build than this glove, before anything that
// only one of them knows is refused. It keeps nothing from being asked: most builds
// understand each other, and a gloved that does not speak the protocol's version has
// refused to open the connection already.
func (a *app) skewed(what string, hello *wire.InitializeResult) {
	ours := version.Get().Build()
	if hello == nil || hello.Server.Version == ours {
		return
	}
	a.Errf("%s\n", ui.Paint(a.ErrColor, ui.Dim, ui.Printable(fmt.Sprintf(
		"glove: %s is gloved %s, this is glove %s. If it refuses what it does not know: use the glove of that build, or have that gloved replaced by this build and restarted; its sessions go on.",
		what, hello.Server.Version, ours))))
}

// connectFailure says why there is no conversation.
func connectFailure(err error) error {
	var foreign *client.NonProtocolError
	var refusal *rpc.Error
	var file *safefile.Error
	var socket *transport.Error
	var complaint *client.ComplaintError
	switch {
	case errors.As(err, &foreign) && foreign.Total == 0 && errors.As(err, &complaint):
		return &ui.Error{Code: "gloved_not_started", Message: complaint.Err.Error(), Err: err,
			Detail: append([]string{"it said:"}, strings.Split(strings.TrimSpace(complaint.Said), "\n")...)}
	case errors.As(err, &foreign) && foreign.Total == 0:
		return &ui.Error{Code: "gloved_not_started", Message: err.Error(), Err: err,
			Next: "it said nothing on standard error: try it by hand"}
	case errors.As(err, &foreign):
		return &ui.Error{Code: "no_protocol", Message: err.Error(), Err: err,
			Next: "what came is not gloved's: a login banner, or a shell's complaint"}
	case errors.As(err, &refusal):
		return &ui.Error{Code: string(refusal.Code), Message: refusal.Message, Err: err}
	case errors.As(err, &file) && file.Code == safefile.CodeNotFound, errors.As(err, &socket):
		return &ui.Error{Code: "not_running", Message: err.Error(), Err: err,
			Next: "start one: gloved --runtime-dir DIRECTORY …, or leave the option out to use a temporary one"}
	case errors.Is(err, context.Canceled):
		return &ui.Error{Code: "interrupted", Message: "the conversation was interrupted", Err: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &ui.Error{Code: "no_answer", Message: "gloved took the connection and does not answer", Err: err,
			Next: "it is stopped, or stuck: if it stays so, end its process; its sessions go on, and the next gloved adopts them"}
	case errors.Is(err, io.EOF), errors.Is(err, client.ErrClosed):
		return &ui.Error{Code: "connection_lost", Message: "gloved ended the connection", Err: err,
			Next: "a request that had no answer may or may not have taken effect: ask again with the same idempotency_key"}
	}
	return &ui.Error{Code: "connection_failed", Message: fmt.Sprint(err), Err: err}
}
