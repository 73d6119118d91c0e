package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"gloved.dev/internal/safefile"
)

// Bounds of the history.
const (
	maxHistoryLines = 1000
	maxHistoryBytes = 1 << 20
	maxHistoryLine  = 16 << 10 // a longer line is not remembered
)

// history is the REPL's memory: a 0600 file in the state directory, for plans and ids are
// nobody else's business. It implements readline's History. A history that cannot be
// read or written is no reason to refuse a conversation: it is then kept in memory only.
type history struct {
	path  string // "" when nothing is kept
	lines []string
}

func openHistory(path string) (*history, error) {
	h := &history{path: path}
	if path == "" {
		return h, nil
	}
	data, _, err := safefile.ReadOwner(path, maxHistoryBytes)
	var fault *safefile.Error
	switch {
	case err == nil:
		h.lines = strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, safefile.ErrNotFound),
		errors.As(err, &fault) && fault.Code == safefile.CodeEmpty:
	default:
		h.path = ""
		return h, err
	}
	h.trim()
	return h, nil
}

func (h *history) trim() {
	if over := len(h.lines) - maxHistoryLines; over > 0 {
		h.lines = append([]string(nil), h.lines[over:]...)
	}
}

// Write remembers a line and implements readline's History.
func (h *history) Write(line string) (int, error) {
	line = strings.TrimSpace(strings.ReplaceAll(line, "\n", " "))
	last := len(h.lines) - 1
	if line == "" || len(line) > maxHistoryLine || last >= 0 && h.lines[last] == line {
		return len(h.lines), nil
	}
	h.lines = append(h.lines, line)
	h.trim()
	return len(h.lines), nil
}

// GetLine implements readline's History.
func (h *history) GetLine(at int) (string, error) {
	if at < 0 || at >= len(h.lines) {
		return "", fmt.Errorf("there is no line %d in the history", at)
	}
	return h.lines[at], nil
}

// Len implements readline's History.
func (h *history) Len() int { return len(h.lines) }

// Dump implements readline's History.
func (h *history) Dump() any { return h.lines }

// save writes the newest lines that fit the file's bound.
func (h *history) save() error {
	if h.path == "" || len(h.lines) == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(h.path), 0o700); err != nil {
		return err
	}
	first, size := len(h.lines), 0
	for first > 0 && size+len(h.lines[first-1])+1 <= maxHistoryBytes {
		first--
		size += len(h.lines[first]) + 1
	}
	return safefile.WriteOwner(h.path, []byte(strings.Join(h.lines[first:], "\n")+"\n"))
}
