// Package digest encodes values for hashing so that no two different values
// share an encoding: every variable-length item is preceded by its length, and
// every encoding begins with a domain that names what is hashed, so that a
// digest of one kind can never be taken for one of another kind.
//
// The layouts themselves (which fields, in which order) are those of the
// existing controllers' verifiers and stand beside the types they commit; this
// package only knows the primitives: S (big-endian 32-bit length and bytes),
// fixed-width big-endian integers, flags and counted lists.
//
// It is not for canonical JSON; see strictjson for that.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	"lukechampine.com/blake3"
)

// An Encoder collects the bytes of one value. The zero Encoder is empty; New
// begins with a domain. Methods return the Encoder so that a layout reads as
// one expression in its documented order.
type Encoder struct{ b []byte }

// New returns an Encoder that begins with S(domain).
func New(domain string) *Encoder { return new(Encoder).S(domain) }

// S adds the length of s as a 32-bit integer, then s.
func (e *Encoder) S(s string) *Encoder {
	e.U32(uint32(len(s)))
	e.b = append(e.b, s...)
	return e
}

// U8 adds one byte without a prefix.
func (e *Encoder) U8(v uint8) *Encoder { e.b = append(e.b, v); return e }

// U32 adds a big-endian 32-bit integer.
func (e *Encoder) U32(v uint32) *Encoder { e.b = binary.BigEndian.AppendUint32(e.b, v); return e }

// U64 adds a big-endian 64-bit integer.
func (e *Encoder) U64(v uint64) *Encoder { e.b = binary.BigEndian.AppendUint64(e.b, v); return e }

// Bool adds one byte, 0 or 1.
func (e *Encoder) Bool(v bool) *Encoder {
	if v {
		return e.U8(1)
	}
	return e.U8(0)
}

// Opt adds the presence flag of an optional value; the value, if present,
// follows it.
func (e *Encoder) Opt(present bool) *Encoder { return e.Bool(present) }

// Strings adds a counted list of strings.
func (e *Encoder) Strings(list []string) *Encoder {
	e.U32(uint32(len(list)))
	for _, s := range list {
		e.S(s)
	}
	return e
}

// Raw adds bytes as they are, without a prefix: for fixed-size material only.
func (e *Encoder) Raw(b []byte) *Encoder { e.b = append(e.b, b...); return e }

// Bytes returns the encoding collected so far. The slice is the Encoder's own.
func (e *Encoder) Bytes() []byte { return e.b }

// Sum returns the SHA-256 of the encoding in lowercase hex.
func (e *Encoder) Sum() string { return SHA256Hex(e.b) }

// SHA256Hex returns the SHA-256 of b in lowercase hex.
func SHA256Hex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Blake3Hex returns the BLAKE3-256 of b in lowercase hex.
func Blake3Hex(b []byte) string {
	sum := blake3.Sum256(b)
	return hex.EncodeToString(sum[:])
}
