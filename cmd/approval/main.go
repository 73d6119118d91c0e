// Command approval is the gate's program: it keeps the log of what agents asked
// and people decided, shows people exactly what they decide on, and runs what
// was granted. See `approval --help`, and package runtime/gate for the rules.
package main

import (
	"os"

	"gloved.dev/cmd/internal/ui"
	"gloved.dev/runtime"
	"gloved.dev/runtime/room"
)

func main() {
	runtime.Main() // a re-execution as one of a session's roles never returns
	room.Main()
	streams := ui.System()
	app := newApp(streams)
	os.Exit(ui.Run(app.root(), streams, os.Args[1:]))
}
