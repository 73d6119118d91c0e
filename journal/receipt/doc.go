// Package receipt produces the authenticated, chained receipts in which sessions
// end, and hands them to a controller that keeps its own anchor.
//
// # Nouns
//
// A receipt says what was enforced and observed. An Envelope binds one receipt
// to its session, gives it a sequence number, and carries an HMAC over its
// digest and the HMAC before it. The Producer is the one writer of the receipt
// journal; an Anchor is a prefix of the chain that a controller trusts.
//
// Three kinds share one sequence and one chain: resource (how a session's six
// limits were enforced), refinement (an evaluation, which wraps a resource
// receipt), and change_apply (a change that was applied to the host).
//
// # What an old verifier sees
//
// Receipt digests, key ids and HMACs keep the layouts of the existing system.
// What is new, the confinement a session ran under, is therefore not in the
// receipt: it is a member of the envelope beside it, with its own HMAC
//
//	HMAC-SHA256(key, S("glove.receipt-confinement") u8 1 S(this_hmac) S(sha256 of the canonical confinement))
//
// which ties it to this one envelope and no other. A verifier that does not know
// it checks the chain as before; one that does checks both, and one that demands
// confinement refuses an envelope without it (RequireConfinement): an envelope
// whose confinement was stripped is otherwise still a true, lesser statement.
//
// # The life of a producer
//
//	New ──first Page──▶ open ──Acknowledge(exact head)──▶ reconciled ──▶ Reserve, Commit
//
// The journal is not touched before a controller shows its anchor. Without a
// journal the anchor must be the start of the key's chain; with one it must be an
// exact prefix, and only such an anchor lets a torn tail be cut. Reservations are
// refused until the controller has acknowledged the exact head once.
//
// # Rotation
//
// The chain does not end with a file. A rotated journal begins, after the record
// that commits it to its archive, with a base: the anchor that its first envelope
// follows, and
//
//	HMAC-SHA256(key, S("glove.receipt-journal-base") u8 1 S(key_id) u64 sequence S(head_hmac))
//
// which nobody makes without the key. Sequence numbers, HMACs and anchors run
// through, so that a controller's verifier notices nothing; pages of what was
// archived are read from the archives. Only what a controller has acknowledged is
// archived.
//
// The package is not for deciding what a session did: it checks that a receipt is
// complete and self-consistent, and signs it.
package receipt
