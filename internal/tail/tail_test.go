package tail

import (
	"strings"
	"testing"
)

func TestBuffer(t *testing.T) {
	for _, step := range []int{1, 3, 10, 11, 40} {
		b := &Buffer{Max: 10}
		text := strings.Repeat("0123456789abcdef", 4)
		for rest := text; rest != ""; {
			n := min(step, len(rest))
			if got, err := b.Write([]byte(rest[:n])); got != n || err != nil {
				t.Fatalf("Write = %d, %v", got, err)
			}
			rest = rest[n:]
		}
		if got, want := b.String(), text[len(text)-10:]; got != want {
			t.Errorf("in steps of %d: kept %q, want %q", step, got, want)
		}
	}
	var zero Buffer
	if _, err := zero.Write(make([]byte, DefaultMax+1)); err != nil || len(zero.String()) != DefaultMax {
		t.Errorf("the zero Buffer kept %d bytes, want %d", len(zero.String()), DefaultMax)
	}
}
