package transcript

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Vars are the variables of a run: those of its sandbox and those its matchers kept.
type Vars map[string]string

var varReference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)([+-][0-9]{1,15})?\}`)

// Expand replaces every ${NAME} and ${NAME±N} in text. With quoted set the values are
// escaped as the inside of a JSON string, because that is where they are put.
func (v Vars) Expand(text string, quoted bool) (string, error) {
	var failure error
	out := varReference.ReplaceAllStringFunc(text, func(reference string) string {
		parts := varReference.FindStringSubmatch(reference)
		value, err := v.value(parts[1], parts[2])
		if err != nil {
			failure = err
			return reference
		}
		if quoted {
			return escapeJSON(value)
		}
		return value
	})
	if failure != nil {
		return "", failure
	}
	if at := strings.Index(out, "${"); at >= 0 && !strings.Contains(strings.Join(v.values(), "\n"), "${") {
		return "", fmt.Errorf("%q is not a variable reference", clip(out[at:], 30))
	}
	return out, nil
}

func (v Vars) values() []string {
	all := make([]string, 0, len(v))
	for _, value := range v {
		all = append(all, value)
	}
	return all
}

func (v Vars) value(name, difference string) (string, error) {
	value, ok := v[name]
	if !ok {
		return "", fmt.Errorf("${%s} has no value here", name)
	}
	if difference == "" {
		return value, nil
	}
	base, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return "", fmt.Errorf("${%s%s}: %s is not a whole number", name, difference, name)
	}
	delta, err := strconv.ParseInt(difference, 10, 64)
	if err != nil {
		return "", fmt.Errorf("${%s%s}: %w", name, difference, err)
	}
	return strconv.FormatInt(base+delta, 10), nil
}

func escapeJSON(value string) string {
	// Marshalling a string cannot fail.
	quoted, _ := json.Marshal(value)
	return string(quoted[1 : len(quoted)-1])
}
