package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/clock"
)

// The lock file of a Shared log, by the public approval.md protocol: created with
// O_EXCL, empty, tried again every lockPoll up to lockWait.
const (
	lockSuffix = ".lock"
	lockPoll   = 20 * time.Millisecond
	lockWait   = 2 * time.Second
)

// SharedOptions refine a Shared log. The zero value is the system's clock, no
// schema and the public lock's waiting time.
type SharedOptions struct {
	// Clock gives ts; nil is the system's.
	Clock clock.Clock
	// Schema judges the last record before anything follows it, and the record
	// that is about to be written; a non-empty answer refuses.
	Schema func(Entry) string
	// Wait bounds how long an append waits for the lock file; zero is 2 s.
	Wait time.Duration
	// MaxBytes bounds the file; zero is no bound. It refuses new records only.
	MaxBytes int64
}

// A Shared log is one that several programs append to, each for the moment of
// one record: the public approval.md log. Nothing is held between appends, so
// its writers find each other through a lock file beside the log, never through
// flock, which the other programs do not take.
//
// A lock file that was left by a crash is never removed here: whether its owner
// still writes cannot be told, and two writers would fork the chain.
type Shared struct {
	path string
	o    SharedOptions

	// The system calls of an append that tests let fail.
	write func(*os.File, []byte) (int, error)
	sync  func(*os.File) error
}

// OpenShared names a shared log. Nothing is opened, created or read yet. The
// path is made absolute by the caller.
func OpenShared(path string, o SharedOptions) *Shared {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Wait == 0 {
		o.Wait = lockWait
	}
	return &Shared{path: path, o: o, write: (*os.File).Write, sync: (*os.File).Sync}
}

// Path is the path the log was named with.
func (s *Shared) Path() string { return s.path }

// Append writes body as the next record under the lock file, syncs it, and
// returns it. With expect set it is compare-and-append: unless the log ends with
// exactly that head (the zero Head: is empty or absent) it fails with
// ErrHeadMoved. Nothing is ever tried again, and a refused append leaves the
// file byte for byte as it was.
//
// The log and its folder are created when absent, 0600 and 0700; what exists
// keeps its mode, since other programs made it.
//
// Errors: CodeLockTimeout, CodeCorruptTail, ErrHeadMoved, ErrInvalidBody,
// CodeRefused (the schema), ErrTooLarge, ErrCapacity, CodeIO, or the context's.
func (s *Shared) Append(ctx context.Context, expect *Head, body any) (Entry, error) {
	d, err := newDraft(body)
	if err != nil {
		return Entry{}, err
	}
	if err := os.MkdirAll(filepath.Dir(s.path), 0o700); err != nil {
		return Entry{}, &Error{Code: CodeIO, Detail: "create the folder", Err: err}
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return Entry{}, err
	}
	defer unlock()
	return s.appendLocked(expect, d)
}

// lock creates the lock file and returns what removes it again.
func (s *Shared) lock(ctx context.Context) (unlock func(), err error) {
	name := s.path + lockSuffix
	deadline := time.NewTimer(s.o.Wait)
	defer deadline.Stop()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err == nil {
			f.Close()
			// A lock that could not be removed stops the next writer, who will say
			// so; this append has happened all the same.
			return func() { _ = os.Remove(name) }, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, &Error{Code: CodeIO, Detail: "create the lock file", Err: err}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-deadline.C:
			return nil, &Error{Code: CodeLockTimeout, Detail: fmt.Sprintf(
				"%s exists since %s; remove it only when no program that writes this log runs", name, since(name))}
		}
	}
}

func since(name string) string {
	st, err := os.Lstat(name)
	if err != nil {
		return "an unknown time"
	}
	return st.ModTime().UTC().Format(tsLayout)
}

