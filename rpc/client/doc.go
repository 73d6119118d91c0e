// Package client calls a gloved server: what a controller, `glove rpc`, the
// golden transcripts and the tests use.
//
// Its nouns: a client is one open connection; a call is one request with its
// context; a note is a notification from the server.
//
//	c, err := client.SpawnStdio(ctx, []string{"ssh", "host", "gloved", "--stdio"}, client.Options{})
//	caps, err := c.Capabilities(ctx)
//	record, err := c.SessionStatus(ctx, "session-1")
//	if errors.Is(err, rpc.SessionNotFound) { … }
//
// What the server answers with comes back as *rpc.Error. What is no protocol at
// all (a login banner, a shell's complaint) comes back as *NonProtocolError with
// the first bytes, because that is what tells a user which of the many things
// between here and the server is talking.
//
// It does not reconnect: whether a request took effect before a connection was
// lost is known to the caller's idempotency key, not to the client.
package client
