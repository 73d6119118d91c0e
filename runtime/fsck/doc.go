// Package fsck compares what gloved has on record with what is on the host, and
// repairs what can be repaired by its owner alone.
//
// Its nouns: a Check is one comparison, of the session store, the receipt journal,
// monitors, control groups, directories, sockets, mounts, loop devices and the
// claims on host users; a Finding is one disagreement, with what would mend it. A
// host on which everything agrees has no findings. Sessions outlive gloved, so
// that one whose monitor proves itself agrees with its record.
//
// Comparing changes nothing: journals are read through a file system that cannot
// write (view), locks are only looked at, monitors are only asked. Repairing uses
// the runtime's own ways (runtime.Executor.Mend, journal.Repair,
// workspace.RemoveTree, the control groups' Destroy) and compares again until
// nothing more can be done, so that a repair that was cut short is finished by the
// next. Nothing is signalled or removed but by the identity that was found, and
// what bears our names with another identity is reported and left alone. No
// receipt is ever acknowledged for a controller, nor made up.
//
// It is not for a host on which a gloved runs: the caller holds the state
// directory's lock.
package fsck
