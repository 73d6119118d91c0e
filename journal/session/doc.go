// Package session is the durable memory of managed sessions: which exist, in
// what state, under whose authorization, and how each one ended.
//
// # Nouns
//
// A session is created from a validated plan and named by an identifier that can
// also name things on disk. A Record is what the store knows of one session; it
// is the sum of the session's lines in the journal, each of which records one
// operation. A commitment is the length-prefixed SHA-256 of what an operation
// binds; it is the operation's request digest, and recovery computes it again.
//
//	created → preparing → starting → running → stopping → exited
//	              │           └─────────┴─────────┴──────→ failed
//	              └── only when its authorization has expired ──↗
//
// Every operation carries an idempotency key. Keys live in one space over all
// sessions and operations: a known key with the same operation and content
// returns the record as it was then, with anything else idempotency_conflict.
//
// A store that is rotated keeps the sessions something may still happen to, whole,
// and of every other one its id and the archive that its records are in: whatever
// is asked of such a session is refused as archived, and the id is never free again.
//
// The store is not where plans are judged (the caller's callbacks do that, with
// the clock the store gives them), it starts nothing, and it holds no receipts:
// it only insists that a terminal receipt is durable before a session is exited.
package session
