// Package runtime runs sessions: it takes an admitted, authorized session from
// its record in the store to a confined process and from there to a receipt,
// and it finds again, after any crash, what it had started.
//
// Its nouns: an Executor is gloved's one runtime; each session it runs has a
// monitor (runtime/monitor), a process of its own which holds the sandbox and
// outlives gloved; a settlement turns the outcome a monitor left behind into
// the receipt and the record's end, exactly once.
//
// The order of the durable steps is the heart of it. Room for the receipt is
// reserved before anything starts. "starting" is on disk before the process
// tree exists, "running" before its blocked child is let go, the outcome before
// anybody hears of the end, the receipt before "exited". Whatever is killed in
// between, the next Reconcile finds a record that tells it what to do.
//
// It is not for deciding what may run (policy) nor for confining it
// (runtime/sandbox).
package runtime
