// Package transport carries the control protocol: over standard input and
// output, over an owner-only Unix socket, and from the one to the other.
//
// Its nouns: a runtime directory is the owner-only directory (0700) with the
// lock, the bootstrap secret and the socket of one instance; a listener serves
// the socket; stdio is what was inherited from whoever started us; a relay joins
// stdio to another instance's socket.
//
//	runtime directory   0700, ours
//	  gloved.lock       0600, flock: one instance
//	  bootstrap-secret  0600, 32 random bytes in hex and LF, new at every start
//	  gloved.sock       0600, peers must have our UID and give the secret
//
// Both checks on the socket are there on purpose: the UID alone would let every
// program of the owner, sandboxed ones with a bind mount included, act as the
// owner; the secret alone would be enough for whoever reads a backup.
//
// The package moves bytes and decides who may connect. What is said is up to
// package rpc.
package transport
