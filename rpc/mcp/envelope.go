package mcp

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// isEnvelope reports whether a checked object has jsonrpc "2.0" and a method or a response's
// members, each of its right type: the library that follows is not asked to make sense of others.
func isEnvelope(text []byte, version *string) bool {
	d := jsontext.NewDecoder(bytes.NewReader(text))
	if _, err := d.ReadToken(); err != nil {
		return false
	}
	method, id, response := false, false, false
	for d.PeekKind() != jsontext.KindEndObject {
		name, err := d.ReadToken()
		if err != nil {
			return false
		}
		member := name.String()
		kind := d.PeekKind()
		value, err := d.ReadValue()
		if err != nil {
			return false
		}
		switch member {
		case "jsonrpc":
			*version = string(value)
		case "method":
			method = kind == jsontext.KindString
		case "id":
			id = kind == jsontext.KindString || kind == jsontext.KindNumber && !bytes.ContainsAny(value, ".eE")
			if !id {
				return false
			}
		case "params":
			if kind != jsontext.KindBeginObject {
				return false
			}
		case "result", "error":
			response = true
		default:
			return false
		}
	}
	return *version == `"2.0"` && (method && !response || response && id && !method)
}
