package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gloved.dev/internal/clock"
	"gloved.dev/journal"
)

type body struct {
	Event string `json:"event"`
	N     int    `json:"n,omitzero"`
}

func dir(t testing.TB) string {
	t.Helper()
	d := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(d, 0o700); err != nil {
		t.Fatal(err)
	}
	return d
}

func fake() clock.Clock {
	return clock.NewFake(time.Date(2026, 1, 2, 3, 4, 5, 678_900_000, time.UTC))
}

func open(t testing.TB, path string, o journal.Options) *journal.Journal {
	t.Helper()
	j, err := journal.Open(path, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func appendN(t testing.TB, j *journal.Journal, n int) {
	t.Helper()
	for i := range n {
		if _, err := j.Append(context.Background(), body{"e", i + 1}); err != nil {
			t.Fatal(err)
		}
	}
}

// The bytes of the format are pinned: other tools read them.
func TestGolden(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{Clock: fake()})
	bodies := []any{
		body{"a", 0},
		map[string]any{"zeta": "é\u2028", "a\"b": []any{1, true, nil}, "Alg": 1.5, "hashes": "x", "prefix": map[string]any{"hash": "no"}},
		map[string]any{},
		map[string]any{"aaa": 1, "b": 2, "i": 3, "q": 4, "sf": 5, "u": 6},
	}
	for _, b := range bodies {
		if _, err := j.Append(context.Background(), b); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "golden.jsonl")
	if os.Getenv("UPDATE_GOLDEN") != "" {
		os.WriteFile(golden, got, 0o600)
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Error(diff)
	}
	i := 0
	err = journal.Walk(path, func(e journal.Entry) error {
		want, _ := json.Marshal(bodies[i])
		var a, b any
		json.Unmarshal(want, &a)
		if err := json.Unmarshal(e.Body(), &b); err != nil {
			t.Errorf("body %d: %v: %s", i, err, e.Body())
		}
		if diff := cmp.Diff(a, b); diff != "" {
			t.Error(diff)
		}
		i++
		return nil
	})
	if err != nil || i != len(bodies) {
		t.Errorf("walked %d, %v", i, err)
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 10)
	head := j.Head()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	var seen []int
	j2, err := journal.Open(path, journal.Options{}, func(e journal.Entry) error {
		var b body
		if err := e.Decode(&b); err != nil {
			return err
		}
		seen = append(seen, b.N)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	defer j2.Close()
	if j2.Head() != head || len(seen) != 10 || seen[9] != 10 {
		t.Errorf("head %v, seen %v", j2.Head(), seen)
	}
}

func TestLockExcludes(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	open(t, path, journal.Options{})
	if _, err := journal.Open(path, journal.Options{}, nil); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("second open: %v", err)
	}
	if _, err := journal.Repair(nil, path, true); !errors.Is(err, journal.ErrLocked) {
		t.Errorf("repair of a journal in use: %v", err)
	}
}

func TestAppendIf(t *testing.T) {
	j := open(t, filepath.Join(dir(t), "log.jsonl"), journal.Options{})
	if _, err := j.AppendIf(context.Background(), journal.Head{}, body{"a", 1}); err != nil {
		t.Fatal(err)
	}
	head := j.Head()
	var wg sync.WaitGroup
	results := make([]error, 20)
	for i := range results {
		wg.Go(func() { _, results[i] = j.AppendIf(context.Background(), head, body{"b", i}) })
	}
	wg.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
		} else if !errors.Is(err, journal.ErrHeadMoved) {
			t.Error(err)
		}
	}
	if won != 1 || j.Head().Seq != 2 {
		t.Errorf("%d appends won, head %v", won, j.Head())
	}
}

