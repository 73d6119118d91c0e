// Package session tests the life of sessions from outside: the real gloved, built
// once, spoken to over standard input and output and over its socket, as a
// controller would, with real sessions in real sandboxes.
//
// Its nouns are a site (the state of one gloved: a policy, a key, the journals, a
// materialization root), the golden transcripts of testdata/transcripts/sessions,
// and the crash: a gloved that is killed while clients are attached.
//
// It is not for what package runtime can show by itself with its executor.
package session
