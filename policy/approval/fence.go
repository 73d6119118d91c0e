package approval

import "strings"

// blockInfo is the info string of the policy's fence, after its inner white
// space was put to single spaces.
const blockInfo = "yaml approval-policy"

// A block is one fenced policy: its text and where it begins.
type block struct {
	text string
	line int // of the first line inside, from 1
}

// blocks finds the closed policy blocks of a Markdown text. open says that a
// policy block was begun and never closed. A fence inside another one is that
// one's text: a four-backtick example of a policy decides nothing.
func blocks(text string) (found []block, open bool) {
	var inside *fence
	var body strings.Builder
	first, number := 0, 0
	for line, end := range lines(text) {
		number++
		switch {
		case inside == nil:
			if f, ok := opener(line); ok {
				inside, first = &f, number+1
				body.Reset()
			}
		case inside.closedBy(line):
			if inside.policy {
				found = append(found, block{text: body.String(), line: first})
			}
			inside = nil
		case inside.policy:
			body.WriteString(line + end)
		}
	}
	return found, inside != nil && inside.policy
}

// lines yields the lines of a text and what ended each: "\n" (also for "\r\n"
// and a lone "\r"), or "" at the end of the text.
func lines(text string) func(yield func(line, end string) bool) {
	return func(yield func(line, end string) bool) {
		for text != "" {
			at := strings.IndexAny(text, "\r\n")
			if at < 0 {
				yield(text, "")
				return
			}
			line := text[:at]
			if strings.HasPrefix(text[at:], "\r\n") {
				at++
			}
			text = text[at+1:]
			if !yield(line, "\n") {
				return
			}
		}
	}
}

// A fence is an open code fence.
type fence struct {
	ticks  int
	policy bool
}

// opener reads a line that opens a fence: at most three spaces, three or more
// backticks, and an info string without backticks (CommonMark 4.5). Tilde
// fences are none here.
func opener(line string) (fence, bool) {
	rest, ok := indented(line)
	if !ok {
		return fence{}, false
	}
	info := strings.TrimLeft(rest, "`")
	ticks := len(rest) - len(info)
	if ticks < 3 || strings.Contains(info, "`") {
		return fence{}, false
	}
	words := strings.FieldsFunc(info, func(r rune) bool { return r == ' ' || r == '\t' })
	return fence{ticks: ticks, policy: strings.Join(words, " ") == blockInfo}, true
}

// closedBy reports whether line closes f: at least as many backticks and then
// only spaces and tabs.
func (f fence) closedBy(line string) bool {
	rest, ok := indented(line)
	if !ok {
		return false
	}
	after := strings.TrimLeft(rest, "`")
	return len(rest)-len(after) >= f.ticks && strings.Trim(after, " \t") == ""
}

// indented cuts up to three leading spaces; a fourth makes it no fence.
func indented(line string) (string, bool) {
	rest := strings.TrimLeft(line, " ")
	return rest, len(line)-len(rest) <= 3
}
