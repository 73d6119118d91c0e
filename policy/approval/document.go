package approval

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// MaxFile bounds a policy file in bytes.
const MaxFile = 1 << 20

// FileNames are the names a policy may have in a folder, in order.
var FileNames = []string{"APPROVAL.md", "APPROVALS.md"}

// A Document is one reading of a policy file: the digest and the policy are
// those of the same bytes. Without a valid policy, Policy is nil and Failure
// says why; such a document makes every class manual.
type Document struct {
	Path    string
	SHA256  string // of the file's bytes; "" when it could not be read
	Size    int
	Policy  *Policy
	Failure *Failure
}

// Read reads the policy file at path once and parses what it read. It always
// returns a document: what cannot be read has no digest.
func Read(path string) *Document {
	data, err := readOnce(path)
	if err != nil {
		code := CodeUnreadable
		if errors.Is(err, fs.ErrNotExist) {
			code = CodeFileMissing
		}
		return &Document{Path: path, Failure: &Failure{Code: code, Detail: err.Error()}}
	}
	d := Parse(data)
	d.Path = path
	return d
}

// ReadDir is Read of the first of FileNames that exists in dir.
func ReadDir(dir string) *Document {
	for _, name := range FileNames {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); err == nil {
			return Read(path)
		}
	}
	return &Document{Path: filepath.Join(dir, FileNames[0]), Failure: &Failure{Code: CodeFileMissing,
		Detail: "there is no APPROVAL.md in " + dir}}
}

// readOnce reads a whole file through one descriptor. O_NONBLOCK keeps a FIFO
// in its place from hanging us; the bound is checked on what was read, because
// a size can be old when the bytes arrive.
func readOnce(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%s has more than the %d bytes a policy may have", path, MaxFile)
	}
	return data, nil
}

// Parse reads a policy from the bytes of a file.
func Parse(data []byte) *Document {
	sum := sha256.Sum256(data)
	d := &Document{SHA256: hex.EncodeToString(sum[:]), Size: len(data)}
	d.Policy, d.Failure = parse(data)
	return d
}

func parse(data []byte) (*Policy, *Failure) {
	if !utf8.Valid(data) {
		return nil, &Failure{Code: CodeYAML, Detail: "the file is not valid UTF-8"}
	}
	found, open := blocks(string(data))
	switch {
	case open:
		return nil, &Failure{Code: CodeNoBlock, Detail: "a policy block is opened and never closed"}
	case len(found) == 0:
		return nil, &Failure{Code: CodeNoBlock, Detail: "the file has no block fenced as: " + blockInfo}
	case len(found) > 1:
		return nil, &Failure{Code: CodeMultipleBlocks, Line: found[1].line,
			Detail: fmt.Sprintf("%d policy blocks; which one would be in force?", len(found))}
	}
	v, fail := parseYAML(found[0])
	if fail != nil {
		return nil, fail
	}
	return decode(v)
}

// Resolve is Policy.Resolve, and fails closed with the reason.
func (d *Document) Resolve(class string, reversible *bool) Resolution {
	r := d.Policy.Resolve(class, reversible)
	r.Failure = d.Failure
	if d.Failure != nil {
		r.step("because %s", d.Failure)
	}
	return r
}

// ClassOf is Policy.ClassOf.
func (d *Document) ClassOf(path string) PathClass { return d.Policy.ClassOf(path) }
