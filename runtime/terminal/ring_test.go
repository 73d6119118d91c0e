package terminal

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// The ring against a plain slice that keeps everything.
func TestRingModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.SampledFrom([]int{1, 2, 7, firstRing - 1, firstRing, firstRing + 1, 2 * firstRing, 3*firstRing + 5}).Draw(t, "limit")
		r := newRing(limit)
		var all []byte
		next := byte(0)
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				n := rapid.OneOf(rapid.IntRange(0, 9), rapid.IntRange(limit-1, limit+1),
					rapid.IntRange(0, 2*limit+1), rapid.Just(firstRing)).Draw(t, "n")
				p := make([]byte, n)
				for i := range p {
					p[i] = next
					next = next*5 + 3
				}
				r.append(p)
				all = append(all, p...)
			},
			"": func(t *rapid.T) {
				if r.end != uint64(len(all)) {
					t.Fatalf("end %d, want %d", r.end, len(all))
				}
				if want := max(0, len(all)-limit); r.start != uint64(want) {
					t.Fatalf("start %d, want %d", r.start, want)
				}
				if len(r.buf) > limit {
					t.Fatalf("buffer of %d, limit %d", len(r.buf), limit)
				}
				var got []byte
				for at := r.start; at < r.end; {
					part := r.span(at, 1<<30)
					got = append(got, part...)
					at += uint64(len(part))
				}
				if !bytes.Equal(got, all[r.start:]) {
					t.Fatalf("kept bytes differ")
				}
				if r.start < r.end {
					at := rapid.Uint64Range(r.start, r.end-1).Draw(t, "at")
					if part := r.span(at, 3); len(part) == 0 || len(part) > 3 || !bytes.HasPrefix(all[at:], part) {
						t.Fatalf("span(%d, 3) = %v", at, part)
					}
				}
			},
		})
	})
}

// A session that prints little keeps a small buffer.
func TestRingGrowsLate(t *testing.T) {
	r := newRing(MaxRingBytes)
	r.append(make([]byte, firstRing))
	if len(r.buf) != firstRing {
		t.Errorf("buffer of %d for %d bytes", len(r.buf), firstRing)
	}
	r.append([]byte{1})
	if len(r.buf) != 2*firstRing {
		t.Errorf("buffer of %d for one byte more", len(r.buf))
	}
	r.append(make([]byte, 2*MaxRingBytes))
	if len(r.buf) != MaxRingBytes {
		t.Errorf("buffer of %d at the end", len(r.buf))
	}
}
