//go:build linux

package cgroup

import (
	"slices"
	"strings"
	"testing"
)

func TestParseStat(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 9 18 4242 20 21\n"
	for _, name := range []string{"sh", "a b", ") S 1 (", "x) R 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 7", "\n)"} {
		st, err := parseStat([]byte("77 (" + name + ")" + tail))
		if err != nil || st != (procStat{state: 'S', threads: 9, start: 4242}) {
			t.Errorf("name %q: %+v, %v", name, st, err)
		}
	}
	for _, bad := range []string{"", "1 sh S", "1 (sh)", "1 (sh) S 1", "1 (sh)" + strings.Replace(tail, "4242", "-1", 1), "1 (sh)" + strings.Replace(tail, " S ", " SS ", 1)} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, tt := range []struct {
		path, root, rel string
		ok              bool
	}{
		{"/", "/", ".", true},
		{"/a/b", "/", "a/b", true},
		{"/a/b", "/a", "b", true},
		{"/a", "/a", ".", true},
		{"/ab", "/a", "", false},
		{"/", "/a", "", false},
		{"/../x", "/", "", false},
		{"/x", "/..", "", false},
		{"/a/../b", "/", "", false},
	} {
		rel, ok := below(tt.path, tt.root)
		if ok != tt.ok || ok && rel != tt.rel {
			t.Errorf("below(%q, %q) = %q, %v, want %q, %v", tt.path, tt.root, rel, ok, tt.rel, tt.ok)
		}
	}
}

func TestParseMountsAndMembership(t *testing.T) {
	ms := parseMountinfo([]byte(`30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
31 23 0:27 /docker/x /sys/fs/cg\040roup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 23 0:28 / /proc rw - proc proc rw
torn line
`))
	if len(ms) != 2 || ms[0].point != "/sys/fs/cgroup" || ms[1].point != "/sys/fs/cg roup/cpu,cpuacct" || ms[1].root != "/docker/x" || !slices.Contains(ms[1].super, "cpuacct") {
		t.Errorf("mounts: %+v", ms)
	}
	own, err := parseMembership([]byte("3:cpu,cpuacct:/docker/x:y\n1:name=systemd:/s\n0::/u\n"))
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[string]string{"cpuacct": "/docker/x:y", "": "/u", "name=systemd": "/s"} {
		if p, ok := pathOf(own, c); !ok || p != want {
			t.Errorf("pathOf(%q) = %q, %v, want %q", c, p, ok, want)
		}
	}
	if _, ok := pathOf(own, "memory"); ok {
		t.Error("found a controller that is not there")
	}
	for _, bad := range []string{"x\n", "0:\n", "0::rel\n", "-1::/\n"} {
		if _, err := parseMembership([]byte(bad)); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
}

func TestParseSmall(t *testing.T) {
	if n, ok, err := parseFlat([]byte("low 1\nmax 12\noom 3\n"), "max"); n != 12 || !ok || err != nil {
		t.Errorf("parseFlat = %d, %v, %v", n, ok, err)
	}
	if _, ok, err := parseFlat([]byte("maxim 12\n"), "max"); ok || err != nil {
		t.Errorf("parseFlat took another key: %v, %v", ok, err)
	}
	if _, _, err := parseFlat([]byte("max x\n"), "max"); err == nil {
		t.Error("parseFlat accepted x")
	}
	if p, err := parsePIDs([]byte("1\n0\n22\n33")); err != nil || !slices.Equal(p, []int{1, 0, 22}) {
		t.Errorf("parsePIDs = %v, %v: a cut last line must be left out", p, err)
	}
	for list, want := range map[string]int{"0\n": 1, "0-3,8": 5} {
		if n, err := countCPUs([]byte(list)); n != want || err != nil {
			t.Errorf("countCPUs(%q) = %d, %v", list, n, err)
		}
	}
	for _, bad := range []string{"", "3-1", "a", "0-"} {
		if _, err := countCPUs([]byte(bad)); err == nil {
			t.Errorf("countCPUs accepted %q", bad)
		}
	}
	good := "01234567-89ab-cdef-0123-456789abcdef"
	if s, err := parseBootID([]byte(good + "\n")); s != good || err != nil {
		t.Errorf("parseBootID = %q, %v", s, err)
	}
	for _, bad := range []string{"", good[1:], strings.ToUpper(good), strings.ReplaceAll(good, "-", "0")} {
		if _, err := parseBootID([]byte(bad)); err == nil {
			t.Errorf("parseBootID accepted %q", bad)
		}
	}
	if got := pathDigest("/"); len(got) != 64 {
		t.Errorf("pathDigest = %q", got)
	}
}
