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
