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
// became shorter (*Error with CodeChanged). A torn tail is not an error here: a
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
		if err := stillNamed(f, path, w.offset); err != nil {
			return err
		}
		err := w.run(io.NewSectionReader(f, w.offset, 1<<62), fn)
		if err != nil && !errors.Is(err, ErrTornTail) {
			return callerError(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func stillNamed(f *os.File, path string, read int64) error {
	open, err := f.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(path)
	switch {
	case err != nil || !os.SameFile(open, named):
		return &Error{Code: CodeChanged, Detail: "the path no longer names the file that is followed", Err: err}
	case open.Size() < read:
		return &Error{Code: CodeChanged, Detail: "the file became shorter than what was read"}
	}
	return nil
}
