package monitor

import "time"

// SpareDelay is how long after a start the next monitor is started ahead of
// need: the processor is the new session's first.
const SpareDelay = 100 * time.Millisecond
