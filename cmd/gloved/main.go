// Command gloved runs coding agents in a sandbox for a controller that may only name
// what the owner's policy allows. See `gloved --help` and the package daemon.
package main

import (
	"os"

	"gloved.dev/cmd/internal/daemon"
	"gloved.dev/runtime"
)

func main() {
	runtime.Main() // a re-execution as one of a session's roles never returns
	os.Exit(daemon.Main(os.Args[1:]))
}
