package journal

import (
	"errors"
	"io"
	"path/filepath"
	"sync"

	"gloved.dev/internal/clock"
	"gloved.dev/internal/ident"
	"gloved.dev/internal/safefile"
)

// Options say how a journal is opened. The zero value is a journal without
// bounds on the real file system.
type Options struct {
	// MaxBytes bounds the file in bytes, MaxRecords its records; zero is no
	// bound. They refuse new records, never what is there already.
	MaxBytes   int64
	MaxRecords uint64
	// Clock gives ts; nil is the system's.
	Clock clock.Clock
	// FS is the file system; nil is OS().
	FS FS
	// AllowTorn decides whether a torn tail may be cut, given the head of the
	// complete records, all of which were replayed before. The cut bytes are
	// kept beside the file. Nil refuses: only the receipt journal, which has a
	// trusted anchor to compare with, may do better.
	AllowTorn func(prefix Head) bool
}

// A Journal is the one writer of a log. All methods may be called at once.
type Journal struct {
	path string
	o    Options
	f    File

	mu        sync.Mutex
	wake      *sync.Cond
	queue     []*request
	id        safefile.Identity // what fstat said after our last write
	size      int64             // durable bytes
	inflight  int64             // bytes being written and not yet durable
	allocated int64             // bytes that the file system has set aside for us
	flying    uint64            // records being written and not yet durable
	head      Head              // durable
	archive   *Archive          // what the first record commits to
	held      held              // reserved and not yet used
	failed    error             // poisoned: set once
	closing   bool
	appends   uint64
	syncs     uint64
	done      chan struct{} // the writer has ended
}

// Stats are counters for an operator and for tests. Bytes and Records are
// durable; ReservedBytes and ReservedRecords are set aside; Syncs counts commits
// since the journal was opened and Appends the records they carried.
type Stats struct {
	Bytes, MaxBytes                 int64
	Records, MaxRecords             uint64
	ReservedBytes                   int64
	ReservedRecords, Appends, Syncs uint64
	Head                            Head
	Poisoned                        bool
}

