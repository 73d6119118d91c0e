// Package monitor keeps one session: it is the process that stands between
// gloved and a sandbox, and outlives gloved.
//
// Its nouns: a Spec tells a new monitor what to run; its resources (control
// group, filesystems, mounts, the pinned executable, a host user) are made
// before the first process; the Profile is the digestible sum of what was made;
// the Outcome is the durable end, from which any gloved can write the receipt.
//
// gloved starts a monitor with Spawn and talks to it with a Client; Main is the
// monitor's own side. Both prove to the other that they know the session's key
// before anything else is said. A monitor that loses its gloved before the
// harness was released undoes everything; after that it carries on alone,
// writes the Outcome and the rest of the transcript into the session's
// directory, and goes.
//
// A monitor decides nothing: what may run is the policy's business, what was
// recorded the store's. It is not for running more than one session.
package monitor
