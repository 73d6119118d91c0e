package rpc

import (
	"bytes"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
)

// Names of the parameters common to all methods.
const (
	paramDeadline = "deadline_ms"
	paramKey      = "idempotency_key"
)

// common holds the parameters common to all methods.
type common struct {
	deadline time.Time
	key      string
}

// splitParams takes the common members out of params, which is a checked JSON
// object or nil, and returns the rest as an object.
func splitParams(params []byte) (common, []byte, error) {
	var c common
	if params == nil {
		return c, []byte("{}"), nil
	}
	if !mayHaveCommon(params) {
		return c, params, nil
	}
	d := jsontext.NewDecoder(bytes.NewBuffer(params))
	if _, err := d.ReadToken(); err != nil {
		return c, nil, Wrap(InvalidParams, "", err)
	}
	rest := append(make([]byte, 0, len(params)), '{')
	for d.PeekKind() != jsontext.KindEndObject {
		quoted, err := d.ReadValue()
		if err != nil {
			return c, nil, Wrap(InvalidParams, "", err)
		}
		name, err := jsontext.AppendUnquote(nil, quoted)
		if err != nil {
			return c, nil, Wrap(InvalidParams, "", err)
		}
		mark := len(rest)
		if mark > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(rest, quoted...), ':')
		value, err := d.ReadValue()
		if err != nil {
			return c, nil, Wrap(InvalidParams, "", err)
		}
		switch string(name) {
		case paramDeadline:
			err, rest = c.setDeadline(value), rest[:mark]
		case paramKey:
			err, rest = c.setKey(value), rest[:mark]
		default:
			rest = append(rest, value...)
		}
		if err != nil {
			return c, nil, err
		}
	}
	return c, append(rest, '}'), nil
}

// mayHaveCommon reports whether a common member may be there. A name is spelled
// out, or it is spelled with an escape, and then there is a backslash.
func mayHaveCommon(params []byte) bool {
	return bytes.Contains(params, []byte(paramDeadline)) || bytes.Contains(params, []byte(paramKey)) ||
		bytes.IndexByte(params, '\\') >= 0
}

func (c *common) setDeadline(v jsontext.Value) error {
	ms, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || ms < 1 || ms > ident.MaxInt {
		return badMember(paramDeadline, "type", "deadline_ms is a positive integer, in Unix milliseconds")
	}
	c.deadline = time.UnixMilli(ms)
	return nil
}

func (c *common) setKey(v jsontext.Value) error {
	s, err := jsontext.AppendUnquote(nil, v)
	if err != nil || v.Kind() != jsontext.KindString || !ident.ID(string(s)) {
		return badMember(paramKey, "type", "idempotency_key is an identifier")
	}
	c.key = string(s)
	return nil
}

// checkKey holds the rule which methods take a key.
func (c *common) checkKey(m *Method) error {
	if m.Mutating && c.key == "" {
		return badMember(paramKey, "missing", "the method needs an idempotency_key")
	}
	if !m.Mutating && c.key != "" {
		return badMember(paramKey, "unknown_member", "the method takes no idempotency_key")
	}
	return nil
}

func badMember(name, reason, message string) error {
	return NewError(InvalidParams, message).With("reason", reason).With("pointer", "/"+name)
}
