package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"gloved.dev/cmd/internal/ui"
)

func sides(edits []edit) (a, b []string) {
	for _, e := range edits {
		if e.op != '+' {
			a = append(a, e.text)
		}
		if e.op != '-' {
			b = append(b, e.text)
		}
	}
	return a, b
}

// TestDiffIsExact: a diff holds both texts, and its hunks lead from one to the other.
func TestDiffIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line := rapid.SampledFrom([]string{"a", "b", "c", "", " a"})
		a, b := rapid.SliceOfN(line, 0, 40).Draw(t, "a"), rapid.SliceOfN(line, 0, 40).Draw(t, "b")
		edits := diffLines(a, b)
		gotA, gotB := sides(edits)
		if !slices.Equal(gotA, a) || !slices.Equal(gotB, b) {
			t.Fatalf("the diff is of %q and %q", gotA, gotB)
		}
		if got := applyHunks(t, a, hunks(edits)); !slices.Equal(got, b) {
			t.Fatalf("the hunks lead to %q", got)
		}
	})
}

// applyHunks patches a as patch(1) would, by the line numbers of the headers.
func applyHunks(t *rapid.T, a []string, hs []hunk) []string {
	var out []string
	at := 1
	for _, h := range hs {
		if h.a < at {
			t.Fatalf("hunk %s begins before line %d", h.header(), at)
		}
		out = append(out, a[at-1:h.a-1]...)
		if len(out)+1 != h.b {
			t.Fatalf("hunk %s: the new text is at line %d", h.header(), len(out)+1)
		}
		old, now := sides(h.edits)
		if !slices.Equal(a[h.a-1:h.a-1+h.na], old) || len(old) != h.na || len(now) != h.nb {
			t.Fatalf("hunk %s does not fit", h.header())
		}
		out = append(out, now...)
		at = h.a + h.na
	}
	return append(out, a[at-1:]...)
}

func TestDiffOfManyEditsIsStillExact(t *testing.T) {
	var a, b []string
	for i := range 5000 {
		a, b = append(a, fmt.Sprint("a", i)), append(b, fmt.Sprint("b", i))
	}
	a, b = append(a, "end"), append(b, "end")
	gotA, gotB := sides(diffLines(a, b))
	if !slices.Equal(gotA, a) || !slices.Equal(gotB, b) {
		t.Error("the diff lost lines")
	}
}

func TestHunks(t *testing.T) {
	var a []string
	for i := range 30 {
		a = append(a, fmt.Sprint(i+1))
	}
	b := slices.Clone(a)
	b[4], b[20] = "five", "twenty-one"
	b = slices.Insert(b, 30, "new")
	var text strings.Builder
	for _, h := range hunks(diffLines(a, b)) {
		text.WriteString(h.header() + "\n")
	}
	if want := "@@ -2,7 +2,7 @@\n@@ -18,7 +18,7 @@\n@@ -28,3 +28,4 @@\n"; text.String() != want {
		t.Errorf("headers\n%s, want\n%s", text.String(), want)
	}
	if h := hunks(diffLines(nil, []string{"x"})); h[0].header() != "@@ -0,0 +1 @@" {
		t.Errorf("a new file: %s", h[0].header())
	}
	if h := hunks(diffLines([]string{"x", "y"}, nil)); h[0].header() != "@@ -1,2 +0,0 @@" {
		t.Errorf("a deleted file: %s", h[0].header())
	}
}

// TestReveal: no character hides, moves or forges anything.
func TestReveal(t *testing.T) {
	for text, want := range map[string]string{
		"plain text, häßlich, 漢字, 🙂": "plain text, häßlich, 漢字, 🙂",
		"tab\tstays":                 "tab\tstays",
		"\x1b[2J\r\n":                "⟨U+001B⟩[2J⟨U+000D⟩⟨U+000A⟩",
		"if x {\u202e}\u2066 // ok":  "if x {⟨U+202E⟩}⟨U+2066⟩ // ok",
		"zero\u200bwidth\ufeff":      "zero⟨U+200B⟩width⟨U+FEFF⟩",
		"no\u00a0break\u2003em":      "no⟨U+00A0⟩break⟨U+2003⟩em",
		"\u3164 \u115f \u2800":       "⟨U+3164⟩ ⟨U+115F⟩ ⟨U+2800⟩",
		"tag\U000e0041 vs\ufe0f":     "tag⟨U+E0041⟩ vs⟨U+FE0F⟩",
		"\u2028\u2029\u0085":         "⟨U+2028⟩⟨U+2029⟩⟨U+0085⟩",
		"⟨U+0041⟩":                   "⟨U+27E8⟩U+0041⟨U+27E9⟩",
		"bad\xff\xc0":                "bad⟨FF⟩⟨C0⟩",
		"\u061c\u180e\ue000":         "⟨U+061C⟩⟨U+180E⟩⟨U+E000⟩",
	} {
		if got := reveal(text, false); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := styled(true, ui.Green, "+", "a\x1bb"); got != "\x1b[32m+a\x1b[7;33m⟨U+001B⟩\x1b[0m\x1b[32mb\x1b[0m" {
		t.Errorf("in colour: %q", got)
	}
}

func FuzzReveal(f *testing.F) {
	for _, seed := range []string{"", "plain", "\x1b[2J", "\u202e", "\xff\xfe", "⟨FF⟩", "a\u0301"} {
		f.Add(seed)
	}
	seen := map[string]string{}
	f.Fuzz(func(t *testing.T, text string) {
		got := reveal(text, false)
		if !utf8.ValidString(got) || strings.ContainsAny(got, "\x1b\r\n\x00\u202e\u200b") {
			t.Fatalf("%q shows as %q", text, got)
		}
		if other, ok := seen[got]; ok && other != text {
			t.Fatalf("%q and %q look alike", text, other)
		}
		if len(seen) < 10_000 {
			seen[got] = text
		}
	})
}
