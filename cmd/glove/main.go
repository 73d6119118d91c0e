// Command glove is the operator's tool for gloved: it talks to one, explains and checks
// policies, verifies journals and runs golden transcripts.
//
// It can also be a gloved itself (`glove gloved-serve`, hidden), so that `glove rpc`
// works from a clean checkout with nothing installed. It is not the daemon's
// replacement: a service runs cmd/gloved.
package main

import (
	"os"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime"
)

// serveWord makes glove take gloved's role; everything after it is gloved's command line.
const serveWord = "gloved-serve"

func main() {
	runtime.Main() // a re-execution as one of a session's roles never returns
	if len(os.Args) > 1 && os.Args[1] == serveWord {
		os.Exit(daemon.Main(os.Args[2:]))
	}
	streams := ui.System()
	app := newApp(streams)
	os.Exit(ui.Run(app.root(), streams, os.Args[1:]))
}
