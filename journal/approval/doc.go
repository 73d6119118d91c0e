// Package approval keeps the event log of the approval gate: the public
// approval.md log, in which every question, decision and execution is one
// record of a hash chain that other programs may write and read too.
//
// # Bytes
//
// The lines are those of package journal. Beside the journal's own members
// (alg, hash, prev, seq, ts) a record has event and actor always, and task,
// action_key, channel, daemon and payload where its event has them; any other
// member makes the record invalid. A question, shortened:
//
//	{"action_key":"t1:mail","actor":"agent:a","alg":"sha256/jcs","event":"approval.requested",
//	 "hash":"…","payload":{"class":"mail.send","payload_hash":"…"},"prev":"…","seq":2,"task":"t1","ts":"…"}
//
// Other programs append under <log>.lock and keep nothing open in between; so
// does this package, by journal.Shared, and adds an fsync, a proof of the last
// record, and the refusal of duplicate names and lone surrogates.
//
// # Nouns
//
// An Event is one of a closed list of what can happen. A Draft is a record to
// be written; a Record is one that was proven. A Log is the file. A Snapshot is
// the whole log as it was at one moment, proven from its first byte: whoever
// decides reads one, decides, and appends with the snapshot's head, so that a
// decision made on an old log is refused (head-moved) rather than recorded.
//
// # Not for
//
// It knows what a record must look like, not whether it should be written: who
// may grant what, and what a state follows from, is runtime/gate's. It shows
// damage, not a forger who rewrites the whole file or drops its end.
package approval
