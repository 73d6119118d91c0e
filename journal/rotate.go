package journal

import (
	"context"
	"errors"
	"io"
	"path/filepath"

	"gloved.dev/internal/crashpoint"
)

// copyBytes is how much of a new file is gathered before it is written.
const copyBytes = 1 << 20

// A Rotation is a new file that is being made, and the old one to copy from. It
// is valid only during the call it is handed to.
type Rotation struct {
	j    *Journal
	f    File
	ref  Archive
	buf  []byte
	size int64
	head Head
}

// Archive is what the new file commits the old one as.
func (r *Rotation) Archive() Archive { return r.ref }

// Walk proves the records of the old file and hands them on, but for a leading
// archive record.
func (r *Rotation) Walk(fn func(Entry) error) error {
	w := newWalker(nil)
	err := w.run(io.NewSectionReader(r.j.f, 0, r.ref.Bytes), func(e Entry) error {
		if first, err := Archived(e); first != nil || err != nil {
			return err
		}
		return fn(e)
	})
	if err == nil && w.head != r.ref.Head() {
		err = changed("it does not end with the last record that was written")
	}
	return callerError(err)
}

// Put writes body as the next record of the new file.
func (r *Rotation) Put(body any) (Entry, error) {
	d, err := newDraft(body)
	if err != nil {
		return Entry{}, err
	}
	e, line, err := d.record(r.head, r.j.o.Clock.Now(), r.size)
	if err != nil {
		return Entry{}, err
	}
	r.head, r.size = e.Head(), r.size+int64(len(line))
	r.buf = append(r.buf, line...)
	if len(r.buf) >= copyBytes {
		return e, r.flush()
	}
	return e, nil
}

func (r *Rotation) flush() error {
	n, err := r.f.Write(r.buf)
	if err == nil && n < len(r.buf) {
		err = io.ErrShortWrite
	}
	r.buf = r.buf[:0]
	if err != nil {
		return &Error{Code: CodeIO, Detail: "write the new file", Err: err}
	}
	return nil
}

// Rotate seals the journal into an archive beside it and goes on in a new file,
// whose first record commits the archive and whose next ones are those carry
// puts. Appends that arrive meanwhile wait and go into the new file; an AppendIf
// of a head from before is then ErrHeadMoved. Places of records (Entry.Offset)
// are those of the new file from now on. Reservations stay what they are, and
// keep their room in the new file.
//
// The two files change names in one step, and nothing is acknowledged in the new
// one before that step is durable: whenever the process or the machine dies,
// the path names either the old journal or the new one, whole. When Rotate fails
// the old journal stays in use, unless its error matches ErrPoisoned: then only
// opening it again shows which of the two it is.
//
// Errors: ErrEmpty, ErrCapacity (what is carried would not leave the room that is
// reserved), CodeIO, carry's own, ErrPoisoned, ErrClosed, or the context's.
func (j *Journal) Rotate(ctx context.Context, carry func(*Rotation) error) (Archive, error) {
	if err := ctx.Err(); err != nil {
		return Archive{}, err
	}
	r := &request{carry: carry, done: make(chan struct{})}
	if err := j.admit(r); err != nil {
		return Archive{}, err
	}
	<-r.done
	return r.archive, r.err
}

// Archive is the archive that the journal was last rotated into, or nil.
func (j *Journal) Archive() *Archive {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.archive
}

// rotate runs on the writer, so that nothing is appended meanwhile.
func (j *Journal) rotate(carry func(*Rotation) error) (Archive, error) {
	r, next, err := j.beginRotation()
	if err != nil {
		return Archive{}, err
	}
	if err = r.write(carry); err == nil {
		err = r.name(next)
	}
	if err == nil {
		err = j.exchange(r, next)
	}
	if err == nil {
		return r.ref, crashpoint.At(j.path, crashpoint.RotateDone)
	}
	if j.f != r.f {
		_ = r.f.Close() // nothing in it was promised
	}
	if !errors.Is(err, ErrPoisoned) {
		// What cannot be removed now is removed at the next open or rotation.
		_ = clearRotation(j.o.FS, j.path, j.Archive())
	}
	return Archive{}, err
}

