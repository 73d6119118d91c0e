// Package sandbox makes the room a session's process lives in, puts the process
// into it and takes the room away again.
//
// Its nouns:
//
//   - The *caller* is the process that uses this package: the session's monitor.
//     It is root, or root of a user namespace that maps one unprivileged uid.
//   - *init* is pid 1 of the session's PID namespace. It builds the root
//     filesystem while it still has capabilities, then executes itself once more
//     without any and from then on only reaps and forwards signals.
//   - *launch* is init's only child. It confines itself (identity, limits,
//     capabilities, Landlock, seccomp), proves the confinement by trying forbidden
//     acts, waits to be released, and then becomes
//   - the *harness*: the program the session is for.
//
// init and launch are the caller's own executable, run from a sealed memory copy
// (SealedExe), so that nothing inside a session can ever open the host's file.
// A program that starts sessions calls Main first thing in main.
//
// Start returns while launch is still blocked: whatever must be durable before a
// session runs is made durable then, and Session.Release lets it go.
//
// The package has no opinion about cgroups, quotas, terminals beyond handing the
// PTY master out, policies or receipts; those are the caller's. It is not for
// running trusted helpers, and it never falls back to a weaker room: a step that
// cannot be made fails the start with a StepError that names the step.
//
// Kernel: Linux 5.12 or newer (mount_setattr); Landlock is used at the ABI level
// found, which is recorded, and may be absent.
package sandbox
