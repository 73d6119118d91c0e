// Package cgroup limits, counts and ends the processes of one session with
// Linux control groups, through one interface over cgroup v2 and cgroup v1.
//
// The nouns:
//
//   - A [Host] is the place below which this process may create groups: its
//     base. [Detect] finds or prepares it.
//   - A [Group] is one session's control group: on v2 one directory, on v1 one
//     directory in each of the memory, pids, cpuacct and (where mounted) freezer
//     hierarchies. It is held by descriptors, never by path.
//   - An [Identity] names a group across restarts of the supervisor by device,
//     inode and a digest of its path, so that an adopted group is the one that
//     was created and not another that took its name.
//   - A [ProcessIdentity] does the same for a process: a PID alone names nothing.
//   - A [Watcher] reports the first limit a group ran into.
//
// # Layout
//
// Every process that shares a starting point finds the same base, so that many
// supervisors work side by side and a later one can adopt what an earlier one
// left:
//
//	v2, delegated:   <own cgroup>/<session group>      and <own cgroup>/glove-host-*/
//	v2, root:        /glove/<session group>
//	v1:              <own path>/glove/<session group>  in every hierarchy
//
// cgroup v2 forbids processes in a group whose controllers are handed down, so on
// a delegated group the supervisor first steps aside into a leaf named
// "glove-host-*"; a process that finds itself in such a leaf takes the parent for
// its base. Controllers once handed down stay so: another supervisor may rely
// on them at any time, and no lock on a world-readable directory could be
// trusted to say otherwise.
//
// # What it is not for
//
// It does not set cpu weights or quotas, io limits or device rules; CPU time is
// counted here and enforced by the caller on the [Watcher]'s word. It never
// touches a group it did not create, except that on a delegated cgroup v2 it
// moves the processes already there into its own leaf. The limited group is
// for the session's own processes: whoever supervises must stay outside, or a
// limit would kill the bookkeeper.
package cgroup
