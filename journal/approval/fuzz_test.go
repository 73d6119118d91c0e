package approval

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"gloved.dev/journal"
)

func fuzzSeeds(t testing.TB) []string {
	whole := string(knownLog())
	return []string{
		"", whole, whole[:len(whole)-1], whole + "\n", strings.Replace(whole, "Álvaro", "Alvaro", 1), "[]\n", "\ufeff" + whole,
		strings.ReplaceAll(whole, "\n", "\r\n"), strings.Replace(whole, `"cli"`, `"x","channel":"cli"`, 1),
		chain(t, `{`+head+`"actor":"agent:a","event":"execution.indeterminate","task":"t","action_key":"k","payload":{"reason":"act-threw"}}`),
	}
}

func TestFuzzSeeds(t *testing.T) {
	seen := map[journal.Status]bool{}
	for _, seed := range fuzzSeeds(t) {
		seen[verify(seed).Status] = true
	}
	for _, s := range []journal.Status{journal.StatusClean, journal.StatusTorn, journal.StatusCorrupt} {
		if !seen[s] {
			t.Errorf("no seed is %s", s)
		}
	}
}

// FuzzVerify: a verdict does not depend on who reads; what is clean can be read for a decision and
// carried on, what is not cannot be appended to unless its last record stands by itself.
func FuzzVerify(f *testing.F) {
	for _, seed := range fuzzSeeds(f) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v := VerifyReader(bytes.NewReader(data), VerifyOptions{})
		s := &Snapshot{}
		err := s.fill(bytes.NewReader(data))
		if (err == nil) != (v.Status == journal.StatusClean) {
			t.Fatalf("verify says %s, reading %v", v.Status, err)
		}
		if v.Status != journal.StatusClean {
			return
		}
		if uint64(len(s.Records)) != v.Records {
			t.Fatalf("%d records, verified %d", len(s.Records), v.Records)
		}
		path := filepath.Join(t.TempDir(), "events.jsonl")
		write(t, path, string(data))
		l := Open(path, Options{})
		r, err := l.Append(context.Background(), &s.Head, granted("k"))
		if err != nil || r.Seq != v.Records+1 {
			t.Fatalf("a clean log cannot be carried on: %v", err)
		}
		if again, err := l.Read(); err != nil || again.Head != r.Head() {
			t.Fatalf("what was appended does not read back: %v", err)
		}
	})
}
