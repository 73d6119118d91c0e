// Package control tests the control plane from outside: the real gloved and glove, built
// once, spoken to over standard input and output, over the socket, through a relay and
// through a real ssh to a real sshd on loopback.
//
// Its nouns are the golden transcripts (testdata/transcripts at the top of the
// repository), the flow (what a controller does: validate, create, read back, page,
// acknowledge), hostile input, and scripts (testdata/scripts: command lines with what
// they must print and how they must end).
//
// It is not for what one package can show by itself, and it starts no session.
package control
