package journal

import (
	"context"
	"errors"
	"io"
	"os"
	"time"
)

// followEvery is how often Follow looks for new records.
const followEvery = 200 * time.Millisecond

// Walk proves the log at path and hands each record to fn in order. It ends with
// nil, *TornError, *CorruptError, fn's error, or that of the file. It needs no
// lock and changes nothing; a writer's unfinished last line is a torn tail to it.
func Walk(path string, fn func(Entry) error) error {
	f, err := openRead(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return callerError(newWalker(nil).run(f, fn))
}

// WalkReader is Walk over any source.
func WalkReader(r io.Reader, fn func(Entry) error) error {
	return callerError(newWalker(nil).run(r, fn))
}

// WalkSchema is WalkReader under a schema, as VerifyOptions.Schema.
func WalkSchema(r io.Reader, schema func(Entry) string, fn func(Entry) error) error {
	return callerError(newWalker(schema).run(r, fn))
}

func callerError(err error) error {
	var stop *stopped
	if errors.As(err, &stop) {
		return stop.err
	}
	return err
}

// Follow is Walk that goes on: it waits for new records until ctx ends (and then
// returns nil), fn fails, a line does not verify, or the file was replaced or
// became shorter (*Error with CodeChanged; CodeRotated once all of a journal that
// was rotated was handed on). A torn tail is not an error here: a
// writer may still complete it.
func Follow(ctx context.Context, path string, fn func(Entry) error) error {
	return FollowSchema(ctx, path, nil, fn)
}

// FollowSchema is Follow under a schema, as VerifyOptions.Schema.
func FollowSchema(ctx context.Context, path string, schema func(Entry) string, fn func(Entry) error) error {
	f, err := openRead(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := newWalker(schema)
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		gone := stillNamed(f, path, w.offset)
		if gone != nil && !errors.Is(gone, errReplaced) {
			return gone
		}
		err := w.run(io.NewSectionReader(f, w.offset, 1<<62), fn)
		if err != nil && !errors.Is(err, ErrTornTail) {
			return callerError(err)
		}
		if gone != nil { // what is open was read to its end
			return rotatedAway(path, w.head, gone)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// rotatedAway says that the journal which ended with head was rotated, if the
// file that replaced it says so too.
func rotatedAway(path string, head Head, gone error) error {
	f, err := openRead(path)
	if err != nil {
		return gone
	}
	defer f.Close()
	if a, err := firstArchive(f); err == nil && a != nil && a.Head() == head {
		return &Error{Code: CodeRotated, Detail: "everything up to here is in " + a.Name}
	}
	return gone
}

var errReplaced = errors.New("another file has the name")

func stillNamed(f *os.File, path string, read int64) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(path)
	switch {
	case err != nil:
		return &Error{Code: CodeChanged, Detail: "the path no longer names the file that is followed", Err: err}
	case !os.SameFile(open, named):
		return &Error{Code: CodeChanged, Detail: "the path no longer names the file that is followed", Err: errReplaced}
	case open.Size() < read:
		return &Error{Code: CodeChanged, Detail: "the file became shorter than what was read"}
	}
	return nil
}
