package runtime

import (
	"gloved.dev/runtime/monitor"
	"gloved.dev/runtime/sandbox"
)

// Main must come first in the main function of every binary that may host a
// session: a process that was started as one of our roles (monitor, init,
// launch) plays it and never returns.
func Main() {
	sandbox.Main()
	monitor.Main()
}
