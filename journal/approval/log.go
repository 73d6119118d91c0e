package approval

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
)

// MaxLog bounds a log in bytes: what is larger is neither read for a decision
// nor appended to. A record of the gate has about 600 bytes.
const MaxLog = 256 << 20

// DefaultSkew is how far a gate-typed record may lie before the last one
// without being reported.
const DefaultSkew = 2 * time.Second

// Options refine a Log.
type Options struct {
	Clock clock.Clock   // gives ts; nil is the system's
	Wait  time.Duration // for the lock file; zero is the public 2 s
}

// A Log is one event log. Nothing is held open between its calls, and they may
// be called at once.
type Log struct {
	path   string
	shared *journal.Shared
}

// Open names the log at path, which should be absolute. It need not exist.
func Open(path string, o Options) *Log {
	return &Log{path: path, shared: journal.OpenShared(path, journal.SharedOptions{
		Clock: o.Clock, Wait: o.Wait, Schema: Schema, MaxBytes: MaxLog,
	})}
}

// Path is the path the log was named with.
func (l *Log) Path() string { return l.path }

// Append checks and writes one record and returns it once it is on the disk.
// With expect set the log must still end with that head (the zero head: be
// empty), else ErrHeadMoved and nothing is written. Every append that follows
// from something read in the log passes the snapshot's head.
//
// Errors are of type *Error, or the context's.
func (l *Log) Append(ctx context.Context, expect *journal.Head, d Draft) (Record, error) {
	b, err := d.seal()
	if err != nil {
		return Record{}, err
	}
	e, err := l.shared.Append(ctx, expect, b)
	if err != nil {
		return Record{}, appendError(err)
	}
	r, _ := parse(e) // the schema has judged it
	return r, nil
}

func appendError(err error) error {
	var j *journal.Error
	if !errors.As(err, &j) {
		return err
	}
	code := CodeIO
	switch j.Code {
	case journal.CodeHeadMoved:
		return ErrHeadMoved
	case journal.CodeLockTimeout:
		code = CodeLockTimeout
	case journal.CodeCorruptTail:
		code = CodeCorruptTail
	case journal.CodeRefused, journal.CodeTooLarge:
		code = CodeValidation
	case journal.CodeInvalidBody:
		code = CodeCanonicalization
	}
	return &Error{Code: code, Detail: j.Detail, Err: j.Err}
}

// A Snapshot is a whole proven log at one moment.
type Snapshot struct {
	Head    journal.Head
	Records []Record
}

// Read proves the log from its first byte and returns it. An absent or empty
// log is a snapshot without records. Errors are of type *Error with
// CodeLogUnreadable, CodeLogTornTail or CodeLogCorrupt: nobody decides by a log
// that does not verify.
//
// A tail that a writer is at work on, which its lock file tells, is waited for.
func (l *Log) Read() (s *Snapshot, err error) {
	settle(l.path, func() (torn bool) {
		s, err = l.read()
		return Code(err) == CodeLogTornTail
	})
	return s, err
}

func (l *Log) read() (*Snapshot, error) {
	f, err := openLog(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Snapshot{}, nil
	}
	if err != nil {
		return nil, &Error{Code: CodeLogUnreadable, Err: err}
	}
	defer f.Close()
	s := &Snapshot{}
	err = s.fill(io.LimitReader(f, MaxLog))
	var torn *journal.TornError
	var corrupt *journal.CorruptError
	switch {
	case err == nil:
		return s, nil
	case errors.As(err, &torn):
		return nil, &Error{Code: CodeLogTornTail, Err: err}
	case errors.As(err, &corrupt):
		return nil, &Error{Code: CodeLogCorrupt, Err: err}
	}
	return nil, &Error{Code: CodeLogUnreadable, Err: err}
}

// fill proves r and keeps its records.
func (s *Snapshot) fill(r io.Reader) error {
	var p parser
	return journal.WalkSchema(r, p.schema, func(e journal.Entry) error {
		s.Records = append(s.Records, p.record)
		s.Head = e.Head()
		return nil
	})
}

// A parser keeps what the schema read, so that a record is read once. Its
// record shares nothing with the journal's buffers.
type parser struct{ record Record }

func (p *parser) schema(e journal.Entry) (why string) {
	p.record, why = parse(e)
	return why
}

func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case !st.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	case st.Size() > MaxLog:
		err = fmt.Errorf("%s is larger than the %d bytes a log may have", path, MaxLog)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// AnomalySkew is the kind of the only anomaly: a gate-typed record whose time
// lies before that of the gate-typed record before it.
const AnomalySkew = "gate-ts-regression"

// VerifyOptions refine Verify.
type VerifyOptions struct {
	Skew   time.Duration // tolerated step back in time; zero is DefaultSkew
	Anchor *journal.Head // a head the caller trusts
}

// Verify proves the log at path by the rules of the format. It never writes,
// locks or creates. Absent and empty logs are clean.
// A tail that a writer is at work on is waited for.
func Verify(path string, o VerifyOptions) (v journal.Verdict) {
	settle(path, func() (torn bool) {
		v, _ = journal.VerifyFile(path, verifyOptions(o)) // the verdict holds the error's text
		return v.Status == journal.StatusTorn
	})
	return v
}

// VerifyReader is Verify over any source.
func VerifyReader(r io.Reader, o VerifyOptions) journal.Verdict {
	return journal.Verify(r, verifyOptions(o))
}

func verifyOptions(o VerifyOptions) journal.VerifyOptions {
	if o.Skew == 0 {
		o.Skew = DefaultSkew
	}
	w := &watch{tolerance: o.Skew}
	return journal.VerifyOptions{Schema: Schema, Observe: w.observe, Anchor: o.Anchor}
}

// A watch looks for time that runs backwards.
type watch struct {
	tolerance time.Duration
	last      *Record
}

func (w *watch) observe(e journal.Entry) *journal.Anomaly {
	r, _ := parse(e)
	if !GateTyped(r.Event) {
		return nil
	}
	before := w.last
	r.Payload = nil // the line's buffer is reused
	w.last = &r
	if before == nil {
		return nil
	}
	skew := before.TS.Sub(r.TS)
	if skew <= w.tolerance {
		return nil
	}
	return &journal.Anomaly{Kind: AnomalySkew, Seq: r.Seq, Detail: map[string]any{
		"ts": stamp(r.TS), "event": r.Event, "previousSeq": before.Seq,
		"previousTs": stamp(before.TS), "skewMs": skew.Milliseconds(),
	}}
}

// stamp writes a time as the log's own writer does.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Walk proves the log at path and hands out each record in order, with copies of
// their own. It ends with nil, *journal.TornError, *journal.CorruptError, fn's
// error, or that of the file (fs.ErrNotExist for an absent one).
func Walk(path string, fn func(journal.Entry, Record) error) error {
	f, err := openLog(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return journal.WalkSchema(io.LimitReader(f, MaxLog), Schema, parsed(fn))
}

// Follow is Walk that goes on until ctx ends, as journal.Follow.
func Follow(ctx context.Context, path string, fn func(journal.Entry, Record) error) error {
	return journal.FollowSchema(ctx, path, Schema, parsed(fn))
}

func parsed(fn func(journal.Entry, Record) error) func(journal.Entry) error {
	return func(e journal.Entry) error {
		e = e.Clone()
		r, why := parse(e)
		if why != "" {
			return errors.New(why)
		}
		return fn(e, r)
	}
}
