package rpc

import (
	"context"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/frame"
	"gloved.dev/internal/strictjson"
	"gloved.dev/rpc/wire"
)

// Bounds of what a client says about itself.
const (
	maxVersions   = 16
	maxClientText = 128
)

// paramSecret is the member of initialize that must be absent where no secret is due: an
// empty one is there too.
const paramSecret = "bootstrap_secret"

// hasMember reports whether params, a checked JSON object or nil, has the member name.
func hasMember(params []byte, name string) bool {
	var members map[string]jsontext.Value
	if len(params) == 0 || json.Unmarshal(params, &members) != nil {
		return false
	}
	_, ok := members[name]
	return ok
}

// opening answers one request on a connection that is not open, on the reading
// goroutine: what is pipelined behind initialize finds the connection open.
func (c *conn) opening(ctx context.Context, req frame.Request) {
	var result any
	var err error
	switch {
	case req.Method == wire.MethodInitialize:
		result, err = c.initialize(req)
	case req.Method == wire.MethodRelay && c.o.Secret != "" && !c.relayed:
		result, err = c.relay(req)
	default:
		err = NewError(NotInitialized, "")
	}
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(result, json.Deterministic(true))
	}
	if ctx.Err() != nil {
		return
	}
	c.answer(req.ID, raw, err)
	if err != nil && public(err).Code == Unauthorized {
		c.log.Warn("peer not authorized", "uid", c.o.UID, "pid", c.o.PID)
		c.close()
	}
}

// openParams decodes what opens a connection. There is no key, and a deadline
// counts as anywhere.
func (c *conn) openParams(req frame.Request, p any) error {
	shared, rest, err := splitParams(req.Params)
	if err != nil {
		return err
	}
	if shared.key != "" {
		return badMember(paramKey, strictjson.CodeUnknownMember, "the method takes no idempotency_key")
	}
	if err := strictjson.Decode(rest, p, strictjson.Limits{}); err != nil {
		return invalidParams(err)
	}
	return (&Call{Deadline: shared.deadline, clock: c.s.clock, ctx: context.Background()}).Admit()
}

func (c *conn) initialize(req frame.Request) (*wire.InitializeResult, error) {
	var p wire.InitializeParams
	if err := c.openParams(req, &p); err != nil {
		return nil, err
	}
	if err := c.checkSecret(p.BootstrapSecret, hasMember(req.Params, paramSecret)); err != nil {
		return nil, err
	}
	if len(p.ProtocolVersions) < 1 || len(p.ProtocolVersions) > maxVersions {
		return nil, badMember("protocol_versions", strictjson.CodeNumberRange, "protocol_versions has 1 to 16 members")
	}
	if !clientText(p.Client.Name) || !clientText(p.Client.Version) {
		return nil, badMember("client", strictjson.CodeType, "name and version are 1 to 128 printable ASCII characters")
	}
	if !slices.Contains(p.ProtocolVersions, wire.ProtocolVersion) {
		return nil, NewError(UnsupportedProtocol, "").With("supported", []int{wire.ProtocolVersion})
	}
	c.peer.Client = p.Client.Name + "/" + p.Client.Version
	c.opened.Store(true)
	c.log.Info("connection opened", "client", c.peer.Client, "controller", c.peer.Controller)
	return &wire.InitializeResult{ProtocolVersion: wire.ProtocolVersion, Server: c.s.name,
		Capabilities: *c.s.registry.Capabilities(c.peer.OwnerLocal)}, nil
}

// checkSecret: on a socket the secret is required; where the channel was
// inherited, directly or through a relay, it must be absent, so that a secret
// never travels where it is not needed.
func (c *conn) checkSecret(given string, present bool) error {
	if c.o.Secret == "" || c.relayed {
		if present {
			return badMember(paramSecret, strictjson.CodeUnknownMember, "this connection takes no bootstrap_secret")
		}
		return nil
	}
	if !secretEqual(given, c.o.Secret) {
		return NewError(Unauthorized, "")
	}
	return nil
}

// relay turns the connection into a controller's before it is opened.
func (c *conn) relay(req frame.Request) (*wire.Empty, error) {
	var p wire.RelayParams
	if err := c.openParams(req, &p); err != nil {
		return nil, err
	}
	if !secretEqual(p.BootstrapSecret, c.o.Secret) {
		return nil, NewError(Unauthorized, "")
	}
	c.relayed = true
	c.peer.Controller, c.peer.OwnerLocal = true, false
	return &wire.Empty{}, nil
}

// clientText keeps control characters out of the operator's log.
func clientText(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxClientText
}
