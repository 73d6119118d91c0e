package broker

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

//go:embed bundle
var bundle embed.FS

// bundleIndex is the file of a bundle that lists the others with their digests.
const (
	bundleIndex   = "index.json"
	bundleSchema  = "approval.codex.bundle.v1"
	maxBundleFile = 64 << 10
)

// Codes of a BundleError.
const (
	CodeBundleIndex = "bundle-index-unreadable"
	CodeBundleFiles = "bundle-file-set"
	CodeBundleHash  = "bundle-hash-mismatch"
)

// A BundleError is why a bundle is not what was shipped.
type BundleError struct {
	Code, Name string
	Err        error
}

// Error gives code and file.
func (e *BundleError) Error() string {
	s := e.Code
	if e.Name != "" {
		s += ": " + e.Name
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *BundleError) Unwrap() error { return e.Err }

type index struct {
	Schema string            `json:"schema"`
	Files  map[string]string `json:"files"` // SHA-256 by name
}

// A BundleReport is what a good bundle is: templates that do nothing. Ready is always false: that an
// installation enforces anything is not a matter of its templates.
type BundleReport struct {
	OK    bool     `json:"ok"`
	Inert bool     `json:"inert"`
	Ready bool     `json:"ready"`
	Files []string `json:"files"`
}

func shipped() (index, map[string][]byte, error) {
	idx := index{Schema: bundleSchema, Files: map[string]string{}}
	files := map[string][]byte{}
	entries, err := bundle.ReadDir("bundle")
	if err != nil {
		return idx, nil, err
	}
	for _, e := range entries {
		data, err := bundle.ReadFile("bundle/" + e.Name())
		if err != nil {
			return idx, nil, err
		}
		files[e.Name()], idx.Files[e.Name()] = data, digest.SHA256Hex(data)
	}
	return idx, files, nil
}

// WriteBundle writes the templates into a new directory, which must not exist. It writes nothing
// else and changes nothing that exists.
func WriteBundle(dir string) error {
	if !ident.AbsPath(dir) {
		return fmt.Errorf("the directory must be an absolute path")
	}
	idx, files, err := shipped()
	if err != nil {
		return err
	}
	if files[bundleIndex], err = strictjson.Canonical(idx); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for name, data := range files {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// CheckBundle proves that a directory holds exactly the shipped templates. It only reads. Errors are
// *BundleError.
func CheckBundle(dir string) (*BundleReport, error) {
	want, _, err := shipped()
	if err != nil {
		return nil, &BundleError{Code: CodeBundleIndex, Err: err}
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, &BundleError{Code: CodeBundleIndex, Err: err}
	}
	defer d.Close()
	data, err := bundleFile(d, bundleIndex)
	if err != nil {
		return nil, &BundleError{Code: CodeBundleIndex, Name: bundleIndex, Err: err}
	}
	var idx index
	if err := strictjson.Decode(data, &idx, strictjson.Limits{}); err != nil || idx.Schema != bundleSchema {
		return nil, &BundleError{Code: CodeBundleIndex, Name: bundleIndex, Err: err}
	}
	names, err := d.Readdirnames(1024)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, &BundleError{Code: CodeBundleFiles, Err: err}
	}
	slices.Sort(names)
	for _, name := range names {
		if _, ok := want.Files[name]; !ok && name != bundleIndex {
			return nil, &BundleError{Code: CodeBundleFiles, Name: printable(name)}
		}
	}
	if len(names) != len(want.Files)+1 || len(idx.Files) != len(want.Files) {
		return nil, &BundleError{Code: CodeBundleFiles}
	}
	r := &BundleReport{OK: true, Inert: true}
	for name, sum := range want.Files {
		data, err := bundleFile(d, name)
		if err != nil {
			return nil, &BundleError{Code: CodeBundleFiles, Name: name, Err: err}
		}
		if digest.SHA256Hex(data) != sum || idx.Files[name] != sum {
			return nil, &BundleError{Code: CodeBundleHash, Name: name}
		}
		r.Files = append(r.Files, name)
	}
	slices.Sort(r.Files)
	return r, nil
}

func bundleFile(d *os.File, name string) ([]byte, error) {
	f, err := openFileAt(d, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fs.ErrInvalid
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBundleFile+1))
	if err == nil && len(data) > maxBundleFile {
		err = errTooLarge
	}
	return data, err
}