func TestBodiesRefused(t *testing.T) {
	j := open(t, filepath.Join(dir(t), "log.jsonl"), journal.Options{})
	for _, name := range []string{"alg", "hash", "prev", "seq", "ts"} {
		if _, err := j.Append(context.Background(), map[string]any{name: 1}); code(err) != journal.CodeInvalidBody {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, b := range []any{[]int{1}, 1, "x", nil, map[string]any{"n": uint64(1) << 60}, map[string]any{"n": "\xff"}} {
		if _, err := j.Append(context.Background(), b); code(err) != journal.CodeInvalidBody {
			t.Errorf("%v: %v", b, err)
		}
	}
	if j.Head().Seq != 0 {
		t.Error("a refused body took a sequence number")
	}
}

func code(err error) string {
	var e *journal.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestRecordBound(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	e, err := j.Append(context.Background(), map[string]string{"x": ""})
	if err != nil {
		t.Fatal(err)
	}
	first := len(e.Line)
	fill := journal.MaxRecord - first - 62 // the second record has a prev of 66 bytes instead of 4
	if e, err = j.Append(context.Background(), map[string]string{"x": strings.Repeat("y", fill)}); err != nil || len(e.Line) != journal.MaxRecord {
		t.Fatalf("a record of exactly MaxRecord: %d, %v", len(e.Line), err)
	}
	if _, err := j.Append(context.Background(), map[string]string{"x": strings.Repeat("y", fill+1)}); code(err) != journal.CodeTooLarge {
		t.Fatalf("one byte more: %v", err)
	}
	if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || v.Status != journal.StatusClean || v.Records != 2 {
		t.Fatalf("%+v %v", v, err)
	}
}

func TestBounds(t *testing.T) {
	ctx := context.Background()
	d := dir(t)
	j := open(t, filepath.Join(d, "records.jsonl"), journal.Options{MaxRecords: 3})
	appendN(t, j, 3)
	if _, err := j.Append(ctx, body{"e", 4}); code(err) != journal.CodeCapacity {
		t.Errorf("fourth of three: %v", err)
	}
	j.Close()
	open(t, filepath.Join(d, "records.jsonl"), journal.Options{MaxRecords: 2}) // what is there stays readable

	probe := open(t, filepath.Join(d, "probe.jsonl"), journal.Options{Clock: fake()})
	appendN(t, probe, 2)
	size := probe.Stats().Bytes
	exact := open(t, filepath.Join(d, "exact.jsonl"), journal.Options{MaxBytes: size, Clock: fake()})
	appendN(t, exact, 2)
	short := open(t, filepath.Join(d, "short.jsonl"), journal.Options{MaxBytes: size - 1, Clock: fake()})
	appendN(t, short, 1)
	if _, err := short.Append(ctx, body{"e", 2}); code(err) != journal.CodeCapacity {
		t.Errorf("one byte over: %v", err)
	}
}

func TestReserve(t *testing.T) {
	ctx := context.Background()
	j := open(t, filepath.Join(dir(t), "log.jsonl"), journal.Options{MaxRecords: 4, MaxBytes: 4096})
	r, err := j.Reserve(2, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Reserve(3, 10); code(err) != journal.CodeCapacity {
		t.Errorf("records over-reserved: %v", err)
	}
	if _, err := j.Reserve(1, 3097); code(err) != journal.CodeCapacity {
		t.Errorf("bytes over-reserved: %v", err)
	}
	appendN(t, j, 2)
	if _, err := j.Append(ctx, body{"x", 0}); code(err) != journal.CodeCapacity {
		t.Errorf("took reserved capacity: %v", err)
	}
	if _, err := r.AppendIf(ctx, journal.Head{}, body{"x", 0}); !errors.Is(err, journal.ErrHeadMoved) {
		t.Error(err)
	}
	if _, err := r.AppendIf(ctx, j.Head(), body{"x", 0}); err != nil {
		t.Fatal(err)
	}
	r.Release()
	r.Release()
	if _, err := r.Append(ctx, body{"x", 0}); code(err) != journal.CodeClosed {
		t.Errorf("released reservation: %v", err)
	}
	appendN(t, j, 1)
	if s := j.Stats(); s.ReservedBytes != 0 || s.ReservedRecords != 0 || s.Records != 4 {
		t.Errorf("%+v", s)
	}
}

func TestChangedBehindOurBack(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"appended":  func(p string) error { return appendTo(p, "x") },
		"truncated": func(p string) error { return os.Truncate(p, 3) },
		"link":      func(p string) error { return os.Link(p, p+"2") },
		"mode":      func(p string) error { return os.Chmod(p, 0o640) },
		"removed":   os.Remove,
		"replaced":  func(p string) error { return os.WriteFile(p+"n", nil, 0o600) },
		"rewritten": func(p string) error {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			if err := os.Chtimes(p, time.Time{}, time.Unix(1, 0)); err != nil {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir(t), "log.jsonl")
			j := open(t, path, journal.Options{})
			appendN(t, j, 2)
			if err := change(path); err != nil {
				t.Fatal(err)
			}
			if name == "replaced" {
				if err := os.Rename(path+"n", path); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := j.Append(context.Background(), body{"x", 0}); code(err) != journal.CodePoisoned {
				t.Errorf("append: %v", err)
			}
			if err := j.Check(); code(err) != journal.CodePoisoned {
				t.Errorf("check: %v", err)
			}
			if _, err := j.Reserve(1, 1); code(err) != journal.CodePoisoned {
				t.Errorf("reserve: %v", err)
			}
		})
	}
}

func appendTo(path, s string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(s)
	return errors.Join(err, f.Close())
}

func TestTornAndRepair(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 3)
	size, head := j.Stats().Bytes, j.Head()
	j.Close()
	tail := `{"alg":"sha256/jcs","torn`
	if err := appendTo(path, tail); err != nil {
		t.Fatal(err)
	}
	var torn *journal.TornError
	if _, err := journal.Open(path, journal.Options{}, nil); !errors.Is(err, journal.ErrTornTail) || !errors.As(err, &torn) ||
		torn.Offset != size || torn.Bytes != int64(len(tail)) || torn.Head != head {
		t.Fatalf("open: %v", err)
	}
	if _, err := journal.Open(path, journal.Options{AllowTorn: func(journal.Head) bool { return false }}, nil); !errors.Is(err, journal.ErrTornTail) {
		t.Fatalf("open: %v", err)
	}
	show, err := journal.Repair(nil, path, false)
	if err != nil || !show.Torn || string(show.Preview) != tail || show.Kept != "" {
		t.Fatalf("%+v %v", show, err)
	}
	done, err := journal.Repair(nil, path, true)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(done.Kept); err != nil || string(kept) != tail {
		t.Errorf("kept %q, %v", kept, err)
	}
	j = open(t, path, journal.Options{})
	if j.Head() != head {
		t.Error(j.Head())
	}
	appendN(t, j, 1)
	j.Close()
	if again, err := journal.Repair(nil, path, true); err != nil || again.Torn {
		t.Errorf("%+v %v", again, err)
	}
	if err := appendTo(path, "bad\n"); err != nil {
		t.Fatal(err)
	}
	var corrupt *journal.CorruptError
	if _, err := journal.Repair(nil, path, true); !errors.As(err, &corrupt) || corrupt.Line != 5 {
		t.Errorf("a complete bad line was not refused: %v", err)
	}
}

func TestGroupCommit(t *testing.T) {
	gate := &gateFS{FS: journal.OS(), enter: make(chan struct{}, 1), leave: make(chan struct{})}
	j := open(t, filepath.Join(dir(t), "log.jsonl"), journal.Options{FS: gate})
	gate.armed.Store(true)
	var wg sync.WaitGroup
	appendOne := func() {
		defer wg.Done()
		if _, err := j.Append(context.Background(), body{"x", 0}); err != nil {
			t.Error(err)
		}
	}
	wg.Add(1)
	go appendOne()
	<-gate.enter // the first append is in its sync
	const n = 64
	wg.Add(n)
	for range n {
		go appendOne()
	}
	waitQueued(j, n)
	gate.armed.Store(false)
	close(gate.leave)
	wg.Wait()
	if s := j.Stats(); s.Syncs != 2 || s.Appends != n+1 || gate.syncs.Load() != 2 {
		t.Errorf("%d appends took %d commits and %d syncs", s.Appends, s.Syncs, gate.syncs.Load())
	}
}

func TestWithdraw(t *testing.T) {
	gate := &gateFS{FS: journal.OS(), enter: make(chan struct{}, 1), leave: make(chan struct{})}
	j := open(t, filepath.Join(dir(t), "log.jsonl"), journal.Options{FS: gate})
	gate.armed.Store(true)
	first := make(chan error)
	go func() { _, err := j.Append(context.Background(), body{"first", 0}); first <- err }()
	<-gate.enter
	ctx, cancel := context.WithCancel(context.Background())
	second := make(chan error)
	go func() { _, err := j.Append(ctx, body{"second", 0}); second <- err }()
	waitQueued(j, 1)
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	gate.armed.Store(false)
	close(gate.leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
	j.Close()
	if _, err := j.Append(context.Background(), body{"x", 0}); !errors.Is(err, journal.ErrClosed) {
		t.Error(err)
	}
	if j.Head().Seq != 1 {
		t.Error(j.Head())
	}
}

func TestFollow(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 2)
	got := make(chan uint64, 8)
	ctx, cancel := context.WithCancel(context.Background())
	end := make(chan error)
	go func() {
		end <- journal.Follow(ctx, path, func(e journal.Entry) error { got <- e.Seq; return nil })
	}()
	<-got
	<-got
	appendN(t, j, 1)
	if seq := <-got; seq != 3 {
		t.Error(seq)
	}
	cancel()
	if err := <-end; err != nil {
		t.Error(err)
	}
	if err := os.Rename(path, path+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	old, _ := os.ReadFile(path + ".old")
	if err := os.WriteFile(path, old[:0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := journal.Follow(ctx, path, nil); err != nil {
		t.Error(err)
	}
}
