// Package escape holds the attacks on a managed session: whatever a hostile program inside
// could try in order to see, change, outlive or exhaust what is not its own. It contains tests only.
//
// Its nouns: an attempt is one forbidden act with the answers that count as a refusal; its control
// is the same act outside a session, where it must work, so that the refusal is proved to be ours;
// a stage is one gloved's worth of state with a victim session in it and an attacker session beside it;
// a mode is how gloved runs: as root, or as an unprivileged user with control groups of its own.
//
// Nothing here asserts how a session is confined, only what comes of it; the layers have tests of
// their own beside their code. An attempt that succeeds is a hole to be mended, never a row to be adjusted.
package escape
