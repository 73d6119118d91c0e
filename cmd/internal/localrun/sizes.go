package localrun

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Bytes is a size flag: digits with an optional fraction and a unit of 1024
// (K, M, G, T, with an optional iB or B). It implements pflag.Value.
type Bytes uint64

var byteUnits = map[string]float64{"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

// maxBytes bounds a size: the largest integer of the protocol.
const maxBytes = 1<<53 - 1

// ParseBytes reads a size such as 512M, 2GiB or 1.5g.
func ParseBytes(text string) (Bytes, error) {
	upper := strings.ToUpper(strings.TrimSpace(text))
	end := strings.IndexFunc(upper, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end < 0 {
		end = len(upper)
	}
	unit := strings.TrimSpace(upper[end:])
	for _, suffix := range []string{"IB", "B"} {
		if cut, ok := strings.CutSuffix(unit, suffix); ok && cut != "" {
			unit = cut
			break
		}
	}
	scale, known := byteUnits[unit]
	n, err := strconv.ParseFloat(upper[:end], 64)
	if err != nil || !known || math.IsInf(n, 0) {
		return 0, fmt.Errorf("%q is no size; write one like 512M or 2G", text)
	}
	if n *= scale; n < 1 || n > maxBytes {
		return 0, fmt.Errorf("the size %q is out of bounds", text)
	}
	return Bytes(n), nil
}

// Set implements pflag.Value.
func (b *Bytes) Set(text string) (err error) {
	*b, err = ParseBytes(text)
	return err
}

// Type implements pflag.Value.
func (*Bytes) Type() string { return "size" }

// String writes a size as people do: at most one decimal, one letter.
func (b Bytes) String() string {
	if b == 0 {
		return "0"
	}
	value, unit := float64(b), ""
	for _, next := range []string{"K", "M", "G", "T"} {
		if value < 1024 {
			break
		}
		value, unit = value/1024, next
	}
	text := strconv.FormatFloat(value, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + unit
}

// Span is a duration flag: Go's spelling, or a plain number of seconds. It implements
// pflag.Value.
type Span time.Duration

// Set implements pflag.Value.
func (s *Span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if seconds, plain := strconv.ParseFloat(text, 64); plain == nil {
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil {
		return fmt.Errorf("%q is no time; write one like 90s, 10m or 2h", text)
	}
	if d < time.Millisecond || d > maxSpan {
		return fmt.Errorf("the time %q is out of bounds: 1ms to 720h", text)
	}
	*s = Span(d)
	return nil
}

// maxSpan bounds a time limit: thirty days.
const maxSpan = 720 * time.Hour

// Type implements pflag.Value.
func (*Span) Type() string { return "time" }

// String writes a time without the units that are zero.
func (s Span) String() string {
	d := time.Duration(s)
	switch {
	case d == 0:
		return "0s"
	case d < 10*time.Second:
		// Divided at once: Duration.Seconds adds two parts, and 1.64 comes out as another number.
		return strconv.FormatFloat(float64(d)/float64(time.Second), 'f', -1, 64) + "s"
	case d%time.Hour == 0:
		return strconv.FormatInt(int64(d/time.Hour), 10) + "h"
	case d%time.Minute == 0 && d < time.Hour:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	}
	return d.Round(time.Second).String()
}
