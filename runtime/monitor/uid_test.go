package monitor

import "testing"

func TestUIDRange(t *testing.T) {
	for _, c := range []struct {
		r    UIDRange
		want bool
	}{
		{DefaultUIDRange, true},
		{UIDRange{MinUID, 1}, true},
		{UIDRange{MinUID - 1, 1}, false},
		{UIDRange{MinUID, 0}, false},
		{UIDRange{1<<31 - 1, 1}, true},
		{UIDRange{1<<31 - 1, 2}, false},
		{UIDRange{MinUID, 1<<32 - 1}, false},
	} {
		if got := c.r.Valid(); got != c.want {
			t.Errorf("%+v.Valid() = %v, want %v", c.r, got, c.want)
		}
	}
}
