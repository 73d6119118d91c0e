package wire

// Bounds of the terminal methods (facts §1 and §19).
const (
	MaxAttachBytes = 64 << 10  // AttachParams.MaxBytes
	MaxWriteBytes  = 64 << 10  // WriteStdinParams.Data, decoded
	MaxWaitMS      = 30_000    // AttachParams.WaitMS
	MaxTerminalDim = 4096      // ResizeParams.Rows and Columns
	FollowWindow   = 256 << 10 // unacknowledged output of one follower, in bytes
)

// Names of the server's notifications.
const (
	NotifySessionOutput   = "session_output"
	NotifySessionEnded    = "session_ended"
	NotifySessionProgress = "session_progress"
)

// Signals that SignalParams may name.
const (
	SignalInterrupt = "interrupt"
	SignalTerminate = "terminate"
	SignalHangup    = "hangup"
)

// AttachParams reads a session's output from Cursor. With WaitMS it waits until
// there is something, the end, or the time. With Follow the answer comes at
// once and output follows as notifications.
type AttachParams struct {
	SessionID string `json:"session_id"`
	Cursor    int64  `json:"cursor"`
	MaxBytes  int    `json:"max_bytes" jsonschema:"1 to 65536"`
	WaitMS    int64  `json:"wait_ms,omitzero" jsonschema:"0 to 30000"`
	Follow    bool   `json:"follow,omitzero"`
}

// AttachResult is a piece of output. Truncated says that bytes between the
// cursor asked for and OldestCursor are gone; EOF that there will be no more
// after NextCursor.
type AttachResult struct {
	OldestCursor int64  `json:"oldest_cursor"`
	NextCursor   int64  `json:"next_cursor"`
	Truncated    bool   `json:"truncated"`
	EOF          bool   `json:"eof"`
	Data         []byte `json:"data"`
}

// AttachCreditParams says how far a follower has read: everything before Cursor
// is acknowledged.
type AttachCreditParams struct {
	SessionID string `json:"session_id"`
	Cursor    int64  `json:"cursor"`
}

// SessionOutputParams is a piece of followed output that starts at Cursor.
// Truncated says that bytes before it were missed.
type SessionOutputParams struct {
	SessionID string `json:"session_id"`
	Cursor    int64  `json:"cursor"`
	Truncated bool   `json:"truncated,omitzero"`
	Data      []byte `json:"data"`
}

// SessionEndedParams ends a followed session: no output follows Cursor.
type SessionEndedParams struct {
	SessionID        string `json:"session_id"`
	Cursor           int64  `json:"cursor"`
	State            string `json:"state"`
	TerminationCause string `json:"termination_cause,omitempty"`
	ExitCode         *int   `json:"exit_code,omitempty"`
	// Signal is the number of the signal that ended the harness, where
	// TerminationCause is "signaled" and this gloved saw it happen.
	Signal int `json:"signal,omitzero"`
}

// SessionProgressParams tells whoever called start_session how much of the
// granted trees has been copied; a few times a second, while it is being done.
type SessionProgressParams struct {
	SessionID string `json:"session_id"`
	Bytes     int64  `json:"bytes"`
	Entries   int64  `json:"entries"`
}

// WriteStdinParams sends bytes to the session's terminal.
type WriteStdinParams struct {
	SessionID string `json:"session_id"`
	Data      []byte `json:"data" jsonschema:"1 to 65536 bytes"`
}

// OrderKey orders requests by session.
func (p *WriteStdinParams) OrderKey() string { return p.SessionID }

// WriteStdinResult says how many bytes were taken: all of them.
type WriteStdinResult struct {
	Written int `json:"written"`
}

// ResizeParams sets the size of the session's terminal. For a session that has
// not started it is remembered, so that the size is right before the first byte.
// Only such a one may also ask for a transparent terminal: one that changes no
// byte of what the session writes, echoes nothing, and reads input as it is but
// for two control characters, ^D (what came so far is handed on; nothing came:
// end of input) and ^V (the next byte is data). It is for input and output that
// are files and pipes at the other end.
type ResizeParams struct {
	SessionID string `json:"session_id"`
	Rows      int    `json:"rows" jsonschema:"1 to 4096"`
	Columns   int    `json:"columns" jsonschema:"1 to 4096"`

	Transparent bool `json:"transparent,omitzero" jsonschema:"before the session starts only"`
}

// OrderKey orders requests by session.
func (p *ResizeParams) OrderKey() string { return p.SessionID }

// SignalParams sends a signal to the session's foreground process group.
type SignalParams struct {
	SessionID string `json:"session_id"`
	Signal    string `json:"signal" jsonschema:"interrupt, terminate or hangup"`
}

// OrderKey orders requests by session.
func (p *SignalParams) OrderKey() string { return p.SessionID }

// DetachParams says up to where the controller has read.
type DetachParams struct {
	SessionID        string `json:"session_id"`
	TranscriptCursor int64  `json:"transcript_cursor"`
}

// OrderKey orders requests by session.
func (p *DetachParams) OrderKey() string { return p.SessionID }

// DetachResult repeats the cursor.
type DetachResult struct {
	TranscriptCursor int64 `json:"transcript_cursor"`
}
