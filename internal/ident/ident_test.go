package ident

import (
	"strings"
	"testing"
)

func TestGrammars(t *testing.T) {
	n := strings.Repeat
	for _, c := range []struct {
		name string
		f    func(string) bool
		yes  []string
		no   []string
	}{
		{"ID", ID, []string{"a", "A-z_0:.", n("x", 128)}, []string{"", n("x", 129), "a b", "é", "a/b", "a\x00"}},
		{"Alias", Alias, []string{"a.b", n("x", 128)}, []string{"", "a:b", n("x", 129)}},
		{"MatID", MatID, []string{"a.b", n("x", 64), "..."}, []string{"", ".", "..", "a:b", n("x", 65)}},
		{"Secret", Secret, []string{n("x", 120)}, []string{"", n("x", 121), "a b"}},
		{"Hex64", Hex64, []string{n("0", 64), n("f", 64)}, []string{"", n("0", 63), n("0", 65), n("F", 64), n("g", 64)}},
		{"Label", Label, []string{"my project é", n("x", 256)}, []string{"", n("x", 257), "a/b", `a\b`, "a\n", "\x7f", "\xff"}},
		{"Component", Component, []string{"a", "...", n("x", 255)}, []string{"", ".", "..", "a/b", "a\x00", n("x", 256)}},
		{"RelPath", RelPath, []string{".", "a", "a/b", n("x/", 2047) + "xx"}, []string{"", "/a", "a//b", "a/", "./a", "a/../b", n("x/", 2048) + "x"}},
		{"AbsPath", AbsPath, []string{"/a", "/a/b", "/" + n("x", 4095)}, []string{"", "/", "a", "/a/", "//a", "/a/../b", "/a/./b", "/a\x00", "/" + n("x", 4096)}},
		{"EnvName", EnvName, []string{"A", "_a9"}, []string{"", "9A", "A-B", "A=B"}},
		{"ArgString", ArgString, []string{"x", n("x", 65536)}, []string{"", n("x", 65537), "a\x00b"}},
	} {
		for _, s := range c.yes {
			if !c.f(s) {
				t.Errorf("%s(%.40q) = false, want true", c.name, s)
			}
		}
		for _, s := range c.no {
			if c.f(s) {
				t.Errorf("%s(%.40q) = true, want false", c.name, s)
			}
		}
	}
}

func TestWithin(t *testing.T) {
	for _, c := range []struct {
		path, root      string
		within, overlap bool
	}{
		{"/a", "/a", true, true},
		{"/a/b", "/a", true, true},
		{"/ab", "/a", false, false},
		{"/a", "/a/b", false, true},
		{"/a", "/", true, true},
		{"/b", "/a", false, false},
	} {
		if got := Within(c.path, c.root); got != c.within {
			t.Errorf("Within(%q, %q) = %v, want %v", c.path, c.root, got, c.within)
		}
		if got := Overlap(c.path, c.root); got != c.overlap {
			t.Errorf("Overlap(%q, %q) = %v, want %v", c.path, c.root, got, c.overlap)
		}
	}
}
