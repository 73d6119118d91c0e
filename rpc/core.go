package rpc

import (
	"context"

	"gloved.dev/rpc/wire"
)

// core brings the methods that every server has.
type core struct{ r *Registry }

// Methods implements Component.
func (k *core) Methods() []Method {
	return []Method{
		NewMethod(wire.MethodInitialize, "Open the connection: agree on a protocol version.",
			MethodOptions{Errors: []Code{Unauthorized, UnsupportedProtocol, AlreadyInitialized}}, k.initialize),
		NewMethod(wire.MethodCapabilities, "Say what this server was built with.", MethodOptions{}, k.capabilities),
		NewMethod(wire.MethodHealth, "Say whether the server can do its work.", MethodOptions{}, k.health),
		NewMethod(wire.MethodDiscover, "Describe every method in OpenRPC.", MethodOptions{}, k.discover),
	}
}

// initialize is reached on open connections only; see conn.opening.
func (k *core) initialize(context.Context, *Call, *wire.InitializeParams) (*wire.InitializeResult, error) {
	return nil, NewError(AlreadyInitialized, "")
}

func (k *core) capabilities(_ context.Context, c *Call, _ *wire.Empty) (*wire.Capabilities, error) {
	return k.r.Capabilities(c.Peer.OwnerLocal), nil
}

func (k *core) health(ctx context.Context, _ *Call, _ *wire.Empty) (*wire.Health, error) {
	return k.r.Health(ctx), nil
}

func (k *core) discover(_ context.Context, c *Call, _ *wire.Empty) (*Document, error) {
	return k.r.Describe(c.Peer.OwnerLocal)
}