func (s *Shared) appendLocked(expect *Head, d draft) (Entry, error) {
	f, created, err := s.open()
	if err != nil {
		return Entry{}, err
	}
	defer f.Close()
	head, size, err := s.tail(f)
	if err != nil {
		return Entry{}, err
	}
	if expect != nil && *expect != head {
		return Entry{}, ErrHeadMoved
	}
	e, line, err := d.record(head, s.o.Clock.Now(), size)
	if err != nil {
		return Entry{}, err
	}
	if s.o.Schema != nil {
		if why := s.o.Schema(e); why != "" {
			return Entry{}, &Error{Code: CodeRefused, Detail: why}
		}
	}
	if s.o.MaxBytes > 0 && size+int64(len(line)) > s.o.MaxBytes {
		return Entry{}, ErrCapacity
	}
	if err := s.store(f, size, line); err != nil {
		return Entry{}, err
	}
	if created {
		if err := syncFolder(filepath.Dir(s.path)); err != nil {
			return Entry{}, &Error{Code: CodeIO, Detail: "sync of the folder", Err: err}
		}
	}
	return e, nil
}

// open opens the log for appending. A link, a FIFO or a second name in its
// place would let somebody else choose what is written to.
func (s *Shared) open() (f *os.File, created bool, err error) {
	const flags = os.O_RDWR | os.O_APPEND | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NONBLOCK
	f, err = os.OpenFile(s.path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		created = true
		f, err = os.OpenFile(s.path, flags|os.O_CREATE|os.O_EXCL, 0o600)
	}
	if err != nil {
		return nil, false, &Error{Code: CodeIO, Detail: "open", Err: err}
	}
	st, err := f.Stat()
	if err == nil {
		sys, ok := st.Sys().(*syscall.Stat_t)
		switch {
		case !st.Mode().IsRegular():
			err = errors.New("the log is not a regular file")
		case !ok || sys.Nlink != 1:
			err = errors.New("the log has more than one link")
		}
	}
	if err != nil {
		f.Close()
		return nil, false, &Error{Code: CodeIO, Detail: "check", Err: err}
	}
	return f, created, nil
}

// tail reads and proves the last record. Nothing is repaired.
func (s *Shared) tail(f *os.File) (Head, int64, error) {
	st, err := f.Stat()
	if err != nil {
		return Head{}, 0, &Error{Code: CodeIO, Detail: "fstat", Err: err}
	}
	size := st.Size()
	if size == 0 {
		return Head{}, 0, nil
	}
	buf := make([]byte, min(size, MaxRecord+2))
	if _, err := f.ReadAt(buf, size-int64(len(buf))); err != nil && !errors.Is(err, io.EOF) {
		return Head{}, 0, &Error{Code: CodeIO, Detail: "read the tail", Err: err}
	}
	line, why := lastLine(buf, int64(len(buf)) == size)
	if why == "" {
		w := newWalker(s.o.Schema)
		e, ok := w.quick(line)
		if !ok {
			var reason Reason
			if e, reason, _ = w.slow(line); reason != "" {
				why = "the last record does not verify: " + string(reason)
			}
		}
		if why == "" {
			return e.Head(), size, nil
		}
	}
	return Head{}, 0, &Error{Code: CodeCorruptTail, Detail: why}
}

// lastLine cuts the last complete line out of the end of a file; whole says
// that buf is all of it.
func lastLine(buf []byte, whole bool) (line []byte, why string) {
	if buf[len(buf)-1] != '\n' {
		return nil, "bytes follow the last newline"
	}
	buf = buf[:len(buf)-1]
	for i := len(buf) - 1; i >= 0; i-- {
		if buf[i] == '\n' {
			return buf[i+1:], ""
		}
	}
	if !whole {
		return nil, "the last line is longer than a record may be"
	}
	return buf, ""
}

// store writes and syncs one line. What a failed write left is cut off again
// while the lock is held, so that the refused record takes no number.
func (s *Shared) store(f *os.File, size int64, line []byte) error {
	n, err := s.write(f, line)
	if err == nil && n < len(line) {
		err = io.ErrShortWrite
	}
	if err == nil {
		if err = s.sync(f); err == nil {
			return nil
		}
	}
	st, cut := f.Stat()
	if cut == nil && st.Size() > size+int64(len(line)) {
		cut = errors.New("somebody else wrote to it without the lock")
	}
	if cut == nil {
		cut = f.Truncate(size)
	}
	if cut != nil {
		return &Error{Code: CodeIO, Detail: "write, and the file could not be cut back: " + cut.Error(), Err: err}
	}
	return &Error{Code: CodeIO, Detail: "write; the file was cut back", Err: err}
}

// syncFolder makes a new name durable. The folder may be anybody's: other
// programs of the format made it.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
