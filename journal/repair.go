package journal

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"gloved.dev/internal/safefile"
)

// previewBytes bounds how much of a torn tail a report shows.
const previewBytes = 256

// A RepairReport says what a torn tail holds and what became of it. Records and
// Head describe what is kept in the journal, Offset and Bytes what is (or would
// be) cut, Preview its first bytes, and Kept the file the bytes were saved in.
type RepairReport struct {
	Torn    bool   `json:"torn"`
	Records uint64 `json:"records"`
	Head    Head   `json:"head"`
	Offset  int64  `json:"offset"`
	Bytes   int64  `json:"bytes"`
	Preview []byte `json:"preview,omitempty"`
	Kept    string `json:"kept,omitempty"`
}

// Repair proves the journal at path and reports its torn tail. With apply it
// saves the tail beside the file, durably, and then cuts it. It takes the
// writer's lock, so it never touches a journal in use (ErrLocked). A complete
// line that does not verify is a *CorruptError and is left alone. A nil fsys is
// OS().
func Repair(fsys FS, path string, apply bool) (RepairReport, error) {
	if fsys == nil {
		fsys = OS()
	}
	f, err := fsys.Open(path)
	switch {
	case errors.Is(err, safefile.ErrLocked):
		return RepairReport{}, &Error{Code: CodeLocked, Detail: "another process writes this journal", Err: err}
	case err != nil:
		return RepairReport{}, &Error{Code: CodeIO, Err: err}
	}
	report, err := repair(fsys, f, path, apply)
	return report, errors.Join(err, f.Close())
}

func repair(fsys FS, f File, path string, apply bool) (RepairReport, error) {
	id, err := identify(fsys, f, path)
	if err != nil {
		return RepairReport{}, err
	}
	w := newWalker(nil)
	err = w.run(io.NewSectionReader(f, 0, int64(id.Size)), nil)
	report := RepairReport{Records: w.head.Seq, Head: w.head, Offset: w.offset}
	var torn *TornError
	if !errors.As(err, &torn) {
		if err != nil {
			err = replayError(w, err)
		}
		return report, err
	}
	report.Torn, report.Bytes = true, torn.Bytes
	report.Preview = make([]byte, min(torn.Bytes, previewBytes))
	if _, err := f.ReadAt(report.Preview, torn.Offset); err != nil && !errors.Is(err, io.EOF) {
		return report, &Error{Code: CodeIO, Detail: "read", Err: err}
	}
	if apply {
		report.Kept, err = keepAndCut(fsys, f, path, torn)
		return report, err
	}
	return report, nil
}

// keepAndCut saves a torn tail beside the journal, and cuts it only when the
// saved copy is durable under its final name. Its name carries offset and
// digest, so that doing it again after a crash in between saves the same file.
func keepAndCut(fsys FS, f File, path string, torn *TornError) (kept string, err error) {
	fail := func(what string, err error) (string, error) {
		return "", &Error{Code: CodeIO, Detail: what, Err: err}
	}
	dir := filepath.Dir(path)
	temp := filepath.Join(dir, "."+filepath.Base(path)+".torn.new")
	if _, err := fsys.Stat(temp); err == nil { // left by a repair that crashed
		if err := fsys.Remove(temp); err != nil {
			return fail("remove an unfinished copy", err)
		}
	}
	out, err := fsys.Create(temp)
	if err != nil {
		return fail("create the copy of the torn tail", err)
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), io.NewSectionReader(f, torn.Offset, torn.Bytes))
	if err == nil {
		err = out.Sync()
	}
	if err := errors.Join(err, out.Close()); err != nil {
		return fail("write the copy of the torn tail", err)
	}
	kept = fmt.Sprintf("%s.torn-%d-%s", path, torn.Offset, hex.EncodeToString(sum.Sum(nil)[:8]))
	if err := fsys.Rename(temp, kept); err != nil {
		return fail("name the copy of the torn tail", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fail("sync the directory", err)
	}
	if err := f.Truncate(torn.Offset); err != nil {
		return fail("cut the torn tail", err)
	}
	if err := f.Sync(); err != nil {
		return fail("sync after the cut", err)
	}
	return kept, nil
}
