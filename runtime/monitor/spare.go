package monitor

import "time"

// SpareDelay is how long after its own start, and after one of a session, gloved
// starts the next monitor ahead of need: the processor is somebody else's first.
const SpareDelay = 100 * time.Millisecond
