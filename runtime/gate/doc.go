// Package gate decides, by an attested policy and a verified log, whether an
// action of an agent may happen, and records every step: declared, asked,
// decided, started, ended.
//
// # An action's way
//
//	register ── task.registered: class, reversibility, cost, payload hash
//	   │
//	request ─── the policy lets it pass: nothing is written
//	   │        the policy asks a person: approval.requested
//	   │             ├─ grant ── approval.granted, a token once
//	   │             ├─ reject, revoke, withdraw
//	   │             └─ time passes: approval.expired
//	start ───── execution.started, once for ever
//	   ├─ finish ──────── execution.completed or .failed
//	   └─ indeterminate ─ execution.indeterminate, then a person reconciles
//
// What was declared in the log is what counts: class, cost, reversibility and
// payload hash never come from whoever asks later. Every step reads the whole
// log, proves it, decides, and appends only if the log still ends where it was
// read (head-moved otherwise; nothing is tried again here).
//
// # Nouns
//
// A View is the state that follows from one proven log. An Action is one
// declared key with its cycles of question and decision. A Question and a
// Decision are what agents and people put in. A token is 64 hex digits printed
// once by a grant; the log has its SHA-256. A payload is the exact JSON a person
// decides on, kept beside the log under its SHA-256.
//
// # Executions
//
// A plain action needs the token of its grant. A "harness" grant mints none and
// is for programs that run the action themselves. A "broker" grant, this
// project's own, mints none either: it is bound to payload hash, class and
// policy digest, lapses with the policy's TTL and after 24 hours at the latest,
// and is spent by the broker's own start, which names it (grant_seq).
//
// # Not for
//
// Identity is declared, not proved: who may run this program as whom is the
// operating system's matter. It confines nothing and moves no file.
package gate
