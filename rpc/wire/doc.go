// Package wire states the control protocol in Go: the request and result type
// of every method, with the names and bounds that are the contract.
//
// A type XParams is what a method X takes and XResult (or a record type) what
// it returns. Members whose tag says omitempty or omitzero are optional, all
// others are required; nothing else is accepted. Identifiers are 1 to 128 of
// A–Z a–z 0–9 - _ : . and digests 64 lowercase hexadecimal digits. Times are
// Unix milliseconds. []byte members travel as standard base64.
//
// The members common to all requests (deadline_ms, idempotency_key) are not in
// these types: rpc handles them before a method sees its parameters.
//
// The package holds shapes only. What they mean is decided by the components
// behind rpc/service; the JSON Schemas in rpc.discover are derived from here.
package wire
