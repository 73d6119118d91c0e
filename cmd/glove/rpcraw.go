package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/rpc/transport"
	"gloved.dev/rpc/wire"
)

// rawConversation sends the lines of standard input as they are and prints every frame as
// it comes. Nothing is added, not even initialize: it is for looking at the protocol.
func (a *app) rawConversation(ctx context.Context, f rpcFlags) error {
	to, err := a.target(f.connectFlags)
	if err != nil {
		return err
	}
	if to.socket != "" {
		err = a.rawSocket(ctx, to)
	} else {
		err = a.rawCommand(ctx, to)
	}
	return errors.Join(err, to.clean())
}

func (a *app) rawSocket(ctx context.Context, to *target) error {
	conn, err := transport.Dial(ctx, to.socket)
	if err != nil {
		return connectFailure(err)
	}
	defer conn.Close()
	a.Errf("%s needs the bootstrap_secret of %s\n", wire.MethodInitialize,
		filepath.Join(filepath.Dir(to.socket), transport.SecretName))
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(conn, a.In) // what went wrong shows where frames are read
		_ = conn.CloseWrite()
	}()
	return a.showFrames(conn)
}

func (a *app) rawCommand(ctx context.Context, to *target) error {
	command := exec.CommandContext(ctx, to.argv[0], to.argv[1:]...)
	command.Stdin, command.Stderr = a.In, a.Err
	if file, ok := a.In.(*os.File); ok {
		command.Stdin = file
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return connectFailure(err)
	}
	if err := command.Start(); err != nil {
		return connectFailure(err)
	}
	showErr := a.showFrames(out)
	if err := command.Wait(); err != nil {
		return errors.Join(&ui.Error{Code: "gloved_failed", Message: "gloved ended with " + err.Error(), Err: err}, showErr)
	}
	return showErr
}

func (a *app) showFrames(from io.Reader) error {
	reader := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := reader.ReadSlice('\n')
		if len(line) > 0 && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull)) {
			end := "\n"
			if errors.Is(err, bufio.ErrBufferFull) {
				end = "" // the rest of the line follows
			}
			a.Outf("%s%s", terminalSafe(line, a.OutTerm), end)
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			return nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return connectFailure(err)
		}
	}
}
