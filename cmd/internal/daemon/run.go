package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gloved.dev/cmd/internal/version"
	"gloved.dev/internal/safefile"
	"gloved.dev/journal"
	"gloved.dev/journal/receipt"
	"gloved.dev/rpc"
	"gloved.dev/rpc/service"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// holderName is the file beside the lock in which its holder says who it is. It is a
// courtesy to whoever finds the lock taken and decides nothing.
const holderName = "gloved.holder"

// stateDir is the directory whose lock makes this the only instance: the runtime
// directory, or without one the directory of the receipt journal.
func (o Options) stateDir() string {
	if o.RuntimeDir != "" {
		return o.RuntimeDir
	}
	return filepath.Dir(o.Journal)
}

func run(ctx context.Context, options Options, log *slog.Logger) error {
	if options.Stdio {
		return runStdio(ctx, options, log)
	}
	return runResident(ctx, options, log)
}

// build constructs the assembly. hold is called between reading the owner's documents and
// opening anything durable.
func build(options Options, log *slog.Logger, hold func() (io.Closer, error)) (*service.Assembly, error) {
	config := options.service(log)
	config.Hold = hold
	assembly, err := service.Build(config)
	if err != nil {
		return nil, buildFailure(err)
	}
	return assembly, nil
}

// service is what the options are to the components.
func (o Options) service(log *slog.Logger) service.Config {
	return service.Config{
		AuditKey: o.AuditKey, Journal: o.Journal,
		SessionPolicy: o.SessionPolicy, SessionStore: o.SessionStore,
		MaterializationRoot: o.MaterializationRoot, LibraryBundleRoot: o.LibraryBundleRoot,
		PathExposurePolicy: o.PathExposurePolicy, PathExposureJournal: o.PathExposureJournal,
		ApplyTrustPolicy: o.ApplyTrustPolicy, ApplyJournal: o.ApplyJournal,
		SessionUIDs: o.SessionUIDs, RotateAt: o.RotateAt,
		RuntimeDir: o.RuntimeDir, RemoteBackend: o.RemoteBackend, AppleContainer: o.AppleContainer,
		Logger: log,
	}
}

// Rotate rotates the journals of a gloved with these options that does not run.
// While one runs it fails with transport.ErrLocked in its chain.
func (o Options) Rotate(ctx context.Context, log *slog.Logger, acknowledged *receipt.Anchor, dry bool) (out []wire.JournalRotation, err error) {
	dir, err := transport.OpenRuntimeDir(o.stateDir())
	if errors.Is(err, transport.ErrLocked) {
		by, _ := holder(o.stateDir())
		return nil, fmt.Errorf("%s is in use%s: %w", o.stateDir(), by, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	return service.RotateOffline(ctx, o.service(log), acknowledged, dry)
}

func newServer(assembly *service.Assembly, log *slog.Logger) (*rpc.Server, error) {
	return rpc.NewServer(rpc.Options{
		Registry: assembly.Registry, Logger: log,
		Server: wire.Implementation{Name: "gloved", Version: version.Get().Build()},
	})
}

// runResident serves the socket of the runtime directory until ctx is done.
func runResident(ctx context.Context, options Options, log *slog.Logger) (err error) {
	var dir *transport.RuntimeDir
	assembly, err := build(options, log, func() (io.Closer, error) {
		var err error
		if dir, err = transport.OpenRuntimeDir(options.RuntimeDir); err != nil {
			return nil, lockFailure(options.RuntimeDir, err)
		}
		return announced{dir, announceHolder(options.RuntimeDir, "resident", log)}, nil
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, assembly.Close()) }()
	server, err := newServer(assembly, log)
	if err != nil {
		return err
	}
	listener, err := dir.Listen(ctx)
	if err != nil {
		return &startError{code: "socket_unusable", err: err, next: socketAdvice(err)}
	}
	log.Info("serving", "socket", listener.Path(), "methods", len(assembly.Registry.Methods(true)))
	err = listener.Serve(ctx, server, log)
	log.Info("ended")
	return err
}

// runStdio serves one connection on standard input and output, or hands it to a running
// instance.
func runStdio(ctx context.Context, options Options, log *slog.Logger) (err error) {
	dir, err := transport.OpenRuntimeDir(options.stateDir())
	if errors.Is(err, transport.ErrLocked) {
		return relay(ctx, options, log)
	}
	if err != nil {
		return lockFailure(options.stateDir(), err)
	}
	held := announced{dir, announceHolder(options.stateDir(), "stdio", log)}
	taken := false
	assembly, err := build(options, log, func() (io.Closer, error) {
		taken = true
		return held, nil
	})
	if err != nil {
		if !taken {
			err = errors.Join(err, held.Close())
		}
		return err
	}
	defer func() { err = errors.Join(err, assembly.Close()) }()
	server, err := newServer(assembly, log)
	if err != nil {
		return err
	}
	stdio, err := transport.TakeStdio()
	if err != nil {
		return &startError{code: "stdio_unusable", err: err}
	}
	return serveStdio(ctx, server, stdio)
}

// serveStdio serves until the controller has said everything and has its answers, or,
// when told to end, until what is in flight is answered.
func serveStdio(ctx context.Context, server *rpc.Server, stdio io.ReadWriteCloser) error {
	done := make(chan struct{})
	stopped := make(chan error, 1)
	go func() {
		select {
		case <-ctx.Done():
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), transport.ShutdownTimeout)
			defer cancel()
			stopped <- server.Shutdown(grace)
		case <-done:
			stopped <- nil
		}
	}()
	err := server.ServeConn(context.WithoutCancel(ctx), stdio, rpc.ConnOptions{
		Controller: true, UID: uint32(os.Geteuid()), //nolint:gosec // Geteuid is never negative on Unix
	})
	close(done)
	return errors.Join(err, <-stopped)
}

