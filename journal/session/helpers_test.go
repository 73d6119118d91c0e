package session_test

import (
	"encoding/json"
	"maps"
)

func unmarshal(raw []byte, v any) error { return json.Unmarshal(raw, v) }

func with(m map[string]any, name string, value any) map[string]any {
	m = maps.Clone(m)
	m[name] = value
	return m
}
