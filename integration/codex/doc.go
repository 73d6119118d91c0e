// Package codex tests the approval program's codex commands as installed: the real binary with the
// real gate, driven from outside as an agent's host and a person would.
//
// Nouns: an instance is an installation in a temporary folder, with manifest, policy, log and
// workspace; an act is something that must fail in the confined room, and that is first done
// outside, where it must work, so that no test passes because the act was wrong.
//
// It is not for crash points and injected faults, which need the inside of runtime/broker, and not
// for the room's mechanism, which runtime/sandbox tests.
package codex
