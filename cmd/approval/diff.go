package main

import (
	"fmt"
	"strings"
)

// Bounds of a diff. A change with more edits is shown as one block removed and
// one added, which is as exact and only less kind.
const (
	maxEdits    = 1000
	contextSize = 3
)

// An edit is one line of a diff: ' ' kept, '-' removed, '+' added.
type edit struct {
	op   byte
	text string // without its newline
}

// splitLines cuts a text into lines; whole says that the last one ends in a
// newline, or that there is none.
func splitLines(text string) (lines []string, whole bool) {
	if text == "" {
		return nil, true
	}
	lines = strings.Split(text, "\n")
	if lines[len(lines)-1] == "" {
		return lines[:len(lines)-1], true
	}
	return lines, false
}

// diffLines finds a shortest edit script between two lists of lines (E. Myers,
// "An O(ND) difference algorithm", 1986), outside what both share at their ends.
func diffLines(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	var out []edit
	for _, line := range a[:head] {
		out = append(out, edit{' ', line})
	}
	out = append(out, myers(a[head:len(a)-tail], b[head:len(b)-tail])...)
	for _, line := range a[len(a)-tail:] {
		out = append(out, edit{' ', line})
	}
	return out
}

func myers(a, b []string) []edit {
	trace, ok := search(a, b)
	if !ok {
		out := make([]edit, 0, len(a)+len(b))
		for _, line := range a {
			out = append(out, edit{'-', line})
		}
		for _, line := range b {
			out = append(out, edit{'+', line})
		}
		return out
	}
	return backtrack(a, b, trace)
}

// search runs the greedy forward search and keeps the frontier before each
// round; frontier[k+d] of round d is the furthest x on diagonal k.
func search(a, b []string) (trace [][]int, ok bool) {
	limit := min(len(a)+len(b), maxEdits)
	v := map[int]int{1: 0}
	for d := 0; d <= limit; d++ {
		snapshot := make([]int, 2*d+3)
		for k := -d - 1; k <= d+1; k++ {
			snapshot[k+d+1] = v[k]
		}
		trace = append(trace, snapshot)
		for k := -d; k <= d; k += 2 {
			x := v[k-1] + 1
			if k == -d || k != d && v[k-1] < v[k+1] {
				x = v[k+1]
			}
			y := x - k
			for x < len(a) && y >= 0 && y < len(b) && a[x] == b[y] {
				x, y = x+1, y+1
			}
			v[k] = x
			if x >= len(a) && y >= len(b) {
				return trace, true
			}
		}
	}
	return nil, false
}

func backtrack(a, b []string, trace [][]int) []edit {
	var rev []edit
	x, y := len(a), len(b)
	for d := len(trace) - 1; d >= 0; d-- {
		v := func(k int) int { return trace[d][k+d+1] }
		k := x - y
		prev := k - 1
		if k == -d || k != d && v(k-1) < v(k+1) {
			prev = k + 1
		}
		px := v(prev)
		py := px - prev
		if d == 0 {
			px, py = 0, 0
		}
		for x > px && y > py {
			x, y = x-1, y-1
			rev = append(rev, edit{' ', a[x]})
		}
		switch {
		case d == 0:
		case x > px:
			x--
			rev = append(rev, edit{'-', a[x]})
		case y > py:
			y--
			rev = append(rev, edit{'+', b[y]})
		}
	}
	for i, j := 0, len(rev)-1; i < j; i, j = i+1, j-1 {
		rev[i], rev[j] = rev[j], rev[i]
	}
	return rev
}

// A hunk is a run of changes with some lines around it; A and B are where it
// begins in each text, from 1.
type hunk struct {
	a, b, na, nb int
	edits        []edit
}

func (h hunk) header() string {
	return fmt.Sprintf("@@ -%s +%s @@", span(h.a, h.na), span(h.b, h.nb))
}

func span(from, n int) string {
	if n == 0 {
		from--
	}
	if n == 1 {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%d,%d", from, n)
}

// hunks groups changes that lie near each other.
func hunks(edits []edit) []hunk {
	var out []hunk
	a, b := 1, 1
	for i := 0; i < len(edits); {
		if edits[i].op == ' ' {
			a, b, i = a+1, b+1, i+1
			continue
		}
		before := min(contextSize, i)
		if n := len(out); n > 0 { // what the last hunk shows is not shown again
			before = min(before, a-(out[n-1].a+out[n-1].na))
		}
		h := hunk{a: a - before, b: b - before}
		end := reach(edits, i)
		h.edits = edits[i-before : end]
		for _, e := range h.edits {
			if e.op != '+' {
				h.na++
			}
			if e.op != '-' {
				h.nb++
			}
		}
		a, b, i = h.a+h.na, h.b+h.nb, end
		out = append(out, h)
	}
	return out
}

// reach finds where the hunk that begins with the change at i ends: after the
// lines that follow a change without another one close by.
func reach(edits []edit, i int) int {
	last := i
	for j := i; j < len(edits) && j-last <= 2*contextSize; j++ {
		if edits[j].op != ' ' {
			last = j
		}
	}
	return min(last+1+contextSize, len(edits))
}
