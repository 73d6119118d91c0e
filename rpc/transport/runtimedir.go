package transport

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
)

// Names in a runtime directory.
const (
	LockName   = "gloved.lock"
	SecretName = "bootstrap-secret"
	SocketName = "gloved.sock"
)

// maxSecretFile bounds the secret file: 64 digits and white space.
const maxSecretFile = 128

// A RuntimeDir is a runtime directory whose lock is held.
type RuntimeDir struct {
	path string
	dir  *os.File
	lock *safefile.Lock
}

// OpenRuntimeDir creates the directory at path if it is absent (its parent must
// exist), checks that it is owner-only, and takes the instance lock,
// waiting a moment for one that was just killed (safefile.Handover). A running instance is ErrLocked; other errors are *safefile.Error.
func OpenRuntimeDir(path string) (*RuntimeDir, error) {
	dir, _, err := safefile.MakeOwnerDir(path)
	if err != nil {
		return nil, err
	}
	lock, err := safefile.Handover(func() (*safefile.Lock, error) { return safefile.LockFile(filepath.Join(path, LockName)) })
	if err != nil {
		dir.Close()
		if errors.Is(err, safefile.ErrLocked) {
			return nil, &Error{Code: CodeLocked, Path: path, Err: err}
		}
		return nil, err
	}
	return &RuntimeDir{path: path, dir: dir, lock: lock}, nil
}

// Path returns the directory's path.
func (r *RuntimeDir) Path() string { return r.path }

// Close releases the lock and the directory. The listener must be closed before.
func (r *RuntimeDir) Close() error { return errors.Join(r.lock.Unlock(), r.dir.Close()) }

// RotateSecret writes a new bootstrap secret and returns it. Whoever read the
// old one can do nothing with it any more.
func (r *RuntimeDir) RotateSecret() (string, error) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the process instead
	secret := hex.EncodeToString(raw)
	if err := safefile.WriteOwner(filepath.Join(r.path, SecretName), []byte(secret+"\n")); err != nil {
		return "", err
	}
	return secret, nil
}

// ReadSecret returns the bootstrap secret of the instance whose runtime
// directory is path. Errors are *safefile.Error, or *Error when the file holds
// something else.
func ReadSecret(path string) (string, error) {
	file := filepath.Join(path, SecretName)
	raw, _, err := safefile.ReadOwner(file, maxSecretFile)
	if err != nil {
		return "", err
	}
	secret := string(bytes.TrimSpace(raw))
	if !ident.Hex64(secret) {
		return "", &Error{Code: CodeSecret, Path: file}
	}
	return secret, nil
}
