// Package journal keeps one append-only, hash-chained log of JSON lines, and
// proves such a log. Every durable record of the project lives in one: sessions,
// receipts, exposures, applied changes and approvals differ only in their bodies.
//
// # Bytes
//
// A file is a sequence of lines, each ended by LF, without a header. A line is
// the RFC 8785 (JCS) form of one JSON object of at most MaxRecord bytes. Five
// members are the journal's, the rest is the body:
//
//	alg   "sha256/jcs"
//	hash  lowercase hex SHA-256 of the canonical record without this member
//	prev  the hash of the record before, null on the first
//	seq   1, 2, 3, … without a gap
//	ts    RFC 3339, UTC, three decimals: when the record was written
//
// Two records of a log whose bodies are {"event":"a"} and {"event":"b"}, with
// the hashes shortened, look like this:
//
//	{"alg":"sha256/jcs","event":"a","hash":"51c0…","prev":null,"seq":1,"ts":"2026-01-02T03:04:05.678Z"}
//	{"alg":"sha256/jcs","event":"b","hash":"9a1e…","prev":"51c0…","seq":2,"ts":"2026-01-02T03:04:05.679Z"}
//
// Because the stored bytes are canonical, a reader proves a record with one
// SHA-256 over the line with its hash member cut out. Logs by other tools may
// hold other spacing or member order: only when the quick proof fails is the
// line put into canonical form and proven again. The alg member leads the hash,
// so that a record can never be judged under another algorithm than its own.
//
// # Nouns
//
// A Journal is the one writer of a file, under an exclusive flock. A Head names
// its last record. An Entry is one proven record. A Reservation is capacity set
// aside for a record that must be writable later. A Verdict is what Verify says
// of a whole log. An Archive names a file that was sealed, a Rotation is the
// sealing, and a Sealed reads one.
//
// # Torn or corrupt
//
// Bytes after the last LF were never acknowledged: a torn tail (ErrTornTail).
// Anything else that does not verify is corruption (*CorruptError) and is never
// cut by anything. Both refuse an Open; Repair cuts a torn tail when the owner
// asks, and keeps the bytes beside the file.
//
// # Rotation
//
// A journal that nears its bounds is sealed into an archive beside it, NAME.000001
// and on, and goes on in a new file under its own name. That begins at seq 1, so
// that each file is a log by itself, with a record of this closed kind:
//
//	{"archive":{"bytes":…,"hash":…,"name":…,"records":…,"seq":…},"kind":"journal_archive","schema_version":1}
//
// It commits the new file to the old one, and that to the one before it; what its
// owner carries forward follows. VerifyFile follows the commitments. Archives are
// read-only from then on, and a journal opens without them.
//
// # Not for
//
// The chain has no secret: it shows damage and loss in the middle, not a forger
// who rewrites the whole file or drops records off its end. Whoever must notice
// those keeps the head elsewhere and compares (VerifyOptions.Anchor), or adds an
// authenticator to the body as the receipts do.
package journal
