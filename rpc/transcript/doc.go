// Package transcript reads, runs and records golden transcripts of the control
// protocol: conversations with a gloved, written down the way the JSON-RPC
// specification writes its own examples.
//
// A transcript is a text file of lines:
//
//	# a comment
//	$ gloved --stdio --audit-key ${AUDIT_KEY} --journal ${JOURNAL}
//	--> {"jsonrpc":"2.0","id":1,"method":"health","params":{}}
//	<-- {"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"<string>","data":{"code":"not_initialized"}}}
//	--> <eof>
//	<-- <eof>
//
// A line that begins with "$" starts a fresh server and must come before the first
// arrow; a later one ends the server before it (standard input is closed, and it must
// exit 0 having said nothing more) and starts another over the same state, which is how
// durability is written down. "-->" sends its text as one line, unparsed, so malformed
// frames can be sent too. "<--" expects one frame. Frames expected one after the other
// may arrive in any order; each is compared with the one that carries its id.
//
// Values are compared exactly: no member may be missing and none may be extra. An
// expected string of the form "<KIND>" is a matcher, and "<NAME=KIND>" also keeps the
// value, so that ${NAME} may be used in later lines. The kinds are int, hex64, base64,
// time, string, bool and any. ${NAME} stands for a variable anywhere, and ${NAME+5}
// for a whole-number variable with a difference added. Each transcript runs in a private
// state directory; Sandbox lists the variables that describe it.
//
// The package works on raw lines on purpose and uses no client library: what a client
// would hide (an extra frame, a frame that is not JSON, a member too many) is what a
// transcript is there to show. It is not a load generator and not a client.
package transcript
