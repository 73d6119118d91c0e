// Package daemon is the body of gloved: its command line, its configuration file, and
// the life of one process from start to end. cmd/gloved is a main around it, and glove
// hosts the same role so that a lone glove can serve what it asks.
//
// A process is either resident (a Unix socket beneath the runtime directory) or serves
// one connection on standard input and output (--stdio). Either way it holds the state
// directory's lock while it runs; a --stdio process that finds the lock taken relays to
// the resident holder's controller socket instead.
//
// Exit codes: 0 when it ended as asked, 1 when it could not run or stopped working, 2
// when the command line or the configuration is wrong. Diagnostics go to standard error
// only, as text on a terminal and as JSON lines elsewhere: standard output belongs to
// the protocol.
//
// The package decides nothing about methods: rpc/service constructs them.
package daemon
