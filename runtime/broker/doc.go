// Package broker applies a bounded set of file changes to one workspace, after the gate has let
// every class of them through, as a transaction whose outcome is read from the workspace itself.
//
// Nouns:
//
//   - an instance (Manifest) is the operator's file that fixes who acts, in which workspace, under
//     which policy and log. A caller can say none of that;
//   - a proposal is what a caller may say: up to 64 operations (create, replace, delete, move) and
//     the digest of the policy it was made for;
//   - a plan is a proposal whose paths and preimages have been checked against the workspace, with
//     its payload: the canonical bytes a person's grant is bound to;
//   - a leg is one distinct class of path in a plan, and one action of the gate. Every leg is
//     authorised and started before a byte moves;
//   - an endpoint is one path with the state before and the state after;
//   - a transaction is the lock, the staging directory and the journal inside the workspace, from
//     the lock's creation to its removal.
//
// The order of an apply, and where each kind of crash leaves it, is written beside Broker.Apply
// and in txn.go; the steps have names (Steps) at which a test can stop it.
//
// Three outcomes exist: every endpoint is as after (ok), every endpoint is as before
// (commit-not-applied), anything else (commit-unknown). What the system calls said is never
// evidence: POSIX has no atomic rename of several files, and a rename that returned 0 looks like
// one whose effect a crash lost.
//
// The package gates writes to a workspace. It confines nobody (runtime/room does), decides nothing
// (the Gate does), and proves nothing about access lists or about writers that do not take its
// lock, which is what "acl-unproven" and "advisory" in its reports say.
package broker
