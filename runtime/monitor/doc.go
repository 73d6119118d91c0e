// Package monitor keeps one session: it is the process that stands between
// gloved and a sandbox, and outlives gloved.
//
// Its nouns: a Spec tells a new monitor what to run; its resources (control
// group, filesystems, mounts, the pinned executable, a host user) are made
// before the first process; the Profile is the digestible sum of what was made;
// the Outcome is the durable end, from which any gloved can write the receipt.
//
// gloved gets a monitor from its Spares, which lay the ground for one ahead of
// need, and talks to it with a Client; Main is the monitor's own side. The gloved
// that started it uses the socket it was born with. Another proves, and has proven
// to it, that both know the session's key before anything else is said. A monitor that loses its gloved before the
// harness was released undoes everything; after that it carries on alone,
// writes the Outcome and the rest of the transcript into the session's
// directory, and goes.
//
// A monitor decides nothing: what may run is the policy's business, what was
// recorded the store's. It is not for running more than one session.
package monitor
