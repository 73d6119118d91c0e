package gate

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// A Micros is an amount of USD in millionths, exact: budgets are sums, and sums
// of binary fractions drift.
type Micros int64

const maxMicros = 1 << 53

var decimal = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]{0,5}[1-9])?$`)

// ParseMicros reads the decimal form ("0", "0.25"): no sign, no exponent, no
// trailing zero, at most six places.
func ParseMicros(s string) (Micros, error) {
	if !decimal.MatchString(s) {
		return 0, fmt.Errorf("%q is no amount in USD; write it like 0.25", s)
	}
	whole, fraction, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole+fraction+strings.Repeat("0", 6-len(fraction)), 10, 64)
	if err != nil || n > maxMicros {
		return 0, fmt.Errorf("%q is more USD than can be counted", s)
	}
	return Micros(n), nil
}

// microsOf rounds a number of the policy to millionths.
func microsOf(usd float64) Micros {
	m := math.Round(usd * 1e6)
	if m > maxMicros {
		return maxMicros
	}
	return Micros(m)
}

// String is the decimal form.
func (m Micros) String() string {
	sign := ""
	if m < 0 {
		sign, m = "-", -m
	}
	s := fmt.Sprintf("%d.%06d", int64(m)/1e6, int64(m)%1e6)
	return sign + strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

// MarshalJSONTo writes the decimal string, as later logs hold it.
func (m Micros) MarshalJSONTo(e *jsontext.Encoder) error {
	return e.WriteToken(jsontext.String(m.String()))
}

// UnmarshalJSONFrom reads a decimal string, or the number of an earlier log.
func (m *Micros) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	raw, err := d.ReadValue()
	if err != nil {
		return err
	}
	switch raw.Kind() {
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*m, err = ParseMicros(s)
		return err
	case '0':
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || f < 0 || f > maxMicros/1e6 {
			return errors.New("an amount below zero, or more USD than can be counted")
		}
		*m = microsOf(f)
		return nil
	}
	return errors.New("an amount is a decimal string")
}
