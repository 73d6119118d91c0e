package receipt

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
)

// Bounds of an audit key file: 64 hexadecimal digits and some white space.
const (
	minKeyFile = 64
	maxKeyFile = 128
)

// A Key authenticates receipts. Its bytes never leave it: it prints as its id.
type Key struct {
	secret [32]byte
	id     string
}

// NewKey makes a key of 32 bytes.
func NewKey(secret [32]byte) *Key {
	id := digest.New("glove.audit-key-id").U8(1).U32(32).Raw(secret[:]).Sum()
	return &Key{secret: secret, id: id}
}

// LoadKey reads an audit key file: an owner file of 64 lowercase hexadecimal
// digits with optional ASCII white space around them. Its errors never quote it.
func LoadKey(path string) (*Key, error) {
	raw, _, err := safefile.ReadOwner(path, maxKeyFile)
	if err != nil {
		return nil, &Error{Code: KeyInvalid, Err: err}
	}
	text := strings.Trim(string(raw), " \t\r\n\v\f")
	if len(raw) < minKeyFile || !ident.Hex64(text) {
		return nil, refuse(KeyInvalid, "an audit key file holds 64 lowercase hexadecimal digits")
	}
	var secret [32]byte
	if _, err := hex.Decode(secret[:], []byte(text)); err != nil {
		return nil, refuse(KeyInvalid, "an audit key file holds 64 lowercase hexadecimal digits")
	}
	return NewKey(secret), nil
}

// ID is the public name of the key.
func (k *Key) ID() string { return k.id }

// String is the key's id, so that no log ever holds its bytes.
func (k *Key) String() string { return "audit key " + k.id }

// GoString is String.
func (k *Key) GoString() string { return k.String() }

func (k *Key) sum(e *digest.Encoder) string {
	mac := hmac.New(sha256.New, k.secret[:])
	mac.Write(e.Bytes())
	return hex.EncodeToString(mac.Sum(nil))
}

// equal compares two digests in constant time.
func equal(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }
