package room

import (
	"fmt"
	"path/filepath"
	"strings"
)

// seatbeltRuntime is what a program needs to read of macOS itself.
var seatbeltRuntime = []string{
	"/System", "/usr/lib", "/usr/bin", "/usr/libexec", "/usr/sbin", "/usr/share", "/bin", "/sbin", "/Library/Apple",
	"/private/var/db/dyld", "/private/etc/localtime", "/private/var/db/timezone", "/dev/null", "/dev/zero", "/dev/random",
	"/dev/urandom", "/dev/tty",
}

// Seatbelt is the profile of a room for macOS's sandbox. Later rules win, so that what is denied is
// denied even inside an allowed folder. The paths must be real ones: the kernel compares those.
func Seatbelt(write, read, deny []string) string {
	var b strings.Builder
	b.WriteString("(version 1)\n(deny default)\n")
	b.WriteString("(allow process-fork)\n(allow process-exec)\n(allow signal (target same-sandbox))\n(allow sysctl-read)\n")
	b.WriteString("(deny network-outbound)\n(deny network-bind)\n(deny system-socket)\n")
	b.WriteString("(deny file-read*)\n")
	b.WriteString("(allow file-read-metadata (literal \"/\")" + literals(ancestors(append(append([]string{}, read...), write...))) + ")\n")
	rule(&b, "allow file-read*", append(append([]string{}, seatbeltRuntime...), read...))
	b.WriteString("(deny file-write*)\n")
	rule(&b, "allow file-write*", write)
	b.WriteString("(allow file-write-data (literal \"/dev/null\") (literal \"/dev/tty\"))\n")
	rule(&b, "deny file-read* file-write*", deny)
	return b.String()
}

func rule(b *strings.Builder, what string, paths []string) {
	fmt.Fprintf(b, "(%s", what)
	for _, p := range paths {
		fmt.Fprintf(b, "\n  (subpath %s)", sbString(p))
	}
	b.WriteString(")\n")
}

func literals(paths []string) string {
	var b strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&b, " (literal %s)", sbString(p))
	}
	return b.String()
}

// ancestors are the folders above the paths: a program may learn that they exist, not what they
// hold.
func ancestors(paths []string) []string {
	var list []string
	seen := map[string]bool{"/": true, ".": true}
	for _, p := range paths {
		for d := filepath.Dir(p); !seen[d]; d = filepath.Dir(d) {
			seen[d] = true
			list = append(list, d)
		}
	}
	return list
}

// sbString quotes for the profile language, in which a quote or a backslash of a path would end
// the string and begin a rule.
func sbString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
