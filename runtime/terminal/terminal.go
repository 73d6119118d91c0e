// Package terminal is the channel between a session's pseudo-terminal and
// everyone who watches it or types into it.
//
// A [Channel] owns the master side of a PTY that was opened elsewhere, inside
// the sandbox's own devpts. One goroutine, the drain, reads it for as long as
// the session lives, whether or not anyone watches: every chunk goes to the
// observer, is counted against the output limit, goes into the stream digest
// and, if it is within the limit, into the transcript, a ring that keeps the
// newest bytes. Readers are stateless: each names a cursor, the absolute
// offset of the first byte it still wants, and gets what the ring has from
// there. A reader that falls behind the ring is told so (Truncated) and never
// slows the session or another reader.
//
// Nouns: master, drain, transcript (the ring), cursor, [Chunk] (one answer to
// a reader), [Commitment] (what the receipt says about the whole stream).
//
// The stream ends when the last descriptor of the slave side is closed, at the
// output limit, at an error, at Close, or when FinishDrain gives up. The end
// is final. A program that closes its terminal and opens /dev/tty again later
// would therefore fall silent, unless somebody keeps a slave descriptor open
// until the program is gone: see Config.Hold.
//
// The package does not open PTYs, does not start or reap processes, does not
// interpret what a program prints (no escape sequences, no screen), and is not
// a log: the transcript is gone with the Channel.
package terminal

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// Bounds and defaults.
const (
	MinRingBytes     = 1 << 20  // smallest transcript
	DefaultRingBytes = 4 << 20  // transcript if Config.RingBytes is 0
	MaxRingBytes     = 16 << 20 // largest transcript

	DefaultFrame = 64 << 10 // Config.MaxRead and MaxInput if 0
	MaxFrame     = 1 << 20  // most bytes of one read or one write

	MinWait             = time.Millisecond // shortest WaitRead
	MaxWait             = 30 * time.Second // longest WaitRead, and longest InputTimeout
	DefaultInputTimeout = time.Second      // Config.InputTimeout if 0

	DefaultRows, DefaultCols = 24, 80 // size if Config has none
	MaxRows, MaxCols         = 4096, 4096
)

// Schema names the rule by which Commitment.SHA256 is computed: SHA-256 of
// every byte read from the master, in order, with nothing added.
const Schema = "glove.raw-pty-transcript-v1"

// Errors. Every error of this package is one of these or wraps one.
var (
	ErrConfig       = &Error{"invalid_config", "the configuration is out of bounds"}
	ErrBounds       = &Error{"out_of_bounds", "an argument is out of bounds"}
	ErrAhead        = &Error{"cursor_ahead", "the cursor is ahead of the session"}
	ErrEnded        = &Error{"terminal_ended", "the terminal has ended"}
	ErrOutputLimit  = &Error{"terminal_output_limit", "the terminal output limit was exceeded"}
	ErrInputTimeout = &Error{"input_timeout", "the program did not take the input in time"}
	ErrNoForeground = &Error{"no_foreground", "there is no foreground process group to signal"}
	ErrClosed       = &Error{"closed", "the channel is closed"}
	ErrDrainTimeout = &Error{"drain_timeout", "something still holds the terminal open"}
	ErrIO           = &Error{"terminal_io", "the terminal failed"}
)

// Error is a failure with a stable code and a short text for the peer.
type Error struct {
	Code string
	Text string
}

// Error gives the text.
func (e *Error) Error() string { return "terminal: " + e.Text }

// failure is an Error with the system's own error behind it, for the log.
type failure struct {
	kind  *Error
	cause error
}

func (f *failure) Error() string   { return f.kind.Error() }
func (f *failure) Unwrap() []error { return []error{f.kind, f.cause} }

func wrap(e *Error, cause error) error { return &failure{e, cause} }

