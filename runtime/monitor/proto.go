package monitor

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"gloved.dev/internal/digest"
)

// The protocol is JSON-RPC, one message a line, over the owner-only socket
// "monitor.sock" in the session's directory. gloved asks, the monitor answers. The
// gloved that starts a monitor uses the socket pair that it was born with instead,
// first for the ground and the Spec, and needs no hello there.
//
//	gloved  --hello {protocol_version, nonce}-->            monitor
//	gloved  <--{protocol_version, session_id, nonce, proof}--
//	gloved  --prove {proof}-->                              (the rest is refused before it)
//	gloved  <--Status--
//	gloved  --prepare {}-->         resources are made; progress notifications while copying
//	gloved  <--Prepared--
//	        (gloved writes its durable "starting" record)
//	gloved  --launch {profile_digest}-->   init, launch, confinement, probe; the child is blocked
//	gloved  <--Launched--
//	        (gloved writes its durable "running" record)
//	gloved  --release {}-->         the harness runs
//	gloved  <--Status--
//	gloved  --read write resize signal stop status-->  any number, any order
//	        <--ended-- (notification)      the outcome is durable
//	gloved  --finish {}-->          transcript no longer needed; the monitor exits
//
// If the connection that prepared is lost before release, the monitor undoes
// everything and exits: nobody has a durable record of a running process.
const (
	methodHello    = "hello"
	methodProve    = "prove"
	methodPrepare  = "prepare"
	methodLaunch   = "launch"
	methodRelease  = "release"
	methodStatus   = "status"
	methodRead     = "read"
	methodWrite    = "write"
	methodResize   = "resize"
	methodSignal   = "signal"
	methodStop     = "stop"
	methodFinish   = "finish"
	notifyProgress = "progress"
	notifyEnded    = "ended"
)

type helloParams struct {
	ProtocolVersion int    `json:"protocol_version"`
	Nonce           string `json:"nonce"`
}

type helloResult struct {
	ProtocolVersion int    `json:"protocol_version"`
	SessionID       string `json:"session_id"`
	Nonce           string `json:"nonce"`
	Proof           string `json:"proof"`
}

type proveParams struct {
	Proof string `json:"proof"`
}

type launchParams struct {
	ProfileDigest string `json:"profile_digest"`
}

type readParams struct {
	Cursor   uint64 `json:"cursor"`
	MaxBytes int    `json:"max_bytes"`
	WaitMS   int    `json:"wait_ms"`
}

type writeParams struct {
	Data []byte `json:"data"`
}

type writeResult struct {
	Written int `json:"written"`
}

type resizeParams struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

type signalParams struct {
	Signal string `json:"signal"`
}

type stopParams struct {
	GraceMS int `json:"grace_ms"`
}

type none struct{}

// A Chunk is a piece of the transcript. Cursors are absolute byte offsets since
// the session began; Next is where to go on reading.
type Chunk struct {
	Oldest    uint64 `json:"oldest_cursor"`
	Next      uint64 `json:"next_cursor"`
	Truncated bool   `json:"truncated"`
	EOF       bool   `json:"eof"`
	Data      []byte `json:"data"`
}

// Progress tells how much of the granted trees has been copied so far.
type Progress struct {
	Bytes   uint64 `json:"bytes"`
	Entries uint64 `json:"entries"`
}

// Codes of Error.
const (
	CodeProtocol    = "protocol"         // not understood, wrong version, wrong order
	CodeUnproven    = "unproven"         // the peer does not hold the session's key
	CodeState       = "state"            // not possible in the monitor's state
	CodeSetup       = "setup_failed"     // a step of preparation or launch failed
	CodeMismatch    = "profile_mismatch" // what was found differs from what was bound
	CodeInput       = "input_failed"
	CodeRead        = "read_failed"
	CodeCursor      = "cursor_ahead"
	CodeGone        = "gone" // the monitor's process or socket is not there
	CodeUnsupported = "unsupported"
)

// An Error is a refusal or failure of a monitor. Step names the set-up step
// that failed and Errno its error number (0 if none); Detail is for the
// operator's log only.
type Error struct {
	Code   string `json:"code"`
	Step   string `json:"step,omitempty"`
	Errno  uint32 `json:"errno,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Written is how much of refused input had been taken.
	Written uint32 `json:"written,omitempty"`
}

func (e *Error) Error() string {
	s := "monitor: " + e.Code
	if e.Step != "" {
		s += " at step " + e.Step
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is reports whether target is an *Error with the same code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

func fault(code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// newNonce returns 32 random bytes in hex.
func newNonce() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read does not fail: Go 1.24
	return hex.EncodeToString(b[:])
}

// NewKey returns a fresh session key.
func NewKey() string { return newNonce() }

// proof shows knowledge of key to the holder of nonce without sending it.
// The role keeps one side's proof from being played back as the other's.
func proof(key, role, theirs, mine string) string {
	m := hmac.New(sha256.New, []byte(key))
	m.Write(digest.New("glove.monitor-proof").U8(ProtocolVersion).S(role).S(theirs).S(mine).Bytes())
	return hex.EncodeToString(m.Sum(nil))
}

func proves(got, key, role, theirs, mine string) bool {
	return hmac.Equal([]byte(got), []byte(proof(key, role, theirs, mine)))
}

const (
	roleMonitor = "monitor"
	roleGloved  = "gloved"
)

// asError makes any failure into the protocol's error.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	if errors.Is(err, context.Canceled) {
		return fault(CodeGone, "the request was cancelled")
	}
	return fault(CodeSetup, "%v", err)
}
