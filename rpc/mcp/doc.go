// Package mcp serves the workspace broker to an agent as a Model Context Protocol server over a
// pair of streams: one session, one tool.
//
// Nouns:
//
//   - the tool is the one thing that can be called. The list of allowed names has one member, and
//     is asked at every call: what a listing says, or a later change of this program adds to one,
//     opens nothing;
//   - an applier does the work (runtime/broker);
//   - a refusal is a result of the tool with isError set, so that the agent reads the code and can
//     act on it; only a frame or a name that is none is an error of the protocol.
//
// Frames are judged before the protocol library sees them: one JSON object on one line of bounded
// length, without duplicate members, so that no two readers see two different calls. A frame that
// is none is answered and skipped.
//
// It is not the server of gloved (package rpc), and publishes no other verb of the approval
// program.
package mcp
