package transcript

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Bounds of a transcript file.
const (
	// MaxFileBytes is the size of the largest transcript that is read.
	MaxFileBytes = 4 << 20
	// MaxLines is the number of lines a transcript may have.
	MaxLines = 20_000
)

// Kind tells what one line of a transcript is.
type Kind uint8

// The kinds of line. Comments and blank lines are kept so that a recording can be
// written back without losing them.
const (
	Comment   Kind = iota // "# …" or a blank line
	Command               // "$ gloved …": start a server
	Send                  // "--> …": one line to the server
	Expect                // "<-- …": one frame from the server
	SendEOF               // "--> <eof>": close the server's standard input
	ExpectEOF             // "<-- <eof>": the server ends the stream
)

const eofWord = "<eof>"

// Entry is one line of a transcript: its kind, its text without the marker, and its
// 1-based line number.
type Entry struct {
	Kind Kind
	Text string
	Line int
}

// File is a parsed transcript. Path is where it came from, or "" when it was parsed
// from memory.
type File struct {
	Path    string
	Entries []Entry
}

// SyntaxError says which line of a transcript cannot be read and why.
type SyntaxError struct {
	Path   string
	Line   int
	Reason string
}

func (e *SyntaxError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", e.Path, e.Line, e.Reason)
}

// Load reads and parses the transcript at path.
func Load(path string) (*File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if info.Size() > MaxFileBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, MaxFileBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Parse parses a transcript. The path is only used in errors and to find the policy
// beside the file.
func Parse(path string, data []byte) (*File, error) {
	if len(data) > MaxFileBytes {
		return nil, &SyntaxError{Path: path, Line: 1, Reason: fmt.Sprintf("larger than %d bytes", MaxFileBytes)}
	}
	file := &File{Path: path}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if len(lines) > MaxLines {
		return nil, &SyntaxError{Path: path, Line: MaxLines + 1, Reason: fmt.Sprintf("more than %d lines", MaxLines)}
	}
	started, ended := false, false
	for i, text := range lines {
		entry, err := parseLine(strings.TrimSuffix(text, "\r"))
		if err != nil {
			return nil, &SyntaxError{Path: path, Line: i + 1, Reason: err.Error()}
		}
		entry.Line = i + 1
		switch {
		case entry.Kind == Comment:
		case entry.Kind == Command:
			started, ended = true, false
		case !started:
			return nil, &SyntaxError{Path: path, Line: i + 1, Reason: `an arrow before the first "$ gloved …" line`}
		case ended && (entry.Kind == Send || entry.Kind == SendEOF):
			return nil, &SyntaxError{Path: path, Line: i + 1, Reason: "sends after its own <eof>"}
		}
		ended = ended || entry.Kind == SendEOF
		file.Entries = append(file.Entries, entry)
	}
	if !started {
		return nil, &SyntaxError{Path: path, Line: len(lines), Reason: `no "$ gloved …" line: nothing would be started`}
	}
	return file, nil
}

func parseLine(text string) (Entry, error) {
	body, isSend := strings.CutPrefix(text, "-->")
	if isSend {
		body = strings.TrimPrefix(body, " ")
		if body == eofWord {
			return Entry{Kind: SendEOF}, nil
		}
		return Entry{Kind: Send, Text: body}, nil
	}
	body, isExpect := strings.CutPrefix(text, "<--")
	if isExpect {
		body = strings.TrimSpace(body)
		if body == eofWord {
			return Entry{Kind: ExpectEOF}, nil
		}
		if body == "" {
			return Entry{}, fmt.Errorf("an expected frame is empty")
		}
		return Entry{Kind: Expect, Text: body}, nil
	}
	trimmed := strings.TrimSpace(text)
	if trimmed == "" || strings.HasPrefix(trimmed, "#") {
		return Entry{Kind: Comment, Text: text}, nil
	}
	command, isCommand := strings.CutPrefix(text, "$ ")
	if !isCommand {
		return Entry{}, fmt.Errorf(`a line begins with "#", "$ ", "-->" or "<--"; got %q`, clip(text, 40))
	}
	words := strings.Fields(command)
	if len(words) == 0 || words[0] != "gloved" {
		return Entry{}, fmt.Errorf(`only gloved can be started: write "$ gloved …"`)
	}
	return Entry{Kind: Command, Text: strings.Join(words, " ")}, nil
}

// Bytes is the text of the transcript: what Parse would read back to the same entries.
func (f *File) Bytes() []byte {
	var out bytes.Buffer
	for _, entry := range f.Entries {
		switch entry.Kind {
		case Comment:
			out.WriteString(entry.Text)
		case Command:
			out.WriteString("$ " + entry.Text)
		case Send:
			out.WriteString("--> " + entry.Text)
		case Expect:
			out.WriteString("<-- " + entry.Text)
		case SendEOF:
			out.WriteString("--> " + eofWord)
		case ExpectEOF:
			out.WriteString("<-- " + eofWord)
		}
		out.WriteByte('\n')
	}
	return out.Bytes()
}

// Name is the file's name without directory and extension.
func (f *File) Name() string {
	return strings.TrimSuffix(filepath.Base(f.Path), ".transcript")
}

// clip shortens s for a message.
func clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}