// Open opens the journal at path, creating it when absent, takes its lock, and
// proves and replays every record in order before it returns. An error of replay
// refuses the open with a *CorruptError that names the line and wraps it. The
// record that a rotated journal begins with is not replayed; Archive returns it.
// What an unfinished rotation left is removed.
//
// What was replayed is durable when Open returns: a predecessor may have died
// between its write and its sync, and its callers' retries will be answered from
// these records.
func Open(path string, o Options, replay func(Entry) error) (*Journal, error) {
	if o.FS == nil {
		o.FS = OS()
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	f, err := openFile(o.FS, path)
	if err != nil {
		return nil, err
	}
	j := &Journal{path: path, o: o, f: f, done: make(chan struct{})}
	j.wake = sync.NewCond(&j.mu)
	if err := j.recover(replay); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	go j.write()
	return j, nil
}

func openFile(fsys FS, path string) (File, error) {
	if !ident.AbsPath(path) {
		return nil, &Error{Code: CodeIO, Detail: "the path must be absolute and in its shortest form"}
	}
	f, err := fsys.Open(path)
	if errors.Is(err, safefile.ErrNotFound) {
		f, err = fsys.Create(path)
		if errors.Is(err, &safefile.Error{Code: safefile.CodeExists}) { // lost the race to create it
			f, err = fsys.Open(path)
		}
	}
	switch {
	case errors.Is(err, safefile.ErrLocked):
		return nil, &Error{Code: CodeLocked, Detail: "another process writes this journal", Err: err}
	case err != nil:
		return nil, &Error{Code: CodeIO, Err: err}
	}
	return f, nil
}

// recover proves the file and takes its state.
func (j *Journal) recover(replay func(Entry) error) error {
	before, err := identify(j.o.FS, j.f, j.path)
	if err != nil {
		return err
	}
	w := newWalker(nil)
	err = w.run(io.NewSectionReader(j.f, 0, int64(before.Size)), func(e Entry) error {
		first, err := Archived(e)
		if first != nil || err != nil {
			j.archive = first
			return err
		}
		if replay == nil {
			return nil
		}
		return replay(e)
	})
	var torn *TornError
	switch {
	case errors.As(err, &torn) && j.o.AllowTorn != nil && j.o.AllowTorn(torn.Head):
		if _, err := keepAndCut(j.o.FS, j.f, j.path, torn); err != nil {
			return err
		}
	case err != nil:
		return replayError(w, err)
	}
	if err := clearRotation(j.o.FS, j.path, j.archive); err != nil {
		return err
	}
	if err := j.f.Sync(); err != nil {
		return &Error{Code: CodeIO, Detail: "sync after recovery", Err: err}
	}
	if err := j.o.FS.SyncDir(filepath.Dir(j.path)); err != nil {
		return &Error{Code: CodeIO, Detail: "sync of the directory", Err: err}
	}
	after, err := identify(j.o.FS, j.f, j.path)
	if err != nil {
		return err
	}
	if err := sameFile(before, after); err != nil {
		return err
	}
	if int64(after.Size) != w.offset {
		return &Error{Code: CodeChanged, Detail: "the size changed while the journal was read"}
	}
	j.id, j.size, j.head = after, w.offset, w.head
	return nil
}

func replayError(w *walker, err error) error {
	var stop *stopped
	if errors.As(err, &stop) {
		return w.corrupt(ReasonRejected, w.head.Seq+1, stop.err)
	}
	var torn *TornError
	var corrupt *CorruptError
	if errors.As(err, &torn) || errors.As(err, &corrupt) {
		return err
	}
	return &Error{Code: CodeIO, Detail: "read", Err: err}
}

// Head returns the last durable record's name.
func (j *Journal) Head() Head {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.head
}

// Path returns the path the journal was opened with, for the operator.
func (j *Journal) Path() string { return j.path }

// Stats returns the journal's counters.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Stats{
		Bytes: j.size, MaxBytes: j.o.MaxBytes, Records: j.head.Seq, MaxRecords: j.o.MaxRecords,
		ReservedBytes: j.held.bytes, ReservedRecords: j.held.records,
		Appends: j.appends, Syncs: j.syncs, Head: j.head, Poisoned: j.failed != nil,
	}
}

// Read returns the record that begins at offset and is length bytes long (as
// Entry.Offset and len(Entry.Line) told), proving its hash again.
func (j *Journal) Read(offset int64, length int) (Entry, error) {
	if err := j.Check(); err != nil {
		return Entry{}, err
	}
	j.mu.Lock()
	f := j.f
	j.mu.Unlock()
	e, err := readAt(f, offset, length)
	var corrupt *CorruptError
	if errors.As(err, &corrupt) {
		err = j.poison(err)
	}
	return e, err
}

// readAt reads and proves one record.
func readAt(f io.ReaderAt, offset int64, length int) (Entry, error) {
	if length <= 0 || length > MaxRecord || offset < 0 {
		return Entry{}, &Error{Code: CodeIO, Detail: "no record has these bounds"}
	}
	line := make([]byte, length)
	if _, err := f.ReadAt(line, offset); err != nil {
		return Entry{}, &Error{Code: CodeIO, Detail: "read", Err: err}
	}
	w := newWalker(nil)
	e, ok := w.quick(line)
	if !ok {
		var reason Reason
		var err error
		if e, reason, err = w.slow(line); reason != "" {
			return Entry{}, &CorruptError{Offset: offset, Seq: e.Seq, Reason: reason, Err: err}
		}
	}
	e.Offset = offset
	return e, nil
}

// Close waits for the appends that were admitted, then closes the file and
// drops its lock. Later calls fail with ErrClosed.
func (j *Journal) Close() error {
	j.mu.Lock()
	first := !j.closing
	j.closing = true
	j.wake.Broadcast()
	j.mu.Unlock()
	<-j.done
	if !first {
		return nil
	}
	return j.f.Close()
}
