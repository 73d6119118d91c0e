package approval

import (
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var (
	identifier   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
	classPattern = regexp.MustCompile(`^(?:[a-z0-9][a-z0-9_-]*|\*)(?:\.(?:[a-z0-9][a-z0-9_-]*|\*))*$`)
	subClass     = regexp.MustCompile(`^policy\.edit\.[a-z][a-z0-9-]*$`)
	envName      = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	duration     = regexp.MustCompile(`^([1-9][0-9]*)(ms|s|m|h|d|w)$`)
)

// Class reports whether s is a concrete class: dotted words, no wildcard.
func Class(s string) bool { return classPattern.MatchString(s) && !strings.Contains(s, "*") }

var units = map[string]time.Duration{
	"ms": time.Millisecond, "s": time.Second, "m": time.Minute,
	"h": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour,
}

// parseDuration reads one positive integer and one unit; what does not fit in
// 290 years is none.
func parseDuration(s string) (time.Duration, bool) {
	m := duration.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := units[m[2]]
	if err != nil || n > int64(math.MaxInt64/unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// protectedPath reports whether s may stand in protected_paths: a relative
// literal, a directory when it ends in "/".
func protectedPath(s string) bool {
	if s == "" || strings.ContainsAny(s, "*?[]{}\\") || strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == 0xa0 || r >= 0x2000 && r <= 0x200a || r == 0x3000 || r == 0xfeff
	}) {
		return false
	}
	for _, part := range strings.Split(strings.TrimSuffix(s, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}
