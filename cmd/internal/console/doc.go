// Package console joins a person's terminal, or a pair of pipes, to a session.
//
// Nouns: a Terminal is this end, which can be raw and is always put back; a Feed is a
// session's output as it arrives, by cursor, with the credit returned for what was
// written; input goes the other way through Type (a person's keys) or Pour (a file's
// bytes, see wire.ResizeParams for how every byte and the end of input get through a
// transparent terminal); Modes remembers what the session switched on in the terminal,
// so that a session that is killed does not leave a mouse or a hidden cursor behind.
//
// The package knows the session methods of the protocol and no others. It decides
// nothing about sessions: who may attach, when one ends and what that means are the
// caller's.
package console
