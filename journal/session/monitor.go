package session

import (
	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

func (m Monitor) wellFormed() bool {
	for name, value := range m {
		if !ident.ID(name) || !printable(value) {
			return false
		}
	}
	raw, err := strictjson.Canonical(m)
	return m == nil || err == nil && len(raw) <= MaxMonitor
}

// digest tells two locators apart in a replayed request.
func (m Monitor) digest() string {
	if len(m) == 0 {
		return ""
	}
	raw, err := strictjson.Canonical(m)
	if err != nil {
		return ""
	}
	return digest.SHA256Hex(raw)
}
