package monitor

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"

	"gloved.dev/internal/digest"
	"gloved.dev/internal/safefile"
	"gloved.dev/internal/strictjson"
)

// Files of a session directory.
const (
	OutcomeName    = "outcome.json"
	TranscriptName = "transcript"
	LogName        = "monitor.log"
)

const maxOutcome = 256 << 10

// sealedOutcome is the outcome file: the outcome and its authenticator under
// the session's key, so that nobody who can merely write the directory (a
// backup that was put back, a file of another session) can end a session with
// facts of their own.
type sealedOutcome struct {
	Outcome Outcome `json:"outcome"`
	MAC     string  `json:"mac"`
}

func outcomeMAC(key string, o *Outcome) (string, error) {
	if o.ProtocolVersion < 1 || o.ProtocolVersion > math.MaxUint8 {
		return "", fault(CodeProtocol, "the outcome has version %d, which is none", o.ProtocolVersion)
	}
	body, err := strictjson.Canonical(o)
	if err != nil {
		return "", err
	}
	m := hmac.New(sha256.New, []byte(key))
	m.Write(digest.New("glove.monitor-outcome").U8(uint8(o.ProtocolVersion)).S(string(body)).Bytes())
	return hex.EncodeToString(m.Sum(nil)), nil
}

// sealOutcome makes the outcome file.
func sealOutcome(key string, o *Outcome) (safefile.New, error) {
	mac, err := outcomeMAC(key, o)
	if err != nil {
		return safefile.New{}, err
	}
	data, err := strictjson.Canonical(sealedOutcome{Outcome: *o, MAC: mac})
	return safefile.New{Name: OutcomeName, Data: data}, err
}

// ReadOutcome reads the durable outcome of a session directory. It returns
// safefile.ErrNotFound (by errors.Is) while there is none, and CodeUnproven for
// one that was not written by the session's monitor.
//
// The monitor may have spoken another version of the protocol. A version changes
// how gloved and a monitor talk; what a member of the outcome means it never
// changes: a new fact is a new member, which a build that does not know it refuses.
func ReadOutcome(dir, sessionID, key string) (*Outcome, error) {
	data, _, err := safefile.ReadOwner(filepath.Join(dir, OutcomeName), maxOutcome)
	if err != nil {
		return nil, err
	}
	var s sealedOutcome
	if err := strictjson.Decode(data, &s, strictjson.Limits{MaxBytes: maxOutcome}); err != nil {
		return nil, fault(CodeUnproven, "the outcome file is not readable: %v", err)
	}
	mac, err := outcomeMAC(key, &s.Outcome)
	if err != nil {
		return nil, err
	}
	switch {
	case !hmac.Equal([]byte(mac), []byte(s.MAC)):
		return nil, fault(CodeUnproven, "the outcome file does not carry the session's authenticator")
	case s.Outcome.SessionID != sessionID:
		return nil, fault(CodeUnproven, "the outcome file belongs to another session")
	}
	return &s.Outcome, nil
}

// The transcript file is what the ring still held when the session ended: the
// ring's oldest cursor in decimal and a line feed, then the bytes.

// A SavedTranscript serves the transcript of a session whose monitor is gone.
type SavedTranscript struct {
	f      *os.File
	start  int64
	oldest uint64
	next   uint64
}

const transcriptHeader = 21 // 20 digits and a line feed

func newTranscript(oldest uint64, data []byte) safefile.New {
	return safefile.New{Name: TranscriptName, Data: append([]byte(padded(oldest)+"\n"), data...)}
}

func padded(n uint64) string {
	var b [20]byte
	for i := len(b) - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return string(b[:])
}

// OpenTranscript opens the saved transcript of a session directory.
func OpenTranscript(dir string) (*SavedTranscript, error) {
	f, id, err := safefile.OpenOwner(filepath.Join(dir, TranscriptName), os.O_RDONLY, 16<<20+transcriptHeader)
	if err != nil {
		return nil, err
	}
	var head [transcriptHeader]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		f.Close()
		return nil, fault(CodeProtocol, "the saved transcript has no header")
	}
	var oldest uint64
	for _, c := range head[:20] {
		if c < '0' || c > '9' {
			f.Close()
			return nil, fault(CodeProtocol, "the saved transcript has no header")
		}
		oldest = oldest*10 + uint64(c-'0')
	}
	return &SavedTranscript{f: f, start: transcriptHeader, oldest: oldest,
		next: oldest + id.Size - transcriptHeader}, nil
}

// Read returns up to maxBytes from cursor on, by the rules of the live
// transcript.
func (t *SavedTranscript) Read(cursor uint64, maxBytes int) (Chunk, error) {
	if cursor > t.next {
		return Chunk{}, fault(CodeCursor, "the cursor is ahead of the session")
	}
	from := max(cursor, t.oldest)
	data := make([]byte, min(uint64(maxBytes), t.next-from))
	if _, err := t.f.ReadAt(data, t.start+int64(from-t.oldest)); err != nil && !errors.Is(err, io.EOF) {
		return Chunk{}, err
	}
	next := from + uint64(len(data))
	return Chunk{Oldest: t.oldest, Next: next, Truncated: cursor < t.oldest, EOF: next == t.next, Data: data}, nil
}

// Close releases the file.
func (t *SavedTranscript) Close() error { return t.f.Close() }