// relay joins standard input and output to the running instance, when that one has a
// socket. The connection stays a controller's there.
func relay(ctx context.Context, options Options, log *slog.Logger) error {
	dir := options.stateDir()
	locked := lockFailure(dir, transport.ErrLocked)
	secret, err := transport.ReadSecret(dir)
	if err != nil {
		return locked
	}
	conn, err := transport.Dial(ctx, filepath.Join(dir, transport.SocketName))
	if err != nil {
		// Its holder serves a connection of its own and has no socket: the secret is
		// an earlier instance's.
		return locked
	}
	stdio, err := transport.TakeStdio()
	if err != nil {
		return errors.Join(&startError{code: "stdio_unusable", err: err}, conn.Close())
	}
	log.Debug("relaying", "socket", filepath.Join(dir, transport.SocketName))
	if err := transport.Relay(ctx, stdio, conn, secret); err != nil && ctx.Err() == nil {
		by, _ := holder(dir)
		return &startError{code: "relay_failed", err: fmt.Errorf("%s is in use%s, which could not be talked to: %w", dir, by, err),
			next: "if it goes on not to answer, end that process: its sessions go on, and the next gloved adopts them"}
	}
	return nil
}

// announced closes a held directory and takes back the note about its holder.
type announced struct {
	io.Closer
	path string
}

// Close implements io.Closer.
func (a announced) Close() error {
	var err error
	if a.path != "" {
		err = os.Remove(a.path)
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil // it is gone, which is what was wanted
	}
	return errors.Join(err, a.Closer.Close())
}

// announceHolder writes who holds the directory, and returns the path to remove, or ""
// when it could not be written, which stops nothing.
func announceHolder(dir, form string, log *slog.Logger) string {
	path := filepath.Join(dir, holderName)
	text := fmt.Sprintf("%d %s %s\n", os.Getpid(), form, time.Now().UTC().Format(time.RFC3339))
	if err := safefile.WriteOwner(path, []byte(text)); err != nil {
		log.Warn("the holder's note was not written", "cause", err)
		return ""
	}
	return path
}

// maxHolderBytes bounds the note.
const maxHolderBytes = 256

// holder is what the note says, as the end of a sentence, and whether the holder is a
// resident one; "" when the note says nothing usable.
func holder(dir string) (text string, resident bool) {
	data, _, err := safefile.ReadOwner(filepath.Join(dir, holderName), maxHolderBytes)
	if err != nil {
		return "", false
	}
	fields := strings.Fields(string(data))
	if len(fields) != 3 {
		return "", false
	}
	pid, err := strconv.Atoi(fields[0])
	since, timeErr := time.Parse(time.RFC3339, fields[2])
	if err != nil || timeErr != nil || pid < 1 {
		return "", false
	}
	form, resident := "a gloved that serves one connection", fields[1] == "resident"
	if resident {
		form = "a resident gloved"
	}
	return fmt.Sprintf(" by %s (process %d, since %s)", form, pid, since.Format("2006-01-02 15:04:05 MST")), resident
}

// socketAdvice is the next step for a socket that could not be made.
func socketAdvice(err error) string {
	switch {
	case errors.Is(err, &transport.Error{Code: transport.CodeSocketForeign}):
		return "what is there is no socket of ours and is left alone: look at it, and move it away or choose another --runtime-dir"
	case errors.Is(err, &transport.Error{Code: transport.CodeSocketInUse}):
		return "somebody listens there: end it, or choose another --runtime-dir"
	}
	return ""
}

// storeAdvice is the next step for a session store that did not open.
func storeAdvice(err error) string {
	switch {
	case errors.Is(err, journal.ErrTornTail):
		return "glove journal repair FILE shows what a crash left at its end"
	case errors.Is(err, journal.ErrLocked):
		return "another gloved has this store open; end it first"
	}
	var corrupt *journal.CorruptError
	if errors.As(err, &corrupt) {
		return "glove journal verify FILE says which record does not prove; nothing was changed"
	}
	return ""
}
