package journal

import (
	"context"
	"fmt"
)

// maxBatch bounds the bytes of one commit, so that a flood of large records
// cannot make one write arbitrarily long.
const maxBatch = 4 << 20

// A request is one append on its way to the disk.
type request struct {
	draft  draft
	expect *Head
	res    *Reservation
	taken  bool // the writer has it: it can no longer be withdrawn
	done   chan struct{}
	entry  Entry
	err    error

	carry   func(*Rotation) error // set: not an append but a rotation
	archive Archive
}

// Append writes body (a value that encodes to a JSON object without the
// journal's own members) as the next record and returns once it is durable. A
// context that ends before the writer took the record withdraws it; after that
// Append waits for the disk, so that its answer is never a guess.
//
// Errors: ErrCapacity, ErrTooLarge, ErrInvalidBody, ErrPoisoned, ErrClosed, or
// the context's.
func (j *Journal) Append(ctx context.Context, body any) (Entry, error) {
	return j.append(ctx, body, nil, nil)
}

// AppendIf is Append if the head is still the one the caller read, else
// ErrHeadMoved and nothing is written. Every append that follows from something
// read in the journal uses it.
func (j *Journal) AppendIf(ctx context.Context, head Head, body any) (Entry, error) {
	return j.append(ctx, body, &head, nil)
}

func (j *Journal) append(ctx context.Context, body any, expect *Head, res *Reservation) (Entry, error) {
	if err := ctx.Err(); err != nil {
		return Entry{}, err
	}
	d, err := newDraft(body)
	if err != nil {
		return Entry{}, err
	}
	r := &request{draft: d, expect: expect, res: res, done: make(chan struct{})}
	if err := j.admit(r); err != nil {
		return Entry{}, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		if j.withdraw(r) {
			return Entry{}, ctx.Err()
		}
		<-r.done
	}
	return r.entry, r.err
}

func (j *Journal) admit(r *request) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.failed != nil:
		return j.failed
	case j.closing:
		return ErrClosed
	}
	j.queue = append(j.queue, r)
	j.wake.Signal()
	return nil
}

func (j *Journal) withdraw(r *request) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.taken {
		return false
	}
	for i, q := range j.queue {
		if q == r {
			j.queue = append(j.queue[:i], j.queue[i+1:]...)
			return true
		}
	}
	return false
}

// write is the writer: it takes everything that has queued up while the last
// sync ran, and commits it with one write and one sync.
func (j *Journal) write() {
	defer close(j.done)
	for {
		batch := j.take()
		if batch == nil {
			return
		}
		if first := batch[0]; first.carry != nil {
			first.archive, first.err = j.rotate(first.carry)
		} else {
			j.commit(batch)
		}
		for _, r := range batch {
			close(r.done)
		}
	}
}

func (j *Journal) take() []*request {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.queue) == 0 && !j.closing {
		j.wake.Wait()
	}
	n, bytes := 0, 0
	for n < len(j.queue) && (n == 0 || bytes+j.queue[n].draft.size <= maxBatch) {
		if n > 0 && (j.queue[n].carry != nil || j.queue[0].carry != nil) {
			break // a rotation is a batch of its own
		}
		bytes += j.queue[n].draft.size
		j.queue[n].taken = true
		n++
	}
	if n == 0 {
		return nil
	}
	batch := j.queue[:n:n]
	j.queue = j.queue[n:]
	return batch
}

// commit makes a batch durable and only then moves the head.
func (j *Journal) commit(batch []*request) {
	buf, head, accepted := j.stage(batch)
	if len(accepted) == 0 {
		return
	}
	err := j.store(buf)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.inflight, j.flying = 0, 0
	if err == nil {
		err = j.settle(int64(len(buf)))
	}
	if err != nil {
		err = j.poisonLocked(err)
		for _, r := range accepted {
			r.entry, r.err = Entry{}, err
		}
		return
	}
	j.size += int64(len(buf))
	j.head = head
	j.appends += uint64(len(accepted))
	j.syncs++
}

// stage builds the bytes of a batch. Requests that cannot be written get their
// error here and take no sequence number.
func (j *Journal) stage(batch []*request) (buf []byte, head Head, accepted []*request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	refuse := j.check()
	head = j.head
	for _, r := range batch {
		if refuse != nil {
			r.err = refuse
			continue
		}
		if r.expect != nil && *r.expect != head {
			r.err = ErrHeadMoved
			continue
		}
		entry, line, err := r.draft.record(head, j.o.Clock.Now(), j.size+int64(len(buf)))
		if err == nil {
			err = j.claim(r.res, int64(len(line)), j.size+int64(len(buf)), head.Seq)
		}
		if err != nil {
			r.err = err
			continue
		}
		r.entry = entry
		buf = append(buf, line...)
		head = entry.Head()
		accepted = append(accepted, r)
	}
	j.inflight, j.flying = int64(len(buf)), uint64(len(accepted))
	return buf, head, accepted
}

// store writes and syncs. After a failed write the file is cut back to its
// durable length and that is synced, so that the failure can be proven undone.
// After a failed sync nothing more is synced: the kernel may have dropped the
// dirty pages and marked them clean, and a second fsync would then succeed
// without having written anything. Cutting the file back still keeps this
// machine's next reader from seeing bytes whose fate on the disk is unknown.
func (j *Journal) store(buf []byte) error {
	n, err := j.f.Write(buf)
	if err == nil && n < len(buf) {
		err = fmt.Errorf("short write: %d of %d bytes", n, len(buf))
	}
	if err != nil {
		if cut := j.rollback(); cut != nil {
			return &Error{Code: CodeIO, Detail: "write, and the file could not be cut back: " + cut.Error(), Err: err}
		}
		if cut := j.f.Sync(); cut != nil {
			return &Error{Code: CodeIO, Detail: "write, and cutting the file back could not be synced", Err: err}
		}
		return &Error{Code: CodeIO, Detail: "write; the file was cut back to its durable length", Err: err}
	}
	if err := j.f.Sync(); err != nil {
		if cut := j.rollback(); cut != nil {
			return &Error{Code: CodeIO, Detail: "sync, and the file could not be cut back: " + cut.Error(), Err: err}
		}
		return &Error{Code: CodeIO, Detail: "sync; the file was cut back to its durable length", Err: err}
	}
	return nil
}

// rollback cuts the file to its durable length and proves that it has it. It
// first proves that only our own bytes would go.
func (j *Journal) rollback() error {
	j.mu.Lock()
	size, inflight, was := j.size, j.inflight, j.id
	j.mu.Unlock()
	id, err := identify(j.o.FS, j.f, j.path)
	if err != nil {
		return err
	}
	if err := sameFile(was, id); err != nil {
		return err
	}
	if int64(id.Size) < size || int64(id.Size) > size+inflight {
		return changed("its size is not one that our write can have left")
	}
	if err := j.f.Truncate(size); err != nil {
		return err
	}
	id, err = j.f.Identity()
	if err != nil {
		return err
	}
	if int64(id.Size) != size {
		return changed("it kept its length")
	}
	return nil
}

// settle remembers what the file looks like after our write.
func (j *Journal) settle(written int64) error {
	now, err := j.f.Identity()
	if err != nil {
		return &Error{Code: CodeIO, Detail: "fstat", Err: err}
	}
	if err := sameFile(j.id, now); err != nil {
		return err
	}
	if int64(now.Size) != j.size+written {
		return changed("somebody else wrote to it")
	}
	j.id = now
	return nil
}
