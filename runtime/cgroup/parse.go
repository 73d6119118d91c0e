package cgroup

import (
	"bytes"
	"errors"
	"path"
	"strconv"
	"strings"
)

var errSyntax = errors.New("not in the documented form")

// mount is one line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
type mount struct {
	root   string   // directory of the filesystem that is mounted, in our cgroup namespace
	point  string   // where it is mounted
	fstype string   // "cgroup", "cgroup2", ...
	super  []string // per-superblock options; on v1 they name the controllers
}

// parseMountinfo returns the cgroup and cgroup2 mounts, in order.
func parseMountinfo(data []byte) []mount {
	var out []mount
	for line := range strings.Lines(string(data)) {
		left, right, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " - ")
		if !ok {
			continue
		}
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 6 || len(r) < 3 || r[0] != "cgroup" && r[0] != "cgroup2" {
			continue
		}
		out = append(out, mount{
			root:   unescapeOctal(l[3]),
			point:  unescapeOctal(l[4]),
			fstype: r[0],
			super:  strings.Split(r[2], ","),
		})
	}
	return out
}

// unescapeOctal undoes the \ooo the kernel writes for blanks and backslashes.
func unescapeOctal(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// membership is one line of /proc/PID/cgroup (cgroups(7)).
type membership struct {
	controllers []string // empty for the v2 line; "name=..." for named v1 hierarchies
	path        string
}

func parseMembership(data []byte) ([]membership, error) {
	var out []membership
	for line := range strings.Lines(string(data)) {
		id, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		list, p, ok2 := strings.Cut(rest, ":")
		if _, err := strconv.ParseUint(id, 10, 32); !ok || !ok2 || err != nil || !strings.HasPrefix(p, "/") {
			return nil, errSyntax
		}
		m := membership{path: p}
		if list != "" {
			m.controllers = strings.Split(list, ",")
		}
		out = append(out, m)
	}
	return out, nil
}

// pathOf returns the path in the hierarchy of a v1 controller, or of v2 for "".
func pathOf(ms []membership, controller string) (string, bool) {
	for _, m := range ms {
		if controller == "" && len(m.controllers) == 0 {
			return m.path, true
		}
		for _, c := range m.controllers {
			if c == controller {
				return m.path, true
			}
		}
	}
	return "", false
}

// below returns where p is relative to a mount whose root is root: "." for the
// mount point itself. Both are paths in the same cgroup namespace. A path outside
// the mount, or one that leaves the namespace ("/.."), is not ok.
func below(p, root string) (string, bool) {
	if p != path.Clean(p) || strings.HasPrefix(p, "/..") || strings.HasPrefix(root, "/..") {
		return "", false
	}
	if p == root {
		return ".", true
	}
	if root != "/" {
		root += "/"
	}
	rel, ok := strings.CutPrefix(p, root)
	return rel, ok
}

// parseNumber reads a control file that holds one decimal; "max" is the largest.
func parseNumber(data []byte) (uint64, error) {
	s := string(bytes.TrimSuffix(data, []byte("\n")))
	if s == "max" {
		return ^uint64(0), nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, errSyntax
	}
	return n, nil
}

// parseFlat reads one key of a flat keyed control file ("KEY VALUE\n" lines).
func parseFlat(data []byte, key string) (uint64, bool, error) {
	for len(data) > 0 {
		var line []byte
		line, data, _ = bytes.Cut(data, []byte("\n"))
		k, v, ok := bytes.Cut(line, []byte(" "))
		if !ok || string(k) != key {
			continue
		}
		n, err := parseNumber(v)
		return n, err == nil, err
	}
	return 0, false, nil
}

// parsePIDs reads the complete lines of a cgroup.procs file. A PID that is not
// visible in our PID namespace reads as 0 and is kept, as it is a member.
func parsePIDs(data []byte) ([]int, error) {
	var out []int
	for {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return out, nil
		}
		n, err := strconv.ParseUint(string(line), 10, 31)
		if err != nil {
			return nil, errSyntax
		}
		out, data = append(out, int(n)), rest
	}
}

// procStat is what identity needs of /proc/PID/stat (proc_pid_stat(5)).
type procStat struct {
	state   byte
	threads uint64
	start   uint64 // field 22: clock ticks after boot
}

// parseStat starts after the last ')', because the program may have put any bytes,
// also blanks, line feeds and parentheses, into its own name.
func parseStat(data []byte) (procStat, error) {
	i := bytes.LastIndexByte(data, ')')
	if i < 0 {
		return procStat{}, errSyntax
	}
	f := strings.Fields(string(data[i+1:])) // f[0] is field 3
	if len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, errSyntax
	}
	threads, err1 := strconv.ParseUint(f[17], 10, 64)
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	if err1 != nil || err2 != nil {
		return procStat{}, errSyntax
	}
	return procStat{state: f[0][0], threads: threads, start: start}, nil
}

// parseBootID accepts the 36 characters of a lowercase UUID.
func parseBootID(data []byte) (string, error) {
	s := string(bytes.TrimSuffix(data, []byte("\n")))
	if len(s) != 36 {
		return "", errSyntax
	}
	for i := range len(s) {
		c := s[i]
		dash := i == 8 || i == 13 || i == 18 || i == 23
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash != (c == '-') || !dash && !hex {
			return "", errSyntax
		}
	}
	return s, nil
}

// countCPUs counts a list such as "0-3,8" (cpuset(7), List Format).
func countCPUs(data []byte) (int, error) {
	total := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(data)), ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		if !ranged {
			hi = lo
		}
		a, err1 := strconv.ParseUint(lo, 10, 16)
		b, err2 := strconv.ParseUint(hi, 10, 16)
		if err1 != nil || err2 != nil || b < a {
			return 0, errSyntax
		}
		total += int(b-a) + 1
	}
	return total, nil
}
