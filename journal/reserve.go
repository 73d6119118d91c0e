package journal

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// held counts what reservations keep back.
type held struct {
	records uint64
	bytes   int64
}

// A Reservation is capacity set aside for records that must be writable later.
// It may be used for several appends; what is left goes back with Release.
type Reservation struct {
	j        *Journal
	left     held
	released bool
}

// Reserve sets aside records and bytes (LF and the journal's own members, about
// 300 bytes a record, included), or fails with ErrCapacity. Where the file
// system can, the blocks are allocated now, so that a disk that fills up refuses
// new work and not the end of what was begun.
func (j *Journal) Reserve(records int, bytes int64) (*Reservation, error) {
	if records < 0 || bytes < 0 {
		return nil, &Error{Code: CodeCapacity, Detail: "a negative reservation"}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closing {
		return nil, ErrClosed
	}
	if err := j.check(); err != nil {
		return nil, err
	}
	want := held{uint64(records), bytes}
	if err := j.fits(want, j.size+j.inflight, j.head.Seq+j.flying); err != nil {
		return nil, err
	}
	if err := j.allocate(j.size + j.inflight + j.held.bytes + bytes); err != nil {
		return nil, err
	}
	j.held.records += want.records
	j.held.bytes += want.bytes
	return &Reservation{j: j, left: want}, nil
}

// allocateAhead is how much more than is needed is asked for, so that the file
// system is not asked at every append.
const allocateAhead = 64 << 10

// allocate asks the file system for blocks up to size and takes note of the times
// that the asking itself changed. A disk that is full refuses new work here, before
// anything is written: it neither poisons the journal nor takes what is reserved.
func (j *Journal) allocate(size int64) error {
	if size <= j.allocated {
		return nil
	}
	got := size + allocateAhead
	err := j.f.Allocate(got)
	if noRoom(err) {
		got = size
		err = j.f.Allocate(got)
	}
	if err == nil {
		j.allocated = got
	} else if !noRoom(err) {
		return j.poisonLocked(&Error{Code: CodeIO, Detail: "allocate", Err: err})
	}
	// Also a request that was refused changes the file's times, on ext4. During a
	// commit it is the commit that takes note.
	if j.inflight == 0 {
		if err := j.settle(0); err != nil {
			return j.poisonLocked(err)
		}
	}
	if err != nil {
		return &Error{Code: CodeCapacity, Detail: "the file system has no room", Err: err}
	}
	return nil
}

func noRoom(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// fits reports whether want still has room when the file holds size bytes and
// seq records and the present reservations are kept.
func (j *Journal) fits(want held, size int64, seq uint64) error {
	if j.o.MaxBytes > 0 && want.bytes > j.o.MaxBytes-size-j.held.bytes {
		return &Error{Code: CodeCapacity, Detail: fmt.Sprintf("%d of %d bytes are used and %d reserved",
			size, j.o.MaxBytes, j.held.bytes)}
	}
	if j.o.MaxRecords > 0 && seq+j.held.records+want.records > j.o.MaxRecords {
		return &Error{Code: CodeCapacity, Detail: fmt.Sprintf("%d of %d records are used and %d reserved",
			seq, j.o.MaxRecords, j.held.records)}
	}
	return nil
}

// claim takes room for one record of n bytes, out of res first and out of the
// open capacity and the file system's for what that lacks.
func (j *Journal) claim(res *Reservation, n, size int64, seq uint64) error {
	var own held
	if res != nil {
		if res.released {
			return &Error{Code: CodeClosed, Detail: "the reservation was released"}
		}
		own = held{min(res.left.records, 1), min(res.left.bytes, n)}
	}
	j.held.records -= own.records
	j.held.bytes -= own.bytes
	err := j.fits(held{1, n}, size, seq)
	if err == nil {
		err = j.allocate(size + n + j.held.bytes)
	}
	if err != nil {
		j.held.records += own.records
		j.held.bytes += own.bytes
		return err
	}
	if res != nil {
		res.left.records -= own.records
		res.left.bytes -= own.bytes
	}
	return nil
}

// Append is Journal.Append out of the reserved capacity.
func (r *Reservation) Append(ctx context.Context, body any) (Entry, error) {
	return r.j.append(ctx, body, nil, r)
}

// AppendIf is Journal.AppendIf out of the reserved capacity.
func (r *Reservation) AppendIf(ctx context.Context, head Head, body any) (Entry, error) {
	return r.j.append(ctx, body, &head, r)
}

// Release gives back what was not used. It may be called again.
func (r *Reservation) Release() {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	if r.released {
		return
	}
	r.released = true
	r.j.held.records -= r.left.records
	r.j.held.bytes -= r.left.bytes
	r.left = held{}
}
