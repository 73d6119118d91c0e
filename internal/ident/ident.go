// Package ident holds the grammars of every name that crosses a trust border:
// identifiers, aliases, digests, paths, labels and environment entries.
//
// Its nouns are those of the session-policy specification: an ID names
// something in a plan or a policy, an Alias names a path, a MatID names a
// materialised object on disk, a Hex64 is a digest. Each function answers one
// question, "is this string exactly of that form?", by bytes, never by locale,
// and never repairs its input: a caller that gets false refuses.
//
// It is not for parsing structured text, and not for deciding whether a well
// formed name is known or allowed.
package ident

import (
	"path"
	"strings"
	"unicode/utf8"
)

const (
	// MaxID is the longest ID, in bytes.
	MaxID = 128
	// MaxMatID is the longest MatID, in bytes; directory and cgroup names are
	// built from it, and 64 leaves room for their fixed parts in NAME_MAX.
	MaxMatID = 64
	// MaxSecret is the longest secret handle, in bytes: an ID that leaves room
	// for the prefix of its mount alias.
	MaxSecret = 120
	// MaxLabel is the longest display label, in bytes.
	MaxLabel = 256
	// MaxComponent is NAME_MAX: the longest single file name, in bytes.
	MaxComponent = 255
	// MaxPath is the longest path accepted anywhere, in bytes.
	MaxPath = 4096
	// MaxArg is the longest argument or NAME=VALUE entry, in bytes.
	MaxArg = 64 << 10
	// MaxInt is the largest integer that survives every JSON implementation:
	// 2^53-1 (RFC 8259 section 6, RFC 7493 section 2.2).
	MaxInt = 1<<53 - 1
)

// ZeroHash is the previous hash of the first record of a keyed chain: 64 zeros.
const ZeroHash = "0000000000000000000000000000000000000000000000000000000000000000"

func each(s string, lo, hi int, ok func(c byte) bool) bool {
	if len(s) < lo || len(s) > hi {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func aliasByte(c byte) bool { return alnum(c) || c == '-' || c == '_' || c == '.' }

// ID reports whether s is an identifier: 1 to 128 bytes of A-Z a-z 0-9 - _ : .
func ID(s string) bool {
	return each(s, 1, MaxID, func(c byte) bool { return aliasByte(c) || c == ':' })
}

// Alias reports whether s is a path alias: an ID without a colon.
func Alias(s string) bool { return each(s, 1, MaxID, aliasByte) }

// MatID reports whether s may name something on disk: 1 to 64 bytes of
// A-Z a-z 0-9 - _ . which is neither "." nor "..", since it becomes part of
// directory and cgroup names.
func MatID(s string) bool {
	return each(s, 1, MaxMatID, aliasByte) && s != "." && s != ".."
}

// Secret reports whether s is a secret handle: an ID of at most 120 bytes.
func Secret(s string) bool { return len(s) <= MaxSecret && ID(s) }

// Hex64 reports whether s is 64 lowercase hexadecimal digits.
func Hex64(s string) bool {
	return each(s, 64, 64, func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' })
}

// Label reports whether s may be shown to a person as a name: 1 to 256 bytes
// of valid UTF-8 without control bytes, "/" or "\".
func Label(s string) bool {
	return utf8.ValidString(s) && each(s, 1, MaxLabel, func(c byte) bool {
		return c >= 0x20 && c != 0x7f && c != '/' && c != '\\'
	})
}

// Component reports whether s is a single file name: 1 to 255 bytes, not "."
// or "..", without "/" and NUL.
func Component(s string) bool {
	return s != "." && s != ".." &&
		each(s, 1, MaxComponent, func(c byte) bool { return c != '/' && c != 0 })
}

// RelPath reports whether s is "." or a relative, lexically normal path of at
// most 4096 bytes without "." and ".." components.
func RelPath(s string) bool {
	if s == "." {
		return true
	}
	if s == "" || len(s) > MaxPath {
		return false
	}
	for c := range strings.SplitSeq(s, "/") {
		if !Component(c) {
			return false
		}
	}
	return true
}

// AbsPath reports whether s is absolute, lexically normal, not "/", free of
// NUL and at most 4096 bytes.
func AbsPath(s string) bool {
	return len(s) > 1 && len(s) <= MaxPath && s[0] == '/' &&
		!strings.Contains(s, "\x00") && path.Clean(s) == s
}

// EnvName reports whether s is an environment variable name:
// [A-Za-z_][A-Za-z0-9_]*.
func EnvName(s string) bool {
	return each(s, 1, MaxArg, func(c byte) bool { return alnum(c) || c == '_' }) &&
		!(s[0] >= '0' && s[0] <= '9')
}

// ArgString reports whether s may be one program argument or one NAME=VALUE
// entry: 1 to 65536 bytes without NUL.
func ArgString(s string) bool {
	return each(s, 1, MaxArg, func(c byte) bool { return c != 0 })
}

// Within reports whether path is root or lies below it, by components: "/ab"
// is not within "/a". Both must already be lexically normal.
func Within(path, root string) bool {
	if root == "/" {
		return strings.HasPrefix(path, "/")
	}
	return path == root || strings.HasPrefix(path, root) && path[len(root)] == '/'
}

// Overlap reports whether either path is within the other.
func Overlap(a, b string) bool { return Within(a, b) || Within(b, a) }
