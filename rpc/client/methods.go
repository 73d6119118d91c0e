package client

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/rpc"
	"gloved.dev/rpc/wire"
)

func call[R any](ctx context.Context, c *Client, method string, params any, opts []CallOption) (*R, error) {
	r := new(R)
	if err := c.Call(ctx, method, params, r, opts...); err != nil {
		return nil, err
	}
	return r, nil
}

// Capabilities returns what the server was built with.
func (c *Client) Capabilities(ctx context.Context, opts ...CallOption) (*wire.Capabilities, error) {
	return call[wire.Capabilities](ctx, c, wire.MethodCapabilities, nil, opts)
}

// Health returns whether the server can do its work.
func (c *Client) Health(ctx context.Context, opts ...CallOption) (*wire.Health, error) {
	return call[wire.Health](ctx, c, wire.MethodHealth, nil, opts)
}

// Discover returns the OpenRPC document of what we may call.
func (c *Client) Discover(ctx context.Context, opts ...CallOption) (*rpc.Document, error) {
	return call[rpc.Document](ctx, c, wire.MethodDiscover, nil, opts)
}

// PageReceipts returns receipts after the anchor, at most limit.
func (c *Client) PageReceipts(ctx context.Context, anchor wire.Anchor, limit int, opts ...CallOption) (*wire.PageReceiptsResult, error) {
	return call[wire.PageReceiptsResult](ctx, c, wire.MethodPageReceipts, &wire.PageReceiptsParams{Anchor: anchor, Limit: limit}, opts)
}

// AcknowledgeReceipts acknowledges everything up to the anchor, which must be the
// head.
func (c *Client) AcknowledgeReceipts(ctx context.Context, key string, anchor wire.Anchor, opts ...CallOption) (*wire.AcknowledgeReceiptsResult, error) {
	return call[wire.AcknowledgeReceiptsResult](ctx, c, wire.MethodAcknowledgeReceipts,
		&wire.AcknowledgeReceiptsParams{Anchor: anchor}, append(opts, WithKey(key)))
}

// ValidatePlan asks whether a plan would be admitted.
func (c *Client) ValidatePlan(ctx context.Context, plan []byte, opts ...CallOption) (*wire.ValidatePlanResult, error) {
	return call[wire.ValidatePlanResult](ctx, c, wire.MethodValidatePlan, &wire.ValidatePlanParams{Plan: jsontext.Value(plan)}, opts)
}

// CreateSession creates a session.
func (c *Client) CreateSession(ctx context.Context, key string, p *wire.CreateSessionParams, opts ...CallOption) (*wire.Session, error) {
	return call[wire.Session](ctx, c, wire.MethodCreateSession, p, append(opts, WithKey(key)))
}

// SessionStatus returns a session's record.
func (c *Client) SessionStatus(ctx context.Context, id string, opts ...CallOption) (*wire.Session, error) {
	return call[wire.Session](ctx, c, wire.MethodSessionStatus, &wire.SessionParams{SessionID: id}, opts)
}

// ListSessions returns one page of records.
func (c *Client) ListSessions(ctx context.Context, p *wire.ListSessionsParams, opts ...CallOption) (*wire.ListSessionsResult, error) {
	return call[wire.ListSessionsResult](ctx, c, wire.MethodListSessions, p, opts)
}

// StartSession starts a session.
func (c *Client) StartSession(ctx context.Context, key string, a wire.StartAuthorization, opts ...CallOption) (*wire.Session, error) {
	return call[wire.Session](ctx, c, wire.MethodStartSession, &wire.StartSessionParams{Authorization: a}, append(opts, WithKey(key)))
}

// Attach reads a session's output; with Follow set, more comes as notes.
func (c *Client) Attach(ctx context.Context, p *wire.AttachParams, opts ...CallOption) (*wire.AttachResult, error) {
	return call[wire.AttachResult](ctx, c, wire.MethodAttach, p, opts)
}

// AttachCredit acknowledges followed output before cursor.
func (c *Client) AttachCredit(ctx context.Context, id string, cursor int64) error {
	return c.Notify(ctx, wire.MethodAttachCredit, &wire.AttachCreditParams{SessionID: id, Cursor: cursor})
}

// WriteStdin sends bytes to a session's terminal.
func (c *Client) WriteStdin(ctx context.Context, id string, data []byte, opts ...CallOption) (*wire.WriteStdinResult, error) {
	return call[wire.WriteStdinResult](ctx, c, wire.MethodWriteStdin, &wire.WriteStdinParams{SessionID: id, Data: data}, opts)
}

// Resize sets the size of a session's terminal.
func (c *Client) Resize(ctx context.Context, id string, rows, columns int, opts ...CallOption) error {
	return c.Call(ctx, wire.MethodResize, &wire.ResizeParams{SessionID: id, Rows: rows, Columns: columns}, nil, opts...)
}

// Signal sends one of wire's signals to a session.
func (c *Client) Signal(ctx context.Context, id, signal string, opts ...CallOption) error {
	return c.Call(ctx, wire.MethodSignal, &wire.SignalParams{SessionID: id, Signal: signal}, nil, opts...)
}

// Detach says up to where a session's output was read.
func (c *Client) Detach(ctx context.Context, id string, cursor int64, opts ...CallOption) (*wire.DetachResult, error) {
	return call[wire.DetachResult](ctx, c, wire.MethodDetach, &wire.DetachParams{SessionID: id, TranscriptCursor: cursor}, opts)
}

// StopSession stops a session and returns its record.
func (c *Client) StopSession(ctx context.Context, key, id string, opts ...CallOption) (*wire.Session, error) {
	return call[wire.Session](ctx, c, wire.MethodStopSession, &wire.SessionParams{SessionID: id}, append(opts, WithKey(key)))
}

// CleanupSession lets go of what a finished session still holds.
func (c *Client) CleanupSession(ctx context.Context, id string, opts ...CallOption) (*wire.Session, error) {
	return call[wire.Session](ctx, c, wire.MethodCleanupSession, &wire.SessionParams{SessionID: id}, opts)
}

// RotateJournals puts what has ended into archives; with dryRun it only counts. It
// is for the owner, over the socket.
func (c *Client) RotateJournals(ctx context.Context, key string, dryRun bool, opts ...CallOption) (*wire.RotateJournalsResult, error) {
	return call[wire.RotateJournalsResult](ctx, c, wire.MethodRotateJournals, &wire.RotateJournalsParams{DryRun: dryRun}, append(opts, WithKey(key)))
}
