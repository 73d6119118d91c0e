package main

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"gloved.dev/cmd/internal/ui"
)

// reveal makes text from outside show what it is. What a terminal would hide,
// reorder or obey becomes ⟨U+XXXX⟩, a byte that is no UTF-8 ⟨XX⟩; a tab stays. A
// person who decides by what is shown must not be shown less than what is there
// (CVE-2021-42574, "Trojan Source").
func reveal(text string, color bool) string {
	var out strings.Builder
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRuneInString(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			out.WriteString(mark(fmt.Sprintf("⟨%02X⟩", text[i]), color))
		case hidden(r):
			out.WriteString(mark(fmt.Sprintf("⟨U+%04X⟩", r), color))
		default:
			out.WriteString(text[i : i+n])
		}
		i += n
	}
	return out.String()
}

// revealPlain is reveal for one line without colour.
func revealPlain(text string) string { return reveal(text, false) }

func mark(text string, color bool) string {
	if !color {
		return text
	}
	return "\x1b[7;33m" + text + "\x1b[0m"
}

// hidden reports whether a character does not show itself as itself. The
// brackets of the marks are among them, so that a mark cannot be forged.
func hidden(r rune) bool {
	switch {
	case r == '\t' || r == ' ':
		return false
	case r == '⟨' || r == '⟩':
		return true
	case unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs, unicode.Zs, unicode.Zl, unicode.Zp):
		return true
	case unicode.Is(unicode.Variation_Selector, r), unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r):
		return true
	case r == 0x2800: // a braille cell without dots
		return true
	}
	return !unicode.IsPrint(r)
}

// styled shows one line of text in a style, its hidden characters marked.
func styled(color bool, style ui.Style, prefix, text string) string {
	if !color {
		return prefix + reveal(text, false)
	}
	shown := reveal(text, true)
	if style == ui.Plain {
		return prefix + shown
	}
	// A mark ends every style: begin it again.
	start := "\x1b[" + string(style) + "m"
	return start + prefix + strings.ReplaceAll(shown, "\x1b[0m", "\x1b[0m"+start) + "\x1b[0m"
}