// beginRotation creates the new file under a name that nothing reads.
func (j *Journal) beginRotation() (*Rotation, string, error) {
	j.mu.Lock()
	err := j.check()
	ref := Archive{Seq: j.head.Seq, Hash: j.head.Hash, Records: j.head.Seq, Bytes: j.size}
	last := j.archive
	j.mu.Unlock()
	switch {
	case err != nil:
		return nil, "", err
	case ref.Seq == 0:
		return nil, "", ErrEmpty
	}
	next, err := nextArchive(j.path, last)
	if err != nil {
		return nil, "", err
	}
	ref.Name = filepath.Base(next)
	if err := clearRotation(j.o.FS, j.path, last); err != nil {
		return nil, "", err
	}
	f, err := j.o.FS.Create(halfMade(j.path))
	if err != nil {
		return nil, "", &Error{Code: CodeIO, Detail: "create the new file", Err: err}
	}
	return &Rotation{j: j, f: f, ref: ref}, next, nil
}

// write fills the new file and makes it durable.
func (r *Rotation) write(carry func(*Rotation) error) error {
	if err := crashpoint.At(r.j.path, crashpoint.RotateBegun); err != nil {
		return err
	}
	if _, err := r.Put(archiveBody{1, archiveKind, r.ref}); err != nil {
		return err
	}
	if err := carry(r); err != nil {
		return err
	}
	if err := r.flush(); err != nil {
		return err
	}
	if err := r.f.Sync(); err != nil {
		return &Error{Code: CodeIO, Detail: "sync the new file", Err: err}
	}
	return crashpoint.At(r.j.path, crashpoint.RotateWritten)
}

// name gives the whole new file the archive's name, under which it will leave
// the old one.
func (r *Rotation) name(next string) error {
	fsys := r.j.o.FS
	if err := fsys.Rename(halfMade(r.j.path), next); err != nil {
		return &Error{Code: CodeIO, Detail: "name the new file", Err: err}
	}
	if err := fsys.SyncDir(filepath.Dir(next)); err != nil {
		return &Error{Code: CodeIO, Detail: "sync the directory", Err: err}
	}
	return crashpoint.At(r.j.path, crashpoint.RotateNamed)
}

// exchange makes the new file the journal. The lock keeps reservations and
// checks out of the moment in which the path and the descriptor disagree.
func (j *Journal) exchange(r *Rotation, next string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.check(); err != nil {
		return err
	}
	if err := j.fits(held{}, r.size, r.head.Seq); err != nil {
		return err
	}
	room := r.size + j.held.bytes
	if err := r.f.Allocate(room); err != nil {
		code := CodeIO
		if noRoom(err) {
			code = CodeCapacity
		}
		return &Error{Code: code, Detail: "allocate what is reserved", Err: err}
	}
	if err := j.o.FS.Exchange(j.path, next); err != nil {
		if named, statErr := j.o.FS.Stat(j.path); statErr != nil || sameFile(j.id, named) != nil {
			return j.poisonLocked(&Error{Code: CodeIO, Detail: "exchange the files", Err: errors.Join(err, statErr)})
		}
		return &Error{Code: CodeIO, Detail: "exchange the files", Err: err}
	}
	old := j.f
	ref := r.ref
	j.f, j.size, j.allocated, j.head, j.archive = r.f, r.size, room, r.head, &ref
	id, err := identify(j.o.FS, j.f, j.path)
	if err == nil {
		j.id = id
		err = crashpoint.At(j.path, crashpoint.RotateExchanged)
	}
	if err == nil {
		err = j.o.FS.SyncDir(filepath.Dir(j.path))
	}
	if err != nil {
		err = j.poisonLocked(&Error{Code: CodeIO, Detail: "make the exchange durable", Err: err})
	}
	return errors.Join(err, ignoreClose(old))
}

// ignoreClose closes a file whose bytes were synced before: nothing can be lost.
func ignoreClose(f File) error {
	_ = f.Close()
	return nil
}
