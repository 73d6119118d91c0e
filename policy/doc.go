// Package policy decides what a controller's plan may do on this machine. It holds the owner's
// session policy, the identifier-only plans judged against it, launch templates, and the digests
// that bind one to the other.
//
// Nouns:
//
//   - a Document is the owner's policy as written; a Policy is a Document that passed every check and
//     is frozen for the life of the process;
//   - a Template is one runtime that a plan may select; its Launch says what is executed, and the
//     digest of that Launch is what a plan must repeat;
//   - a Plan is what a controller sends (schema 1 with static path aliases, schema 2 with exposure
//     grants); it names policy entries and carries digests, never a path, argument, variable or
//     secret;
//   - Accepted is a plan that the policy admits, with its canonical bytes and digests;
//   - a ResolvedLaunch is an accepted plan with the owner's local facts filled in: executable,
//     arguments, environment, host paths, limits.
//
// Every refusal is typed. Error is about the policy document and is for the owner: it has a JSON
// pointer and says how to mend the fault. PlanError is about a plan: its text and Reason are safe for
// the controller, its Detail and PolicyPointer name local lines and stay local. LaunchError is about
// turning an accepted plan into a launch.
//
// A plan or policy is judged in one fixed order, and the first fault wins, so that two
// implementations give the same answer to the same wrong input (session-policy specification; bounds,
// grammars and orders as in the existing controllers' verifiers).
//
// It is not for running anything, for opening what will be mounted (runtime/workspace does, and
// compares the identity given here), nor for exposure and trust documents, which have packages of
// their own.
package policy