// Config says how a Channel behaves.
type Config struct {
	RingBytes   int    // transcript size, MinRingBytes..MaxRingBytes; 0 is DefaultRingBytes
	OutputLimit uint64 // most bytes the program may print, at least 1
	Rows, Cols  uint16 // initial size, set before anything is read; 0 is 24 and 80
	MaxRead     int    // most bytes of one Read, 1..MaxFrame; 0 is DefaultFrame
	MaxInput    int    // most bytes of one Write, 1..MaxFrame; 0 is DefaultFrame

	// InputTimeout is how long one Write may take in all, 1 ms..MaxWait;
	// 0 is DefaultInputTimeout.
	InputTimeout time.Duration

	// Hold is a descriptor of the slave side that the Channel takes over and
	// keeps open until FinishDrain or Close, so that the stream does not end
	// while the program lives, even if it closes its terminal. May be nil.
	Hold *os.File

	// Observe sees every raw chunk before anything else does. It must not
	// keep the slice, and while it runs nothing is drained. May be nil.
	Observe func([]byte)
	// OnLimit is called once when output goes past OutputLimit, and OnError
	// once when the master fails. Both are called on the drain's goroutine,
	// after readers can see the end and before Done is closed. They must not
	// wait for the Channel to end. May be nil.
	OnLimit func()
	OnError func(error)
}

// Chunk is the answer to a reader.
type Chunk struct {
	Oldest uint64 // cursor of the oldest byte that is still kept
	Cursor uint64 // cursor of the first byte of Data
	Next   uint64 // cursor to read from next: Cursor + len(Data)

	Truncated     bool // bytes before Cursor that the reader asked for are gone
	EOF           bool // the stream has ended and Next is its end
	LimitExceeded bool // the stream ended at the output limit; set only with EOF
	Data          []byte
}

// Commitment is what can be said about the whole stream.
type Commitment struct {
	Schema    string // always Schema
	SHA256    string // lowercase hex, over every byte read, kept or not
	ByteCount uint64 // how many those were
	Complete  bool   // the stream ended by itself and every byte is covered
}

// Signal is what can be sent to the foreground process group.
type Signal int

// The signals a controller may send.
const (
	Interrupt Signal = iota + 1 // SIGINT
	Terminate                   // SIGTERM
	Hangup                      // SIGHUP
)

// ParseSignal knows the protocol's names: interrupt, terminate, hangup.
func ParseSignal(name string) (Signal, bool) {
	switch name {
	case "interrupt":
		return Interrupt, true
	case "terminate":
		return Terminate, true
	case "hangup":
		return Hangup, true
	}
	return 0, false
}

func (s Signal) number() (syscall.Signal, bool) {
	switch s {
	case Interrupt:
		return syscall.SIGINT, true
	case Terminate:
		return syscall.SIGTERM, true
	case Hangup:
		return syscall.SIGHUP, true
	}
	return 0, false
}

// withDefaults checks c and fills in what is zero.
func (c Config) withDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.RingBytes, DefaultRingBytes)
	def(&c.MaxRead, DefaultFrame)
	def(&c.MaxInput, DefaultFrame)
	if c.Rows == 0 && c.Cols == 0 {
		c.Rows, c.Cols = DefaultRows, DefaultCols
	}
	if c.InputTimeout == 0 {
		c.InputTimeout = DefaultInputTimeout
	}
	ok := c.RingBytes >= MinRingBytes && c.RingBytes <= MaxRingBytes &&
		c.OutputLimit >= 1 && validSize(c.Rows, c.Cols) &&
		c.MaxRead >= 1 && c.MaxRead <= MaxFrame && c.MaxInput >= 1 && c.MaxInput <= MaxFrame &&
		c.InputTimeout >= MinWait && c.InputTimeout <= MaxWait
	if !ok {
		return c, ErrConfig
	}
	return c, nil
}

func validSize(rows, cols uint16) bool {
	return rows >= 1 && rows <= MaxRows && cols >= 1 && cols <= MaxCols
}

// ended says whether err is how a PTY master reports that the slave side is
// closed: end of file, or EIO on Linux (pty(7); n_tty_read gives EIO only
// after everything written before the close has been read).
func ended(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, io.EOF)
}
