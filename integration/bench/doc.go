// Package bench compares gloved with what does similar work on the same
// machine, in the same run: a start with bwrap and runc, a terminal with a bare
// read loop, a request with a bare JSON-RPC library. What it prints are ratios,
// because absolute times say more about the machine than about the program.
//
// Its nouns: a contest is one thing done by several contestants, which take
// turns, so that whatever else the machine does meanwhile hits them alike; a
// round is one turn of each; the result is the median over the rounds; a goal is
// the ratio the project holds itself to.
//
//	just bench
//
// It is not for finding out why something is slow; profiles do that. It fails
// only when something does not work, never because it was slow.
package bench
