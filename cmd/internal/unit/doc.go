// Package unit writes gloved's systemd unit and recognises the units it wrote.
//
// Its nouns: a [Spec] is what a unit is made from (whose manager, which systemd, which
// program and configuration); its Text is the whole file. The first line of the file
// carries the digest of the rest, by which [Inspect] tells a unit of ours from one that
// somebody changed or wrote: an [Origin].
//
// What the text must achieve: gloved may be stopped, killed, upgraded and started again
// while sessions go on under their monitors, with their limits. So
//
//   - KillMode=process: monitors are left alone. With "mixed", everything but gloved would
//     get SIGKILL.
//   - Delegate= and DelegateSubgroup=: sessions are groups of gloved's delegated group,
//     which therefore has controllers handed down and may hold no process itself (cgroup
//     v2). systemd before 254 nevertheless puts the new gloved there, which the kernel
//     refuses while a session lives (the service fails with 219/CGROUP). There the main
//     process moves into a delegated scope of its own, by systemd-run, at each start;
//     earlier scopes last as long as their sessions.
//   - no RuntimeDirectory=, which would be removed at each stop.
//
// What confines gloved itself is chosen by what its monitors do. They make user, mount,
// PID, network, IPC and UTS namespaces, set a host name, map users, and mount a new
// procfs. Therefore there are no options that work by system call filters
// (SystemCallFilter, RestrictNamespaces, MemoryDenyWriteExecute, RestrictSUIDSGID,
// LockPersonality, RestrictRealtime, ProtectHostname, ProtectClock,
// SystemCallArchitectures, RestrictAddressFamilies): a filter is inherited by every
// session, where it forbids what sandboxes are built with, or stacks on the filter that
// receipts commit to and that probes are judged by. Nor are there options that cover parts
// of /proc or /sys (ProtectProc, ProcSubset, ProtectKernelTunables, ProtectKernelLogs,
// ProtectControlGroups): in a user namespace the kernel mounts a new procfs only where the
// old one is whole, and control groups are what limits are made of. Nor other private
// mounts (ProtectSystem, ProtectHome, PrivateTmp, PrivateDevices): what a policy names must
// be what its owner sees, and a user's manager needs a user namespace for them, one more
// between gloved and its sessions. NoNewPrivileges and a smaller capability bounding set
// are safe: nothing of gloved's gains privileges by executing, and a new user namespace
// begins with a full set of its own.
//
// Socket activation is not offered: gloved makes its socket itself, after its lock and
// with a new bootstrap secret beside it that a client must read before it can say a word,
// so a socket that exists before gloved would be of no use; whoever wants a gloved on
// demand has "gloved --stdio".
//
// The package does not talk to systemd and writes no files.
package unit
