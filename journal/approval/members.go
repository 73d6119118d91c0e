package approval

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"gloved.dev/internal/ident"
)

// members is one decoded object of a payload, its values still JSON.
type members map[string]jsontext.Value

func decodeMembers(raw jsontext.Value) (members, bool) {
	if raw.Kind() != '{' {
		return nil, false
	}
	var m members
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, false
	}
	return m, true
}

func (m members) object(name string) (members, bool) { return decodeMembers(m[name]) }

// string returns the member's text, "" when it is none.
func (m members) string(name string) (s string) {
	if m[name].Kind() != '"' || json.Unmarshal(m[name], &s) != nil {
		return ""
	}
	return s
}

// text checks that a member is a non-empty string.
func (m members) text(name string, required bool) string {
	if _, there := m[name]; !there && !required {
		return ""
	}
	if m.string(name) == "" {
		return name + " must be a non-empty string"
	}
	return ""
}

// among checks that a member is one of a closed set.
func (m members) among(name string, required bool, set ...string) string {
	if _, there := m[name]; !there && !required {
		return ""
	}
	if !slices.Contains(set, m.string(name)) {
		return fmt.Sprintf("%s must be one of %q", name, set)
	}
	return ""
}

func (m members) hash(name string, required bool) string {
	if _, there := m[name]; !there && !required {
		return ""
	}
	if !ident.Hex64(m.string(name)) {
		return name + " must be 64 lowercase hex digits"
	}
	return ""
}

// usd is the later writing of an amount of money: a decimal without trailing
// zeros, at most six places.
var usd = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]{0,5}[1-9])?$`)

// money checks an amount: a decimal string, or the number that earlier logs hold.
func (m members) money(name string) string {
	raw, there := m[name]
	switch {
	case !there:
		return ""
	case raw.Kind() == '0' && raw[0] != '-':
		return ""
	case raw.Kind() == '"' && usd.MatchString(m.string(name)):
		return ""
	}
	return name + " must be an amount in USD: a decimal string such as \"0.25\""
}
