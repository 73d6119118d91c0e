package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
)

// archiveKind names the record that a rotated journal begins with.
const archiveKind = "journal_archive"

// Archives are named after their journal: its name, a dot and archiveDigits
// digits, from 000001 on.
const (
	archiveDigits = 6
	maxArchives   = 999_999
)

// An Archive commits a journal to the file it was rotated out of: the name of
// that file in the same directory, its last record, and how many records and
// bytes it holds.
type Archive struct {
	Name    string `json:"name"`
	Seq     uint64 `json:"seq"`
	Hash    string `json:"hash"`
	Records uint64 `json:"records"`
	Bytes   int64  `json:"bytes"`
}

// Head is the archive's last record.
func (a Archive) Head() Head { return Head{Seq: a.Seq, Hash: a.Hash} }

// Number is the archive's place in its journal's life, from 1 on, and so the
// number of archives there have been.
func (a Archive) Number() uint64 {
	_, n := splitArchive(a.Name)
	return n
}

// splitArchive takes an archive's name apart; 0 means it is none.
func splitArchive(name string) (journal string, number uint64) {
	at := len(name) - archiveDigits - 1
	if at < 1 || name[at] != '.' || strings.Trim(name[at+1:], "0123456789") != "" || strings.ContainsRune(name, '/') {
		return "", 0
	}
	n, err := strconv.ParseUint(name[at+1:], 10, 64)
	if err != nil {
		return "", 0
	}
	return name[:at], n
}

func (a Archive) wellFormed() bool {
	return a.Number() != 0 && a.Seq != 0 && a.Seq <= ident.MaxInt && a.Records == a.Seq &&
		ident.Hex64(a.Hash) && a.Bytes > 0 && a.Bytes <= ident.MaxInt
}

// archiveBody is the closed form of the record.
type archiveBody struct {
	SchemaVersion int     `json:"schema_version"`
	Kind          string  `json:"kind"`
	Archive       Archive `json:"archive"`
}

// Archived returns the archive that e, the first record of a rotated journal,
// commits to, and nil when e is a record of another kind. A record that claims
// to be of this kind and is ill-formed is an error.
func Archived(e Entry) (*Archive, error) {
	if e.Seq != 1 || !bytes.HasPrefix(e.canonical, []byte(`{"alg":"`+Alg+`","archive":{`)) ||
		!bytes.Contains(e.canonical, []byte(`"kind":"`+archiveKind+`"`)) {
		return nil, nil
	}
	var b archiveBody
	if err := e.Decode(&b); err != nil {
		return nil, err
	}
	if b.SchemaVersion != 1 || b.Kind != archiveKind || !b.Archive.wellFormed() {
		return nil, errors.New("an ill-formed archive record")
	}
	return &b.Archive, nil
}

// nextArchive is the path of the archive that a journal at path, which was last
// rotated into last, is rotated into next.
func nextArchive(path string, last *Archive) (string, error) {
	n := uint64(1)
	if last != nil {
		n += last.Number()
	}
	if n > maxArchives {
		return "", &Error{Code: CodeCapacity, Detail: "there are no more archive names"}
	}
	return fmt.Sprintf("%s.%0*d", path, archiveDigits, n), nil
}

// halfMade is where a rotation writes the new file before it has a name.
func halfMade(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".rotate.new")
}

// clearRotation removes what a rotation that did not come to its exchange left.
// The caller holds the journal's lock. What bears the next archive's name is
// removed only when it says of itself that it is the file that was to replace
// the journal; anything else there is an archive of which the journal does not
// know, so that the journal is an old copy, and it must not be written to.
func clearRotation(fsys FS, path string, last *Archive) error {
	if err := removeIfThere(fsys, halfMade(path)); err != nil {
		return err
	}
	next, err := nextArchive(path, last)
	if err != nil {
		return nil // nothing can have that name
	}
	if _, err := fsys.Stat(next); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return &Error{Code: CodeIO, Detail: "look for a half-made archive", Err: err}
	}
	f, err := fsys.Open(next)
	if err != nil {
		return &Error{Code: CodeIO, Detail: "open what has the next archive's name", Err: err}
	}
	first, err := firstArchive(f)
	err = errors.Join(err, f.Close())
	if err != nil || first == nil || first.Name != filepath.Base(next) {
		return &Error{Code: CodeChanged, Detail: next + " is an archive that the journal does not name: " +
			"the journal was put back from an older copy, or lost", Err: err}
	}
	return removeIfThere(fsys, next)
}

func removeIfThere(fsys FS, path string) error {
	if _, err := fsys.Stat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := fsys.Remove(path); err != nil {
		return &Error{Code: CodeIO, Detail: "remove what a rotation left", Err: err}
	}
	return nil
}

// firstArchive returns the archive that the first record of f names, if any.
func firstArchive(f io.ReaderAt) (first *Archive, err error) {
	err = callerError(newWalker(nil).run(io.NewSectionReader(f, 0, 1<<62), func(e Entry) error {
		var bad error
		if first, bad = Archived(e); bad != nil {
			return bad
		}
		return ErrStop
	}))
	if errors.Is(err, ErrStop) {
		err = nil
	}
	return first, err
}

