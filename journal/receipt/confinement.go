package receipt

import (
	"gloved.dev/internal/digest"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/strictjson"
)

// Probe results.
const (
	// ProbesRefused: every forbidden act was tried after confinement and refused.
	ProbesRefused = "all_refused"
	// ProbesNotRun: the session ended before its self-probe.
	ProbesNotRun = "not_run"
)

// maxConfinement bounds the canonical confinement in bytes.
const maxConfinement = 4096

// A Confinement says what a session was confined by, as found after it was
// confined and before its first instruction.
type Confinement struct {
	SchemaVersion   uint8             `json:"schema_version"` // 1
	ProbeListDigest string            `json:"probe_list_digest"`
	ProbeCount      uint32            `json:"probe_count"`
	ProbeResult     string            `json:"probe_result"`
	SeccompDigest   string            `json:"seccomp_digest"` // SHA-256 of the filter program
	LandlockABI     uint32            `json:"landlock_abi"`   // 0: the kernel has none
	Transcript      *StreamCommitment `json:"transcript,omitzero"`
}

// Validate says why the confinement is ill-formed.
func (c Confinement) Validate() error {
	if c.SchemaVersion != 1 || !ident.Hex64(c.ProbeListDigest) || !ident.Hex64(c.SeccompDigest) ||
		c.ProbeResult != ProbesRefused && c.ProbeResult != ProbesNotRun ||
		c.ProbeResult == ProbesRefused && c.ProbeCount == 0 ||
		c.Transcript != nil && !c.Transcript.wellFormed() {
		return refuse(InvalidReceipt, "an ill-formed confinement")
	}
	raw, err := strictjson.Canonical(c)
	if err != nil || len(raw) > maxConfinement {
		return refuse(InvalidReceipt, "the confinement is too large")
	}
	return nil
}

// confine authenticates c as part of the envelope with that HMAC. Its own domain
// keeps it apart from every message of the chain.
func (k *Key) confine(thisHMAC string, c Confinement) (string, error) {
	raw, err := strictjson.Canonical(c)
	if err != nil {
		return "", &Error{Code: InvalidReceipt, Err: err}
	}
	return k.sum(digest.New("glove.receipt-confinement").U8(1).S(thisHMAC).S(digest.SHA256Hex(raw))), nil
}
