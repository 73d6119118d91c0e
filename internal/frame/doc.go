// Package frame turns a byte stream into JSON-RPC 2.0 messages, one to a line,
// and back.
//
// Its nouns: a frame is the bytes of one line, LF excluded; a message is a frame
// whose envelope was checked; a stream pairs a frame reader with a frame writer
// and is what the JSON-RPC library reads and writes.
//
// Everything a peer can send has a bounded answer. A frame longer than the
// bound is skipped to its LF without being kept; a frame that is no message is
// reported with the error to answer it with; and in both cases reading goes on
// with the next line, because LF is the only thing that delimits. The library
// behind the stream (sourcegraph/jsonrpc2) accepts wrong versions, duplicate
// members, null and negative ids; it is never shown any.
//
// The package is not for dispatching methods (see rpc), nor for protocols with
// length headers: a Content-Length header is one more line that is no message.
package frame
