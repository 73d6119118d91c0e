package gate

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

// MaxPayload bounds a payload in bytes: 8 MiB of images as base64, and the rest.
const MaxPayload = 16 << 20

// Codes of a PayloadError.
const (
	PayloadAbsent     = "absent"
	PayloadUnreadable = "unreadable"
	PayloadMismatch   = "hash-mismatch"
	PayloadReference  = "reference" // {"$ref": …}: it is kept elsewhere, and not fetched
)

// A PayloadError says why a payload cannot be shown. No byte of it is given out
// then.
type PayloadError struct {
	Code string
	Hash string
	Err  error
}

func (e *PayloadError) Error() string {
	s := fmt.Sprintf("payload %s: %s", e.Hash, e.Code)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *PayloadError) Unwrap() error { return e.Err }

// SealPayload puts a payload into its canonical form and names it: the hash is
// the SHA-256 of those bytes.
func SealPayload(v any) (canonical []byte, hash string, err error) {
	canonical, err = strictjson.Canonical(v)
	if err != nil {
		return nil, "", err
	}
	if len(canonical) > MaxPayload {
		return nil, "", fmt.Errorf("a payload of %d bytes, at most %d are kept", len(canonical), MaxPayload)
	}
	return canonical, digest.SHA256Hex(canonical), nil
}

// Payloads is the store of payloads: one file each, <hash>.json, without a final
// newline, so that the file's own SHA-256 is its name.
type Payloads struct{ Dir string }

func (p Payloads) path(hash string) string { return filepath.Join(p.Dir, hash+".json") }

// Put stores canonical bytes under their hash. A payload that is there already
// is proven and kept.
func (p Payloads) Put(canonical []byte) (hash string, err error) {
	if !strictjson.IsCanonical(canonical) {
		return "", errors.New("the payload is not in canonical form")
	}
	hash = digest.SHA256Hex(canonical)
	if _, err := p.Get(hash); err == nil {
		return hash, nil
	}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return "", err
	}
	var random [8]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	temp := filepath.Join(p.Dir, fmt.Sprintf(".%s.json.tmp-%d-%s", hash, os.Getpid(), hex.EncodeToString(random[:])))
	if err := writeNew(temp, canonical); err != nil {
		return "", err
	}
	if err := os.Rename(temp, p.path(hash)); err != nil {
		_ = os.Remove(temp) // the rename's error matters
		return "", err
	}
	return hash, syncFolder(p.Dir)
}

func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}

func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Get returns the canonical bytes of a payload after proving them. Errors are of
// type *PayloadError.
func (p Payloads) Get(hash string) (jsontext.Value, error) {
	if !ident.Hex64(hash) {
		return nil, &PayloadError{Code: PayloadAbsent, Hash: "(ill-formed)"}
	}
	data, err := readFile(p.path(hash))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &PayloadError{Code: PayloadAbsent, Hash: hash}
	case err != nil:
		return nil, &PayloadError{Code: PayloadUnreadable, Hash: hash, Err: err}
	}
	canonical, err := strictjson.CanonicalBytes(data)
	if err != nil {
		return nil, &PayloadError{Code: PayloadUnreadable, Hash: hash, Err: err}
	}
	switch {
	case isReference(canonical):
		return nil, &PayloadError{Code: PayloadReference, Hash: hash}
	case digest.SHA256Hex(canonical) != hash:
		return nil, &PayloadError{Code: PayloadMismatch, Hash: hash}
	}
	return canonical, nil
}

func isReference(raw jsontext.Value) bool {
	var m map[string]jsontext.Value
	return json.Unmarshal(raw, &m) == nil && len(m) == 1 && m["$ref"].Kind() == '"'
}

func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, errors.New("it is not a regular file"))
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxPayload+1))
	if err == nil && len(data) > MaxPayload {
		err = errors.New("it is too large")
	}
	return data, err
}
