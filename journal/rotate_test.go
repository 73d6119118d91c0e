package journal_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"gloved.dev/internal/crashpoint"
	"gloved.dev/journal"
)

// keepEven carries the records whose body has an even n.
func keepEven(r *journal.Rotation) error {
	return r.Walk(func(e journal.Entry) error {
		var b body
		if err := e.Decode(&b); err != nil {
			return err
		}
		if b.N%2 != 0 {
			return nil
		}
		_, err := r.Put(b)
		return err
	})
}

func keepNothing(*journal.Rotation) error { return nil }

func rotate(t testing.TB, j *journal.Journal, carry func(*journal.Rotation) error) journal.Archive {
	t.Helper()
	a, err := j.Rotate(context.Background(), carry)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// texts opens the journal and returns the bodies it replays.
func texts(t testing.TB, path string, o journal.Options) (*journal.Journal, []string) {
	t.Helper()
	var have []string
	j, err := journal.Open(path, o, func(e journal.Entry) error {
		var b body
		if err := e.Decode(&b); err != nil {
			return err
		}
		have = append(have, b.Event)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return j, have
}

func TestRotate(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{MaxRecords: 12})
	if _, err := j.Rotate(context.Background(), keepNothing); !errors.Is(err, journal.ErrEmpty) {
		t.Errorf("an empty journal: %v", err)
	}
	res, err := j.Reserve(2, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for round := range 3 {
		for n := range 4 {
			text := fmt.Sprint(round, ".", n)
			if _, err := j.Append(context.Background(), body{text, n}); err != nil {
				t.Fatal(err)
			}
		}
		before := j.Stats()
		a := rotate(t, j, func(r *journal.Rotation) error {
			return r.Walk(func(e journal.Entry) error {
				var b body
				if err := e.Decode(&b); err != nil || b.N != 0 {
					return err
				}
				_, err := r.Put(b)
				return err
			})
		})
		want = append(want, fmt.Sprint(round, ".", 0))
		if a.Name != fmt.Sprintf("log.jsonl.%06d", round+1) || a.Head() != before.Head || a.Records != before.Records || a.Bytes != before.Bytes {
			t.Errorf("archive %+v of %+v", a, before)
		}
		if s := j.Stats(); s.ReservedRecords != 2 || s.Records != uint64(len(want))+1 || *j.Archive() != a {
			t.Errorf("after: %+v", s)
		}
	}
	// The reservation is good in the new file, and only it.
	for range 6 {
		_, err = j.Append(context.Background(), body{"fill", 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(context.Background(), body{"full", 1}); code(err) != journal.CodeCapacity {
		t.Errorf("full: %v", err)
	}
	if _, err := res.Append(context.Background(), body{"reserved", 1}); err != nil {
		t.Error(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	j, have := texts(t, path, journal.Options{})
	defer j.Close()
	if got := strings.Join(have[:3], " "); got != strings.Join(want, " ") || j.Archive().Number() != 3 {
		t.Errorf("replayed %v, archive %v", have, j.Archive())
	}
	v, err := journal.VerifyFile(path, journal.VerifyOptions{})
	if err != nil || v.Status != journal.StatusClean || len(v.Archives) != 3 {
		t.Errorf("verdict %+v, %v", v, err)
	}
	// Each file is a log by itself, for a verifier that knows nothing of archives.
	for _, a := range v.Archives {
		f, err := os.Open(filepath.Join(filepath.Dir(path), a.Name))
		if err != nil {
			t.Fatal(err)
		}
		head := a.Head()
		if v := journal.Verify(f, journal.VerifyOptions{Anchor: &head}); v.Status != journal.StatusClean || *v.Head != head {
			t.Errorf("%s: %+v", a.Name, v)
		}
		f.Close()
		// A head of an archive is still a good anchor.
		if v, _ := journal.VerifyFile(path, journal.VerifyOptions{Anchor: &head}); v.Status != journal.StatusClean {
			t.Errorf("anchored at %v: %+v", head, v)
		}
	}
	lost := journal.Head{Seq: 3, Hash: strings.Repeat("a", 64)}
	if v, _ := journal.VerifyFile(path, journal.VerifyOptions{Anchor: &lost}); v.Reason != journal.ReasonHeadMismatch {
		t.Errorf("an anchor that is nowhere: %+v", v)
	}
}

// Whatever happens to an archive, the verifier of the live file names it and
// says what happened.
func TestArchiveFaults(t *testing.T) {
	edit := func(change func([]string) []string) func(t *testing.T, first, second string) {
		return func(t *testing.T, first, _ string) {
			raw, err := os.ReadFile(first)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(strings.TrimSuffix(string(raw), "\n"), "\n")
			lines[len(lines)-1] += "\n"
			write(t, first, strings.Join(change(lines), ""))
		}
	}
	cases := map[string]struct {
		harm func(t *testing.T, first, second string)
		want journal.Reason
	}{
		"missing":   {func(t *testing.T, first, _ string) { os.Remove(first) }, journal.ReasonArchiveMissing},
		"truncated": {edit(func(l []string) []string { return l[:len(l)-1] }), journal.ReasonArchiveTruncated},
		"torn": {edit(func(l []string) []string {
			l[len(l)-1] = l[len(l)-1][:20]
			return l
		}), journal.ReasonArchiveTruncated},
		"empty":     {edit(func([]string) []string { return nil }), journal.ReasonArchiveTruncated},
		"reordered": {edit(func(l []string) []string { l[0], l[1] = l[1], l[0]; return l }), journal.ReasonArchiveCorrupt},
		"changed": {edit(func(l []string) []string {
			l[0] = strings.Replace(l[0], `"n":1`, `"n":5`, 1)
			return l
		}), journal.ReasonArchiveCorrupt},
		"tail": {edit(func(l []string) []string { return append(l, "{") }), journal.ReasonArchiveExtended},
		"continued": {func(t *testing.T, first, _ string) {
			j := open(t, first, journal.Options{})
			appendN(t, j, 1)
			j.Close()
		}, journal.ReasonArchiveExtended},
		"exchanged": {func(t *testing.T, first, second string) {
			must(t, os.Rename(first, first+"x"))
			must(t, os.Rename(second, first))
			must(t, os.Rename(first+"x", second))
		}, journal.ReasonArchiveForeign},
		"foreign": {func(t *testing.T, first, _ string) {
			must(t, os.Remove(first))
			j := open(t, first, journal.Options{})
			appendN(t, j, 4)
			j.Close()
		}, journal.ReasonArchiveForeign},
		"a directory": {func(t *testing.T, first, _ string) {
			must(t, os.Remove(first))
			must(t, os.Mkdir(first, 0o700))
		}, journal.ReasonArchiveUnreadable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir(t), "log.jsonl")
			j := open(t, path, journal.Options{})
			for range 2 {
				appendN(t, j, 4)
				rotate(t, j, keepNothing)
			}
			appendN(t, j, 1)
			j.Close()
			if v, _ := journal.VerifyFile(path, journal.VerifyOptions{}); v.Status != journal.StatusClean {
				t.Fatalf("before: %+v", v)
			}
			c.harm(t, path+".000001", path+".000002")
			v, _ := journal.VerifyFile(path, journal.VerifyOptions{})
			want := "log.jsonl.000001"
			if name == "exchanged" {
				want = "log.jsonl.000002"
			}
			if v.Status != journal.StatusCorrupt || v.Reason != c.want || v.Archive != want || v.ExitCode() != journal.ExitCorrupt {
				t.Errorf("verdict %+v", v)
			}
			// The journal itself goes on: its archives may be kept elsewhere.
			j, have := texts(t, path, journal.Options{})
			j.Close()
			if len(have) != 1 {
				t.Errorf("replayed %v", have)
			}
		})
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An archive that the journal does not know of means that the journal is an old
// copy, or gone: nothing may be written to it.
func TestOldCopyRefused(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 3)
	old, err := os.ReadFile(path)
	must(t, err)
	rotate(t, j, keepNothing)
	j.Close()
	for what, put := range map[string]func(){
		"put back": func() { write(t, path, string(old)) },
		"lost":     func() { must(t, os.Remove(path)) },
	} {
		put()
		if _, err := journal.Open(path, journal.Options{}, nil); code(err) != journal.CodeChanged {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(path + ".000001"); err != nil {
			t.Errorf("%s: the archive is gone: %v", what, err)
		}
		if v, err := journal.VerifyFile(path, journal.VerifyOptions{}); err != nil || v.Reason != journal.ReasonArchiveUnnamed || v.Archive != "log.jsonl.000001" || v.ExitCode() != journal.ExitCorrupt {
			t.Errorf("%s: verified as %+v, %v", what, v, err)
		}
	}
}

// TestVerifyWhileRotating: a log that is rotated while somebody verifies it is never taken
// for an old copy of itself.
func TestVerifyWhileRotating(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	defer j.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 60 {
			appendN(t, j, 2)
			rotate(t, j, keepNothing)
		}
	}()
	for looked := 0; ; looked++ {
		v, err := journal.VerifyFile(path, journal.VerifyOptions{})
		if err != nil || v.Status != journal.StatusClean && v.Status != journal.StatusTorn {
			t.Fatalf("look %d: %s %s %s, %v", looked, v.Status, v.Reason, v.Message, err)
		}
		select {
		case <-done:
			if looked == 0 {
				t.Error("it was never looked at meanwhile")
			}
			return
		default:
		}
	}
}

// Appends go on while the journal is rotated again and again: none is lost, none
// is there twice, and compare-and-append never crosses a rotation.
func TestRotateWhileAppending(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	const writers, each = 4, 60
	var wg sync.WaitGroup
	for g := range writers {
		wg.Go(func() {
			for n := range each {
				if _, err := j.Append(context.Background(), body{fmt.Sprint(g, ".", n), 1}); err != nil {
					t.Error(err)
				}
				if r, err := j.Reserve(1, 400); err != nil {
					t.Error(err)
				} else {
					r.Release()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	rotations := 0
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		head := j.Head()
		if _, err := j.Rotate(context.Background(), keepNothing); err != nil && !errors.Is(err, journal.ErrEmpty) {
			t.Error(err)
		} else if err == nil {
			rotations++
			if _, err := j.AppendIf(context.Background(), head, body{"stale", 1}); !errors.Is(err, journal.ErrHeadMoved) {
				t.Errorf("a head from before the rotation: %v", err)
			}
		}
	}
	j.Close()
	seen := map[string]int{}
	v, err := journal.VerifyFile(path, journal.VerifyOptions{})
	if err != nil || v.Status != journal.StatusClean || len(v.Archives) != rotations {
		t.Fatalf("%v, %+v", err, v)
	}
	for _, name := range append([]string{filepath.Base(path)}, names(v.Archives)...) {
		must(t, journal.Walk(filepath.Join(filepath.Dir(path), name), func(e journal.Entry) error {
			if a, err := journal.Archived(e); a != nil || err != nil {
				return err
			}
			var b body
			if err := e.Decode(&b); err != nil {
				return err
			}
			seen[b.Event]++
			return nil
		}))
	}
	if len(seen) != writers*each {
		t.Errorf("%d of %d records", len(seen), writers*each)
	}
	for text, n := range seen {
		if n != 1 {
			t.Errorf("%s is there %d times", text, n)
		}
	}
	t.Logf("%d rotations under %d appends", rotations, writers*each)
}

func names(archives []journal.Archive) (out []string) {
	for _, a := range archives {
		out = append(out, a.Name)
	}
	return out
}

// rotating appends, rotates twice and appends in between and after.
func rotating(d *disk) (h history) {
	h.asked = map[string]bool{}
	j, err := journal.Open(memPath, journal.Options{FS: d}, nil)
	if err != nil {
		return h
	}
	for round := range 3 {
		for n := range 3 {
			text := fmt.Sprint(round, ".", n)
			h.asked[text] = true
			if _, err := j.Append(context.Background(), body{text, n}); err == nil {
				h.acked = append(h.acked, text)
			}
		}
		if round < 2 {
			_, _ = j.Rotate(context.Background(), keepEven)
		}
	}
	_ = j.Close()
	return h
}

// checkRotated opens what is on the disk: one live file, its archives, nothing
// half made, everything acknowledged, nothing twice but what was carried.
func (h history) checkRotated(t *testing.T, d *disk, mayBeCorrupt bool) {
	t.Helper()
	live := map[string]bool{}
	collect := func(seen map[string]bool) func(journal.Entry) error {
		return func(e journal.Entry) error {
			var b body
			if err := e.Decode(&b); err != nil {
				return err
			}
			if seen[b.Event] || !h.asked[b.Event] {
				return fmt.Errorf("%s was not asked for, or is there twice", b.Event)
			}
			seen[b.Event] = true
			return nil
		}
	}
	j, err := journal.Open(memPath, journal.Options{FS: d}, collect(live))
	if errors.Is(err, journal.ErrTornTail) {
		if _, err := journal.Repair(d, memPath, true); err != nil {
			t.Fatalf("repair: %v", err)
		}
		live = map[string]bool{}
		j, err = journal.Open(memPath, journal.Options{FS: d}, collect(live))
	}
	var corrupt *journal.CorruptError
	if errors.As(err, &corrupt) && mayBeCorrupt && corrupt.Reason != journal.ReasonRejected {
		return
	}
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	defer j.Close()
	everywhere := map[string]bool{}
	for text := range live {
		everywhere[text] = true
	}
	files := 1
	for a := j.Archive(); a != nil; files++ {
		here := map[string]bool{}
		s, err := journal.OpenSealed(d, memPath, *a)
		if err == nil {
			err = s.Walk(collect(here))
		}
		if err != nil {
			t.Fatalf("archive: %v", err)
		}
		for text := range here {
			everywhere[text] = true
			// What is live was carried.
			if strings.HasSuffix(text, ".1") == live[text] {
				t.Fatalf("%s: live is %v", text, live[text])
			}
		}
		if _, err := journal.PeekArchive(d, memPath, *a, 1); err == nil || s.Close() != nil {
			t.Fatal("an open archive is not locked")
		}
		first, err := journal.PeekArchive(d, memPath, *a, 1)
		if err != nil || len(first) != 1 {
			t.Fatalf("peek: %v", err)
		}
		if a, err = journal.Archived(first[0]); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range h.acked {
		if !everywhere[text] {
			t.Fatalf("lost an acknowledged record: %s of %v", text, everywhere)
		}
	}
	if have := len(d.names) - len(d.kept()); have != files {
		t.Fatalf("%d files, and should be %d: %v", have, files, d.names)
	}
	if _, err := j.Append(context.Background(), body{"after", 1}); err != nil {
		t.Fatalf("append after recovery: %v", err)
	}
	if _, err := j.Rotate(context.Background(), keepNothing); err != nil {
		t.Fatalf("rotate after recovery: %v", err)
	}
}

// The machine dies at every operation of a life with two rotations.
func TestCrashInRotation(t *testing.T) {
	whole := newDisk()
	if h := rotating(whole); len(h.acked) != 9 || len(whole.names) != 3 {
		t.Fatalf("without a crash: %v, %v", h.acked, whole.names)
	}
	cuts := 0
	for at := 1; at <= whole.ops; at++ {
		for mode := range keepModes {
			for seed := range uint64(6) {
				d := newDisk()
				d.crash = at
				h := rotating(d)
				h.checkRotated(t, d.restart(mode, rand.New(rand.NewPCG(seed, uint64(at)))), mode == keepHoles)
				cuts++
			}
		}
	}
	t.Logf("%d cuts at %d operations: %v", cuts, whole.ops, whole.kinds)
}

// The device fails once at every operation of it. A rotation that fails before
// the exchange leaves the old journal in use.
func TestFaultInRotation(t *testing.T) {
	whole := newDisk()
	rotating(whole)
	for at := 1; at <= whole.ops; at++ {
		d := newDisk()
		d.fail = at
		h := rotating(d)
		d.fail = 0
		h.checkRotated(t, d.restart(keepAll, rand.New(rand.NewPCG(1, 1))), false)

		d = newDisk()
		d.fail = at
		h = rotating(d)
		d.fail = 0
		h.checkRotated(t, d.restart(keepNone, rand.New(rand.NewPCG(1, 1))), false)
	}
	// Those before the exchange, in their order.
	for n, kind := range []string{"create", "write", "sync", "rename", "syncdir", "exchange"} {
		d := newDisk()
		j, err := journal.Open(memPath, journal.Options{FS: d}, nil)
		must(t, err)
		appendN(t, j, 3)
		d.fail = d.ops + 1 + n
		if _, err := j.Rotate(context.Background(), keepNothing); !errors.Is(err, errFault) || d.kinds[d.fail-1] != kind {
			t.Fatalf("%s: %v, %v", kind, d.kinds, err)
		}
		d.fail = 0
		if j.Stats().Poisoned || j.Archive() != nil || len(d.names) != 1 {
			t.Errorf("%s: %+v, left %v", kind, j.Stats(), d.names)
		}
		appendN(t, j, 1)
		rotate(t, j, keepNothing)
		if j.Archive().Records != 4 {
			t.Errorf("%s: %+v", kind, j.Archive())
		}
		j.Close()
	}
}

// At each named point a process may die: the hook fails the step there, and the
// path names one whole journal.
func TestRotationPoints(t *testing.T) {
	defer func() { crashpoint.Hook = nil }()
	for _, p := range crashpoint.Rotate {
		d := newDisk()
		j, err := journal.Open(memPath, journal.Options{FS: d}, nil)
		must(t, err)
		h := history{asked: map[string]bool{"0.0": true, "0.1": true}, acked: []string{"0.0", "0.1"}}
		for n := range 2 {
			_, err := j.Append(context.Background(), body{fmt.Sprint("0.", n), n})
			must(t, err)
		}
		crashpoint.Hook = func(scope string, at crashpoint.Point) error {
			if scope == memPath && at == p {
				d.mu.Lock()
				d.crash = max(d.ops, 1)
				d.mu.Unlock()
				return errCrashed
			}
			return nil
		}
		if _, err := j.Rotate(context.Background(), keepEven); !errors.Is(err, errCrashed) {
			t.Errorf("%s was not passed: %v", p, err)
		}
		crashpoint.Hook = nil
		for mode := range keepModes {
			for seed := range uint64(8) {
				h.checkRotated(t, d.restart(mode, rand.New(rand.NewPCG(seed, 1))), false)
			}
		}
	}
}

// Follow hands on all of a journal that is rotated under it, and says what
// happened.
func TestFollowRotated(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 2)
	seen := 0
	err := journal.Follow(t.Context(), path, func(journal.Entry) error {
		if seen++; seen == 2 {
			appendN(t, j, 3)
			rotate(t, j, keepNothing)
		}
		return nil
	})
	if code(err) != journal.CodeRotated || seen != 5 || !strings.Contains(err.Error(), "log.jsonl.000001") {
		t.Errorf("%d records, %v", seen, err)
	}
}

// The record that a rotated journal begins with is pinned, and closed: what
// claims to be one and is not exactly that refuses the journal.
func TestArchiveRecord(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{Clock: fake()})
	appendN(t, j, 1)
	rotate(t, j, keepNothing)
	j.Close()
	got, err := os.ReadFile(path)
	must(t, err)
	const want = `{"alg":"sha256/jcs","archive":{"bytes":165,` +
		`"hash":"fb074b5544fa8ef17c280e1e9b344d13e23fdc2afb7394746ec36ce12faadd6d","name":"log.jsonl.000001","records":1,"seq":1},` +
		`"hash":"e95adbaf31a70d950e5c882d379e054b41df7278aa0d06f09a2cbed0456f34bd","kind":"journal_archive","prev":null,` +
		`"schema_version":1,"seq":1,"ts":"2026-01-02T03:04:05.678Z"}` + "\n"
	if string(got) != want {
		t.Errorf("got  %swant %s", got, want)
	}
	good := map[string]any{"bytes": 100, "hash": strings.Repeat("a", 64), "name": "log.jsonl.000001", "records": 3, "seq": 3}
	for what, change := range map[string]func(whole, archive map[string]any){
		"nothing":        func(map[string]any, map[string]any) {},
		"an extra name":  func(w, _ map[string]any) { w["more"] = 1 },
		"inside":         func(_, a map[string]any) { a["more"] = 1 },
		"a path":         func(_, a map[string]any) { a["name"] = "../log.jsonl.000001" },
		"a plain name":   func(_, a map[string]any) { a["name"] = "log.jsonl" },
		"number 0":       func(_, a map[string]any) { a["name"] = "log.jsonl.000000" },
		"a short number": func(_, a map[string]any) { a["name"] = "log.jsonl.00001" },
		"only a number":  func(_, a map[string]any) { a["name"] = ".000001" },
		"seq 0":          func(_, a map[string]any) { a["seq"], a["records"] = 0, 0 },
		"counts":         func(_, a map[string]any) { a["records"] = 2 },
		"a hash":         func(_, a map[string]any) { a["hash"] = "x" },
		"no bytes":       func(_, a map[string]any) { a["bytes"] = 0 },
		"a version":      func(w, _ map[string]any) { w["schema_version"] = 2 },
	} {
		archive := maps.Clone(good)
		whole := map[string]any{"schema_version": 1, "kind": "journal_archive", "archive": archive}
		change(whole, archive)
		path := filepath.Join(dir(t), "log.jsonl")
		j := open(t, path, journal.Options{})
		_, err := j.Append(context.Background(), whole)
		must(t, err)
		must(t, j.Close())
		j, err = journal.Open(path, journal.Options{}, nil)
		if what == "nothing" {
			must(t, err)
			if j.Archive() == nil || j.Archive().Seq != 3 {
				t.Errorf("archive %+v", j.Archive())
			}
			must(t, j.Close())
			continue
		}
		var corrupt *journal.CorruptError
		if !errors.As(err, &corrupt) || corrupt.Reason != journal.ReasonRejected || corrupt.Line != 1 {
			t.Errorf("%s: %v", what, err)
		}
		if v, _ := journal.VerifyFile(path, journal.VerifyOptions{}); v.Status != journal.StatusCorrupt || v.Reason != journal.ReasonSchema {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

// While a journal is rotated, and after, it has one writer: another process finds
// it locked and removes nothing.
func TestRotationKeepsTheLock(t *testing.T) {
	path := filepath.Join(dir(t), "log.jsonl")
	j := open(t, path, journal.Options{})
	appendN(t, j, 2)
	locked := func() {
		t.Helper()
		if _, err := journal.Open(path, journal.Options{}, nil); code(err) != journal.CodeLocked {
			t.Errorf("a second writer: %v", err)
		}
	}
	rotate(t, j, func(*journal.Rotation) error {
		locked()
		if made, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(made) != 1 {
			t.Errorf("the new file is %v, %v", made, err)
		}
		return nil
	})
	locked()
	appendN(t, j, 1)
	// What carry refuses is not done.
	refused := errors.New("no")
	if _, err := j.Rotate(context.Background(), func(*journal.Rotation) error { return refused }); !errors.Is(err, refused) || j.Archive().Number() != 1 {
		t.Errorf("%v, %+v", err, j.Archive())
	}
	appendN(t, j, 1)
	must(t, j.Close())
	if _, err := j.Rotate(context.Background(), keepNothing); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// What happens to the journal behind our back while it is rotated ends the
// rotation, and nobody else's bytes are moved or lost.
func TestChangedWhileRotating(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"replaced": func(path string) error {
			return errors.Join(os.Rename(path, path+".mine"), os.WriteFile(path, []byte("theirs"), 0o600))
		},
		"removed": os.Remove,
		"longer": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteString("theirs")
			return errors.Join(err, f.Close())
		},
		"linked":      func(path string) error { return os.Link(path, path+".mine") },
		"open to all": func(path string) error { return os.Chmod(path, 0o644) }, //nolint:gosec // that is the attack
	} {
		path := filepath.Join(dir(t), "log.jsonl")
		j := open(t, path, journal.Options{})
		appendN(t, j, 2)
		_, err := j.Rotate(context.Background(), func(*journal.Rotation) error { return change(path) })
		if code(err) != journal.CodePoisoned || j.Archive() != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := j.Append(context.Background(), body{"x", 1}); code(err) != journal.CodePoisoned {
			t.Errorf("%s: it goes on: %v", what, err)
		}
		if text, _ := os.ReadFile(path); what != "removed" && (what == "replaced") != (string(text) == "theirs") {
			t.Errorf("%s: the path holds %q", what, text)
		}
		j.Close()
	}
}
