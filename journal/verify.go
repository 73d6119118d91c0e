package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A Status is the outcome of a verification.
type Status string

// Statuses.
const (
	StatusClean      Status = "clean"
	StatusTorn       Status = "torn-tail"
	StatusCorrupt    Status = "corrupt"
	StatusUnreadable Status = "unreadable"
)

// Exit codes of the verify commands. ExitUsage is the command line's own.
const (
	ExitClean      = 0
	ExitCorrupt    = 1
	ExitUsage      = 2
	ExitTorn       = 3
	ExitUnreadable = 4
)

// An Anomaly is something odd that changes no verdict and no exit code, found by
// VerifyOptions.Observe.
type Anomaly struct {
	Kind   string         `json:"kind"`
	Seq    uint64         `json:"seq"`
	Detail map[string]any `json:"detail,omitempty"`
}

// VerifyOptions refine a verification.
type VerifyOptions struct {
	// Schema judges a record after its algorithm and before its digest; a
	// non-empty answer makes the log corrupt (schema-invalid).
	Schema func(Entry) string
	// Observe sees each good record in order and may report an anomaly.
	Observe func(Entry) *Anomaly
	// Anchor, when set, is a head the caller trusts: the log, or with VerifyFile
	// an archive it names, must contain that record. A log that verifies and lacks
	// it is corrupt (head-mismatch). This is what notices records dropped off the
	// end.
	Anchor *Head
}

// A Verdict says what a log is worth. Records counts the proven records and Head
// names the last of them. For a torn tail Offset and Bytes locate it; for
// corruption Line, Offset, Reason and FirstBadSeq (nil when it could not be read)
// name the first bad line.
type Verdict struct {
	Status      Status
	Records     uint64
	Head        *Head
	Line        uint64
	Offset      int64
	Bytes       int64
	FirstBadSeq *uint64
	Reason      Reason
	Message     string
	Anomalies   []Anomaly
	// Archives are those that VerifyFile followed and proved, newest first.
	Archives []Archive
	// Archive names the archive that a corrupt verdict is about, "" the log itself.
	Archive string
}

// ExitCode is the exit code of a command that verified the log.
func (v Verdict) ExitCode() int {
	switch v.Status {
	case StatusClean:
		return ExitClean
	case StatusTorn:
		return ExitTorn
	case StatusCorrupt:
		return ExitCorrupt
	}
	return ExitUnreadable
}

// MarshalJSON gives each status the members the public verifier gives it, and
// the position beside them.
func (v Verdict) MarshalJSON() ([]byte, error) {
	m := map[string]any{"status": v.Status}
	switch v.Status {
	case StatusClean:
		m["records"], m["head"] = v.Records, v.Head
		m["anomalies"] = append([]Anomaly{}, v.Anomalies...)
	case StatusTorn:
		m["records"], m["intactThroughSeq"], m["message"] = v.Records, v.Records, v.Message
		m["offset"], m["bytes"] = v.Offset, v.Bytes
		m["anomalies"] = append([]Anomaly{}, v.Anomalies...)
	case StatusCorrupt:
		m["firstBadSeq"], m["reason"], m["message"] = v.FirstBadSeq, v.Reason, v.Message
		m["line"], m["offset"] = v.Line, v.Offset
		if v.Archive != "" {
			m["archive"] = v.Archive
		}
	default:
		m["message"] = v.Message
	}
	if len(v.Archives) > 0 {
		m["archives"] = v.Archives
	}
	return json.Marshal(m)
}

// Verify proves a log. It reads r once, as a stream. An error of the reader is
// the verdict unreadable.
func Verify(r io.Reader, o VerifyOptions) Verdict { return verify(r, o, nil) }

// verify is Verify; follow, when set, goes on to the archive that the log names
// and reports whether the anchor is in it or in those before.
func verify(r io.Reader, o VerifyOptions, follow func(*Verdict, Archive) (bool, error)) Verdict {
	w := newWalker(o.Schema)
	var anomalies []Anomaly
	var first *Archive
	anchored := o.Anchor == nil || o.Anchor.Seq == 0
	err := w.run(r, func(e Entry) error {
		if o.Anchor != nil && e.Head() == *o.Anchor {
			anchored = true
		}
		if follow != nil && e.Seq == 1 {
			var err error
			if first, err = Archived(e); err != nil {
				return err
			}
		}
		if o.Observe != nil {
			if a := o.Observe(e); a != nil {
				anomalies = append(anomalies, *a)
			}
		}
		return nil
	})
	v := Verdict{Status: StatusClean, Records: w.head.Seq, Offset: w.offset, Anomalies: anomalies}
	if w.head.Seq != 0 {
		head := w.head
		v.Head = &head
	}
	var stop *stopped
	if errors.As(err, &stop) {
		err = w.corrupt(ReasonSchema, w.head.Seq+1, stop.err)
	}
	var corrupt *CorruptError
	if first != nil && !errors.As(err, &corrupt) {
		held, archiveErr := follow(&v, *first)
		anchored = anchored || held
		if archiveErr != nil { // worse than a torn tail
			err = archiveErr
		}
	}
	switch {
	case err != nil:
		v.fault(err)
	case !anchored:
		v.fault(&CorruptError{Line: w.lines, Offset: w.offset, Reason: ReasonHeadMismatch,
			Err: fmt.Errorf("record %d with the trusted hash is not in the log", o.Anchor.Seq)})
	}
	return v
}

