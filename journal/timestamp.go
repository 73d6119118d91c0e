package journal

import (
	"strings"
	"time"
)

// parseTimestamp reads an RFC 3339 date-time as other writers of the format may
// have stored it: T, t or one space between date and time; Z, z, +hh:mm or
// +hhmm; a fraction of any non-zero length; a leap second only as 23:59:60 UTC.
func parseTimestamp(s string) (time.Time, bool) {
	if len(s) < len("2006-01-02T15:04:05Z") || len(s) > 64 {
		return time.Time{}, false
	}
	switch s[10] {
	case 'T', 't', ' ':
	default:
		return time.Time{}, false
	}
	clock, zone := s[11:19], s[19:]
	if !shaped(s[:10], "0000-00-00") || !shaped(clock, "00:00:00") { // time.Parse is laxer
		return time.Time{}, false
	}
	frac := ""
	if zone[0] == '.' {
		end := 1
		for end < len(zone) && zone[end] >= '0' && zone[end] <= '9' {
			end++
		}
		if end == 1 || end == len(zone) {
			return time.Time{}, false
		}
		frac, zone = zone[:min(end, 10)], zone[end:] // time keeps nanoseconds
	}
	switch {
	case zone == "Z" || zone == "z":
		zone = "Z"
	case len(zone) == 5 && !strings.Contains(zone, ":"):
		zone = zone[:3] + ":" + zone[3:]
	}
	if zone != "Z" && (!shaped(zone, "+00:00") || zone[1:3] > "23" || zone[4:6] > "59") {
		return time.Time{}, false
	}
	leap := strings.HasSuffix(clock, ":60")
	if leap {
		clock = clock[:6] + "59"
	}
	t, err := time.Parse(time.RFC3339Nano, s[:10]+"T"+clock+frac+zone)
	if err != nil {
		return time.Time{}, false
	}
	t = t.UTC()
	if leap && (t.Hour() != 23 || t.Minute() != 59) {
		return time.Time{}, false
	}
	return t, true
}

// shaped reports whether s has a digit where pattern has 0, a sign where it has
// +, and the pattern's own bytes elsewhere.
func shaped(s, pattern string) bool {
	if len(s) != len(pattern) {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; pattern[i] {
		case '0':
			if c < '0' || c > '9' {
				return false
			}
		case '+':
			if c != '+' && c != '-' {
				return false
			}
		default:
			if c != pattern[i] {
				return false
			}
		}
	}
	return true
}
