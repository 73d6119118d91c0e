// Package room confines a coding agent's session: a shell, or any command, that may read two folders
// and write one, with no credential, no network and no way out for it or its descendants.
//
// Nouns:
//
//   - the canonical workspace is the tree that only the broker changes. The room reads it;
//   - the disposable workspace is a fresh, private folder, the only one the room writes. It is gone
//     when the room is;
//   - the runtime set are the system's programs and libraries, and the prefix that the command is
//     installed under, all read-only;
//   - denied paths are the gate's home, policy, vault and keys, and the installation. They are in no
//     allowed folder, and where an operator put one into one, it is covered;
//   - the mechanism is what confines: on Linux the rooms of runtime/sandbox.
//
// There is no opt-out. A host without the mechanism refuses (sandbox-unsupported), one whose
// mechanism fails refuses (sandbox-unavailable); nothing ever runs bare.
//
// Its limits: processes started elsewhere are not in the room; a secret inside the canonical
// workspace is readable; the environment's allow-list goes by names; memory is bounded where the user
// may make control groups, and disk by the room's time alone. On macOS the profile of the system's
// own mechanism is generated (Seatbelt), and this build does not run it.
package room
