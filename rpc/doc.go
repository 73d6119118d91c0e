// Package rpc serves the control protocol: JSON-RPC 2.0, one message a line.
//
// Its nouns: a component is something that was constructed and brings methods;
// the registry is the union of the methods of all components; a server serves
// connections from one registry; a call is one request being worked on.
//
//	peer                                server
//	  --> initialize {versions, secret?}      first, alone
//	  <-- {protocol_version, capabilities}
//	  --> request, request, request …         up to 64 in flight
//	  <-- answer, notification, answer …      in any order
//	  EOF                                     what is in flight is answered
//
// A method no component returned does not exist: it cannot be called, is not in
// capabilities and not in rpc.discover. Nothing else decides what is there.
//
// The server assumes that a peer may be hostile or broken. Frames are bounded
// (internal/frame), requests in flight are bounded by count and by bytes and
// then wait unread, connections are bounded and refused with server_busy, and a
// handler that panics costs one answer. What goes wrong inside reaches the peer
// as a stable code and a short sentence; its cause goes to the operator's log.
//
// The package is not for transports (rpc/transport), for what the methods mean
// (rpc/service), or for calling them (rpc/client).
package rpc