// ErrStop is what the function of a Sealed.Walk returns to stop it.
var ErrStop = errors.New("journal: stop here")

// A Sealed is an archive that is open for reading.
type Sealed struct {
	f File
	w *walker
	c archiveCheck
}

// OpenSealed opens the archive that the journal at path names with a. Nothing of
// it is read yet. Errors: *ArchiveError.
func OpenSealed(fsys FS, path string, a Archive) (*Sealed, error) {
	if fsys == nil {
		fsys = OS()
	}
	f, err := fsys.Open(filepath.Join(filepath.Dir(path), a.Name))
	if err != nil {
		return nil, openArchiveError(a, err)
	}
	return &Sealed{f: f, w: newWalker(nil), c: archiveCheck{a: a}}, nil
}

// Walk proves the records of the archive and hands them on, but for a leading
// archive record. When fn returns ErrStop, Walk returns it, and the next Walk
// begins with the record that fn refused; the archive as a whole is proven, and
// agrees with what was committed of it, when Walk returns nil. Errors:
// *ArchiveError, or fn's.
func (s *Sealed) Walk(fn func(Entry) error) error {
	return callerError(s.c.run(s.w, io.NewSectionReader(s.f, s.w.offset, 1<<62), fn))
}

// Read is Journal.Read.
func (s *Sealed) Read(offset int64, length int) (Entry, error) { return readAt(s.f, offset, length) }

// Close closes the file.
func (s *Sealed) Close() error { return s.f.Close() }

// PeekArchive returns the first records of an archive, at most n, each proven by
// itself only. It is for finding the one archive that is worth proving.
func PeekArchive(fsys FS, path string, a Archive, n int) (out []Entry, err error) {
	if fsys == nil {
		fsys = OS()
	}
	f, err := fsys.Open(filepath.Join(filepath.Dir(path), a.Name))
	if err != nil {
		return nil, openArchiveError(a, err)
	}
	defer f.Close()
	err = newWalker(nil).run(io.NewSectionReader(f, 0, 1<<62), func(e Entry) error {
		if out = append(out, e.Clone()); len(out) == n {
			return ErrStop
		}
		return nil
	})
	if err := callerError(err); err != nil && !errors.Is(err, ErrStop) {
		return nil, &ArchiveError{Archive: a.Name, Reason: ReasonArchiveCorrupt, Err: err}
	}
	return out, nil
}

func openArchiveError(a Archive, err error) error {
	reason := ReasonArchiveUnreadable
	if errors.Is(err, safefile.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		reason = ReasonArchiveMissing
	}
	return &ArchiveError{Archive: a.Name, Reason: reason, Err: err}
}

// An ArchiveError says what is wrong with an archive that a journal names.
type ArchiveError struct {
	Archive string // its name
	Reason  Reason
	Detail  string
	Err     error
}

func (e *ArchiveError) Error() string {
	s := "journal: archive " + e.Archive + ": " + string(e.Reason)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ArchiveError) Unwrap() error { return e.Err }

// An archiveCheck proves one archive against what was committed of it.
type archiveCheck struct {
	a      Archive
	see    func(Entry) // every record, when set
	at     string      // the hash at the committed seq
	before *Archive
}

// run walks r, which begins where w is. A *stopped comes from fn.
func (c *archiveCheck) run(w *walker, r io.Reader, fn func(Entry) error) error {
	err := w.run(r, func(e Entry) error {
		if e.Seq == c.a.Seq {
			c.at = e.Hash
		}
		if c.see != nil {
			c.see(e)
		}
		before, err := Archived(e)
		if before != nil || err != nil {
			c.before = before
			return err
		}
		if fn == nil {
			return nil
		}
		return fn(e)
	})
	var torn *TornError
	if err != nil && !errors.As(err, &torn) {
		var stop *stopped
		if errors.As(err, &stop) {
			return err
		}
		return c.fault(ReasonArchiveCorrupt, "", err)
	}
	n := c.a.Number()
	switch {
	case w.head.Seq > 0 && (n > 1 && (c.before == nil || c.before.Number() != n-1) || n == 1 && c.before != nil):
		return c.fault(ReasonArchiveForeign, "it does not follow the archive with the number before", nil)
	case w.head.Seq < c.a.Seq:
		return c.fault(ReasonArchiveTruncated, fmt.Sprintf("%d of %d records are there", w.head.Seq, c.a.Seq), err)
	case c.at != c.a.Hash:
		return c.fault(ReasonArchiveForeign, fmt.Sprintf("record %d is %s and should be %s", c.a.Seq, c.at, c.a.Hash), nil)
	case w.head.Seq > c.a.Seq || err != nil:
		return c.fault(ReasonArchiveExtended, fmt.Sprintf("it was sealed at record %d and goes on", c.a.Seq), err)
	case w.offset != c.a.Bytes:
		return c.fault(ReasonArchiveForeign, fmt.Sprintf("%d bytes, and should be %d", w.offset, c.a.Bytes), nil)
	}
	return nil
}

func (c *archiveCheck) fault(reason Reason, detail string, err error) error {
	return &ArchiveError{Archive: c.a.Name, Reason: reason, Detail: detail, Err: err}
}
