package repo_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A block is one fenced block of a Markdown document.
type block struct {
	line  int    // of the opening fence, from 1
	info  string // the first word after the fence: the language
	tags  []string
	text  string
	shown *string // of a sh block: the text block right after it, which shows its output
}

// tagged tells whether a block carries a tag.
func (b block) tagged(tag string) bool { return slices.Contains(b.tags, tag) }

// knownTags are what may follow "sh": norun is not run at all; fails must exit with a status other
// than 0; sandbox runs a managed session, which not every host can.
var knownTags = []string{"norun", "fails", "sandbox"}

// blocks finds the fenced blocks of a document, and pairs a sh block with the text block after it
// if nothing but blank lines and one paragraph of prose stands between them.
func blocks(document string) ([]block, error) {
	var found []block
	var open *block
	fence, gaps := "", 0
	for i, line := range strings.Split(document, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case open != nil && bare == fence:
			found = append(found, *open)
			open, gaps = nil, 0
			pair(found)
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(bare, "```"):
			fence = bare[:len(bare)-len(strings.TrimLeft(bare, "`"))]
			words := strings.Fields(bare[len(fence):])
			open = &block{line: i + 1}
			if len(words) > 0 {
				open.info, open.tags = words[0], words[1:]
			}
			if len(found) > 0 && gaps > 2 {
				open.tags = append(open.tags, "far")
			}
		case strings.HasPrefix(bare, "#"):
			gaps += 3 // another section
		case bare == "":
			gaps++
		}
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: the block is never closed", open.line)
	}
	for _, b := range found {
		for _, tag := range b.tags {
			if b.info == "sh" && tag != "far" && !slices.Contains(knownTags, tag) {
				return nil, fmt.Errorf("line %d: sh block with the unknown tag %q", b.line, tag)
			}
		}
	}
	return found, nil
}

// pair gives the last block, if it is text, to the sh block before it.
func pair(found []block) {
	if n := len(found); n >= 2 && found[n-1].info == "text" && found[n-2].info == "sh" && !found[n-1].tagged("far") {
		found[n-2].shown = &found[n-1].text
	}
}

var (
	longHex = regexp.MustCompile(`\b[0-9a-f]{12,}\b`)
	digits  = regexp.MustCompile(`[0-9]+`)
	spaces  = regexp.MustCompile(`\s+`)
)

// loosen removes from a line what differs from run to run: digests, numbers, widths.
func loosen(line string) string {
	line = longHex.ReplaceAllString(line, "H")
	line = digits.ReplaceAllString(line, "N")
	return strings.TrimSpace(spaces.ReplaceAllString(line, " "))
}

// shows tells whether output has the shown lines in it, next to each other; "..." (or …) stands for
// any text in a line, and alone on a line for any lines.
func shows(output, shown string) bool {
	var pattern strings.Builder
	pattern.WriteString(`(?:^|\n)`)
	for line := range strings.Lines(strings.TrimSpace(shown)) {
		line = strings.ReplaceAll(loosen(line), "…", "...")
		if line == "..." {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		parts := strings.Split(line, "...")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, `[^\n]*?`) + `\n`)
	}
	var loose strings.Builder
	for line := range strings.Lines(output) {
		loose.WriteString(loosen(line) + "\n")
	}
	return regexp.MustCompile(pattern.String()).MatchString(loose.String())
}

func TestBlocks(t *testing.T) {
	const document = "# A\n```sh\necho 1\n```\nIt prints:\n\n```text\n1\n```\n## B\n```sh norun\nrm\n```\n## C\n```text\n2\n```\n```go\n```\n"
	found, err := blocks(document)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 5 || found[0].shown == nil || *found[0].shown != "1\n" || found[0].text != "echo 1\n" {
		t.Errorf("first block: %+v", found)
	}
	if !found[2].tagged("norun") || found[2].shown != nil {
		t.Errorf("norun block: %+v", found[2])
	}
	for _, wrong := range []string{"```sh\nx", "```sh nurun\n```"} {
		if _, err := blocks(wrong); err == nil {
			t.Errorf("accepted %q", wrong)
		}
	}
}

func TestShows(t *testing.T) {
	const output = "started  in 12 ms\ndigest 0123456789abcdef\nok   all\n"
	for shown, want := range map[string]bool{
		"started in 7 ms":                  true,
		"started in 7 ms\nok all":          false,
		"started in 7 ms\n...\nok all":     true,
		"digest fedcba9876543210\nok ...":  true,
		"digest abc":                       false,
		"ok all\nand more":                 false,
		"...\nok all":                      true,
		"started ... ms\ndigest …":         true,
		"started ... s\ndigest ...\nok no": false,
	} {
		if got := shows(output, shown); got != want {
			t.Errorf("%q: %v, want %v", shown, got, want)
		}
	}
}
