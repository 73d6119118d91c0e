package localrun

import (
	"testing"
	"time"
)

func TestBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"1": 1, "512": 512, "1K": 1024, "2k": 2048, "3KiB": 3072, "1.5G": 3 << 29, "64m": 64 << 20, "2 GB": 2 << 30, "1B": 1, "7T": 7 << 40,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "lots", "1X", "1e9", "K", "NaN", "9999999T", "1..2", "1.2.3G"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for size, want := range map[Bytes]string{0: "0", 1: "1", 1023: "1023", 1024: "1K", 1536: "1.5K", 3 << 30: "3G", 5 << 50: "5120T"} {
		if got := size.String(); got != want {
			t.Errorf("%d prints as %s, want %s", uint64(size), got, want)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "10m": 10 * time.Minute, "30": 30 * time.Second, "0.5": 500 * time.Millisecond, "720h": maxSpan} {
		var s Span
		if err := s.Set(text); err != nil || time.Duration(s) != want {
			t.Errorf("%q is %v, %v; want %v", text, time.Duration(s), err, want)
		}
	}
	for _, text := range []string{"", "0", "-1s", "soon", "721h", "1d", "NaN", "Inf"} {
		var s Span
		if err := s.Set(text); err == nil {
			t.Errorf("%q is %v", text, time.Duration(s))
		}
	}
	for span, want := range map[time.Duration]string{0: "0s", time.Hour: "1h", 90 * time.Minute: "1h30m0s", 10 * time.Minute: "10m",
		1230 * time.Millisecond: "1.23s", 1640 * time.Millisecond: "1.64s", 1140 * time.Millisecond: "1.14s", 90 * time.Second: "1m30s"} {
		if got := Span(span).String(); got != want {
			t.Errorf("%v prints as %s, want %s", span, got, want)
		}
	}
}

func TestSettle(t *testing.T) {
	big := machine{total: 32 << 30, available: 30 << 30}
	copies := func(bytes ...uint64) (all []*Mount) {
		for _, b := range bytes {
			all = append(all, &Mount{Copy: true, bytes: b, entries: 10})
		}
		return all
	}
	two := copies(1<<30, 1<<20)
	l, notes, err := Limits{}.settle(big, two)
	if err != nil || len(notes) != 0 {
		t.Fatalf("%v, %v", notes, err)
	}
	if l.MemoryBytes != 4<<30 || l.CPUTimeMS != 600_000 || l.WallTimeMS != 3_600_000 || l.PIDs != 256 || l.TerminalOutputBytes != 64<<20 {
		t.Errorf("defaults %+v", l)
	}
	// Whoever fills one file system must not meet the memory limit first.
	used := uint64(0)
	for _, m := range two {
		used += uint64(m.MaxBytes)
		if free := m.MaxBytes - m.footprint(); free < 600<<20 || free%page != 0 || m.MaxBytes%page != 0 {
			t.Errorf("a copy of %d bytes has room for %d more in %d", m.bytes, free, m.MaxBytes)
		}
	}
	if scratch := l.DiskBytes - used; l.DiskBytes%page != 0 || scratch < 600<<20 || l.DiskBytes-uint64(two[0].footprint()+two[1].footprint()) > l.MemoryBytes/2 {
		t.Errorf("disk %d, of which scratch %d", l.DiskBytes, scratch)
	}
	small := machine{total: 2 << 30, available: 1 << 30}
	if l, _, err := (Limits{}).settle(small, nil); err != nil || l.MemoryBytes != 1<<30 {
		t.Errorf("on a small machine: %+v, %v", l, err)
	}
	if _, _, err := (Limits{}).settle(small, copies(2<<30)); err == nil {
		t.Error("a copy larger than the machine's memory was accepted")
	}
	if _, _, err := (Limits{Disk: 8 << 20}).settle(big, copies(8<<20)); err == nil {
		t.Error("a disk smaller than its content was accepted")
	}
	if _, notes, err := (Limits{Disk: 8 << 30, Memory: 1 << 30}).settle(big, nil); err != nil || len(notes) != 1 {
		t.Errorf("a disk larger than the memory: %v, %v", notes, err)
	}
}
