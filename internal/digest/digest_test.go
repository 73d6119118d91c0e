package digest

import (
	"strings"
	"testing"
)

// The launch vector of an existing policy: every primitive but U64 and Opt.
func TestLaunchVector(t *testing.T) {
	got := New("glove.runtime-launch-template").U8(1).S("/usr/bin/true").
		Strings([]string{"--version"}).
		Strings([]string{"PATH=/usr/bin:/bin", "TERM=xterm-256color"}).
		Strings(nil).Sum()
	if want := "0129a3a97cacbef9bd8a2df44ea3b1e01ae8dad706cbe0c27c2237881b5107e7"; got != want {
		t.Errorf("launch digest = %s, want %s", got, want)
	}
}

func TestKeyIDVector(t *testing.T) {
	key := make([]byte, 32)
	for i := range key {
		key[i] = byte(i)
	}
	got := New("glove.audit-key-id").U8(1).U32(32).Raw(key).Sum()
	if want := "b97d6f8d2ae381761ea00f360c230cf75e8de5fdc6a8d25624a5c36b97f0d475"; got != want {
		t.Errorf("key id = %s, want %s", got, want)
	}
}

func TestNoTwoListsShareAnEncoding(t *testing.T) {
	seen := map[string]string{}
	for _, l := range [][]string{nil, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"ab"}, {"a", "b"}} {
		sum := New("d").Strings(l).Sum()
		name := strings.Join(l, "|")
		if other, ok := seen[sum]; ok {
			t.Errorf("lists %q and %q share a digest", other, name)
		}
		seen[sum] = name
	}
}

func TestFixedWidths(t *testing.T) {
	e := new(Encoder).U8(1).U32(2).U64(3).Bool(true).Opt(false)
	want := "\x01\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x03\x01\x00"
	if got := string(e.Bytes()); got != want {
		t.Errorf("encoding = %q, want %q", got, want)
	}
}

// BLAKE3's published value for the empty input.
func TestBlake3Empty(t *testing.T) {
	want := "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
	if got := Blake3Hex(nil); got != want {
		t.Errorf("blake3(\"\") = %s, want %s", got, want)
	}
}
