package broker

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"gloved.dev/internal/ident"
)

// MaxPathBytes is the longest endpoint path, in bytes of UTF-8.
const MaxPathBytes = 1024

// The two names in a workspace that belong to the broker. A proposal that could write them could
// write its own journal, or free a lock that waits for a person.
const (
	TransactionDir = ".approval-codex-txn"
	LockName       = ".approval-codex-lock"
)

// checkPath judges an endpoint's path by its text alone.
func checkPath(path string) *Refusal {
	bad := func(why string) *Refusal {
		return planRefusal("path-invalid", printable(path), "a path %s", why)
	}
	switch {
	case path == "" || path[0] == '/':
		return bad("must be relative and not empty")
	case len(path) > MaxPathBytes:
		return bad("may have at most 1024 bytes")
	case !utf8.ValidString(path):
		return bad("must be UTF-8")
	case strings.ContainsRune(path, '\\'):
		return bad("has slashes, not backslashes, between its components")
	}
	for _, r := range path {
		switch {
		case unicode.IsControl(r):
			return bad("must not have control characters")
		case unicode.Is(unsettled, r):
			return bad("must be in Normalization Form C, without combining characters")
		case !unicode.IsGraphic(r):
			// Format characters (bidirectional overrides, zero-width joiners) make a
			// path look like another; unassigned ones have no known normal form.
			return bad("must have visible, assigned characters only")
		}
	}
	for c := range strings.SplitSeq(path, "/") {
		if !ident.Component(c) || c == "" {
			return bad("must have no empty, \".\" or \"..\" component and none longer than 255 bytes")
		}
	}
	if first, _, _ := strings.Cut(path, "/"); reservedName(first) {
		r := refuse(CodeReservedPath, "", "the name belongs to the broker")
		r.Path = path
		return r
	}
	return nil
}

func reservedName(name string) bool {
	f := fold(name)
	return f == TransactionDir || f == LockName
}

// printable is a path of the proposal as a message may show it.
func printable(path string) string {
	if len(path) > 200 {
		path = path[:200]
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, path)
}

// fold maps names that differ only by letter case to one text.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return unicode.ToLower(least)
	}, strings.NewReplacer("ß", "ss", "ẞ", "ss").Replace(name))
}

// asciiTwins are the characters whose canonical decomposition is one ASCII character.
var asciiTwins = strings.NewReplacer("\u037e", ";", "\u1fef", "`", "\u212a", "k")

// skeleton is what is left of a name when everything that normalization can touch becomes a
// question mark. Two names with one normal form have one skeleton; the reverse does not hold, and
// is asked only about names that are not in form C.
func skeleton(name string) string {
	var b strings.Builder
	pending, first := rune(0), true
	flush := func() {
		switch {
		case first:
		case pending < utf8.RuneSelf:
			b.WriteRune(pending)
		default:
			b.WriteByte('?')
		}
	}
	for _, r := range fold(asciiTwins.Replace(name)) {
		if unicode.Is(unsettled, r) && !first {
			pending = utf8.MaxRune
			continue
		}
		flush()
		pending, first = r, false
	}
	flush()
	return b.String()
}

// settled reports whether a name on disk is surely in Normalization Form C.
func settled(name string) bool {
	return utf8.ValidString(name) && strings.IndexFunc(name, func(r rune) bool { return unicode.Is(unsettled, r) }) < 0
}

// alias reports whether two different names can be one file where letter case or normalization
// does not count. name is in form C; other is whatever the disk holds.
func alias(name, other string) bool {
	if name == other {
		return false
	}
	if fold(name) == fold(other) {
		return true
	}
	return !settled(other) && skeleton(name) == skeleton(other)
}