func (v *Verdict) fault(err error) {
	v.Message = err.Error()
	var torn *TornError
	var corrupt *CorruptError
	var archive *ArchiveError
	switch {
	case errors.As(err, &archive): // its cause may be a CorruptError, of its own lines
		v.Status, v.Anomalies, v.Archive = StatusCorrupt, nil, archive.Archive
		if errors.As(err, &corrupt) {
			v.Line, v.Offset = corrupt.Line, corrupt.Offset
		}
		v.Reason = archive.Reason
	case errors.As(err, &torn):
		v.Status, v.Offset, v.Bytes = StatusTorn, torn.Offset, torn.Bytes
	case errors.As(err, &corrupt):
		v.Status, v.Anomalies = StatusCorrupt, nil
		v.Line, v.Offset, v.Reason = corrupt.Line, corrupt.Offset, corrupt.Reason
		if corrupt.Seq != 0 {
			seq := corrupt.Seq
			v.FirstBadSeq = &seq
		}
	default:
		v.Status, v.Anomalies = StatusUnreadable, nil
	}
}

// VerifyFile proves the log at path, and the archives that it and they name, in
// its directory. An absent or empty file is a clean log without records, unless
// there is an archive of it: then, as with an older copy, what came after is
// missing. It never writes, locks or creates. When the file cannot be read, or is
// not a regular file, the verdict is unreadable and the error says why.
func VerifyFile(path string, o VerifyOptions) (Verdict, error) {
	for tries := 0; ; tries++ {
		v, f, last, err := verifyFile(path, o)
		if err != nil || v.Status != StatusClean {
			return v, errors.Join(err, closeIf(f))
		}
		unnamed, err := unnamedArchive(path, last)
		same := stillAt(path, f)
		err = errors.Join(err, closeIf(f))
		switch {
		case err != nil:
			return Verdict{Status: StatusUnreadable, Message: err.Error()}, err
		case !same && tries < maxVerifyTries: // it was rotated meanwhile
			continue
		case unnamed == "", !same:
			return v, nil // of what it was a moment ago
		}
		v.Status, v.Anomalies, v.Archive, v.Reason = StatusCorrupt, nil, unnamed, ReasonArchiveUnnamed
		v.Message = "the archive " + unnamed + " is there, and the log does not know of it: the log is an older copy, or was lost"
		return v, nil
	}
}

// maxVerifyTries bounds how often a log that is rotated while it is read is read again.
const maxVerifyTries = 3

// verifyFile is one look at the log. It returns the open file, nil for an absent one,
// and the archive that the log names, if any.
func verifyFile(path string, o VerifyOptions) (v Verdict, f *os.File, last *Archive, err error) {
	f, err = openRead(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Verify(empty{}, o), nil, nil, nil
	}
	if err != nil {
		return Verdict{Status: StatusUnreadable, Message: err.Error()}, nil, nil, err
	}
	v = verify(f, o, func(v *Verdict, a Archive) (bool, error) {
		last = &a
		return verifyArchives(filepath.Dir(path), a, o, v)
	})
	if v.Status == StatusUnreadable {
		err = errors.New(v.Message)
	}
	return v, f, last, err
}

func closeIf(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// stillAt reports whether path is still what was opened there, nil being nothing.
func stillAt(path string, f *os.File) bool {
	now, err := os.Stat(path)
	if f == nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	was, werr := f.Stat()
	return err == nil && werr == nil && os.SameFile(now, was)
}

// unnamedArchive returns the name of the archive that would come next, if it is there and
// is not what a rotation that was cut left: see clearRotation.
func unnamedArchive(path string, last *Archive) (string, error) {
	next, err := nextArchive(path, last)
	if err != nil {
		return "", nil // nothing can have that name
	}
	f, err := openRead(next)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	first, err := firstArchive(f)
	if err := f.Close(); err != nil {
		return "", err
	}
	if err == nil && first != nil && first.Name == filepath.Base(next) {
		return "", nil
	}
	return filepath.Base(next), nil
}

// verifyArchives proves the archive a and those before it, and reports whether
// one holds the anchor.
func verifyArchives(dir string, a Archive, o VerifyOptions, v *Verdict) (anchored bool, err error) {
	for before := &a; before != nil; {
		a := *before
		f, err := openRead(filepath.Join(dir, a.Name))
		if err != nil {
			return anchored, openArchiveError(a, err)
		}
		c := archiveCheck{a: a, see: func(e Entry) {
			anchored = anchored || o.Anchor != nil && e.Head() == *o.Anchor
		}}
		err = c.run(newWalker(o.Schema), f, nil)
		if err := errors.Join(err, f.Close()); err != nil {
			return anchored, err
		}
		before = c.before
		v.Archives = append(v.Archives, a)
	}
	return anchored, nil
}

type empty struct{}

func (empty) Read([]byte) (int, error) { return 0, io.EOF }

// openRead opens a log for reading only. O_NONBLOCK keeps a FIFO in its place
// from hanging us.
func openRead(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
